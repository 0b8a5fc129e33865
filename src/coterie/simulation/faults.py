"""What goes wrong in a simulated federation: dropouts, stragglers, bad or lost replies, joins, departures, attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.federation import Arrival, Failure
from coterie.core.rng import rng
from coterie.core.samples import ClientId
from coterie.simulation.attacks import Attack, chosen

Schedule = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Faults:
    """Probabilities are per client and round; schedules are (round, how many clients)."""

    dropout: float = field(default=0.0, metadata={"help": "probability that a client never answers"})
    slowness: float = field(default=0.0, metadata={"help": "spread (sigma) of the log-normal time a client takes"})
    deadline: float = field(
        default=0.0, metadata={"help": "replies later than this many median times are too late; 0: wait for all"}
    )
    slow: float = field(default=0.0, metadata={"help": "probability that a client is a slow one, in all rounds"})
    slow_times: float = field(default=10.0, metadata={"help": "how many times as long slow clients take"})
    nan: float = field(default=0.0, metadata={"help": "probability of a reply with NaN"})
    wrong_shape: float = field(default=0.0, metadata={"help": "probability of a reply of another shape"})
    huge: float = field(default=0.0, metadata={"help": "probability of a reply with a huge norm"})
    crash: float = field(default=0.0, metadata={"help": "probability that a client crashes; peers notice it at once"})
    freeze: float = field(default=0.0, metadata={"help": "probability that a client freezes; peers ask it in vain"})
    outage: int = field(default=3, metadata={"help": "rounds until a crashed or frozen client returns; 0: never"})
    loss: float = field(default=0.0, metadata={"help": "probability that an answer between peers is lost"})
    delay: float = field(
        default=0.0, metadata={"help": "probability that a peer answers with its model from before this round"}
    )
    joins: Schedule = field(default=(), metadata={"help": "round:number of clients that join then, e.g. 5:4,9:2"})
    leaves: Schedule = field(default=(), metadata={"help": "round:number of clients that leave then"})
    joiners: Literal["drawn", "last"] = field(
        default="drawn", metadata={"help": "who joins late: clients drawn at random, or the last ones by name"}
    )
    attackers: int = field(default=0, metadata={"help": "clients that send false replies on purpose"})
    attack: Attack = field(
        default="negate", metadata={"help": "what they send: negate, norm, size, minus, near, claim or hidden"}
    )
    join: bool = field(default=False, metadata={"help": "all attackers pretend to have the data of one client"})

    def __post_init__(self) -> None:
        for name in ("dropout", "slow", "nan", "wrong_shape", "huge", "crash", "freeze", "loss", "delay"):
            if not 0 <= getattr(self, name) <= 1:
                raise CoterieError(f"faults.{name} is a probability and must lie in [0, 1], not {getattr(self, name)}.")
        if self.loss + self.delay > 1:
            raise CoterieError(
                f"faults.loss and faults.delay must not exceed 1 together, not {self.loss + self.delay}."
            )
        for name in ("slowness", "slow_times", "deadline", "outage", "attackers"):
            if getattr(self, name) < 0:
                raise CoterieError(f"faults.{name} must be at least 0, not {getattr(self, name)}.")
        for name in ("joins", "leaves"):
            if any(when < 0 or number < 1 or number != int(number) for when, number in getattr(self, name)):
                raise CoterieError(f"faults.{name} needs pairs round:number with whole numbers of clients above 0.")

    def silence(self, seed: int, round: int, client: ClientId) -> Failure | None:
        """Whether a client's reply will be missing this round, and why."""
        if self.dropout and rng(seed, "dropout", round, client).random() < self.dropout:
            return Failure("dropped", "it did not answer")
        for kind, chance, text in (("crashed", self.crash, "it crashed"), ("frozen", self.freeze, "it is frozen")):
            if chance and self._is_out(seed, round, client, kind, chance):
                return Failure(kind, text)  # type: ignore[arg-type]
        if (self.slowness or self.slow) and self.deadline:
            time = self.time(seed, round, client)
            if time > self.deadline:
                return Failure("late", f"it took {time:.2f} median times, the deadline is {self.deadline:g}")
        return None

    def time(self, seed: int, round: int, client: ClientId) -> float:
        """How long a client takes in this round, in medians of all."""
        time = float(rng(seed, "slowness", round, client).lognormal(0.0, self.slowness)) if self.slowness else 1.0
        slow = self.slow and rng(seed, "slow", client).random() < self.slow
        return time * self.slow_times if slow else time

    def _is_out(self, seed: int, round: int, client: ClientId, kind: str, chance: float) -> bool:
        """Whether an outage began in one of the rounds from which it would still last."""
        first = max(0, round - self.outage + 1) if self.outage else 0
        return any(rng(seed, kind, began, client).random() < chance for began in range(first, round + 1))

    def corrupt(self, seed: int, round: int, client: ClientId, reply: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """A corrupted copy of one client's reply (leading axis 1), or None where nothing happens to it."""
        draw = rng(seed, "corruption", round, client).random() if self.nan or self.wrong_shape or self.huge else 1.0
        floats = [name for name, tensor in reply.items() if tensor.is_floating_point()]
        if not floats or draw >= self.nan + self.wrong_shape + self.huge:
            return None
        name = max(floats, key=lambda each: reply[each].numel())
        victim = reply[name].clone()
        if draw < self.nan:
            victim.view(-1)[0] = torch.nan
        elif draw < self.nan + self.wrong_shape:
            victim = torch.stack([victim, victim], dim=-1)
        else:
            victim *= 1e9
            victim.view(-1)[0] = 1e12
        return {**reply, name: victim}

    def carry(self, seed: int, round: int, askers: Sequence[ClientId], answered: Tensor) -> Tensor:
        """What becomes of each answer between peers [A, m]: lost, fresh or old (`Arrival`)."""
        fate = torch.where(answered, int(Arrival.FRESH), int(Arrival.LOST))
        if not (self.loss or self.delay):
            return fate
        for index, asker in enumerate(askers):
            chance = torch.from_numpy(rng(seed, "messages", round, asker).random(answered.shape[1]))
            old = (chance >= self.loss) & (chance < self.loss + self.delay) & answered[index]
            fate[index][chance < self.loss] = int(Arrival.LOST)
            fate[index][old] = int(Arrival.OLD)
        return fate

    def attacking(self, seed: int, ids: Sequence[ClientId]) -> frozenset[ClientId]:
        """The clients that attack."""
        if self.attackers >= len(ids):
            raise CoterieError(f"faults.attackers is {self.attackers}, but there are only {len(ids)} clients.")
        return chosen(seed, ids, self.attackers) if self.attackers else frozenset()

    def calendar(self, seed: int, ids: Sequence[ClientId]) -> dict[ClientId, tuple[int, int | None]]:
        """For clients that are not there all the time: the round they join and the round they leave."""
        order = (
            [sorted(ids)[i] for i in rng(seed, "calendar").permutation(len(ids))] if self.joins or self.leaves else []
        )
        wanted = sum(int(number) for _, number in (*self.joins, *self.leaves))
        if wanted > len(ids):
            raise CoterieError(f"faults.joins and faults.leaves name {wanted} clients, but there are only {len(ids)}.")
        if self.joiners == "last":
            order.sort()
        stays: dict[ClientId, tuple[int, int | None]] = {}
        for when, number in self.joins:
            for _ in range(int(number)):
                stays[order.pop()] = (when, None)
        for when, number in self.leaves:
            for _ in range(int(number)):
                stays[order.pop()] = (0, when)
        if order or not stays:
            return stays
        for when in (0, *(when for when, _ in self.leaves)):
            if not any(joins <= when and (leaves is None or when < leaves) for joins, leaves in stays.values()):
                raise CoterieError(
                    f"faults.joins and faults.leaves leave no client for round {when}; let more of them stay."
                )
        return stays
