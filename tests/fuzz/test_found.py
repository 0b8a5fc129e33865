"""What the mutated cases have found, each by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure, Purpose
from coterie.core.samples import Normalise
from coterie.core.terminal import shortly, shown
from coterie.data.folders import from_path
from coterie.data.own import OwnPopulation, from_arrays
from coterie.deploy.boundary import checked
from coterie.deploy.client import Device
from coterie.deploy.protocol import Order, Returned, RunSpec, to_text
from coterie.methods import METHODS
from coterie.methods.base import ServerMethod
from coterie.runs.config import from_tables, read_tables
from coterie.runs.folder import RunFolder
from coterie.runs.health import Health
from coterie.runs.saved import encode_model, load_model

from ..deploy.wiring import Here, devices, federation, poisoned, run_spec
from ..tiny import made, small_net
from .doors import Payload, bare_swarm

DEEP = "[" * 20_000 + "]" * 20_000


class Asked(Here):
    """Clients in this process, and what they were asked."""

    actions: set[str]

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[str, bytes], **_: int
    ) -> dict[str, Returned | Failure]:
        self.actions = {*getattr(self, "actions", ()), order.action}
        return super().deliver(purpose, order, payloads)


def one_lies(population: OwnPopulation, folder: Path, clients: int, lie: Any) -> Here:
    """The first of so many clients changes some tensors of what it answers."""
    names = population.ids[:clients]

    def tamper(client: str, data: bytes) -> bytes:
        return poisoned(data, lie) if client == names[0] else data

    return Here({name: device for name, device in devices(population, folder).items() if name in names}, tamper)


def test_no_cluster_is_no_cluster_to_train_in(digits: OwnPopulation, tmp_path: Path) -> None:
    """-1 is fine in an assessment and no index of a model: one of three clients ended a run of IFCA with it."""
    there = one_lies(digits, tmp_path, 3, lambda name, t: torch.full_like(t, -1) if name == "cluster" else t)
    fed = federation(made("ifca", k=2), digits, there)
    learnt = made("ifca", k=2)
    learnt.step(learnt.init(fed), fed)
    assert [(client, failure.kind) for _, client, failure in fed.failures] == [(digits.ids[0], "wrong shape")]


@pytest.mark.parametrize("shape", [(0,), (3,), (0, 4)])
@pytest.mark.parametrize("method", ["fedavg", "ifca", "ladd", "embedding"])
def test_of_two_forms_the_one_that_the_method_itself_has_is_right(
    method: str, shape: tuple[int, ...], digits: OwnPopulation, tmp_path: Path
) -> None:
    """An empty `size` is shorter than a number, so of two clients the liar was believed, and the step failed."""
    there = one_lies(digits, tmp_path, 2, lambda name, t: t.new_zeros(shape) if name == "size" else t)
    learnt = made(method, **({"k": 2} if method == "ifca" else {}))
    fed = federation(learnt, digits, there)
    learnt.step(learnt.init(fed), fed)
    assert {client for _, client, _ in fed.failures} == {digits.ids[0]}


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if issubclass(kind, ServerMethod)])
def test_an_imagined_reply_has_the_form_of_a_real_one(method: str, digits: OwnPopulation, tmp_path: Path) -> None:
    """For every question of a round of every method, or the right client would be refused."""
    if method == "oracle":
        pytest.skip("the truth is not known to real clients")
    learnt = made(method, **({"k": 1} if method in ("ifca", "fedsem", "fedsoft", "md-icfl") else {}))
    there = Asked({name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:2]})
    fed = federation(learnt, digits, there)
    state, _ = learnt.step(learnt.init(fed), fed)
    learnt.assess(state, fed, fed.ids)
    assert fed.failures == []
    assert {about.partition(" ")[0] for about in fed._forms} == there.actions  # two clients alone decide nothing


def test_a_newcomer_that_is_asked_alone_answers_as_the_others_did(digits: OwnPopulation, tmp_path: Path) -> None:
    there = Here({name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:4]})
    learnt, newcomer = made("embedding"), digits.ids[3]
    there.absent = {newcomer}
    fed = federation(learnt, digits, there)
    state, _ = learnt.step(learnt.init(fed), fed)
    there.absent = set()
    there.tamper = lambda client, data: poisoned(data, lambda _, t: t.new_zeros(2)) if client == newcomer else data
    learnt.admit(state, fed, fed.begin(1))
    assert {client for _, client, _ in fed.failures} == {newcomer}


def test_a_run_spec_has_a_mean_for_every_channel() -> None:
    """A peer that came later ended in its first batch when another had told it seven means for one channel."""
    spec = RunSpec("run", "fedavg", "{}", "digits-mlp", (1, 8, 8), 10, Normalise(), "float64", 1)
    assert checked(RunSpec, to_text(spec)) == spec
    with pytest.raises(wire.WireError, match="have 1 channels, not 7"):
        checked(RunSpec, to_text(replace(spec, normalise=Normalise((0.0,) * 7, (1.0,) * 7))))
    for settings in ("[]", "x", "true", DEEP[:39_000]):
        with pytest.raises(CoterieError):
            replace(spec, settings=settings).build_method()


@pytest.mark.parametrize(
    ("method", "setting"),
    [("fedavg", "epochs"), ("embedding", "encoder_epochs"), ("md-icfl", "generator_steps"), ("fedcg", "features")],
)
def test_a_server_cannot_order_work_without_end(
    method: str, setting: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """10^9 epochs would take years, and the order of the samples alone gigabytes."""
    name = digits.ids[0]
    spec = run_spec(made(method, **{setting: 10**9}), digits)
    order = to_text(Order(spec, "judge", "aa", 0, 1, 0, True))
    with pytest.raises(CoterieError, match=f"The run sets {setting} = 1000000000, more than the"):
        Device(name, digits, tmp_path).perform(order, wire.encode({"models": {}}))
    more = replace(spec, method="fedavg", settings=json.dumps({"epochs": 2000}))
    with pytest.raises(CoterieError, match="--most-epochs 2000"):
        Device(name, digits, tmp_path)._understood(more)
    setting_of_2000: Any = Device(name, digits, tmp_path, most_epochs=2000)._understood(more).method
    assert setting_of_2000.epochs == 2000


@pytest.mark.parametrize(
    "line",
    ["rounds = " + "9" * 5000, f"rounds = {DEEP}", "rounds = 0x" + "f" * 5000, "seed = " + "9" * 4000,
     "dtype = 0x" + "f" * 5000, "scenario = 0x" + "f" * 5000, "track = [0x" + "f" * 5000 + "]"],
)  # fmt: skip
def test_a_configuration_of_endless_numbers_or_lists_is_refused_in_a_sentence(line: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'method = "fedavg"\n{line}\n')
    with pytest.raises(CoterieError) as caught:
        from_tables(read_tables(tmp_path / "run.toml"))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("change", [f'"seconds": {DEEP}', '"seconds": ' + "9" * 400, '"down": {"train": null}'])
def test_a_checkpoint_that_no_digest_protects_is_refused_in_a_sentence(change: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "")
    folder.checkpoint.save(
        method="m", state={"x": torch.ones(1)}, next_round=3, seconds=1.5, failures=2, health=Health(valid=1),
        ledger=({"train": 5}, {}), memory={}, touched=[],
    )  # fmt: skip
    latest = tmp_path / "run" / "checkpoint" / "latest.json"
    old = json.loads(latest.read_text())
    del old["digest"]
    latest.write_text(json.dumps(old)[:-1] + f", {change}}}")
    with pytest.raises(CoterieError, match="cannot be read"):
        folder.checkpoint.load("m", dict[str, Tensor])


@pytest.mark.parametrize(
    "user",
    [
        f'{{"x": {DEEP}, "y": [0]}}',
        f'{{"x": [[{10**400}]], "y": [0]}}',
        f'{{"x": [[1, 2]], "y": [{10**30}]}}',
        '{"x": [], "y": []}',
        '{"x": [[]], "y": [0]}',
    ],
)
def test_a_leaf_file_of_odd_numbers_is_refused_in_a_sentence(user: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(f'{{"users": ["a"], "num_samples": [1], "user_data": {{"a": {user}}}}}')
    with pytest.raises(CoterieError):
        from_path(tmp_path)


@pytest.mark.parametrize("shape", [(6, 0), (6, 0, 8, 8), (6, 1, 0, 8)])
def test_inputs_without_numbers_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CoterieError, match="which hold no numbers"):
        from_arrays({"a": (np.zeros(shape, np.uint8), np.arange(6) % 2)})


def test_a_saved_model_with_a_spoilt_normalisation_is_refused(tmp_path: Path) -> None:
    whole = encode_model(small_net().state_dict(), Normalise())
    file = tmp_path / "model.safetensors"
    for spoilt in (b"[0.1,", b"[]   ", b"3    "):
        file.write_bytes(whole.replace(b"[0.0]", spoilt.ljust(5)))
        with pytest.raises(CoterieError, match="does not say properly"):
            load_model(file, small_net)


def test_no_error_quotes_a_whole_message() -> None:
    assert len(str(wire.WireError("x" * 10**6))) < 1000
    assert shown(10**5000) == "a int that is too long to show" == shortly(10**5000)


def test_what_a_stranger_says_is_not_held_unless_it_is_short() -> None:
    """With certificates, progress waits for an introduction, with its signature: 10,000 names of 512 MB each."""
    pytest.importorskip("zenoh")
    session = bare_swarm().session
    session.met = SimpleNamespace()
    session.presence.claim("b")
    for length, held in ((2000, None), (72, (b"3;17", b"s" * 72))):
        said = SimpleNamespace(key_expr="n/progress/b", payload=Payload(b"3;17"), attachment=Payload(b"s" * length))
        session._on_progress(said)
        assert session.presence.held("b") == held
    with pytest.raises(CoterieError, match="more than the 10 allowed"):
        session._believed("b", "x", SimpleNamespace(payload=Payload(b"x" * 11)), 10, True)
