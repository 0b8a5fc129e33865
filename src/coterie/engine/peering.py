"""A peer's run from its configuration to its report; and a whole network of them on one machine."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from coterie.config import RunConfig
from coterie.data.samples import ClientId
from coterie.data.scenarios import SCENARIOS
from coterie.engine.address import Address
from coterie.engine.agreement import agree, subject_of
from coterie.engine.device import Device, client_data
from coterie.engine.faults import Faults
from coterie.engine.orders import Agreement, from_text, to_text
from coterie.engine.peers import Deployed, Pace, PeerFederation
from coterie.engine.swarm import Swarm
from coterie.errors import CoterieError
from coterie.experiment import defaults_of
from coterie.folder import RunFolder
from coterie.interrupts import pause
from coterie.kind import Kind
from coterie.methods.peers import PeerMethod
from coterie.rounds import Nobody, Result, View, run_with

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class PeerOptions:
    """When a peer begins and how it waits."""

    peers: int = 2
    patience: float = 300.0
    pace: Pace = field(default_factory=Pace)
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
    """Be one peer of a network until its rounds are over; a folder that is there already is gone on with."""
    watcher = view or Nobody()
    wanted = peer_method(config)
    population = client_data(data, name)
    device = Device(name, population, out)
    resume = (out / "config.toml").is_file()
    if (out / "result.json").is_file():
        raise CoterieError(f"The run in {out} is finished; choose another --out.")
    folder = RunFolder.reopen(out, Kind.PEER) if resume else RunFolder.create(out, config.to_toml(), Kind.PEER)
    network = network_of(config)
    with (
        folder.starting(resume),
        closing(Swarm(name, network, device.hello, address, options.limit, watcher.note)) as swarm,
    ):
        swarm.enter()
        watcher.note(f"{name} listens at {address.listen}; waiting for {options.peers} peers")
        everyone = swarm.wait_for(options.peers, options.patience)
        agreement = _agreement(config, swarm, everyone)
        swarm.agree(to_text(agreement))
        swarm.look_up_progress()
        if agreement.shape != device.hello.shape:
            raise CoterieError(f"The network is about inputs of shape {agreement.shape}, not {device.hello.shape}.")
        fed = PeerFederation(
            name,
            agreement.build_task(),
            population,
            config.seed,
            swarm,
            at_end=lambda: _linger(swarm, config.rounds, options.pace),
            last=config.rounds - 1,
            note=watcher.note,
        )
        return run_with(
            fed,
            Deployed(wanted, swarm, pace=options.pace, note=watcher.note),
            folder,
            rounds=config.rounds,
            view=watcher,
            scenario=subject_of(config),
            evaluate_every=config.evaluate_every,
            checkpoint_seconds=config.checkpoint_seconds,
            resume=resume,
        )


def network_of(config: RunConfig) -> str:
    """The name of the network: peers with another configuration do not even see each other."""
    alike = replace(config, checkpoint_seconds=10.0, evaluate_every=1)
    return f"{config.method}-{blake2b(alike.to_toml().encode(), digest_size=8).hexdigest()}"


def peer_method(config: RunConfig) -> PeerMethod[object]:
    """The method, if it is one that real peers can do."""
    if config.faults != Faults():
        raise CoterieError("faults are simulated ones, and these peers are real; leave the table [faults] out.")
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        raise CoterieError(f"There is no scenario {config.scenario.name!r}; see `coterie list scenarios`.")
    method = config.build_method(defaults_of(config))
    if not isinstance(method, PeerMethod):
        raise CoterieError(f"{config.method} needs a server; run it with coterie serve and coterie join.")
    if method.needs_truth:
        raise CoterieError("Nobody knows the true groups of real peers; choose partners = random or fixed.")
    if method.topology != "full" or method.fraction != 1.0:
        raise CoterieError("topology and fraction shape a simulated network; leave them out between real peers.")
    return method


def _agreement(config: RunConfig, swarm: Swarm, everyone: set[ClientId]) -> Agreement:
    """That of the network where there is one already, else what all who are there come to by themselves."""
    for text in swarm.ask("agreement", sorted(everyone - {swarm.name})).values():
        return from_text(Agreement, text)
    hellos = swarm.hellos(sorted(everyone))
    return replace(agree(config, hellos), run=network_of(config))


def _linger(swarm: Swarm, rounds: int, pace: Pace) -> None:
    """Stay to answer those who are still at it, but not for ever."""
    swarm.announce(rounds)
    last, moved = dict[ClientId, int](), time.monotonic()
    while time.monotonic() - moved < pace.seconds:
        progress = swarm.progress()
        if all(reached >= rounds for reached in progress.values()):
            return
        if progress != last:
            last, moved = progress, time.monotonic()
        pause(_LOOK_SECONDS)
