"""FedAvg: one model for everyone (McMahan et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.aggregate import combined_one
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, on_client
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, flat, row, spread, stack, unflat
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models, ServerMethod, Trained
from coterie.methods.rate_trial import (
    AloneTrial,
    ModelRows,
    RateTrial,
    TrialLosses,
    TriedModels,
    alone_losses,
    trial_cohort,
    trial_losses,
    trial_steps,
)


@dataclass(frozen=True)
class Global:
    """One model."""

    model: State


@dataclass(frozen=True)
class FedAvg(ServerMethod[Global]):
    """theta <- sum_k n_k theta_k / sum_k n_k over the sampled clients."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017, Communication-efficient learning of deep networks"
    summary: ClassVar[str] = "one model for everyone, the mean of the clients' models"
    use_when: ClassVar[str] = "there are no groups: then nothing here is better"
    avoid_when: ClassVar[str] = "groups differ: 6 to 20 points behind, 70 if they disagree about the labels"
    state_type: ClassVar[type[Global]] = Global

    def init(self, fed: Federation) -> Global:
        """The common initial model."""
        return Global(fed.task.init(fed.seed))

    def step(self, state: Global, fed: Federation) -> tuple[Global, Log]:
        """Send the model to the sampled clients, average what comes back."""
        replies = fed.ask(self.train, fed.sample(self.fraction), same=Models(state.model))
        replies = self.usable(fed, replies, spread(state.model, len(replies.ids)))
        if replies.value is None:
            return state, {}
        weights = self.weights(replies.value.size)
        return Global(combined_one(self.aggregate, replies.value.model, weights, state.model)), {}

    def weights(self, size: Tensor) -> Tensor:
        """What each client's model weighs: n_k, its number of samples."""
        return size

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: local training from the sent model."""
        return Trained(local_sgd(c, spread(sent.models, len(c)), self.opt), c.size)

    @on_client("models")
    def try_rates(self, c: Cohort, sent: RateTrial) -> TriedModels:
        """On the client: a round of the test that finds a learning rate before the run (`runs.rates`)."""
        trial, start = trial_cohort(c, self.opt), unflat(sent.numbers, stack([c.task.init(c.seed)] * len(sent.numbers)))
        after = [
            flat(trial_steps(trial, row(start, index), self.opt, float(rate), sent.turn))
            for index, rate in enumerate(sent.rates.tolist())
        ]
        return TriedModels(torch.stack(after, 1), trial.size)

    @on_client("scores")
    def tell_trial_losses(self, c: Cohort, sent: ModelRows) -> TrialLosses:
        """On the client: how models of that test do."""
        models = unflat(sent.numbers, stack([c.task.init(c.seed)] * len(sent.numbers)))
        return TrialLosses(trial_losses(trial_cohort(c, self.opt), models))

    @on_client("scores")
    def try_rates_alone(self, c: Cohort, sent: AloneTrial) -> TrialLosses:
        """On the client: the part of that test in which it trains by itself."""
        return TrialLosses(alone_losses(trial_cohort(c, self.opt), self.opt, sent.rates.tolist(), sent.rounds))

    def model_for(self, state: Global, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Everyone uses the one model."""
        return stack([state.model]), [0] * len(ids)

    @override
    def models(self, state: Global) -> Mapping[str, State]:
        return {"global": state.model}
