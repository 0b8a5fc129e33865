"""FedFomo: every client mixes its own model from those of others that help it (Zhang et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import score
from coterie.core.federation import Federation, Nothing, on_client
from coterie.core.panels import Heatmap, Panel
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, concat, flat, mix, row, stack
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models, Trained
from coterie.methods.own_model import OwnModelMethod

_NOTHING_HELD_OUT = (
    "fedfomo: no client has a validation part, so models are weighed on training data, where a client's own one wins; "
    "set scenario.validation = 0.2."
)


@dataclass(frozen=True)
class Exchange:
    """The models clients uploaded last, and how much each client has gained from each other (P of the paper).

    The personal models stay with the clients.
    """

    model: State
    uploads: dict[str, State]
    affinity: dict[str, dict[str, float]]


@dataclass(frozen=True)
class MixtureWeights:
    """What a client made of each model, first of its own trained one, then of those sent.

    `share` is its part of the new mixture (what is missing to 1 is the old model). `gain` is its signed weight over the
    size of the sum of all: what the server chooses by. `held_out` is how many validation samples the client has.
    """

    share: Tensor
    gain: Tensor
    held_out: Tensor


@dataclass(frozen=True)
class FedFomo(OwnModelMethod[Exchange]):
    """w_n = max(0, (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|), made to sum to 1; L_i on held-out data.

    That is the validation part (scenario.validation). On the training data a client's own model would win.
    """

    downloads: int = field(default=5, metadata={"help": "models of others a client gets per round (M)"})
    explore: float = field(
        default=0.3, metadata={"help": "chance of a random model instead of the most useful (epsilon)"}
    )
    explore_decay: float = field(default=0.05, metadata={"help": "what epsilon loses every round"})
    norm: Literal["l1", "l2"] = field(
        default="l2", metadata={"help": "distance of models: l2 (paper) or l1 (its code)"}
    )

    name: ClassVar[str] = "fedfomo"
    title: ClassVar[str] = "FedFomo"
    paper: ClassVar[str] = "Zhang et al. 2021, Personalized federated learning with first order model optimization"
    summary: ClassVar[str] = "every client mixes its own model from others that lower its validation loss"
    use_when: ClassVar[str] = "every client has hundreds of samples and a validation part"
    avoid_when: ClassVar[str] = "samples are few or labels skewed; it sends three times FedAvg's bytes"
    needs_validation: ClassVar[bool] = True
    state_type: ClassVar[type[Exchange]] = Exchange

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.downloads >= 1, "downloads", "be at least 1")
        self._require(0 <= self.explore <= 1, "explore", "lie in [0, 1]")
        self._require(self.explore_decay >= 0, "explore_decay", "be at least 0")

    def init(self, fed: Federation) -> Exchange:
        """The common initial model; no client knows another."""
        if len(fed.ids) < 2:
            raise CoterieError("fedfomo mixes the models of several clients, but there is only one; add clients.")
        return Exchange(fed.task.init(fed.seed), {}, {})

    def step(self, state: Exchange, fed: Federation) -> tuple[Exchange, Log]:
        """Train, upload, download some of the others, mix."""
        trained = fed.ask(self.train, fed.sample(self.fraction), same=Nothing())
        if trained.value is None:
            return state, {}
        models = trained.value.model
        uploads = {**state.uploads, **{client: row(models, i) for i, client in enumerate(trained.ids)}}
        state = Exchange(state.model, uploads, state.affinity)
        chosen = {client: self._choose(state, fed, client) for client in trained.ids}
        # a message has as many models for everyone: in the first rounds of a small share of clients, fewer
        least = min(len(names) for names in chosen.values())
        chosen = {client: names[:least] for client, names in chosen.items()}
        sent = stack([_side_by_side([uploads[name] for name in names], state.model) for names in chosen.values()])
        mixed = fed.ask(self.mix_models, list(chosen), each=Models(sent))
        if mixed.value is None:
            return state, {}
        if not state.affinity and not bool(mixed.value.held_out.any()):  # no client has weighed a model before
            fed.note(_NOTHING_HELD_OUT)
        affinity = dict(state.affinity)
        for client, gains in zip(mixed.ids, mixed.value.gain.tolist(), strict=True):
            gained = dict(affinity.get(client, {}))
            for name, gain in zip(chosen[client], gains[1:], strict=True):
                gained[name] = gained.get(name, 0.0) + gain
            affinity[client] = gained
        taken = mixed.value.share[:, 1:].sum(1).mean()
        return Exchange(state.model, uploads, affinity), {"taken_from_others": float(taken)}

    def _choose(self, state: Exchange, fed: Federation, client: ClientId) -> list[ClientId]:
        """Epsilon-greedy: each place goes to the most useful model so far, or with chance epsilon to a random one."""
        rest = sorted(name for name in state.uploads if name != client)
        draw = fed.rng("choose", client)
        rest = [rest[i] for i in draw.permutation(len(rest))]  # equals in random order
        gained = state.affinity.get(client, {})
        epsilon = max(0.0, self.explore - self.explore_decay * fed.round)
        picked: list[ClientId] = []
        while rest and len(picked) < self.downloads:
            best = max(rest, key=lambda name: gained.get(name, 0.0))
            name = rest[int(draw.integers(len(rest)))] if draw.random() < epsilon else best
            picked.append(name)
            rest.remove(name)
        return picked

    @on_client("models")
    def train(self, c: Cohort, sent: Nothing) -> Trained:
        """On the client: local training from the personal model."""
        trained = local_sgd(c, self.own(c), self.opt)
        c.keep("trained", trained)
        return Trained(trained, c.size)

    @on_client("scores")
    def mix_models(self, c: Cohort, sent: Models) -> MixtureWeights:
        """On the client: weigh its trained model and the sent ones; without any gain the old model stays."""
        start = self.own(c)
        trained = c.recall("trained", start)
        mixed, share, gain = [], [], []
        for index, samples in enumerate(c.part("valid")):
            old = {name: tensor[index : index + 1] for name, tensor in start.items()}
            own = {name: tensor[index : index + 1] for name, tensor in trained.items()}
            offered = concat([own, {name: tensor[index] for name, tensor in sent.models.items()}])
            loss = score(c.task, concat([old, offered]), samples).loss
            raw = first_order_weights(loss[0], loss[1:], self._distance(offered, old))
            positive = raw.clamp_min(0)
            shares = positive / positive.sum().clamp_min(torch.finfo(torch.float64).tiny)
            mixed.append(
                row(mix(torch.cat([1 - shares.sum(0, keepdim=True), shares])[None], concat([old, offered])), 0)
            )
            share.append(shares)
            gain.append(raw / raw.sum().abs().clamp_min(torch.finfo(torch.float64).tiny))
        c.keep("model", stack(mixed))
        held_out = torch.tensor([0 if client.valid is None else len(client.valid) for client in c.data])
        return MixtureWeights(torch.stack(share), torch.stack(gain), held_out)

    def _distance(self, models: Stack, old: Stack) -> Tensor:
        gaps = (flat(models) - flat(old)).double()
        return gaps.abs().sum(1) if self.norm == "l1" else gaps.norm(dim=1)

    def panels(self, state: Exchange, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Who gains from whom, clients of one true group side by side."""
        if not state.affinity or len(ids) > 200:
            return []
        order = sorted(range(len(ids)), key=lambda i: (truth[i] if truth else 0, ids[i]))
        names = [ids[i] for i in order]
        rows = [[state.affinity.get(a, {}).get(b, 0.0) for b in names] for a in names]
        return [Heatmap("What each client (row) has gained from each other", rows, names, names)]


def _side_by_side(models: Sequence[State], like: State) -> Stack:
    """A stack, also where there is nothing to put on it: the first client of all is offered no model."""
    return stack(models) if models else {name: tensor.new_empty((0, *tensor.shape)) for name, tensor in like.items()}


def first_order_weights(loss: Tensor, losses: Tensor, distances: Tensor) -> Tensor:
    """(L(theta_i) - L(theta_n)) / |theta_n - theta_i|, signed; 0 for a model that does not differ."""
    safe = distances.clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where(distances > 0, (loss - losses) / safe, 0.0).nan_to_num(0.0, 0.0, 0.0)
