"""Networks that are alike are planned once, and no others."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from coterie.core.compiled import Refusal
from coterie.kernel import translate
from coterie.kernel.layers import Loss
from coterie.kernel.library import Library
from coterie.kernel.net import Net
from coterie.kernel.structure import structure

from .reference import flat

Change = Callable[[nn.Sequential], object]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
    )


def test_weights_and_modes_do_not_matter() -> None:
    one, other = network(), network().eval()
    assert not torch.equal(flat(one), flat(other))
    assert structure(one) == structure(other) is not None


def tie(net: nn.Sequential) -> None:
    net[6].weight = net[4].weight


CHANGES: dict[str, Change] = {
    "stride": lambda net: setattr(net[0], "stride", (2, 2)),
    "what a layer does not print": lambda net: setattr(net[2], "return_indices", True),
    "order": lambda net: net.insert(0, net.pop(1)),
    "a layer used twice": lambda net: net.__setitem__(6, net[4]),
    "tied weights": tie,
    "frozen": lambda net: net[0].weight.requires_grad_(False),
    "dtype": lambda net: net[4].double(),
    "no bias": lambda net: setattr(net[4], "bias", None),
    "a whole number for a yes": lambda net: setattr(net[2], "ceil_mode", 0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_the_network_changes_its_structure(change: Change) -> None:
    changed = network()
    change(changed)
    assert structure(changed) != structure(network())
    assert structure(changed) == structure(copy.deepcopy(changed))


class Mine(nn.Linear):
    pass


STRANGE: dict[str, Change] = {
    "a class of one's own": lambda net: net.append(Mine(8, 8)),
    "a hook": lambda net: net[1].register_forward_hook(lambda layer, given, out: 2 * out),
    "another forward": lambda net: object.__setattr__(net[1], "forward", torch.tanh),
    "an attribute that is an object": lambda net: setattr(net[1], "extra", object()),
    "weights that are computed": lambda net: nn.utils.parametrizations.weight_norm(net[4]),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE.keys())
def test_what_may_compute_anything_has_none(change: Change) -> None:
    strange = network()
    change(strange)
    assert structure(strange) is None


def test_what_is_patched_for_all_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook for every module, and another forward of torch's own class."""
    before = structure(network())
    hook = nn.modules.module.register_module_forward_hook(lambda layer, given, out: 2 * out)
    try:
        assert structure(network()) is None
    finally:
        hook.remove()
    assert structure(network()) == before
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: 2 * x)
    assert structure(network()) != before


def test_a_class_that_borrows_a_name_is_not_torchs() -> None:
    liar = type("Linear", (nn.Linear,), {"__module__": "torch.nn.modules.linear"})
    assert structure(nn.Sequential(liar(4, 3))) is None


def test_a_plan_is_made_once_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = translate.plan_with

    def counted(library: Library, module: nn.Module, shape: tuple[int, ...], loss: Loss) -> Net | Refusal:
        asked.append((shape, loss))
        return real(library, module, shape, loss)

    monkeypatch.setattr(translate, "_PLANS", {})
    monkeypatch.setattr(translate, "plan_with", counted)
    plans = [translate.plan(network(), shape, "mse") for shape in ((1, 6, 6), (1, 9, 9)) for _ in range(2)]
    if isinstance(plans[0], Refusal) and not asked:
        pytest.skip(plans[0].reason)
    assert asked == [((1, 6, 6), "mse"), ((1, 9, 9), "mse")]
    assert plans[0] is plans[1]
    assert isinstance(plans[2], Refusal)
    assert plans[2] is plans[3]
