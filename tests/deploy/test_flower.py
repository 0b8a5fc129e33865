"""Four clients in processes of their own on Flower: the simulator's results, bit for bit."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT
from flwr.supercore import heartbeat

from coterie import Result
from coterie.core import wire
from coterie.core.samples import ClientId, Population
from coterie.data.own import OwnPopulation
from coterie.deploy.client import Device
from coterie.deploy.consent import SECRET_VARIABLE
from coterie.deploy.flower.client import Security, join
from coterie.deploy.flower.superlink import SuperLink, own_superlink
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.protocol import Returned
from coterie.methods import METHODS
from coterie.report.observers import ReportWriter
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import client_data, execute, population_of
from coterie.runs.folder import RunFolder
from coterie.runs.serve import ServeOptions, conduct

from ..laws.golden import differences
from ..tiny import OVERRIDES, TRAINING
from .processes import LONG, Command, WireTap, free_port, write_run
from .test_remote import server_side
from .wiring import poisoned

SERVED = ("fedavg", "scaffold", "ifca", "md-icfl", "embedding", "fedcg", "auto")
"""Every kind of message and memory there is; that all methods end alike over the wire is in `test_remote`."""
NAMES = ("0", "1", "2", "3")
ON_RECORD = ("fedavg", "ifca", "md-icfl", "fedcg")
"""Methods whose results over the wire are also compared with those on record."""


@dataclass
class Deployment:
    folder: Path
    link: SuperLink
    tap: WireTap
    clients: dict[ClientId, Command]

    def config(self, method: str) -> RunConfig:
        settings = {**TRAINING, **OVERRIDES.get(method, {})}
        known = METHODS[method].__dataclass_fields__
        fitting = {key: value for key, value in settings.items() if key in known}
        fitting |= {"k": 2} if "k" in known else {}
        return dataclasses.replace(from_tables(read_tables(self.folder / "run.toml")), method=method, settings=fitting)

    def run(self, method: str, clients: int = 4) -> Result:
        config = self.config(method)
        folder = RunFolder.create(self.folder / f"run-{method}-{clients}", config.to_toml())
        with self.link.grid() as grid:
            transport = FlowerTransport(grid, seconds=LONG, alive=self.link.check)
            options = ServeOptions(clients=clients, patience=LONG)
            return conduct(config, folder, transport, options, view=ReportWriter())


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("flower")
    write_run(folder, "fedavg", clients=len(NAMES), rounds=2, seed=3, dtype="float64")
    port = free_port()
    secret = pytest.MonkeyPatch()
    secret.setenv(SECRET_VARIABLE, "the same in every test")  # a new one each time would be another run each time
    with own_superlink("127.0.0.1", port, None, folder / "superlink.log", 1 << 24) as link:
        tap = WireTap(port)
        where = ("--server", f"127.0.0.1:{tap.port}", "--data", "run.toml", "--stay")
        clients = {name: Command(folder, name, "join", *where, "--name", name) for name in NAMES}
        try:
            yield Deployment(folder, link, tap, clients)
        finally:
            for client in clients.values():
                client.stop()
            tap.close()
            secret.undo()


@pytest.mark.parametrize("method", SERVED)
def test_flower_ends_as_the_simulator(deployed: Deployment, method: str) -> None:
    before = len(deployed.tap.up), len(deployed.tap.down)
    remote = deployed.run(method)
    sent = len(deployed.tap.up) - before[0], len(deployed.tap.down) - before[1]
    alone = execute(deployed.config(method), None)
    ends = [server_side(remote), server_side(alone)]
    if method == "embedding":  # bits that a device draws by its own secret, which no simulator has, are in the state
        ends = [
            {**end, "state": wire.encode(result.state.autoencoder)}
            for end, result in zip(ends, (remote, alone), strict=True)
        ]
    assert ends[0] == ends[1]
    assert remote.engine == "clients over Flower"
    # what crossed is what the ledger says plus framing: a message's envelope, and the questions whether there is any
    assert sent[0] > remote.bytes_up
    assert sent[1] > remote.bytes_down
    assert (deployed.folder / f"run-{method}-4" / "report.html").is_file()
    assert "ari" not in remote.to_json() or remote.ari is None
    if method in ON_RECORD:
        assert differences(f"Flower {method}", remote) == []


def test_no_image_has_crossed(deployed: Deployment) -> None:
    """After all the runs above: nothing that crossed holds any of the images, raw or as the model sees them."""
    config = deployed.config("fedavg")
    population = population_of(config.scenario, config.seed)
    crossed = bytes(deployed.tap.up) + bytes(deployed.tap.down)
    assert len(crossed) > 100_000
    for name in NAMES:
        for image in population.client(name).train.x:
            seen = population.normalise(image[None], torch.float64)
            for form in (image, image.float(), image.double(), seen, seen.float()):
                assert form.contiguous().numpy().tobytes() not in crossed


def test_the_end_of_a_run_does_not_interrupt_us(deployed: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sends a SIGINT to the process whose heartbeat is refused, and a run that has ended refuses it."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_CALL_TIMEOUT)  # without a pause
    for _ in range(20):
        with deployed.link.grid():
            time.sleep(0.02)
    time.sleep(0.2)  # where it would be heard


class Rogue(Device):
    """A client that does its work and then sends something else."""

    def perform(self, text: str, payload: bytes, **options: Any) -> Returned:
        honest = super().perform(text, payload, **options)
        return Returned(self._spoilt(honest.payload), -math.inf)

    def _spoilt(self, honest: bytes) -> bytes:
        match self.name:
            case "0":
                return poisoned(honest, lambda _, t: t * torch.nan if t.is_floating_point() else t)
            case "1":
                return poisoned(honest, lambda _, t: torch.cat([t, t]) if t.dim() else t)
            case "2":
                return honest[:-100]
            case "3":
                return bytes(17 << 20)  # pieces that are all the same: one crosses
            case _:
                return os.urandom(30 << 20)


def test_rogue_clients_are_refused_by_name(deployed: Deployment) -> None:
    """Clients 0 to 3 come back under their names as rogues: NaN, wrong shape, truncated, oversized; and one more."""
    for client in deployed.clients.values():
        client.stop()
    data = {name: client_data(deployed.folder / "run.toml", name) for name in NAMES}
    data["4"] = _renamed(data["0"], "4")
    honest = Device("honest", _renamed(data["0"], "honest"), deployed.folder / "honest")
    rogues = [Rogue(name, own, deployed.folder / "rogue" / name) for name, own in data.items()]
    devices: list[Device] = [honest, *rogues]
    address = deployed.link.address
    threads = [
        threading.Thread(target=join, args=(device, address, Security()), kwargs={"wait": LONG, "limit": 1 << 29})
        for device in devices
    ]
    for thread in threads:
        thread.start()
    config = dataclasses.replace(deployed.config("fedavg"), rounds=1)
    folder = RunFolder.create(deployed.folder / "run-rogue", config.to_toml())
    with deployed.link.grid() as grid:
        transport = FlowerTransport(grid, seconds=LONG, limit=1 << 24)
        result = conduct(config, folder, transport, ServeOptions(clients=6, patience=LONG, limit=1 << 24))
        transport.farewell()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert "honest" in result.client_ids
    events = (folder.path / "events.jsonl").read_text()
    faults = {"0": "not finite", "1": "wrong shape", "2": "wrong shape", "3": "too large", "4": "too large"}
    for name, fault in faults.items():
        assert f'"client": "{name}", "fault": "{fault}"' in events
    assert not {"0", "2", "3", "4"} & set(result.client_ids)
    log = (deployed.folder / "superlink.log").read_text()
    assert "sent a message that is longer than what is allowed (--max-megabytes 16)" in log


def _renamed(population: Population, name: ClientId) -> OwnPopulation:
    return OwnPopulation({name: population.client("0")}, population.shape, population.classes, population.normalise)
