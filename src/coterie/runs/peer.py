"""A peer's run from its configuration to its result."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.core.files import digest
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.data.agreed import agreed
from coterie.data.own import OwnPopulation
from coterie.data.schema import SCHEMA_FILE
from coterie.deploy.boundary import check_name, checked
from coterie.deploy.client import Device
from coterie.deploy.fitting import unlike
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import RunSpec, to_text
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.deploy.zenoh.federation import PeerFederation
from coterie.deploy.zenoh.peer import Deployed, PeerPace
from coterie.methods.p2p.base import PeerMethod
from coterie.runs.classes import check_said
from coterie.runs.config import RunConfig
from coterie.runs.experiment import client_data
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.loop import RoundLoop
from coterie.runs.rates import tested_rate
from coterie.runs.records import CONFIG_FILE, RESULT_FILE
from coterie.runs.result import Result
from coterie.runs.spec import (
    NoMajority,
    agree,
    alone,
    check_deployable,
    common_schema,
    drafted,
    left_out,
    model_of,
    odd_ones,
    usable,
)
from coterie.runs.view import View, Views

_LOOK_SECONDS = 0.05
_RATE = "rate.txt"
_HELLO_SECONDS, _LAST_SECONDS = 1.0, 2.0
_COMMON = ("shape", "classes", "normalise", "class_names", "columns", "task", "target_mean", "target_std")
_DATA = ("shape", "classes", "class_names", "task")


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
    wanted = peer_method(config)
    population = client_data(data, name, config.task, config.scenario)
    device = Device(name, population, out)
    resume = (out / CONFIG_FILE).is_file()
    if (out / RESULT_FILE).is_file():
        raise CoterieError(f"The run in {out} is finished; choose another --out.")
    folder = RunFolder.reopen(out, RunKind.PEER) if resume else RunFolder.create(out, config.to_toml(), RunKind.PEER)
    network = network_of(config)
    with (
        folder.starting(resume),
        closing(PeerConnection(name, network, device.hello, address, options.limit, watcher.note)) as connection,
    ):
        connection.enter()
        watcher.note(f"{name} listens at {address.listen}; waiting for {options.peers} peers")
        fitting = _FittingPeers(config, connection, device.hello, watcher.note)
        everyone = connection.wait_for(options.peers, options.patience, fitting, fitting.others)
        noticed = fitting.notices()
        spec = _run_spec(config, connection, everyone, device.hello, watcher.note)
        connection.agree(to_text(spec))
        connection.look_up_progress()
        folder.write(SCHEMA_FILE, common_schema(spec, device.hello).to_json().encode())
        task, own = spec.build_task(model_of(config), config.loss, config.metric), agreed(population, spec.terms)
        wanted = _rated(config, wanted, task, own, name, folder, watcher.note)
        fed = PeerFederation(
            name,
            task,
            own,
            config.seed,
            connection,
            at_end=lambda: _linger(connection, config.rounds, options.pace),
            last=config.rounds - 1,
            note=watcher.note,
        )
        method = Deployed(wanted, connection, pace=options.pace, note=watcher.note)
        loop = RoundLoop(method, fed, config, folder, view=watcher, scenario=config.subject, noticed=noticed)
        return loop.run(resume)


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


def network_of(config: RunConfig) -> str:
    """The name of the network: peers with another configuration do not even see each other."""
    alike = replace(config, checkpoint_seconds=10.0, evaluate_every=1)
    return f"{config.method}-{digest(alike.to_toml().encode())}"


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


def _run_spec(
    config: RunConfig, connection: PeerConnection, everyone: set[ClientId], own: Hello, note: Note
) -> RunSpec:
    """What this peer's own configuration says, with the classes and the normalisation of the network.

    Where there is a network already, they are those that most of its peers tell; else all who are there come to them by
    themselves. Nothing else is taken from others, and a model that is code is never theirs.
    """
    others = sorted(everyone - {connection.name})
    hellos = {**connection.hellos(others), connection.name: own}
    said = _believed(config, connection, others, note)
    told = _most_told(said, own)
    if told is not None and 2 * len(said) <= len(others):  # not yet a network's word: it must be what we would say too
        mine = agree(config, hellos)
        strange = [name for name in _DATA if getattr(mine, name) != getattr(told, name)]
        if strange:
            note(f"what {len(said)} of {len(others)} peers say of the run's {', '.join(strange)} is not believed")
            told = None
    if told is not None:
        why = unlike(own, told)
        if why:
            raise CoterieError(f"These data are not what the network is about: {why}.")
        mine = drafted(config, {connection.name: own})
        return usable(config, replace(mine, run=network_of(config), **{name: getattr(told, name) for name in _COMMON}))
    return replace(agree(config, hellos), run=network_of(config))


class _FittingPeers:
    """Those of the peers that are there whose data fit together: only they are counted, by every one of them."""

    def __init__(self, config: RunConfig, connection: PeerConnection, own: Hello, note: Note) -> None:
        self._config, self._connection, self._own, self._note = config, connection, own, note
        self._hellos: dict[ClientId, Hello] = {}
        self._odd: dict[ClientId, str] = {}
        self._unclear, self._running, self._asked = "", False, 0.0

    def __call__(self, others: set[ClientId]) -> set[ClientId]:
        """The others that fit this peer; none as long as it is not clear who is odd. An odd peer ends."""
        now = time.monotonic()
        if others != self._hellos.keys() or now > self._asked + _HELLO_SECONDS:  # one may be back with other data
            self._hellos, self._asked = self._connection.hellos(sorted(others)), now
            believed = _believed(self._config, self._connection, sorted(others), silent)
            self._running = 2 * len(believed) > len(others)
        if self._running:  # the network has agreed already, and tells us whether we fit
            return others
        there = {**self._hellos, self._connection.name: self._own}
        try:
            odd = odd_ones(self._config, there)
        except NoMajority as error:
            if str(error) != self._unclear:
                self._note(f"{error} Waiting for more peers.")
            self._unclear, self._odd = str(error), {}
            return set()
        for name in sorted(odd.keys() - self._odd.keys() - {self._connection.name}):
            self._note(f"{name} is not counted: {odd[name]}")
        self._odd, self._unclear = odd, ""
        if self._connection.name in odd:
            pause(_LAST_SECONDS)  # the others ask who is odd, too: who is gone cannot say why
            raise CoterieError(
                f"This peer does not fit the others: {odd[self._connection.name]}; correct its data, or how they are "
                "read, and start it again."
            )
        return there.keys() - odd.keys() - {self._connection.name}

    def others(self) -> str:
        """Who is there and does not fit, for the end of a wait."""
        return left_out("not counted", self._odd, self._unclear)

    def notices(self) -> list[str]:
        """What the report should say of how the run began: who was left out, who alone has some labels."""
        said = [f"{name} is not counted: {why}" for name, why in sorted(self._odd.items())]
        if not self._running:
            there = {**self._hellos, self._connection.name: self._own}
            fit = {name: hello for name, hello in there.items() if name not in self._odd}
            brought = [f"{name} {what}" for name, what in alone(self._config, fit).items()]
            for text in brought:
                self._note(text)
            said += brought
        return said


def _most_told(said: list[RunSpec], own: Hello) -> RunSpec | None:
    """What most of the others say that the run is about, of those whose word fits our own data.

    If none of them fits our data, all are counted: one peer that lies keeps no other out.
    """
    if not said:
        return None
    said = [spec for spec in said if not unlike(own, spec)] or said
    votes = Counter(_common(spec) for spec in said)
    most = max(votes.values())
    tied = {_common(spec): spec for spec in reversed(said) if votes[_common(spec)] == most}
    # of as many, the one that is nearest to our data, and one that does not depend on who answered first
    return min(tied.values(), key=lambda spec: (abs(spec.classes - own.classes), repr(_common(spec))))


def _believed(config: RunConfig, connection: PeerConnection, others: list[ClientId], note: Note) -> list[RunSpec]:
    """What others say that the run is about, as far as it fits our own configuration."""
    said: list[RunSpec] = []
    for name, text in connection.ask("agreement", others).items():
        try:
            spec = checked(RunSpec, text)
            if (spec.method, spec.model) != (config.method, model_of(config)):
                raise CoterieError(f"it is about {spec.method} and the model {spec.model}")
            check_said(config.scenario.classes, spec.classes, spec.class_names)
            said.append(spec)
        except CoterieError as error:
            note(f"what {name} says of the run is not believed: {error}")
    return said


def _common(spec: RunSpec) -> tuple[object, ...]:
    """What a peer takes from others: what all clients' data are together."""
    return tuple(getattr(spec, name) for name in _COMMON)


def _linger(connection: PeerConnection, rounds: int, pace: PeerPace) -> None:
    """Stay to answer peers that have not finished, as long as they make progress."""
    connection.announce(rounds)
    last, moved = dict[ClientId, int](), time.monotonic()
    while time.monotonic() - moved < pace.seconds:
        progress = connection.progress()
        if all(reached >= rounds for reached in progress.values()):
            return
        if progress != last:
            last, moved = progress, time.monotonic()
        pause(_LOOK_SECONDS)
