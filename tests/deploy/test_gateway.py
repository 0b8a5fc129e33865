"""Several clients behind one connection: as many clients as before, each with its own memory, secret and say."""

from __future__ import annotations

import dataclasses
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure
from coterie.core.quorum import Quorum
from coterie.core.states import spread
from coterie.core.wire import WireError
from coterie.data.own import OwnPopulation
from coterie.deploy.bundle import Letter, bundled, unbundled
from coterie.deploy.certificates import make_certificates
from coterie.deploy.client import Device
from coterie.deploy.consent import Consent
from coterie.deploy.flower.directory import Names
from coterie.deploy.flower.superlink import ServerSecurity, SuperLink, own_superlink
from coterie.deploy.flower.transport import FlowerTransport, _shared_out
from coterie.deploy.gateway import Gateway
from coterie.deploy.protocol import Order, Returned
from coterie.deploy.server import RemoteFederation
from coterie.methods.base import Models
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import clients_data, execute
from coterie.runs.folder import RunFolder
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions
from coterie.runs.serve import ServeOptions, conduct

from ..conftest import Command as Terminal
from ..tiny import made
from .processes import LONG, Command, free_port, write_run
from .test_remote import server_side, simulated
from .wiring import Grid, devices, run_spec, task_of


def test_letters_come_back_from_a_bundle_and_equal_ones_cross_once() -> None:
    same = bytes(100_000)
    letters = {
        "a": Letter("0.5", same),
        "b": Letter("", same),
        "c": Letter("no\nway"),
        "d": Letter("x", b""),
        "e": Letter("no", None, True),
    }
    data = bundled(letters)
    assert unbundled(data) == {**letters, "c": Letter("no\\nway")}
    assert 100_000 < len(data) < 102_000


@pytest.mark.parametrize(
    ("names", "places", "wrong"),
    [
        (["a", "a"], [0, 0], "one text and one place"),
        (["a", "../b"], [0, 0], "cannot be a name"),
        (["a", "b"], [0, 5], "a part that it has not"),
        (["a", "b"], [0, -3], "is not between"),
        (["a", "b"], [0], "one text and one place"),
        ([], [], "entries"),
    ],
)
def test_bundles_that_are_none_are_refused(names: list[str], places: list[int], wrong: str) -> None:
    parts = torch.zeros(3, dtype=torch.uint8)
    skeleton = {"names": names, "texts": [""] * len(names), "places": places, "parts": [{"$tensor": "parts/0"}]}
    with pytest.raises(WireError, match=wrong):
        unbundled(wire.encode_packed(skeleton, {"parts/0": parts}))
    fine = {"names": ["a"], "texts": [""], "places": [0], "parts": [{"$tensor": "parts/0"}]}
    with pytest.raises(WireError, match="not bytes"):
        unbundled(wire.encode_packed(fine, {"parts/0": parts.float()}))


def test_long_answers_are_shared_out_over_messages() -> None:
    names = [str(number) for number in range(200)]
    assert [len(some) for some in _shared_out(names, 20_000, 1 << 29)] == [64, 64, 64, 8]
    assert [len(some) for some in _shared_out(names[:4], 45 << 20, 1 << 29)] == [1, 1, 1, 1]
    assert [len(some) for some in _shared_out(names[:4], 1 << 20, 1 << 21)] == [2, 2]


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "md-icfl"])
def test_clients_of_gateways_end_as_simulated_ones(name: str, digits: OwnPopulation, tmp_path: Path) -> None:
    """Two gateways, of five clients and of three, and one client alone."""
    own = list(devices(digits, tmp_path).values())
    grid = Grid({11: Gateway(own[:5]), 12: Gateway(own[5:8]), 13: own[8]})
    spec = run_spec(made(name), digits)
    transport = FlowerTransport(grid, seconds=5.0)  # type: ignore[arg-type]
    fed = RemoteFederation(task_of(spec), spec, transport, patience=0.0)
    remote = RoundLoop(made(name), fed, RunOptions(rounds=3)).run()
    assert server_side(remote) == server_side(simulated(name, digits))


@pytest.mark.usefixtures("identity")
def test_what_one_client_refuses_is_its_own_failure(digits: OwnPopulation, tmp_path: Path) -> None:
    a, b, c = list(devices(digits, tmp_path).values())[:3]
    shy = Device(c.name, digits, tmp_path / c.name, consent=Consent(frozenset({"models"})))
    heard: list[str] = []
    grid = Grid({11: Gateway([a, b, shy])})
    transport = FlowerTransport(grid, seconds=5.0, note=heard.append)  # type: ignore[arg-type]
    assert set(transport.look()) == {a.name, b.name, c.name}
    spec = run_spec(made("fedavg"), digits)
    order = Order(spec, "train", "aa", 0, 1, 0, each=False)
    payload = wire.encode(Models(task_of(spec).init(0)))
    answers = transport.deliver("train", order, {a.name: payload, b.name: b"no", c.name: payload})
    assert isinstance(answers[a.name], Returned)
    refused, shy_one = answers[b.name], answers[c.name]
    assert isinstance(refused, Failure)
    assert "safetensors header" in refused.reason
    assert shy_one == Failure("withheld", "This device refuses to tell models, and train asks for it.")
    # a gateway whose key is that of other clients is turned away, by the name that is not its own
    strict = FlowerTransport(grid, seconds=5.0, names={11: [a.name, b.name]}, note=heard.append)  # type: ignore[arg-type]
    assert strict.look() == {}
    assert f"it calls itself '{c.name}', but its key is that of" in heard[-1]


@pytest.mark.usefixtures("identity")
def test_a_round_closes_at_its_quorum_and_the_late_reply_is_used_in_the_next(
    digits: OwnPopulation, tmp_path: Path
) -> None:
    own = list(devices(digits, tmp_path).values())[:4]
    grid = Grid(dict(enumerate(own, 11)))
    spec, method = run_spec(made("fedavg"), digits), made("fedavg")
    heard: list[str] = []
    transport = FlowerTransport(grid, seconds=60.0)  # type: ignore[arg-type]
    fed = RemoteFederation(task_of(spec), spec, transport, patience=5.0, quorum=Quorum(0.75, "use"), note=heard.append)
    sent = Models(fed.task.init(0))
    slow, grid.silent = own[3].name, {14}
    began = time.monotonic()
    first = fed.ask(method.train, fed.ids, same=sent)
    assert time.monotonic() - began < 5
    assert first.ids == tuple(device.name for device in own[:3])
    assert first.failed[slow].kind == "late"
    assert heard == ["round 1 is closed (train); 1 clients are late"]
    fed.begin(1)
    assert slow not in fed.ids, "it is still at work"
    up = fed.ledger.up["train"]
    grid.silent = set()
    grid.replies |= grid.withheld
    fed.begin(2)
    assert fed.waiting == {slow}
    assert fed.ledger.up["train"] - up == up // 3, "its reply is counted when it comes"
    second = fed.ask(method.train, fed.ids, same=sent)
    assert second.ids == fed.ids
    assert second.stale == {slow: 2}
    assert second.value is not None
    assert first.value is not None
    own_size = len(digits.client(slow).train)
    assert float(second.value.size[3]) == pytest.approx(own_size / 3**0.5)
    # at the end all are waited for
    grid.silent, grid.withheld = {14}, {}
    each = Models(spread(sent.models, 4))
    assert fed.ask(method.judge, fed.ids, each=each, purpose="evaluation").failed[slow].kind == "late"
    grid.silent = set()
    grid.replies |= grid.withheld
    fed.settle()
    assert slow in fed.ids
    assert not fed.ask(method.judge, fed.ids, each=each, purpose="evaluation").failed


def test_the_key_of_a_gateway_bears_the_names_of_its_clients(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a", "b"], ["127.0.0.1"], "ward")
    make_certificates(tmp_path, ["c"], ["127.0.0.1"])
    known = ServerSecurity.of(tmp_path)
    assert {key: known.borne_by(key) for key in known.clients} == {"ward": ("a", "b"), "c": ("c",)}
    make_certificates(tmp_path, ["b"], ["127.0.0.1"])
    with pytest.raises(CoterieError, match="two keys bear the name b"):
        ServerSecurity.of(tmp_path)
    with pytest.raises(CoterieError, match="which clients the gateway answers for"):
        make_certificates(tmp_path, [], ["127.0.0.1"], "empty")


def test_a_folder_has_the_data_of_every_client_of_a_gateway(tmp_path: Path) -> None:
    for name in ("ward-1", "ward-2"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((10, 3), np.float32), y=np.arange(10) % 2)
    found = clients_data(tmp_path, ["all"])
    assert [(name, own.ids) for name, own in found.items()] == [("ward-1", ("ward-1",)), ("ward-2", ("ward-2",))]
    assert list(clients_data(tmp_path, ["ward-2"])) == ["ward-2"]
    with pytest.raises(CoterieError, match="has no data of ward-3"):
        clients_data(tmp_path, ["ward-1", "ward-3"])
    with pytest.raises(CoterieError, match="There is no folder"):
        clients_data(tmp_path / "ward-1.npz", ["all"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CoterieError, match="has no data of any client"):
        clients_data(tmp_path / "empty", ["all"])
    write_run(tmp_path, "fedavg", clients=6)
    assert list(clients_data(tmp_path / "run.toml", ["all"])) == ["0", "1", "2", "3", "4", "5"]
    with pytest.raises(CoterieError, match="has no client 'x'"):
        clients_data(tmp_path / "run.toml", ["0", "x"])


@pytest.mark.parametrize("given", [(), ("--name", "a", "--names", "b,c")])
def test_one_client_or_several_not_both(given: tuple[str, ...], coterie: Terminal) -> None:
    said = coterie("join", "--server", "127.0.0.1:9080", "--data", "run.toml", *given)
    assert said.code == 2
    assert "Give either --name for one client, or --names for several" in said.err


NAMES = ("0", "1", "2", "3", "4")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SuperLink, Names]]:
    """A gateway of five clients and one client alone, in processes of their own, with TLS and keys."""
    folder, port = tmp_path_factory.mktemp("gateway"), free_port()
    make_certificates(folder / "certs", NAMES, ["127.0.0.1"], "ward")
    make_certificates(folder / "certs", ["5"], ["127.0.0.1"])
    write_run(folder, "fedavg", clients=6, settings={"epochs": 1}, rounds=2, seed=3, dtype="float64")
    security = ServerSecurity.of(folder / "certs")
    where = ("--server", f"127.0.0.1:{port}", "--data", "run.toml", "--stay")
    with own_superlink("127.0.0.1", port, security, folder / "superlink.log", 1 << 24) as link:
        names = link.register(security)
        joined = [
            Command(folder, "ward", "join", *where, "--names", ",".join(NAMES), "--certs", "certs/clients/ward"),
            Command(folder, "alone", "join", *where, "--name", "5", "--certs", "certs/clients/5"),
        ]
        try:
            yield folder, link, names
        finally:
            for client in joined:
                client.stop()


@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("ifca", {"k": 2})])
def test_processes_behind_a_gateway_end_as_the_simulator(
    house: tuple[Path, SuperLink, Names], method: str, settings: dict[str, int]
) -> None:
    folder, link, names = house
    config = from_tables(read_tables(folder / "run.toml"))
    config = dataclasses.replace(config, method=method, settings={**config.settings, **settings})
    made_here = RunFolder.create(folder / method, config.to_toml())
    with link.grid() as grid:
        transport = FlowerTransport(grid, seconds=LONG, names=names, alive=link.check)
        remote = conduct(config, made_here, transport, ServeOptions(clients=6, patience=LONG))
    assert server_side(remote) == server_side(execute(config, None))
    memory = folder / ".coterie"
    assert {place.name for place in memory.iterdir()} == {*NAMES, "5"}
    secrets = [memory / name / "secret" for name in NAMES]
    assert all(stat.S_IMODE(secret.stat().st_mode) == 0o600 for secret in secrets)
    assert len({secret.read_text() for secret in secrets}) == len(NAMES)
