"""A client's model as a file that runs without coterie: it answers as the run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.runs.exported import PlainModel, export

from ..tiny import batchnorm_net, made, small_net

onnxruntime = pytest.importorskip("onnxruntime")


def answers(file: Path, kind: str, x: Tensor) -> Tensor:
    if kind == "torchscript":
        return torch.jit.load(file)(x.float())  # type: ignore[no-any-return]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.float().numpy()})[0])


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
@pytest.mark.parametrize(("name", "net"), [("fedavg", small_net), ("fedbn", batchnorm_net), ("fedcg", small_net)])
def test_an_exported_model_answers_as_the_run_does(
    name: str, net: Any, kind: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """Raw inputs go in, as bytes they were; the batch is of another size than any that was tried at the export."""
    coterie.run(made(name), digits, net, rounds=1, out=tmp_path / "run")
    run = coterie.load(tmp_path / "run", model=net)
    export(run.model("c2"), run.schema, kind, tmp_path / "model")
    x = digits.client("c2").test.x
    found = answers(tmp_path / "model", kind, x)
    assert torch.allclose(found, run.model("c2")(x), atol=1e-4)
    assert (found.argmax(1).numpy() == run.predict("c2", x)).all()


def test_a_state_dict_has_the_normalisation_inside(digits: OwnPopulation, tmp_path: Path) -> None:
    coterie.run(made("fedavg"), digits, small_net, rounds=1, out=tmp_path / "run")
    run = coterie.load(tmp_path / "run", model=small_net)
    export(run.model("c2"), run.schema, "state_dict", tmp_path / "model.pt")
    held = torch.load(tmp_path / "model.pt", weights_only=True)
    network = small_net()
    network.load_state_dict({n.removeprefix("network."): t for n, t in held.items() if n.startswith("network.")})
    x = digits.client("c2").test.x
    answer = network(x.float() * held["factor"] + held["shift"])
    assert torch.allclose(answer, run.model("c2")(x), atol=1e-5)


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_numbers_come_out_in_the_users_units(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    population = coterie.from_arrays({"a": (x, 1e4 + 100.0 * x[:, 0]), "b": (x, 1e4 + 100.0 * x[:, 0])})
    coterie.run(coterie.method("fedavg", lr=0.1), population, lambda: nn.Linear(2, 1), rounds=3, out=tmp_path / "run")
    run = coterie.load(tmp_path / "run", model=lambda: nn.Linear(2, 1))
    export(run.model("a"), run.schema, kind, tmp_path / "model")
    assert answers(tmp_path / "model", kind, torch.from_numpy(x))[:, 0].numpy() == pytest.approx(
        run.predict("a", x), 1e-4
    )


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_tokens_go_in_as_they_are(kind: str, tmp_path: Path) -> None:
    def reader() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))

    x = np.random.default_rng(0).integers(0, 9, (30, 3))
    clients = {name: (x, (x[:, 0] > 4).astype(int)) for name in "ab"}
    population = coterie.from_arrays(clients, layout="tokens")
    coterie.run(coterie.method("fedavg", lr=0.1), population, reader, rounds=2, out=tmp_path / "run")
    run = coterie.load(tmp_path / "run", model=reader)
    export(run.model("a"), run.schema, kind, tmp_path / "model")
    tokens = torch.from_numpy(x)
    if kind == "torchscript":
        found = torch.jit.load(tmp_path / "model")(tokens)
    else:
        session = onnxruntime.InferenceSession(str(tmp_path / "model"), providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"x": x})[0])
    assert torch.allclose(found, run.model("a")(tokens), atol=1e-5)


class OfItsBatch(nn.Module):
    """What it answers depends on how many samples it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x) * len(x)
        return answer


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_a_recording_that_answers_otherwise_is_refused(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    population = coterie.from_arrays({"a": (x, (x[:, 0] > 0).astype(int)), "b": (x, (x[:, 0] > 0).astype(int))})
    coterie.run("fedavg", population, OfItsBatch, rounds=1, out=tmp_path / "run")
    run = coterie.load(tmp_path / "run", model=OfItsBatch)
    with pytest.raises(CoterieError, match="export it as state_dict"):
        export(run.model("a"), run.schema, kind, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_plain_model_is_the_ready_one(digits: OwnPopulation, tmp_path: Path) -> None:
    coterie.run(made("fedavg"), digits, small_net, rounds=1, out=tmp_path / "run")
    ready = coterie.load(tmp_path / "run", model=small_net).model("c0")
    x = digits.client("c0").test.x
    assert torch.allclose(PlainModel(ready, 4, tokens=False)(x), ready(x), atol=1e-5)
