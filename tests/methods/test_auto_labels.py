"""auto where labels are skewed: whether clients adapt to their labels depends on what they will be asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.data import build, from_arrays
from coterie.methods import METHODS
from coterie.methods.auto.groups import lacking
from coterie.methods.auto.messages import Groups, Known, Look
from coterie.simulation.simulator import EngineOptions

from ..tiny import small_net


def skewed(**options: str) -> object:
    """Twelve clients with 40 digits of two or three classes each; the tests are a part of these."""
    whole = build("rotated-digits", seed=3, clients=1, samples=1200, test_samples=20, groups=1).client("0").train
    generator = np.random.default_rng(0)
    clients = {}
    for number in range(12):
        held = generator.choice(10, 3, replace=False)
        shares = np.isin(whole.y.numpy(), held) * generator.random(len(whole))
        rows = torch.from_numpy(np.sort(np.argsort(-shares)[:40]))
        clients[f"c{number:02d}"] = (whole.x[rows], whole.y[rows])
    return from_arrays(clients, **options)  # type: ignore[arg-type]


def test_clients_adapt_to_labels_that_they_will_be_asked_for() -> None:
    """Own data keep a part for testing: with three labels of ten each, the fine-tuned model is far better there."""
    options = {"rounds": 16, "seed": 1, "engine": EngineOptions(workers=1)}
    method = METHODS["auto"](lr=0.1)
    own, every = (run(method, skewed(tests=name), small_net, **options) for name in ("auto", "all"))  # type: ignore[arg-type]
    assert own.accuracy > every.accuracy + 0.02
    assert own.n_clusters == every.n_clusters == 1


def test_who_lacks_labels_is_asked_only_where_all_labels_are() -> None:
    few, all_ = torch.tensor([[5.0, 0.0], [5.0, 0.0]]), torch.tensor([[5.0, 5.0], [5.0, 5.0]])
    looks = {name: Look(torch.zeros(2, 2, 1, 4), counts) for name, counts in (("a", few), ("b", all_), ("c", all_))}
    known = {name: Known(1, 10.0, 1.0) for name in looks}
    state = Groups({}, {}, dict.fromkeys(looks, 0), known, looks, {}, {})
    models = {"w": torch.zeros(1, 1)}
    state = replace(state, models=models)
    assert lacking(state, 2) == {"a"}
    assert lacking(replace(state, all_labels=False), 2) == set()


def test_what_a_population_says_of_its_tests() -> None:
    x = np.zeros((4, 2), np.float32)
    pair, strange = (x, np.array([0, 1, 0, 1])), (x, np.array([0, 0, 0, 0]), x, np.array([0, 0, 1, 1]))
    assert from_arrays({"a": pair}).tests_alike
    assert from_arrays({"a": (*pair, *pair)}).tests_alike
    assert not from_arrays({"a": strange, "b": pair}).tests_alike  # half of its tests: the others' are split off
    assert from_arrays({"a": strange}, tests="own").tests_alike
    assert not from_arrays({"a": pair}, tests="all").tests_alike
    assert not Task.of(lambda: torch.nn.Linear(2, 2), from_arrays({"a": pair}, tests="all")).tests_alike
    assert not build("rotated-digits", seed=0, clients=4, alpha=0.5, partition="dirichlet").tests_alike
    with pytest.raises(CoterieError, match="value of tests"):
        from_arrays({"a": pair}, tests="some")  # type: ignore[arg-type]
