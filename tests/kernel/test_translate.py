"""What is taken and what is refused, with a reason that names it."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie import kernel
from coterie.kernel import Net, Refusal, plan
from tests.kernel.reference import flat, loaded, needs_kernel, planned

pytestmark = needs_kernel


class _Custom(nn.Module):
    """Two convolutions and two linear layers, declared in another order than they are used; `body` is its forward."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.last = nn.Linear(7, 3)
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 5, 3)
        self.hidden = nn.Linear(20, 7)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def _trunk(m: Any, x: Tensor) -> Tensor:
    return F.max_pool2d(m.second(F.max_pool2d(F.relu(m.first(x)), 2)), 2)


TAKEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functions": lambda m, x: m.last(torch.tanh(m.hidden(torch.flatten(_trunk(m, x), 1)))),
    "methods": lambda m, x: m.last(m.hidden(_trunk(m, x).flatten(1)).relu()),
    "view": lambda m, x: m.last(torch.sigmoid(m.hidden(_trunk(m, x).view(x.size(0), -1)))),
    "view by its own size": lambda m, x: m.last(m.hidden((h := _trunk(m, x)).view(h.size(dim=0), -1))),
    "view of all but one": lambda m, x: m.last(F.tanh(m.hidden(_trunk(m, x).view(-1, 20)))),
    "reshape by shape": lambda m, x: m.last(m.hidden(_trunk(m, x).reshape(x.shape[0], 20)).sigmoid()),
    "reshape with a tuple": lambda m, x: m.last(m.hidden(torch.reshape(_trunk(m, x), (x.size()[0], -1)))),
    "own size": lambda m, x: m.last(m.hidden(_trunk(m, x.contiguous()).flatten(start_dim=1))),
    "images made of vectors": lambda m, x: m.last(m.hidden(_trunk(m, x.view(-1, 1, 12, 12)).flatten(1))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_forward_that_is_a_chain_is_taken(name: str) -> None:
    module = _Custom(TAKEN[name])
    shape = (144,) if name == "images made of vectors" else (1, 12, 12)
    net = planned(module, shape)
    assert net.parameters == tuple(key for key, _ in module.named_parameters())
    assert net.size == sum(parameter.numel() for parameter in module.parameters())
    x = torch.randn(4, *shape, dtype=torch.float64)
    weights = flat(module).double()
    with torch.no_grad():
        assert torch.allclose(net.logits(weights[None], x)[0], loaded(module, weights)(x), atol=1e-12)


def test_containers_identities_and_empty_dropout_are_taken() -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 2, (3, 1), padding="same"), nn.Identity()),
        nn.Sequential(nn.Dropout(0.0), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)),
    )
    assert planned(module, (36,)).outputs == 3


def test_a_layer_alone_is_taken() -> None:
    assert planned(nn.Linear(4, 3), (4,)).parameters == ("weight", "bias")


def _twice(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.hidden(torch.flatten(_trunk(m, x), 1)))
    return m.last(h + h)  # type: ignore[no-any-return]


def _branch(m: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return m.last(m.hidden(torch.flatten(_trunk(m, x), 1)))  # type: ignore[no-any-return]
    return x


def _in_training_only(m: Any, x: Tensor) -> Tensor:
    h = m.hidden(torch.flatten(_trunk(m, x), 1))
    return m.last(torch.relu(h) if m.training else torch.tanh(h))  # type: ignore[no-any-return]


REFUSED_FORWARDS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a sum": (_twice, "add"),
    "a branch": (_branch, "cannot be traced"),
    "another mode": (_in_training_only, "in evaluation"),
    "a softmax": (lambda m, x: m.last(m.hidden(_trunk(m, x).flatten(1))).softmax(1), "softmax"),
    "two results": (lambda m, x: (m.last(m.hidden(_trunk(m, x).flatten(1))), x), "alone"),
    "not in a chain": (lambda m, x: (_trunk(m, x), m.last(m.hidden(x.flatten(1))))[1], "not a chain"),
    "a skipped layer": (lambda m, x: m.hidden(_trunk(m, x).flatten(1)), "last.bias is not used"),
    "samples mixed": (lambda m, x: m.last(m.hidden(_trunk(m, x).flatten(0).view(-1, 20))), "flatten"),
    "samples merged": (lambda m, x: m.last(m.hidden(_trunk(m, x).view(1, -1))), "mixes the samples"),
    "a reshape inside": (lambda m, x: m.last(m.hidden(m.second(m.first(x).view(-1, 4, 8, 18)).flatten(1))), "reshape"),
    "dropout": (lambda m, x: m.last(F.dropout(m.hidden(_trunk(m, x).flatten(1)))), "dropout"),
    "a slice": (lambda m, x: m.last(m.hidden(_trunk(m, x).flatten(1))[:, :7]), "getitem"),
    "a loose parameter": (lambda m, x: F.linear(m.hidden(_trunk(m, x).flatten(1)), m.last.weight), "outside a layer"),
    "a strange pool": (lambda m, x: m.last(m.hidden(F.max_pool2d(m.first(x), 3, 2, 0, 2).flatten(1))), "max_pool2d"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_FORWARDS)
def test_any_other_forward_is_refused(name: str) -> None:
    body, reason = REFUSED_FORWARDS[name]
    refusal = plan(_Custom(body), (1, 12, 12), "cross_entropy")
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert "\n" not in refusal.reason


def _frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    return module


def _hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


def _tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module


def _shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _repeated() -> nn.Module:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))  # type: ignore[no-any-return]

    return Repeated()


@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.GELU()), (4,), "1 (GELU) is not known"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), "buffers"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 3)), (4,), "1 (Dropout) drops everything"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 3)), (4,), "relu behind dropout"),
        (nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(9, 3)), (1, 3, 3), "0 (Dropout2d) is not known"),
        (
            nn.Sequential(
                nn.Unflatten(1, (2, 2, 2)), nn.Dropout(0.5), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 2)
            ),
            (8,),
            "before the first convolution",
        ),
        (nn.Sequential(nn.AvgPool2d(3, 2), nn.Flatten(), nn.Linear(4, 3)), (1, 5, 5), "0 (AvgPool2d) is not a plain"),
        (nn.Sequential(nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2), "not a plain average"),
        (
            nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(4, 3)),
            (1, 3, 3),
            "not a plain average",
        ),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)), (1, 5, 5), "not equally large"),
        (nn.Sequential(nn.Linear(4, 4), nn.AvgPool2d(2)), (4,), "gets inputs of shape (4,)"),
        (nn.Sequential(nn.Linear(5, 3)), (4,), "0 (Linear) gets inputs of shape (4,)"),
        (nn.Sequential(nn.Linear(4, 3)), (2, 4, 4), "not vectors"),
        (nn.Sequential(nn.Linear(4, 3)), (2, 4), "neither vectors"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Tanh()), (4,), "tanh behind relu"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (1, 5, 5), "no linear layer"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(2, 3)),
            (1, 5, 5),
            "0 (Conv2d) has a dilation",
        ),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)), (2, 5, 5), "groups"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding_mode="reflect", padding=1), nn.Flatten()), (1, 5, 5), "padding mode"),
        (nn.Sequential(nn.Conv2d(1, 2, 2, padding="same"), nn.Flatten(), nn.Linear(50, 3)), (1, 5, 5), "unevenly"),
        (nn.Sequential(nn.Conv2d(1, 2, 7), nn.Flatten()), (1, 5, 5), "larger than its input"),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), (1, 5, 5), "3 channels"),
        (nn.Sequential(nn.MaxPool2d(3, dilation=2), nn.Flatten(), nn.Linear(4, 3)), (1, 6, 6), "0 (MaxPool2d)"),
        (nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.Flatten(), nn.Linear(4, 3)), (1, 5, 5), "not a plain"),
        (nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 3)), (1, 1, 5), "gets inputs"),
        (_frozen(), (4,), "0.weight is frozen"),
        (_hooked(), (4,), "hooks"),
        (_tied(), (4,), "shares a parameter"),
        (_shared(), (4,), "shares a parameter"),
        (_repeated(), (4,), "layer.weight is used twice"),
    ],
)
def test_a_layer_that_is_not_known_is_named(module: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    refusal = plan(module, shape, "cross_entropy")
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_a_loss_that_is_not_known_is_refused() -> None:
    refusal = plan(nn.Linear(4, 3), (4,), "hinge")  # type: ignore[arg-type]
    assert isinstance(refusal, Refusal)
    assert "hinge" in refusal.reason


def test_the_last_word_is_a_comparison() -> None:
    class Liar(nn.Linear):
        """Calls itself what it is not."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    Liar.__module__ = "torch.nn.modules.linear"
    first = nn.Linear(4, 4)
    module = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 3))
    assert isinstance(plan(module, (4,), "mse"), Net)
    liar = nn.Sequential(Liar(4, 4), nn.ReLU(), nn.Linear(4, 3))
    assert isinstance(plan(liar, (4,), "mse"), Refusal)
    object.__setattr__(first, "forward", MethodType(lambda self, x: F.linear(x, self.weight) * 2, first))
    refusal = plan(module, (4,), "mse")
    assert isinstance(refusal, Refusal)
    assert "differ" in refusal.reason


def test_planning_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 3)).eval()
    before = flat(module)
    planned(module, (4,))
    assert not module.training
    assert torch.equal(flat(module), before)
    assert module[0].weight.dtype == torch.float32


def test_without_a_library_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "installed", lambda: "no compiler")
    monkeypatch.setattr("coterie.kernel.translate.installed", lambda: "no compiler")
    assert kernel.why_not() == "no compiler"
    assert plan(nn.Linear(4, 3), (4,)) == Refusal("no compiler")
