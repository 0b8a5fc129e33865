"""Clients that lie on purpose: what they send in place of their replies, in the simulator.

Their replies have the right form, so that no check of the form can find them. What they do is the worst that simple
attackers do; `hidden` is made by attackers who know what all others send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.checks import largest_norm
from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId, Normalise, Population, kind_of, target_scale_of
from coterie.core.states import State
from coterie.core.targets import TargetScale, TaskKind

Attack = Literal["negate", "norm", "size", "minus", "near", "claim", "hidden", "told"]
_TIMES = 5.0
_JUST_BELOW = 0.99
_LARGEST_ENTRY = 1e10  # what `checks.check_reply` lets pass in an entry that belongs to no model of the task
_CLAIMED = 1e9
_DEVIATIONS = 1.5
_STEPS = 3.0
_TINY = 1e-12


@dataclass(frozen=True)
class Attackers:
    """Who attacks, and how.

    - `negate`: -5 w in place of every model w.
    - `norm`: -w, as long as the check of replies just allows.
    - `size`: -5 w, and 10^9 samples claimed in the reply; `minus`: the same with a negative number.
    - `near`: its own model, moved towards 0 by three times the distance between honest neighbours: no longer than an
      honest update may be, so that it is not found by its length.
    - `claim`: `near`, and 10^9 samples, which is also what the client said when it joined.
    - `hidden`: number by number, the mean of the honest models less 1.5 of their deviations ("A little is enough",
      Baruch et al. 2019): no longer than an honest update, in a direction that is no client's.
    - `told`: the model that was trained, and 10^9 in place of all else that is told: losses, shares, directions.
    """

    ids: frozenset[ClientId]
    attack: Attack
    template: State

    def forged(self, ids: Sequence[ClientId], reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A stacked reply with the attackers' rows in place of theirs."""
        rows = [index for index, client in enumerate(ids) if client in self.ids]
        if not rows:
            return dict(reply)
        honest = [index for index in range(len(ids)) if index not in rows] or rows
        if self.attack == "told":
            return {name: self._absurd(name, tensor, rows) for name, tensor in reply.items()}
        own = {name: tensor for name, tensor in reply.items() if self._is_model(name, tensor)}
        others = {name: tensor for name, tensor in own.items() if name.split("/", 1)[-1] not in self.template}
        forged = dict(reply)
        for models in ({name: own[name] for name in own.keys() - others.keys()}, others):
            # what is not a model of the task is checked entry by entry, and thus attacked entry by entry
            for part in [models] if models is not others else [{name: models[name]} for name in models]:
                forged |= self._forged_models(part, rows, honest, models is others) if part else {}
        if "size" in reply and self.attack in ("size", "minus", "claim"):
            forged["size"] = reply["size"].clone()
            forged["size"][rows] = -_CLAIMED if self.attack == "minus" else _CLAIMED
        return forged

    def _forged_models(
        self, models: Mapping[str, Tensor], rows: Sequence[int], honest: Sequence[int], by_entry: bool
    ) -> dict[str, Tensor]:
        """The models with those in `rows` replaced; what is checked `by_entry` has a limit of its own."""
        flat = torch.cat([tensor.double().reshape(len(tensor), -1) for tensor in models.values()], dim=1)
        lengths = flat[rows].norm(dim=1).clamp_min(_TINY)
        if self.attack == "hidden":
            scale = torch.zeros(len(rows), dtype=torch.float64)
        elif self.attack == "norm":
            limit = _LARGEST_ENTRY if by_entry else largest_norm(flat[honest].norm(dim=1))
            scale = -_JUST_BELOW * limit / lengths
        elif self.attack in ("near", "claim"):
            scale = 1 - _STEPS * _neighbour_distance(flat[honest]) / lengths
        else:
            scale = torch.full((len(rows),), -_TIMES, dtype=torch.float64)
        forged = {}
        for name, tensor in models.items():
            new = tensor[rows].double() * scale.view(-1, *[1] * (tensor.dim() - 1))
            if self.attack == "hidden":
                known = tensor[honest].double()
                new = new + known.mean(0) - _DEVIATIONS * known.std(0, correction=0)
            forged[name] = tensor.clone()
            forged[name][rows] = new.to(tensor.dtype)
        return forged

    def _absurd(self, name: str, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        if self._is_model(name, tensor) or name == "size" or not tensor.is_floating_point():
            return tensor
        new = tensor.clone()
        new[rows] = min(_CLAIMED, torch.finfo(tensor.dtype).max)
        return new

    def said(self, reply: Mapping[str, Tensor], forged: Mapping[str, Tensor]) -> Tensor | None:
        """How many samples each client said it has when it joined, [C]; None where this reply tells no size."""
        return (forged if self.attack == "claim" else reply).get("size")

    def _is_model(self, path: str, tensor: Tensor) -> bool:
        """Whether an entry belongs to a model: of the task, or of another such as an autoencoder."""
        known = path.split("/", 1)[-1] in self.template or "/models/" in path or path.startswith("student/")
        return "/" in path and known and tensor.is_floating_point()


def _neighbour_distance(models: Tensor) -> float:
    """The median distance of models [n, D] to the one that is nearest to each."""
    if len(models) < 2:
        return 0.0
    apart = torch.cdist(models, models).fill_diagonal_(torch.inf)
    return float(apart.min(1).values.median())


def chosen(seed: int, ids: Sequence[ClientId], number: int) -> frozenset[ClientId]:
    """Which clients attack: so many at random, the same ones whatever the method."""
    names = sorted(ids)
    return frozenset(names[i] for i in rng(seed, "attackers").permutation(len(names))[:number])


@dataclass(frozen=True)
class Disguised:
    """A population in which some clients pretend to have another client's data, to be put into its cluster."""

    population: Population
    faces: Mapping[ClientId, ClientId]

    @property
    def ids(self) -> Sequence[ClientId]:
        """As they are."""
        return self.population.ids

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is."""
        return self.population.shape

    @property
    def classes(self) -> int:
        """As it is."""
        return self.population.classes

    @property
    def kind(self) -> TaskKind:
        """As it is."""
        return kind_of(self.population)

    @property
    def target_scale(self) -> TargetScale | None:
        """As it is."""
        return target_scale_of(self.population)

    @property
    def normalise(self) -> Normalise:
        """As it is."""
        return self.population.normalise

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """An attacker's data are its victim's."""
        return self.population.client(self.faces.get(client, client), round)

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """An attacker's group is its victim's."""
        return self.population.group(self.faces.get(client, client), round)


def disguised(population: Population, attackers: frozenset[ClientId]) -> Disguised:
    """Every attacker with the data of the first honest client."""
    victim = min(client for client in population.ids if client not in attackers)
    return Disguised(population, dict.fromkeys(attackers, victim))
