"""A peer's run from its configuration to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.core.notes import Note
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.data.agreed import agreed
from coterie.data.own import OwnPopulation
from coterie.data.schema import SCHEMA_FILE
from coterie.deploy.boundary import check_name
from coterie.deploy.client import Device
from coterie.deploy.protocol import RunSpec, to_text
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.deploy.zenoh.federation import PeerFederation
from coterie.deploy.zenoh.peer import Deployed, PeerPace
from coterie.deploy.zenoh.session import PeerSession
from coterie.deploy.zenoh.signing import Identity
from coterie.methods.p2p.base import PeerMethod
from coterie.runs.config import RunConfig
from coterie.runs.experiment import client_data
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.loop import RoundLoop
from coterie.runs.peer_terms import FittingPeers, network_of, run_specs
from coterie.runs.rates import tested_rate
from coterie.runs.records import CONFIG_FILE, RESULT_FILE
from coterie.runs.result import Result
from coterie.runs.spec import check_deployable, common_schema, model_of
from coterie.runs.view import View, Views

_RATE = "rate.txt"


@dataclass(frozen=True)
class PeerOptions:
    """When a peer begins and how it waits."""

    peers: int = 2
    patience: float = 300.0
    pace: PeerPace = field(default_factory=PeerPace)
    limit: int = 1 << 29

    def __post_init__(self) -> None:
        if self.peers < 2 or self.pace.seconds <= 0 or self.patience < 0 or self.limit < 1:
            raise CoterieError("--peers must be at least 2, --max-megabytes 1, --timeout above 0, --patience 0.")


class Seat:
    """One peer of this process: its data, its folder and its place in the network."""

    def __init__(self, config: RunConfig, name: ClientId, data: Population, out: Path) -> None:
        self.name, self.out, self._config, self._data = name, out, config, data
        self.hello = Device(name, data, out).hello
        self.resume = (out / CONFIG_FILE).is_file()
        if (out / RESULT_FILE).is_file():
            raise CoterieError(f"The run in {out} is finished; choose another --out.")
        kind = RunKind.PEER
        self.folder = RunFolder.reopen(out, kind) if self.resume else RunFolder.create(out, config.to_toml(), kind)
        self._connection: PeerConnection | None = None

    def enter(self, session: PeerSession, identity: Identity | None) -> None:
        """Appear to the others."""
        self._connection = PeerConnection(self.name, self.hello, session, identity)
        self._connection.enter()

    def leave(self) -> None:
        """Be gone again."""
        if self._connection is not None:
            self._connection.leave()

    def agree(self, spec: RunSpec) -> None:
        """What the run is about, for those who come later and for its own folder."""
        assert self._connection is not None
        self._connection.agree(to_text(spec))
        self.folder.write(SCHEMA_FILE, common_schema(spec, self.hello).to_json().encode())

    def run(self, spec: RunSpec, task: Task, options: PeerOptions, noticed: Sequence[str], view: Views) -> Result:
        """All rounds of this peer."""
        config, connection = self._config, self._connection
        assert connection is not None
        own = agreed(self._data, spec.terms)
        wanted = _rated(config, peer_method(config), task, own, self.name, self.folder, view.note)
        fed = PeerFederation(
            self.name,
            task,
            own,
            config.seed,
            connection,
            at_end=lambda: connection.linger(config.rounds, options.pace.seconds),
            last=config.rounds - 1,
            note=view.note,
        )
        method = Deployed(wanted, connection, pace=options.pace, note=view.note)
        loop = RoundLoop(method, fed, config, self.folder, view=view, scenario=config.subject, noticed=noticed)
        return loop.run(self.resume)


def run_peer(
    config: RunConfig,
    name: ClientId,
    data: Path,
    address: Address,
    out: Path,
    options: PeerOptions,
    *,
    view: View | None = None,
) -> Result:
    """Be one peer of a network until its rounds are over; a run that its folder already holds goes on."""
    watcher = Views(view)
    check_name(name, "--name")
    peer_method(config)
    seat = Seat(config, name, client_data(data, name, config.task, config.scenario), out)
    identities = {} if address.security is None else {name: address.security.identity(name)}
    with (
        seat.folder.starting(seat.resume),
        closing(PeerSession(network_of(config), address, options.limit, watcher.note)) as session,
    ):
        watcher.note(f"{name} listens at {address.listen}; waiting for {options.peers} peers")
        agreement = gather(config, session, [seat], identities, options)
        return seat.run(
            agreement.specs[name], task_of(config, agreement.specs[name]), options, agreement.noticed, watcher
        )


@dataclass(frozen=True)
class Agreement:
    """What the run is about for each peer of this process that takes part, and what was noticed meanwhile."""

    specs: Mapping[ClientId, RunSpec]
    noticed: Sequence[str]


def gather(
    config: RunConfig,
    session: PeerSession,
    seats: Sequence[Seat],
    identities: Mapping[ClientId, Identity],
    options: PeerOptions,
) -> Agreement:
    """Appear to the others, wait for enough of them, and come to what the run is about; who cannot take part leaves.

    If nobody here can, that is an error.
    """
    there = {seat.name: seat for seat in seats}

    def leave(name: ClientId, why: str) -> None:
        session.note(f"{name} does not take part: {why}")
        there.pop(name).leave()

    for seat in seats:
        seat.enter(session, identities.get(seat.name))
    own = {seat.name: seat.hello for seat in seats}
    fitting = FittingPeers(config, session, own, session.note, leave)
    everyone = session.wait_for(options.peers, options.patience, fitting, fitting.others)
    noticed = fitting.notices()
    specs, refused = run_specs(config, session, everyone, {name: own[name] for name in there}, session.note)
    if not specs:
        raise next(iter(refused.values()))
    for name, error in refused.items():
        leave(name, str(error))
    for name, spec in specs.items():
        there[name].agree(spec)
    session.look_up_progress()
    return Agreement(specs, noticed)


def task_of(config: RunConfig, spec: RunSpec) -> Task:
    """The task of a run, as this configuration names its model."""
    return spec.build_task(model_of(config), config.loss, config.metric)


def _rated(
    config: RunConfig,
    method: PeerMethod[object],
    task: Task,
    data: Population,
    name: ClientId,
    folder: RunFolder,
    note: Note,
) -> PeerMethod[object]:
    """The method with a learning rate: where there is none each peer finds one by a test of its own, and keeps it."""
    if method.has_rate:
        return method
    kept = folder.path / _RATE
    if not kept.is_file():
        own = OwnPopulation({name: data.client(name)}, task.shape, task.classes, task.normalise)
        folder.write(_RATE, f"{tested_rate(task, own, method.opt, config.seed, note)}\n".encode())
    try:
        return replace(method, lr=float(kept.read_text()))
    except ValueError as error:
        raise CoterieError(f"{kept} holds no learning rate; remove it, and one is found again.") from error


def peer_method(config: RunConfig) -> PeerMethod[object]:
    """The method, if it is one that real peers can do."""
    method = check_deployable(config)
    if not isinstance(method, PeerMethod):
        raise CoterieError(f"{config.method} needs a server; run it with coterie serve and coterie join.")
    if method.needs_groups:
        raise CoterieError("The true groups of real peers are not known; choose partners = random or fixed.")
    if method.fraction != 1.0:
        raise CoterieError("fraction shapes a simulated network; leave it out between real peers.")
    return method
