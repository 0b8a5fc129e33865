"""What all peer-to-peer methods share: answers, means, views, and a network in which things go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Federation
from coterie.core.states import row, stack
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import RoundMethod
from coterie.methods.p2p.base import (
    Answers,
    Inbox,
    PeerView,
)
from coterie.methods.p2p.inbox import inbox_of
from coterie.methods.p2p.network_state import Network
from coterie.methods.p2p.simulation import Simulated, in_simulator
from coterie.methods.p2p.topology import (
    NO_PEER,
    members,
    peer_key,
    peer_keys,
)
from coterie.methods.panm.method import PANM
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import TRAINING, answer_of, cohort, largest_gap, made, one_weight, rows, small_net

PEER_METHODS = ["gossip", "panm", "pens"]


def played(
    name: str, population: OwnPopulation, rounds: int = 3, faults: Faults | None = None, **settings: Any
) -> Network:
    result = run(made(name, **settings), population, small_net, rounds=rounds, seed=1, faults=faults)
    state: Network = result.state
    return state


@pytest.mark.parametrize("name", PEER_METHODS)
@pytest.mark.parametrize(
    "faults",
    [
        Faults(crash=0.3, outage=2),
        Faults(freeze=0.3, outage=2),
        Faults(loss=0.5, delay=0.3),
        Faults(nan=0.3, wrong_shape=0.2, huge=0.2),
        Faults(loss=1.0),
    ],
)
def test_the_network_goes_on_whatever_happens(name: str, faults: Faults, digits: OwnPopulation) -> None:
    state = played(name, digits, 4, faults, t1=2) if name != "gossip" else played(name, digits, 4, faults)
    assert len(state.history) == 4
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.model.values())


@pytest.mark.parametrize("name", PEER_METHODS)
def test_a_peer_that_hears_nobody_trains_alone(name: str, digits: OwnPopulation) -> None:
    """With every answer lost, all that is left is local training; nothing was received, but answers were sent."""
    faults = Faults(loss=1.0)
    deaf = run(made(name), digits, small_net, rounds=2, seed=1, faults=faults)
    alone = run(made("local"), digits, small_net, rounds=2, seed=1)
    for client in digits.ids:
        assert largest_gap(deaf.models[f"client-{client}"], alone.models[f"client-{client}"]) < 1e-6
    assert deaf.bytes_down == 0
    assert deaf.bytes_up > 0
    assert int(deaf.state.received.sum()) == 0


def test_corrupt_models_are_refused_by_name_and_counted(digits: OwnPopulation) -> None:
    method = Simulated(PANM(**TRAINING))
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    fed = Simulator(method, task, digits, seed=1, faults=Faults(nan=0.4), options=EngineOptions(workers=1))
    state = method.init(fed)
    after, log = method.step(state, fed)
    bad = {client for _, client, failure in fed.failures}
    assert bad
    assert {failure.kind for *_, failure in fed.failures} == {"not finite"}
    assert log["awake"] == 9 - len(bad)
    listed = {int(key) for key in after.node["neighbours"].flatten()}
    assert not listed & set(peer_keys(sorted(bad)).tolist())
    for client in bad:
        place = state.rows([client])[0]
        assert largest_gap(row(after.model, place), row(state.model, place)) == 0


@pytest.mark.parametrize("name", PEER_METHODS)
def test_idle_peers_answer_too(name: str, digits: OwnPopulation) -> None:
    state = played(name, digits, 2, fraction=4)
    assert int((state.received > 0).sum()) <= 8
    assert int(state.received.max()) >= 5


@pytest.mark.parametrize("name", PEER_METHODS)
@pytest.mark.parametrize("topology", ["random", "ring", "islands"])
def test_peers_keep_to_those_they_know(name: str, topology: str, digits: OwnPopulation) -> None:
    state = played(name, digits, 3, topology=topology, degree=2, bridges=1)
    assert state.known is not None
    assert state.aggregated is not None
    for place in range(9):
        known = set(members(state.known[place]).tolist())
        met = {peer_key(state.ids[j]) for j in torch.nonzero(state.aggregated[place]).flatten().tolist()}
        assert met
        assert met <= known


def test_hearsay_spreads_and_costs_bytes(digits: OwnPopulation) -> None:
    quiet = run(made("gossip", topology="ring", degree=2, k=2), digits, small_net, rounds=4, seed=1)
    loud = run(made("gossip", topology="ring", degree=2, k=2, hearsay=2), digits, small_net, rounds=4, seed=1)
    before, after = (int((result.state.known != NO_PEER).sum()) for result in (quiet, loud))
    assert before == 9 * 2
    assert after > before
    for client, known in zip(loud.state.ids, loud.state.known, strict=True):
        keys = members(known).tolist()
        assert peer_key(client) not in keys
        assert len(set(keys)) == len(keys)
    assert loud.bytes_down > quiet.bytes_down


@pytest.mark.parametrize("name", PEER_METHODS)
@pytest.mark.parametrize("topology", ["full", "random"])
def test_late_joiners_begin_at_the_beginning(name: str, topology: str, digits: OwnPopulation) -> None:
    faults = Faults(joins=((2, 3),))
    state = played(name, digits, 4, faults, topology=topology, degree=3)
    assert state.ids == tuple(sorted(digits.ids))
    assert all(tensor.shape[0] == 9 for tensor in (*state.node.values(), *state.model.values()))
    assert sorted(set((state.received > 0).tolist())) == [True]
    if name != "gossip":
        assert sorted(state.node["age"].tolist()) == [2] * 3 + [4] * 6


def test_a_method_without_server_needs_a_network(digits: OwnPopulation) -> None:
    method = Simulated(PANM(**TRAINING))
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    fed = Simulator(method, task, digits, seed=1, options=EngineOptions(workers=1))
    state = method.init(fed)

    class ServerOnly:
        ids, round, seed, task = fed.ids, 0, 1, fed.task

    server: Federation = ServerOnly()  # type: ignore[assignment]
    with pytest.raises(CoterieError, match="panm has no server"):
        method.step(state, server)


def test_one_peer_alone_is_refused() -> None:
    with pytest.raises(CoterieError, match="needs others to learn from"):
        run(made("gossip"), rows(([1.0], [1])), one_weight, rounds=1, loss="mse")


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("panm", {"l": 0}, "l must be at least 1"),
        ("panm", {"k": 0}, "k must be at least 1"),
        ("panm", {"t1": -1}, "t1 must be at least 0"),
        ("panm", {"tau": 0}, "tau must be at least 1"),
        ("panm", {"alpha": 1.5}, r"alpha must lie in \[0, 1\]"),
        ("panm", {"guard": -1.0}, "guard must be at least 0"),
        ("panm", {"least_sigma": 2.0}, r"least_sigma must lie in \[0, 1\]"),
        ("panm", {"degree": 0}, "degree must be at least 1"),
        ("panm", {"bridges": -1}, "bridges must be at least 0"),
        ("panm", {"hearsay": -1}, "hearsay must be at least 0"),
        ("pens", {"t1": 0}, "t1 must be at least 1"),
        ("pens", {"cutoff": -1}, "cutoff must be at least 0"),
        ("pens", {"l": 3, "k": 4}, "l must be at least k = 4"),
        ("gossip", {"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(CoterieError, match=text):
        METHODS[name](**settings)


@pytest.mark.parametrize(("metric", "expected"), [("grad", [9]), ("loss", [3, 3, 3])])
def test_directions_are_measured_for_all_peers_at_once(
    metric: str, expected: list[int], digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round of the simulator: once where only the answers are looked at, else by each of three jobs."""
    sizes: list[int] = []
    measure = PANM.measure

    def counted(method: PANM, c: Any, node: Any, inbox: Inbox) -> Any:
        sizes.append(len(inbox.own))
        return measure(method, c, node, inbox)

    monkeypatch.setattr(PANM, "measure", counted)
    run(made("panm", metric=metric), digits, small_net, rounds=1, seed=1, engine=EngineOptions(workers=1, lanes=3))
    assert sizes == expected


def test_a_peer_method_knows_nothing_of_those_who_run_it() -> None:
    """One peer's view alone: neither rounds, checkpoints nor a federation are part of a peer-to-peer method."""
    for name in PEER_METHODS:
        assert not isinstance(made(name), RoundMethod)
        driven = in_simulator(made(name))
        assert (driven.name, driven.state_type) == (name, Network)
        assert in_simulator(driven) is driven


@pytest.mark.parametrize("name", PEER_METHODS)
def test_one_peer_at_a_time_is_the_network(name: str, digits: OwnPopulation) -> None:
    """What the simulator does for all, nine lone peers do for themselves through start, train, choose and update.

    By models, without sketches: of those, tests/deploy/test_peers.py says the same with real peers.
    """
    panm = {"t1": 2, "tau": 2, "sketch_length": 0, "forget": 0} if name == "panm" else {}
    method: Any = made(name, k=2, l=3, **panm)
    network = run(method, digits, small_net, rounds=4, seed=11).state
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    everyone = np.sort(peer_keys(digits.ids))
    held = {client: stack([task.init(11)]) for client in digits.ids}
    nodes = {client: method.start(cohort(digits, task, [client])) for client in digits.ids}
    for number in range(4):
        alone = {client: cohort(digits, task, [client], number) for client in digits.ids}
        trained = {c: method.train(alone[c], held[c]) for c in digits.ids}
        sent = {peer_key(c): answer_of(trained[c], held[c]) for c in digits.ids}
        for client in digits.ids:
            view = PeerView((client,), number, 11, everyone)
            keys = members(method.choose(nodes[client], view).keys[0]).tolist()
            box, refused = inbox_of(sent[peer_key(client)], keys, sent, task.template, known=8)
            assert not refused
            held[client], nodes[client], _ = method.update(alone[client], nodes[client], box)
    for place, client in enumerate(network.ids):
        assert largest_gap(row(network.model, place), row(held[client], 0)) == 0
        near = members(method.neighbours(nodes[client])[0])
        assert sorted(near) == sorted(members(method.neighbours(method.unpack_node(network.node))[place]))


def test_reports_show_the_neighbours(digits: OwnPopulation) -> None:
    result = run(made("panm"), digits, small_net, rounds=2, seed=1)
    method = Simulated(PANM())
    kinds = [panel.kind for panel in method.panels(result.state, result.client_ids, result.truth)]
    assert kinds == ["lines", "heatmap", "histogram", "graph"]
    blind = [panel.kind for panel in method.panels(replace(result.state, history=()), result.client_ids, None)]
    assert blind == ["heatmap", "histogram", "graph"]


def test_the_ledger_counts_what_an_answer_weighs(digits: OwnPopulation) -> None:
    """Gossip with 2 of 8 others: nine peers receive two models each, twice."""
    result = run(made("gossip", k=2), digits, small_net, rounds=2, seed=1)
    one = Answers(row(result.state.model, 0), None, torch.empty(0, dtype=torch.int64))
    assert result.bytes_down == result.bytes_up == 9 * 2 * 2 * len(wire.encode(one))
    assert result.state.received.tolist() == [4] * 9
    assert result.bytes_evaluation == 0
