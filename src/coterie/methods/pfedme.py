"""pFedMe: personal models held near the common one, which follows them (Dinh et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from coterie.core.aggregate import combined_one
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, on_client
from coterie.core.samples import ClientData, Samples
from coterie.core.states import Stack, concat, row, spread, stack
from coterie.core.training import local_sgd, sample_order
from coterie.methods.base import Log, Models, Trained
from coterie.methods.fedavg import Global
from coterie.methods.personal import PersonalMethod, equal


@dataclass(frozen=True)
class PFedMe(PersonalMethod):
    """theta_i(w) ~ argmin f_i(theta) + lambda/2 |theta - w|^2;  w <- w - eta lambda (w - theta_i(w))  (Algorithm 1).

    `lr` is the rate of the K steps on theta, `outer_lr` is eta. The R local rounds are the batches of `epochs` epochs.
    As in the authors' code theta begins as the w that is sent and goes on from batch to batch; there all clients train
    and the sampled ones are averaged by their samples, here the sampled ones train, with equal weights (the paper's
    mean over S). A client uses its last theta. The defaults are ours, for tens of rounds.
    """

    momentum: float = field(default=0.0, metadata={"help": "momentum of the steps on theta"})
    lam: float = field(default=1.0, metadata={"help": "how strongly theta is held near w (lambda)"})
    steps: int = field(default=5, metadata={"help": "steps on theta with every batch (K)"})
    outer_lr: float = field(default=0.5, metadata={"help": "rate at which w follows theta (eta)"})
    server_lr: float = field(default=1.0, metadata={"help": "how far the server follows the mean of the w_i (beta)"})

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "Dinh et al. 2020, Personalized federated learning with Moreau envelopes"
    summary: ClassVar[str] = "personal models held near the common one, which moves towards them"
    use_when: ClassVar[str] = "personal models are to stay near a common one, and rounds are many"
    avoid_when: ClassVar[str] = "rounds or samples are few: 6 to 30 points behind"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lam > 0, "lam", "be above 0")
        self._require(self.steps >= 1, "steps", "be at least 1")
        self._require(0 < self.outer_lr <= 1 / self.lam, "outer_lr", f"lie in (0, 1 / lam = {1 / self.lam:.3g}]")
        self._require(self.server_lr > 0, "server_lr", "be above 0")
        steady = self.optimiser != "sgd" or self.opt.rate(0) * self.lam < 2
        self._require(steady, "lam", f"be below 2 / lr = {2 / self.opt.rate(0):.3g}, or steps on theta diverge")

    def step(self, state: Global, fed: Federation) -> tuple[Global, Log]:
        """w <- (1 - beta) w + beta * the plain mean of the w_i."""
        replies = fed.ask(self.train, fed.sample(self.fraction), same=Models(state.model))
        replies = self.usable(fed, replies, spread(state.model, len(replies.ids)))
        if replies.value is None:
            return state, {}
        mean = combined_one(self.aggregate, replies.value.model, equal(replies.value.size), state.model)
        return Global(row(_towards(stack([state.model]), stack([mean]), self.server_lr), 0)), {}

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: K steps on theta with every batch, then one of w towards theta."""
        pairs = [self._pair(c, index, stack([sent.models])) for index in range(len(c))]
        c.keep("model", concat([theta for theta, _ in pairs]))
        return Trained(concat([w for _, w in pairs]), c.size)

    def _pair(self, c: Cohort, index: int, w: Stack) -> tuple[Stack, Stack]:
        """One client's theta and w after its local rounds."""
        samples, inner = c.data[index].train, replace(self.opt, epochs=self.steps, batch=0)
        theta = w
        for number, batch in enumerate(self._batches(c, index, samples)):
            alone = replace(c, ids=(c.ids[index],), data=(ClientData(batch, batch),), memory=(), kept={})
            theta = local_sgd(alone, theta, inner, prox=w, mu=self.lam, purpose=f"batch {number}")
            w = _towards(w, theta, self.outer_lr * self.lam)
        return theta, w

    def _batches(self, c: Cohort, index: int, samples: Samples) -> list[Samples]:
        """The batches of all epochs, in the order in which they are seen."""
        if not len(samples):
            return []
        epochs = sample_order(c, index, self.epochs, "batches").view(self.epochs, -1)
        return [batch for epoch in epochs for batch in samples.take(epoch).batches(self.opt.batch_of(len(samples)))]


def _towards(model: Stack, goal: Stack, share: float) -> Stack:
    """A share of the way from one model to another; counters have no way between, and are the other's."""

    def moved(own: Tensor, other: Tensor) -> Tensor:
        return own - share * (own - other) if own.is_floating_point() else other

    return {name: moved(tensor, goal[name]) for name, tensor in model.items()}
