"""Networks that look columns of their input up in embeddings: the kernel trains and judges them as torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.peer_scripts.networks import TabularNet
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.kernel import Refusal, plan
from coterie.kernel.library import Library
from coterie.kernel.translate import plan_with
from tests.kernel.reference import LIBRARIES, assert_trains_alike, flat, needs_kernel, planned

pytestmark = needs_kernel


class _Net(nn.Module):
    """Six columns: the first three name rows of embeddings; `body` is its forward."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], features: int, **options: Any) -> None:
        super().__init__()
        self.last = nn.Linear(9, 4)
        self.one = nn.Embedding(5, 3, **options)
        self.two = nn.Embedding(7, 2)
        self.hidden = nn.Linear(features, 9)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.last(torch.relu(self.hidden(self.body(self, x))))  # type: ignore[no-any-return]


def _both(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m.one(x[:, 0].long()), m.two(x[:, 1].long())], 1)


TAKEN: dict[str, tuple[int, Callable[[Any, Tensor], Tensor]]] = {
    "names, then numbers": (8, lambda m, x: torch.cat([_both(m, x), x[:, 3:]], 1)),
    "numbers between names": (
        7,
        lambda m, x: torch.cat((m.two(x[:, 1].long()), x[:, 3::2], m.one(x.long()[:, 0])), dim=-1),
    ),
    "several columns in one embedding": (
        9,
        lambda m, x: torch.cat([m.one(x[:, :2].to(torch.int64)).flatten(1), m.two(x[..., 2].int()), x[:, -1:]], 1),
    ),
    "view": (8, lambda m, x: torch.cat([m.one(x[:, :2].long()).view(x.size(0), -1), m.two(x[:, 2].long())], 1)),
    "reshape": (8, lambda m, x: torch.cat([m.one(x[:, :2].long()).reshape(-1, 6), m.two(x[:, 2].long())], 1)),
    "a column that is a name and a number": (6, lambda m, x: torch.cat([x[:, :1], _both(m, x)], 1)),
    "one embedding, called twice": (
        8,
        lambda m, x: torch.cat([m.one(x[:, 1].long()), m.one(x[:, 2].long()), m.two(x[:, 0].long())], 1),
    ),
    "a list of columns": (7, lambda m, x: torch.cat([x[:, [5, 3]], _both(m, x)], dim=1)),
}


def _inputs(samples: int) -> Tensor:
    g = torch.Generator().manual_seed(samples)
    names = torch.randint(0, 5, (samples, 3), generator=g).double()
    return torch.cat([names, torch.randn(samples, 3, generator=g, dtype=torch.float64)], 1)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.file.stem)
@pytest.mark.parametrize("name", TAKEN)
def test_training_equals_torch(name: str, library: Library) -> None:
    features, body = TAKEN[name]
    torch.manual_seed(0)
    module = _Net(body, features).double()
    for samples, batch in ((23, 10), (8, 8), (3, 1)):
        assert_trains_alike(library, module, _inputs(samples), batch)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.file.stem)
def test_the_tabular_network_of_the_benchmark(library: Library) -> None:
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    names = torch.randint(0, 20, (45, 8), generator=g).double()
    x = torch.cat([names, torch.randn(45, 6, generator=g, dtype=torch.float64)], 1)
    assert_trains_alike(library, TabularNet(4).double(), x, 32)


REFUSED: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "used twice": ("used twice", lambda m, x: torch.cat([m.one(x[:, 0].long()), m.one(x[:, 2].long())], 1)),
    "not neighbours": ("not neighbours", lambda m, x: m.one(x[:, [0, 2]].long()).flatten(1)),
    "numbers as names": ("fails on a random batch", lambda m, x: torch.cat([m.one(x[:, 0]), m.two(x[:, 1].long())], 1)),
    "names as numbers": ("side by side", lambda m, x: torch.cat([_both(m, x), x[:, 2:].long()], 1)),
    "samples mixed": ("samples apart", lambda m, x: torch.cat([_both(m, x), x[::2, 3:]], 1)),
    "beyond the input": ("beyond its columns", lambda m, x: torch.cat([_both(m, x), x[:, 6]], 1)),
    "an activation": ("relu behind columns", lambda m, x: torch.relu(_both(m, x))),
    "a sum": ("not known", lambda m, x: m.one(x[:, :2].long()).sum(1)),
    "the input again": ("not a chain", lambda m, x: torch.cat([m.hidden(_both(m, x)), x], 1)),
    "an unused embedding": ("is not used", lambda m, x: torch.cat([m.one(x[:, 0].long()), x[:, 4:]], 1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_with_the_reason(name: str) -> None:
    reason, body = REFUSED[name]
    found = plan(_Net(body, 5), (6,))
    assert isinstance(found, Refusal)
    assert reason in found.reason


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_of_embeddings_are_refused(options: dict[str, Any]) -> None:
    found = plan(_Net(_both, 5, **options), (6,))
    assert isinstance(found, Refusal)
    assert "one (Embedding) has a padding_idx, max_norm or kind of gradient" in found.reason


@pytest.mark.parametrize("value", [5.0, -1.0, float("nan"), 1e12])
def test_a_row_that_is_not_there_is_refused(value: float) -> None:
    module = _Net(_both, 5).double()
    net, x, y = planned(module, (6,)), _inputs(4), torch.zeros(4, dtype=torch.int64)
    x[2, 0] = value
    weights = flat(module)
    for call in (
        lambda: net.train(weights, x, y, torch.arange(4), epochs=1, batch=2, lr=0.1),
        lambda: net.evaluate(weights[None], x, y),
        lambda: net.logits(weights[None], x),
    ):
        with pytest.raises(CoterieError, match="names a row that an embedding does not have"):
            call()
    assert torch.equal(weights, flat(module))


def test_numbers_are_cut_as_torch_cuts_them() -> None:
    """4.9 is row 4 and -0.9 row 0; bytes are looked up behind their normalisation."""
    module = _Net(_both, 5).double()
    net, weights = planned(module, (6,)), flat(module)[None]
    x = _inputs(2)
    x[:, 0] = torch.tensor([4.9, -0.9])
    assert torch.allclose(net.logits(weights, x)[0], module(x), rtol=0, atol=1e-12)
    few = torch.tensor([[8, 12, 0, 1, 2, 3]], dtype=torch.uint8)
    assert torch.allclose(net.logits(weights, few, scale=0.5)[0], module(few.double() / 2), rtol=0, atol=1e-12)
    assert not net.has_input_gradient


def test_both_libraries_are_planned_alike() -> None:
    nets = [plan_with(library, _Net(_both, 5), (6,), "cross_entropy") for library in LIBRARIES]
    assert all(not isinstance(net, Refusal) for net in nets)
