"""Saved models: what a run leaves in `models` is the whole model, and only models that a client uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import coterie
from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.core.states import State
from coterie.data.own import OwnPopulation
from coterie.runs.saved import encode_model
from tests.tiny import made, small_net


def pictures() -> OwnPopulation:
    """Bytes far from zero: without their normalisation a network sees other numbers than it was trained on."""
    g = np.random.default_rng(0)
    clients = {}
    for client in ("a", "b", "c"):
        y = np.arange(80) % 4
        x = g.integers(100, 140, size=(80, 1, 8, 8))
        x[np.arange(80), 0, 2 * y, 2 * y] += 100
        clients[client] = (x.astype(np.uint8), y)
    return coterie.from_arrays(clients)


def test_a_reloaded_model_gives_the_accuracy_of_the_run(tmp_path: Path) -> None:
    population = pictures()
    method = coterie.method("fedavg", lr=0.05)
    result = coterie.run(method, population, small_net, rounds=3, out=tmp_path / "run")
    assert result.accuracy > 0.9
    file = tmp_path / "run" / "models" / "global.safetensors"
    model = coterie.load_model(file, small_net)
    shares = []
    for client in population.ids:
        test = population.client(client).test
        shares.append(float((model(test.x).argmax(1) == test.y).float().mean()))
    assert sum(shares) / len(shares) == pytest.approx(result.accuracy)
    assert model.normalise == population.normalise
    assert not model.training
    weights = safetensors.torch.load_file(file)
    assert weights.keys() == small_net().state_dict().keys(), "a plain safetensors file for everybody else"
    assert wire.decode(file.read_bytes(), State).keys() == weights.keys()


def test_the_bytes_of_a_model_are_always_the_same() -> None:
    state = {"w": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.float64)}
    normalise = Normalise((0.1, 0.2), (0.3, 0.4), 1 / 255)
    first = encode_model(state, normalise)
    assert all(encode_model(state, normalise) == first for _ in range(20))
    assert all(torch.equal(tensor, state[name]) for name, tensor in wire.decode(first, State).items())


def test_a_model_of_old_is_still_read(tmp_path: Path) -> None:
    file = tmp_path / "old.safetensors"
    state = {name: tensor + 1 for name, tensor in small_net().state_dict().items()}
    file.write_bytes(wire.encode(state))
    with pytest.warns(UserWarning, match="does not say how its inputs are normalised"):
        model = coterie.load_model(file, small_net)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.network.state_dict().items())


def test_what_is_no_such_model_is_said_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "global.safetensors"
    with pytest.raises(CoterieError, match=r"Cannot read the model .*No such file"):
        coterie.load_model(file, small_net)
    file.write_bytes(b"nothing")
    with pytest.raises(CoterieError, match="is not a model that coterie saved"):
        coterie.load_model(file, small_net)
    file.write_bytes(encode_model({"other": torch.zeros(1)}, Normalise()))
    with pytest.raises(CoterieError, match=r"of another network: they differ in 1\.bias, 1\.weight, 3\.bias, \.\.\."):
        coterie.load_model(file, small_net)
    with pytest.raises(CoterieError, match=r"must be a torch\.nn\.Module"):
        coterie.load_model(file, lambda: 3)  # type: ignore[arg-type, return-value]


def test_models_that_nobody_uses_are_not_saved(digits: OwnPopulation, tmp_path: Path) -> None:
    """With seed 0 all of the nine clients come to choose fewer than six of the six models of IFCA."""
    result = coterie.run(made("ifca", k=6), digits, small_net, rounds=4, out=tmp_path / "run")
    assert result.clusters is not None
    used = set(result.clusters) | set(result.state.cluster.values())
    assert len(used) < 6
    names = {f"cluster-{k}" for k in used}
    assert set(result.models) == names
    assert {file.stem for file in (tmp_path / "run" / "models").iterdir()} == names
    assert json.loads((tmp_path / "run" / "result.json").read_text())["n_clusters"] == len(set(result.clusters))
