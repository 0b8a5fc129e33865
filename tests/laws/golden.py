"""Recorded outcomes of every method: what a change of the code's form must not change.

`golden.json` holds, for every case, what must be equal on every machine (bytes, failures, clusters, the form of the
state) and sums of the state's numbers, which are equal to rounding. Runs are in float64, so that rounding stays small.
It also holds the exact digest on the kind of machine that recorded it; that part is compared on such machines alone.
`golden_deployed.json` holds the same of runs between real processes.

    python -m tests.laws.golden     records all simulated cases again (a change of results must be meant)
    python -m tests.laws.golden add     adds the bits of this kind of machine to cases that are as recorded
    COTERIE_RECORD=1 pytest -n 1 tests/deploy/test_flower.py tests/deploy/test_peer_faults.py     the deployed ones
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie import Result, run
from coterie.core import wire
from coterie.core.states import State
from coterie.kernel import why_not
from coterie.methods import METHODS
from coterie.runs.records import RESULT_FILE
from coterie.simulation.simulator import EngineOptions

from ..tiny import fingerprint, made, small_net, tiny_digits

SIMULATED, DEPLOYED = (Path(__file__).with_name(name) for name in ("golden.json", "golden_deployed.json"))
RELATIVE = 1e-4
"""Initial weights are drawn in float32, whose last bit differs between CPUs; a few rounds make more of it."""
LOOSE = {"autoencoder/": 0.05, "bits/": 0.05, "centroids/": 0.05, "heights": 0.05}
"""Adam's first steps have the gradients' signs, which a last bit can turn: some entries are compared loosely."""


def simulate(name: str) -> Result:
    """The recorded run of a method."""
    engine = EngineOptions(workers=1)
    whole = {"encoder_rounds": 10, "encoder_steps": 60} if name == "embedding" else {}
    method = made(name, finetune_epochs=5, **whole)
    return run(method, tiny_digits(), small_net, rounds=3, seed=21, dtype=torch.float64, engine=engine)


def summary(result: Result) -> dict[str, Any]:
    """What is recorded of a run."""
    skeleton, tensors = wire.pack(result.state)
    plain, numbers = _parted(skeleton)
    return {
        "bytes": [result.bytes_down, result.bytes_up, result.bytes_evaluation],
        "failures": result.failures,
        "clusters": result.clusters,
        "accuracy": result.per_client_accuracy,
        "models": sorted(result.models),
        "form": {path: [str(tensor.dtype), *tensor.shape] for path, tensor in sorted(tensors.items())},
        "plain": sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16],
        "sums": {path: _sums(tensor) for path, tensor in sorted(tensors.items())} | {"plain numbers": numbers},
        "exact": {_machine(): _digest(result)},
    }


def differences(case: str, result: Result) -> list[str]:
    """What differs from the record, one line each; nothing where it is to be recorded again."""
    if os.environ.get("COTERIE_RECORD"):
        record({case: result})
    recorded, found = _known(case)[case], json.loads(json.dumps(summary(result)))
    lines = [
        f"{key}: {recorded[key]} became {found[key]}"
        for key in recorded
        if key not in ("sums", "exact") and recorded[key] != found[key]
    ]
    for path, numbers in found["sums"].items():
        before = recorded["sums"].get(path, [])
        if len(before) != len(numbers) or not all(_close(path, *pair) for pair in zip(before, numbers, strict=True)):
            lines.append(f"{path}: {before} became {numbers}")
    for machine, digest in found["exact"].items():
        if recorded["exact"].get(machine, digest) != digest:
            lines.append(f"the bits differ on {machine}")
    return lines


def of_folder(folder: Path) -> Result:
    """The result of a network of peers as its folder has it; its state are the peers' models."""
    files = {file.stem: file for file in sorted(folder.rglob("models/*.safetensors"))}
    models = {name: wire.decode(file.read_bytes(), State) for name, file in files.items()}
    return Result(**json.loads((folder / RESULT_FILE).read_text()), models=models, state=models)


def record(cases: Mapping[str, Result]) -> None:
    """Write cases down."""
    for case, result in cases.items():
        known = {**_known(case), case: summary(result)}
        _file(case).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _file(case: str) -> Path:
    return SIMULATED if case.startswith("simulated") else DEPLOYED


def _known(case: str) -> dict[str, Any]:
    file = _file(case)
    known: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return known


def _sums(tensor: Tensor) -> list[float]:
    """Numbers that change when any entry does: the sum, the norm, and a sum weighted by position."""
    numbers = tensor.double().flatten().nan_to_num(nan=7.0, posinf=11.0, neginf=-11.0)
    place = torch.arange(1, numbers.numel() + 1, dtype=torch.float64).sqrt()
    return [float(numbers.sum()), float(numbers.norm()), float(numbers @ place)]


def _close(path: str, before: float, now: float) -> bool:
    allowed = next((loose for start, loose in LOOSE.items() if path.startswith(start)), RELATIVE)
    return abs(before - now) <= allowed * (1 + abs(before))


def _parted(skeleton: Any) -> tuple[Any, list[float]]:
    """A state's plain values without its fractions, and these fractions in order."""
    if isinstance(skeleton, float):
        return "a number", [skeleton]
    if isinstance(skeleton, dict):
        parts = {key: _parted(part) for key, part in sorted(skeleton.items())}
        return {key: part for key, (part, _) in parts.items()}, [x for _, found in parts.values() for x in found]
    if isinstance(skeleton, list):
        each = [_parted(part) for part in skeleton]
        return [part for part, _ in each], [x for _, found in each for x in found]
    return skeleton, []


def _digest(result: Result) -> str:
    whole = fingerprint(result)
    parts = [whole["state"], *(whole["models"][name] for name in sorted(whole["models"]))]
    return sha256(b"".join(parts)).hexdigest()[:16]


@lru_cache
def _machine() -> str:
    """The kind of machine, as far as sums depend on it.

    Libraries choose how they add by the CPU's maker and model, not by its instructions alone: so the kind is told by
    the bits of some sums.
    """
    kernel = "kernel" if why_not() is None else "no kernel"
    version, instructions = torch.__version__.partition("+")[0], torch.backends.cpu.get_cpu_capability()
    return f"torch {version}, {instructions}, {kernel}, sums {_some_sums()}"


def _some_sums() -> str:
    """A digest of products, convolutions and functions of the sizes that the recorded runs have."""
    threads, found = torch.get_num_threads(), sha256()
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float64):
        numbers = (torch.arange(1, 20_001) % 997).to(dtype) / 997 - 0.5
        for rows, inner, columns in ((5, 64, 24), (8, 64, 32), (24, 8, 64), (40, 300, 10), (64, 200, 64)):
            left, right = numbers[: rows * inner].view(rows, inner), numbers[-inner * columns :].view(inner, columns)
            for product in (left @ right, torch.baddbmm(left.sum() + right[:1], left[None], right[None])):
                found.update(product.numpy().tobytes())
        image, filters = numbers[:2_048].view(4, 2, 16, 16), numbers[-450:].view(9, 2, 5, 5)
        for each in (
            torch.conv2d(image, filters),
            numbers.exp(),
            numbers.tanh(),
            numbers.view(200, 100).log_softmax(1),
        ):
            found.update(each.numpy().tobytes())
    torch.set_num_threads(threads)
    return found.hexdigest()[:8]


def add_this_machine(cases: Mapping[str, Result]) -> None:
    """Write down the digests of this kind of machine beside the others', of cases that are as recorded."""
    for case, result in cases.items():
        assert not differences(case, result), case
        known = _known(case)
        known[case]["exact"][_machine()] = _digest(result)
        _file(case).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write = add_this_machine if sys.argv[1:] == ["add"] else record
    write({f"simulated {name}": simulate(name) for name in METHODS})
