"""APFL: every client mixes a model of its own with the common one, and learns how much of each (Deng et al., 2020)."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.cohort import Cohort, Memory
from coterie.core.federation import on_client
from coterie.core.states import Stack, State, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.base import Models, Trained
from coterie.methods.personal import PersonalMethod, equal


@dataclass(frozen=True)
class APFL(PersonalMethod):
    """v-bar_i = alpha_i v_i + (1 - alpha_i) w: w learns f_i(w), v_i learns f_i(v-bar_i) (Algorithm 1).

    With `adapt`, alpha_i <- alpha_i - lr <v_i - w_i, grad f_i(v-bar_i)> in every step (all of t - 1). Parameters are
    mixed, as the paper writes; public code (FedTorch, FL-bench) mixes outputs, moves alpha_i in a round's first epoch
    only and adds 0.02 alpha_i to its gradient. Ours: alpha_i is held in [0, 1] (as there), weight decay and momentum
    apply to it as to all weights, and v_i begins as the first w that the client is sent. A client uses v-bar_i with the
    common w; one that has no v_i yet uses w.
    """

    alpha: float = field(
        default=0.5, metadata={"help": "share of the personal model in the mixture at first (alpha_i)"}
    )
    adapt: bool = field(default=True, metadata={"help": "whether every client learns its alpha_i"})

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    paper: ClassVar[str] = "Deng et al. 2020, Adaptive personalized federated learning"
    summary: ClassVar[str] = "every client mixes a model of its own with the common one, in a share that it learns"
    use_when: ClassVar[str] = "some clients need a model of their own, others the common one"
    avoid_when: ClassVar[str] = "samples are few: its two models train slowly, on torch alone"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.alpha <= 1, "alpha", "lie in [0, 1]")

    def task(self, task: Task) -> Task:
        """By torch: the compiled kernel does not train two models in step."""
        return replace(task, use_kernel=False)

    def weights(self, size: Tensor) -> Tensor:
        """w is the plain mean over the sampled clients."""
        return equal(size)

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: w_i, v_i and alpha_i make their steps together, on the same batches."""
        w = spread(sent.models, len(c))
        begun = (
            {name: w[name] for name in c.task.parameters},
            {n: t for n, t in w.items() if n not in c.task.parameters},
        )
        v = {**c.recall("own", begun[0]), **(c.recall("statistics", begun[1]) if begun[1] else {})}
        alpha = c.recall_tensor("alpha", torch.full((len(c),), self.alpha, dtype=c.task.dtype))
        both = local_sgd(replace(c, task=_together(c.task, self.adapt)), _joined(w, v, alpha), self.opt)
        v = _under("v.", both)
        c.keep("own", {name: v[name] for name in begun[0]})
        if begun[1]:
            c.keep("statistics", {name: v[name] for name in begun[1]})
        c.keep("alpha", both["alpha"].clamp(0, 1))
        return Trained(_under("w.", both), c.size)

    def personal(self, common: State, kept: Memory) -> State:
        """v-bar_i; statistics of BatchNorm, which v-bar_i has seen alone, are the client's."""
        own, statistics, alpha = kept.get("own"), kept.get("statistics", {}), kept.get("alpha")
        if not isinstance(own, dict) or not isinstance(statistics, dict) or not isinstance(alpha, Tensor):
            return common
        mixed = {name: alpha * tensor + (1 - alpha) * common[name] for name, tensor in own.items()}
        return {**common, **statistics, **mixed}


class _Both(nn.Module):
    """w, v and alpha; the answers of w and of v-bar to a batch, one after the other."""

    def __init__(self, network: nn.Module, adapt: bool) -> None:
        super().__init__()
        self.w, self.v = network, copy.deepcopy(network)
        kind = next(network.parameters()).dtype
        self.alpha = nn.Parameter(torch.zeros((), dtype=kind), requires_grad=adapt)

    def forward(self, *given: Tensor) -> Tensor:
        """f(w) and f(v-bar), in which w is fixed."""
        with torch.no_grad():
            self.alpha.clamp_(0, 1)
        common = dict(self.w.named_parameters())
        mixed = {
            name: self.alpha * own + (1 - self.alpha) * common[name].detach() for name, own in self.v.named_parameters()
        }
        answer: Tensor = torch.cat([self.w(*given), functional_call(self.v, mixed, given)])
        return answer


@dataclass(frozen=True, eq=False)
class _BothTask(Task):
    """The task of both at once: f(w) + f(v-bar)."""

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of the two mean losses over a batch."""
        of_w, of_v = output.chunk(2)
        return super().loss_of(of_w, target) + super().loss_of(of_v, target)


@lru_cache(maxsize=8)
def _together(task: Task, adapt: bool) -> Task:
    """Made once for a task, because its scratch network is."""
    same = {f.name: getattr(task, f.name) for f in fields(task)}
    model = lambda: _Both(copy.deepcopy(task.module), adapt)  # noqa: E731
    return _BothTask(**{**same, "model": model, "_local": threading.local()})


def _joined(w: Stack, v: Stack, alpha: Tensor) -> Stack:
    """The state of `_Both`."""
    return {**{f"w.{n}": t for n, t in w.items()}, **{f"v.{n}": t for n, t in v.items()}, "alpha": alpha}


def _under(prefix: str, both: Stack) -> Stack:
    """One of the two models in it."""
    return {name.removeprefix(prefix): tensor for name, tensor in both.items() if name.startswith(prefix)}
