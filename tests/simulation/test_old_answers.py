"""Peers that are late or idle send what they sent last: the same message in the simulator and between real peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from coterie import run
from coterie.core import wire
from coterie.core.federation import draw_clients
from coterie.core.rng import rng
from coterie.core.states import row
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.deploy.presence import Roster
from coterie.deploy.zenoh.connection import Kind
from coterie.deploy.zenoh.federation import PeerFederation
from coterie.deploy.zenoh.peer import Deployed, PeerPace, PeerState
from coterie.methods.p2p.base import Answers, Inbox, Sketched
from coterie.methods.p2p.network_state import Network
from coterie.methods.p2p.simulation import Simulated
from coterie.methods.p2p.topology import members, peer_key
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator
from tests.tiny import (
    largest_gap,
    made,
    one_weight,
    rows,
    small_net,
)

SEED, ROUNDS = 11, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "gossip": {"k": 2},
    "pens": {"k": 2, "l": 3, "t1": 3},
    "panm": {"k": 2, "l": 3, "t1": 2, "tau": 2, "sketch_length": 0},
    "panm by sketches": {"k": 2, "l": 3, "t1": 2, "tau": 2},
}
Offers = dict[str, dict[int, Mapping[Kind, bytes]]]


class NotYet(Exception):
    """A peer has offered its answer; the others have not all done so."""


class Mailbox:
    """One real peer's connection without a network: answers are a round old, or the last ones of those who idle."""

    limit = 1 << 20
    sent = received = 0

    def __init__(self, name: str, ids: Sequence[str], offers: Offers, late: bool) -> None:
        self.name, self.ids, self.offers, self.late, self.open = name, ids, offers, late, False

    def roster(self, round: int) -> Roster:
        return Roster(tuple(sorted(self.ids)))

    def offer(self, round: int, answers: Mapping[Kind, bytes], *, latest_is_fine: bool) -> None:
        assert latest_is_fine
        self.offers.setdefault(self.name, {})[round] = answers

    def fetch(self, round: int, names: Sequence[str], *, kind: Kind, seconds: float) -> dict[str, bytes]:
        if not self.open:
            raise NotYet
        found = {name: answer_in(self.offers, name, round, self.late) for name in names}
        return {name: answers[kind] for name, answers in found.items() if answers is not None}


def answer_in(offers: Offers, name: str, round: int, late: bool) -> Mapping[Kind, bytes] | None:
    """The latest answer, of an earlier round where peers are late and there is one."""
    known = offers.get(name, {})
    earlier = [number for number in known if number < round]
    return known[max(earlier)] if late and earlier else known[max(known)] if known else None


def played_by_real_peers(
    name: str, digits: OwnPopulation, task: Task, *, fraction: float = 1.0, late: bool = False
) -> tuple[dict[str, PeerState], Offers]:
    """All peers' states after the rounds, and everything that they offered."""
    offers: Offers = {}
    boxes = {client: Mailbox(client, digits.ids, offers, late) for client in digits.ids}
    pace, nothing = PeerPace(lock_step=False), lambda: None
    peers: dict[str, Any] = {c: Deployed(method(name), boxes[c], pace) for c in digits.ids}  # type: ignore[arg-type]
    feds: dict[str, Any] = {
        c: PeerFederation(c, task, digits, SEED, boxes[c], at_end=nothing, last=ROUNDS)  # type: ignore[arg-type]
        for c in digits.ids
    }
    states = {client: peers[client].init(feds[client]) for client in digits.ids}
    for number in range(ROUNDS):
        awake = draw_clients(digits.ids, fraction, rng(SEED, "sample", number))
        for client in awake:  # everybody offers before anybody fetches
            feds[client].round, boxes[client].open = number, False
            with pytest.raises(NotYet):
                peers[client].step(states[client], feds[client])
        for client in awake:
            boxes[client].open = True
            states[client], _ = peers[client].step(states[client], feds[client])
    return states, offers


def method(name: str, **settings: Any) -> Any:
    return made(name.split()[0], **SETTINGS[name], **settings)


class Watched(Simulator):
    """Remembers what arrived at the peers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.arrived: list[tuple[int, Sequence[str], Inbox]] = []

    def ask(self, function: Callable[..., Any], ids: Any, **how: Any) -> Any:
        if function.__name__ == "meet":
            self.arrived.append((self.round, ids, how["each"].inbox))
        return super().ask(function, ids, **how)


@pytest.mark.parametrize("name", sorted(SETTINGS))
@pytest.mark.parametrize(("late", "fraction"), [(True, 1.0), (False, 5.0)])
def test_old_answers_are_those_of_real_peers(name: str, late: bool, fraction: float, digits: OwnPopulation) -> None:
    """Bit for bit: each message that arrives, and what the peers have after five rounds."""
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    states, offers = played_by_real_peers(name, digits, task, fraction=fraction, late=late)
    peer = method(name, fraction=fraction)
    simulated = Simulated(peer)
    faults = Faults(delay=1.0) if late else Faults()
    fed = Watched(simulated, task, digits, seed=SEED, faults=faults, options=EngineOptions(workers=1))
    network: Network = simulated.init(fed)
    for number in range(ROUNDS):
        fed.begin(number)
        network, _ = simulated.step(network, fed)
        fed.commit()
    names = {peer_key(client): client for client in digits.ids}
    old = looks = 0
    for number, _, inbox in fed.arrived:
        for key, index in zip(inbox.keys[inbox.mask].tolist(), inbox.index[inbox.mask].tolist(), strict=True):
            start = None if inbox.pool.start is None else row(inbox.pool.start, index)
            message = Answers(row(inbox.pool.model, index), start, inbox.pool.heard[index])
            told = {n: answers for n, answers in offers[names[key]].items() if n <= number}
            expected = answer_in({names[key]: told}, names[key], number, late)
            assert expected is not None
            assert wire.encode(message) == expected["model" if start is None else "change"]
            if inbox.sketches is not None:
                look = Sketched(inbox.sketches[index], inbox.pool.heard[index])
                assert wire.encode(look) == expected["sketch"]
                looks += 1
            old += expected is not told.get(number)
    assert old >= 15
    assert (looks > 0) == (name == "panm by sketches")
    for place, client in enumerate(network.ids):
        assert largest_gap(row(network.model, place), row(states[client].model, 0)) == 0
        near = peer.neighbours(peer.unpack_node(network.node))[place]
        real = peer.neighbours(peer.unpack_node(states[client].node))[0]
        assert sorted(members(near)) == sorted(members(real))
    fed.close()


def test_a_late_answer_by_hand() -> None:
    """w x with loss (w - y)^2, lr 0.25: training moves w half-way to y, 2 for a and 6 for b; all answers are late.

    Round 1: a has 1, b has 3, and there is no older answer, so these are waited for: both end with 2. Round 2: a stays
    at 2 and b comes to 4, but they send 1 and 3 again: (2 + 3) / 2 = (4 + 1) / 2 = 2.5.
    """
    two = rows(([1.0], [2]), ([1.0], [6]))
    gossip = made("gossip", k=1, lr=0.25, epochs=1, batch=0, momentum=0.0)
    result = run(gossip, two, one_weight, rounds=2, loss="mse", faults=Faults(delay=1.0))
    assert [float(model["weight"]) for model in result.models.values()] == pytest.approx([2.5, 2.5])


def test_the_last_update_of_a_late_peer_has_a_direction(digits: OwnPopulation) -> None:
    """By theta1 alone: it was 0 with everyone where all answers were late, so that no peer was like another."""
    late = made("panm", alpha=1.0, weigh="fixed", t1=9, k=2, l=4)
    state = run(late, digits, small_net, rounds=3, seed=1, faults=Faults(delay=1.0)).state
    scored = state.node["scored"]
    measured = state.node["similarity"][:, : scored.shape[1]][scored >= 0]
    assert float((measured != 0).double().mean()) == 1.0


def test_one_that_idles_before_it_has_trained_has_nothing_to_send(digits: OwnPopulation) -> None:
    """Four of nine peers train in round 1: they can hear three others each, however many they ask."""
    state: Network = run(made("gossip", k=8, fraction=4), digits, small_net, rounds=1, seed=1).state
    assert sorted(state.received.tolist()) == [0] * 5 + [3] * 4
    assert bool(torch.isfinite(state.model["1.weight"]).all())
