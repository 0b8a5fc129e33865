"""Networks that read tokens step by step: the kernel trains and judges them as torch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from coterie.core.cohort import Cohort
from coterie.core.compiled import Refusal
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import stack
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.kernel import plan
from coterie.kernel.library import Library
from coterie.models.sequences import NextTokenLSTM, NextTokenTransformer
from tests.kernel.reference import LIBRARIES, assert_trains_alike, flat, needs_kernel, planned

pytestmark = needs_kernel
_TOKENS, _STEPS = 11, 6


class _Net(nn.Module):
    """An embedding, an LSTM with these options, and a linear layer; `body` is its forward."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor] | None = None, **options: Any) -> None:
        super().__init__()
        given = {"input_size": 5, "hidden_size": 7, "batch_first": True, **options}
        self.lstm = nn.LSTM(**given)
        self.embedding = nn.Embedding(_TOKENS, given["input_size"])
        self.last = nn.Linear(given.get("proj_size") or given["hidden_size"] * (1 + self.lstm.bidirectional), 4)
        self.body = body or (lambda m, x: m.last(m.lstm(m.embedding(x.long()))[0][:, -1]))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.body(self, x)


class _Encoder(nn.Module):
    """An embedding, one block with these options, and a linear layer; `body` is its forward."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor] | None = None, **options: Any) -> None:
        super().__init__()
        given = {
            "d_model": 6,
            "nhead": 2,
            "dim_feedforward": 11,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": True,
        }
        self.last = nn.Linear(6, 4)
        self.block = nn.TransformerEncoderLayer(**(given | options))
        self.embedding = nn.Embedding(_TOKENS, 6)
        self.position = nn.Parameter(torch.randn(_STEPS, 6))
        self.body = body or (lambda m, x: m.last(m.block(m.position + m.embedding(x.long()))[:, -1]))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.body(self, x)


class _Twice(nn.Module):
    """Two blocks, as they are written without an encoder, and no positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, 20)
        self.one, self.two = (
            nn.TransformerEncoderLayer(20, heads, 33, 0.0, layer_norm_eps=0.1, batch_first=True, norm_first=True)
            for heads in (1, 5)
        )
        self.last = nn.Sequential(nn.Linear(20, 3), nn.Tanh(), nn.Linear(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.last(self.two(self.one(self.embedding(x.long())))[:, -1, :])
        return found


def _tokens(samples: int, steps: int = _STEPS) -> Tensor:
    g = torch.Generator().manual_seed(samples)
    return torch.randint(0, _TOKENS, (samples, steps), generator=g).double()


def _last_state(m: Any, x: Tensor) -> Tensor:
    _, (hidden, _) = m.lstm(m.embedding(x.long()))
    return m.last(hidden[-1])  # type: ignore[no-any-return]


def _unpacked(m: Any, x: Tensor) -> Tensor:
    out, _ = m.lstm(m.embedding(x.int()))
    return m.last(torch.relu(m.last.weight.new_ones(1) * out[:, -1, :]))  # type: ignore[no-any-return]


TAKEN: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: _Net(),
    "whole vectors": lambda: _Net(input_size=16, hidden_size=32),
    "more units than a panel": lambda: _Net(input_size=3, hidden_size=37),
    "three layers without biases": lambda: _Net(num_layers=3, bias=False),
    "a single unit": lambda: _Net(input_size=1, hidden_size=1, num_layers=2),
    "the last state": lambda: _Net(_last_state, num_layers=2),
    "LEAF's, narrower": lambda: NextTokenLSTM(_TOKENS, 8, 20, 2, narrow=False),
    "TensorFlow Federated's, narrower": lambda: NextTokenLSTM(_TOKENS, 9, 33, 1, narrow=True),
    "transformer": lambda: NextTokenTransformer(_TOKENS, _STEPS, 12),
    "transformer, whole vectors": lambda: NextTokenTransformer(_TOKENS, _STEPS, 32),
    "one block": lambda: _Encoder(),
    "two blocks without positions": _Twice,
}


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.file.stem)
@pytest.mark.parametrize("name", TAKEN)
def test_training_equals_torch(name: str, library: Library) -> None:
    torch.manual_seed(0)
    module = TAKEN[name]().double()
    for samples, batch in ((33, 14), (5, 5), (2, 1)):
        assert_trains_alike(library, module, _tokens(samples), batch)


@pytest.mark.parametrize("steps", [1, 2, 17])
def test_sequences_of_other_lengths(steps: int) -> None:
    torch.manual_seed(1)
    module = _Net(num_layers=2).double()
    assert_trains_alike(LIBRARIES[0], module, _tokens(9, steps), 4)


REFUSED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "bidirectional": ("lstm (LSTM) is bidirectional", lambda: _Net(bidirectional=True)),
    "projected": ("has a proj_size", lambda: _Net(proj_size=3)),
    "dropout between layers": ("drops values between its layers", lambda: _Net(num_layers=2, dropout=0.3)),
    "steps first": ("batch_first is not set", lambda: _Net(batch_first=False)),
    "states of its own": (
        "called with more than its input",
        lambda: _Net(lambda m, x: m.last(m.lstm(m.embedding(x.long()), (x, x))[0][:, -1])),
    ),
    "packed": (
        "",
        lambda: _Net(
            lambda m, x: m.last(
                m.lstm(pack_padded_sequence(m.embedding(x.long()), torch.tensor([6, 6]), batch_first=True))[1][0][-1]
            )
        ),
    ),
    "the first step": ("another part", lambda: _Net(lambda m, x: m.last(m.lstm(m.embedding(x.long()))[0][:, 0]))),
    "the cells": ("another part", lambda: _Net(lambda m, x: m.last(m.lstm(m.embedding(x.long()))[1][1][-1]))),
    "a mean of all steps": ("mean", lambda: _Net(lambda m, x: m.last(m.lstm(m.embedding(x.long()))[0].mean(1)))),
    "every step": ("behind a sequence", lambda: _Net(lambda m, x: m.last(m.lstm(m.embedding(x.long()))[0])[:, -1])),
    "an unknown factor": ("outside a layer", lambda: _Net(_unpacked)),
    "a GRU": ("GRU", lambda: _Net(lambda m, x: m.last(m.gru(m.embedding(x.long()))[0][:, -1]))),
    "numbers": ("LSTM", lambda: _Net(lambda m, x: m.last(m.lstm(x)[0][:, -1]), input_size=_STEPS)),
    "padding": ("padding_idx", lambda: _padded()),
    "norms last": ("norm_first is not set", lambda: _Encoder(norm_first=False)),
    "gelu": ("another activation than relu", lambda: _Encoder(activation="gelu")),
    "dropout in a block": ("block (TransformerEncoderLayer) drops values", lambda: _Encoder(dropout=0.1)),
    "steps first in a block": ("batch_first is not set", lambda: _Encoder(batch_first=False)),
    "blocks without biases": ("has no biases", lambda: _Encoder(bias=False)),
    "positions alone": (
        "another part",
        lambda: _Encoder(lambda m, x: m.last((m.embedding(x.long()) + m.position)[:, -1])),
    ),
    "positions twice": (
        "what are not rows of an embedding",
        lambda: _Encoder(lambda m, x: m.last(m.block(m.embedding(x.long()) + m.position + m.position)[:, -1])),
    ),
    "one position for all": (
        "of shape (4,) is added",
        lambda: _Encoder(lambda m, x: m.last(m.block(m.embedding(x.long()) + m.last.bias)[:, -1])),
    ),
    "a mask": (
        "called with more than its input",
        lambda: _Encoder(lambda m, x: m.last(m.block(m.embedding(x.long()) + m.position, is_causal=True)[:, -1])),
    ),
}


def _padded() -> nn.Module:
    net = _Net()
    net.embedding = nn.Embedding(_TOKENS, 5, padding_idx=0)
    return net


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_with_the_reason(name: str) -> None:
    reason, build = REFUSED[name]
    module = build()
    if name == "a GRU":
        module.gru = nn.GRU(5, 7, batch_first=True)
    found = plan(module, (_STEPS,))
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_tokens_as_they_come_need_not_be_cut() -> None:
    module = _Net(lambda m, x: m.last(m.lstm(m.embedding(x))[0][:, -1])).double()
    net, x = planned(module, (_STEPS,)), _tokens(3)
    expected = module(x.long())
    assert torch.allclose(net.logits(flat(module)[None], x)[0], expected, rtol=0, atol=1e-12)


def test_clients_of_different_sizes_whatever_the_type_of_their_tokens() -> None:
    """The same rows as whole numbers and as bytes, by both paths."""

    def build() -> nn.Module:
        return NextTokenLSTM(_TOKENS, 4, 10, 2, narrow=False)

    task = Task(
        build, (_STEPS,), _TOKENS, Normalise((0.0,), (0.5,), 0.5), dtype=torch.float64
    )  # bytes stay as they are
    assert not isinstance(task.compiled, Refusal), task.compiled
    start = stack([task.init(0), task.init(1), task.init(2)])
    found = []
    for kind in (torch.int64, torch.uint8):
        data = [Samples(_tokens(n).to(kind), torch.arange(n) % _TOKENS) for n in (7, 1, 12)]
        for used in (task, replace(task, use_kernel=False)):
            cohort = Cohort(
                ids=("a", "b", "c"), data=tuple(ClientData(part, part) for part in data), task=used, seed=5, round=3
            )
            found.append(local_sgd(cohort, start, Optimiser(epochs=2, batch=4, lr=0.1, momentum=0.9)))
    for other in found[1:]:
        for name, tensor in found[0].items():
            assert torch.allclose(tensor, other[name], rtol=0, atol=1e-12), name
