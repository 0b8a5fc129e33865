"""SCAFFOLD: control variates against client drift (Karimireddy et al., 2020), option II."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.aggregate import combined_one
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, on_client
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, axpy, minus, spread, stack, zeros
from coterie.core.training import local_sgd, steps
from coterie.methods.base import Log, ServerMethod

_COMMON = ("model", "control")


@dataclass(frozen=True)
class Controlled:
    """The model x, the server's control variate c (parameters only), and when each client's last reply counted.

    c is the mean of all c_i only if a client moves its c_i on when, and only when, the server has counted the change.
    """

    model: State
    control: State
    counted: dict[str, int]


@dataclass(frozen=True)
class ModelAndControl:
    """x and c for everyone, and the round of the client's own last reply that counted; -1: none has."""

    model: State
    control: State
    counted: Tensor


@dataclass(frozen=True)
class ControlledReply:
    """A client's model y_i and the change of its control variate, c_i+ - c_i."""

    model: Stack
    control_change: Stack


@dataclass(frozen=True)
class Scaffold(ServerMethod[Controlled]):
    """y <- y - lr (g(y) - c_i + c);  c_i+ = c_i - c + (x - y) / (K lr);  x <- x + server_lr mean(y_i - x)."""

    momentum: float = field(default=0.0, metadata={"help": "must be 0: the variates are exact for plain SGD only"})
    server_lr: float = field(default=1.0, metadata={"help": "the server's step (eta_g)"})

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al. 2020, SCAFFOLD: stochastic controlled averaging"
    summary: ClassVar[str] = "FedAvg with control variates that cancel the drift of the clients"
    use_when: ClassVar[str] = "there are no groups and most clients take part; it sends twice FedAvg's bytes"
    avoid_when: ClassVar[str] = "groups differ, or labels are skewed and samples few: 18 to 33 points behind"
    scenario_training: ClassVar[Mapping[str, Mapping[str, Any]]] = {"rotated-digits": {"lr": 0.5}}
    state_type: ClassVar[type[Controlled]] = Controlled

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.momentum == 0, "momentum", "be 0 (its control variates are exact for plain SGD only)")
        self._require(self.optimiser == "sgd", "optimiser", "be sgd (its control variates are exact for SGD only)")
        self._require(self.server_lr > 0, "server_lr", "be above 0")

    def init(self, fed: Federation) -> Controlled:
        """The common initial model; c = 0."""
        model = fed.task.init(fed.seed)
        return Controlled(model, {name: torch.zeros_like(model[name]) for name in fed.task.parameters}, {})

    def step(self, state: Controlled, fed: Federation) -> tuple[Controlled, Log]:
        """Lines 2-17 of Algorithm 1."""
        ids = fed.sample(self.fraction)
        counted = torch.tensor([state.counted.get(client, -1) for client in ids])
        replies = fed.ask(self.train, ids, each=ModelAndControl(state.model, state.control, counted), common=_COMMON)
        replies = self.usable(fed, replies, spread(state.model, len(replies.ids)))
        if replies.value is not None:
            still = spread(zeros(state.control), len(replies.ids))
            replies = self.usable(fed, replies, still, replies.value.control_change)
        if replies.value is None:
            return state, {}
        equal = torch.ones(len(replies.ids), dtype=torch.float64)
        average = combined_one(self.aggregate, replies.value.model, equal, state.model)
        model = axpy(self.server_lr, minus(average, state.model), state.model)
        # counters and other integer buffers have no difference: they are taken from the average
        model = {name: model.get(name, tensor) for name, tensor in average.items()}
        share = len(replies.ids) / len(fed.ids)
        # never shortened: c is the mean of all c_i only if what clients propose counts as it is, or not at all
        control = axpy(share, combined_one("mean", replies.value.control_change, equal, state.control), state.control)
        return Controlled(model, control, {**state.counted, **dict.fromkeys(replies.ids, fed.round)}), {}

    @on_client("models")
    def train(self, c: Cohort, sent: ModelAndControl) -> ControlledReply:
        """On the client: corrected local training, then option II for its own variate."""
        x, control = spread(sent.model, len(c)), spread(sent.control, len(c))
        own = self._own(c, sent, {name: torch.zeros_like(tensor) for name, tensor in control.items()})
        y = local_sgd(c, x, self.opt, correction=minus(control, own))
        made = steps(c, self.opt)
        scale = 1.0 / (made.clamp_min(1) * self.opt.rate(c.round))
        # who made no step has seen no gradient, and its variate stays
        change = {
            name: (x[name] - y[name]) * _each(scale, x[name]) - control[name] * _each(made > 0, x[name])
            for name in control
        }
        c.keep("control", own)
        c.keep("proposed", axpy(1.0, change, own))
        c.keep("proposed in", torch.full((len(c),), c.round))
        return ControlledReply(y, change)

    def _own(self, c: Cohort, sent: ModelAndControl, zero: Stack) -> Stack:
        """c_i: what the client proposed last, if the server has counted it, else what it was before."""
        own, proposed = c.recall("control", zero), c.recall("proposed", zero)
        when = c.recall_tensor("proposed in", torch.full((len(c),), -1))
        counted = (when >= 0) & (when == sent.counted)
        return {name: torch.where(_each(counted, own[name]) > 0, proposed[name], own[name]) for name in own}

    def model_for(self, state: Controlled, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Everyone uses the one model."""
        return stack([state.model]), [0] * len(ids)

    @override
    def models(self, state: Controlled) -> Mapping[str, State]:
        return {"global": state.model}


def _each(values: Tensor, like: Tensor) -> Tensor:
    """One number a client in the shape and type that multiplies its row of `like`."""
    return values.to(like.dtype).view(-1, *[1] * (like.dim() - 1))
