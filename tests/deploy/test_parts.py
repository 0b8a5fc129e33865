"""The parts of a deployment one by one: certificates, the transport, the commands' sentences."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import coterie.deploy.flower.app
from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure
from coterie.core.wire import WireError
from coterie.data.own import OwnPopulation
from coterie.deploy.certificates import make_certificates
from coterie.deploy.flower import transport as transports
from coterie.deploy.flower.client import Security
from coterie.deploy.flower.content import content_of, opened
from coterie.deploy.flower.pieces import (
    FRAMING,
    LimitedPull,
    TooLong,
    put_together,
)
from coterie.deploy.flower.superlink import ServerSecurity
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.hello import Hello, pooled
from coterie.deploy.protocol import Order, Returned, to_text
from coterie.methods.base import Models
from coterie.runs.config import from_tables
from coterie.runs.experiment import client_data
from coterie.runs.serve import ServeOptions, serve
from coterie.runs.spec import NoMajority, agree

from ..conftest import Command
from ..tiny import made
from .wiring import Grid, devices, run_spec, task_of

HELLO = Hello("a", (1, 8, 8), 10, "uint8", 10, (0.5,), (0.3,))


def test_certificates_are_for_their_owners_and_chain_to_their_ca(tmp_path: Path) -> None:
    new = make_certificates(tmp_path, ["a", "b"], ["127.0.0.1", "localhost"])
    assert len(new) == 4 + 2 * 5
    keys = [path for path in new if path.suffix == ".key"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    more = make_certificates(tmp_path, ["c"], ["127.0.0.1"])
    assert {path.relative_to(tmp_path).parts[0] for path in more} == {"clients", "keys"}
    assert sorted(ServerSecurity.of(tmp_path).clients) == ["a", "b", "c"]
    assert (tmp_path / "clients/c/ca.pem").read_bytes() == (tmp_path / "ca.pem").read_bytes()


def test_certificates_refuse_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="cannot be a name"):
        make_certificates(tmp_path, ["../a"], [])
    make_certificates(tmp_path, ["a"], ["127.0.0.1"])
    with pytest.raises(CoterieError, match="is there already"):
        make_certificates(tmp_path, ["a"], ["127.0.0.1"])
    (tmp_path / "ca.key").write_text("rust")
    with pytest.raises(CoterieError, match="cannot be used"):
        make_certificates(tmp_path, ["b"], ["127.0.0.1"])
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="Cannot write certificates"):
        make_certificates(tmp_path / "file", [], ["127.0.0.1"])
    with pytest.raises(CoterieError, match=r"There is no .*ca\.pem; make certificates"):
        ServerSecurity.of(tmp_path / "nowhere")
    with pytest.raises(CoterieError, match="cannot be read"):
        Security(key=tmp_path / "nowhere").keys()


def objects_of(payload: bytes) -> tuple[str, dict[str, bytes]]:
    """A message as Flower sends it: its name, and all of its objects."""
    message = Message(content_of("text", payload), 1, "train.x")
    return message.object_id, {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


@pytest.mark.usefixtures("identity")
def test_a_message_is_put_together_only_if_it_is_not_too_long() -> None:
    """11 MB of zeros are two pieces of 5 MB that are the same and one of 1 MB: 6 MB cross."""
    name, contents = objects_of(bytes(11 << 20))
    crossed = sum(map(len, contents.values()))
    assert crossed < 7 << 20
    with pytest.raises(TooLong, match="longer than the 8388608 bytes"):
        put_together(name, dict(contents), 8 << 20)
    assert opened(put_together(name, dict(contents), 11 << 20).content) == ("text", bytes(11 << 20))
    counted = LimitedPull(contents.__getitem__, 4 << 20)
    with pytest.raises(TooLong):
        list(map(counted, contents))
    assert counted.size <= (4 << 20) + FRAMING + (5 << 20)
    del contents[name]
    with pytest.raises(WireError, match="not a whole message"):
        put_together(name, contents, 11 << 20)


@pytest.mark.usefixtures("identity")
def test_a_short_message_is_three_objects_of_flowers_and_a_long_one_six() -> None:
    """Each is a request of its own, for the server and for a client."""
    for size, objects in ((0, 3), (1 << 19, 3), ((1 << 19) + 1, 6)):
        message = Message(content_of("text", bytes(size)), 1, "train.x")
        assert len(get_all_nested_objects(message)) == objects
        assert opened(message.content) == ("text", bytes(size))


@pytest.mark.usefixtures("identity")
def test_objects_of_flowers_that_are_parsed_are_short() -> None:
    """A text of 2 MB, and an array that names pieces 300,000 times: JSON of any length was parsed."""
    message = Message(content_of("x" * (2 << 20)), 1, "train.x")
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    with pytest.raises(WireError, match="has an object of"):
        put_together(message.object_id, contents, 1 << 30)
    name, contents = objects_of(bytes(1 << 20))
    array = next(key for key, content in contents.items() if content.startswith(b"Array "))
    head, _, body = contents[array].partition(b"\0")
    contents[array] = head + b"\0" + body.replace(b"[0]", b"[0" + b", 0" * 400_000 + b"]")
    assert len(contents[array]) > 1 << 20
    with pytest.raises(WireError, match="has an object of"):
        put_together(name, contents, 1 << 30)


@pytest.mark.usefixtures("identity")
def test_nodes_are_known_by_our_names_and_errors_by_what_they_reply_to(digits: OwnPopulation, tmp_path: Path) -> None:
    a, b, c = list(devices(digits, tmp_path).values())[:3]
    heard: list[str] = []
    grid = Grid({11: a, 12: b, 13: c})
    names = {11: [a.name], 12: [b.name], 13: ["somebody else"]}
    transport = FlowerTransport(grid, seconds=0.5, names=names, note=heard.append)  # type: ignore[arg-type]
    assert set(transport.look()) == {a.name, b.name}
    assert "its key is that of 'somebody else'" in heard[0]
    order = Order(run_spec(made("fedavg"), digits), "train", "aa", 0, 1, 0, each=False)
    grid.silent, grid.broken = {11}, {12}
    answers = transport.deliver("train", order, {a.name: b"", b.name: b"", "nobody": b""})
    assert answers[a.name] == Failure("late", "it did not answer within 0.5 s")
    assert answers[b.name] == Failure("crashed", "broken")
    assert answers["nobody"] == Failure("lost", "it has left")
    grid.error = ErrorCode.NODE_UNAVAILABLE  # so that it is not asked a second time in this round
    assert transport.deliver("train", order, {b.name: b""})[b.name].kind == "lost"  # type: ignore[union-attr]
    grid.silent, grid.broken = set(), set()
    refused = transport.deliver("train", order, {b.name: b""})[b.name]
    assert isinstance(refused, Failure)
    assert "safetensors header" in refused.reason
    assert set(transport.look()) == {a.name, b.name}  # the silent one has said hello again
    payload = wire.encode(Models(task_of(order.agreement).init(0)))
    returned = transport.deliver("train", order, {a.name: payload})[a.name]
    assert isinstance(returned, Returned)
    direct = a.perform(to_text(order), payload)
    assert returned.payload == direct.payload
    assert returned.loss == pytest.approx(direct.loss, rel=1e-5), "it crosses beside the reply"


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("returns", [True, False])
def test_a_node_that_is_away_for_a_moment_has_not_left(
    returns: bool, digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed and started again is not there at one look, and answers after it; another stays away."""

    class Flickering(Grid):
        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            if not self.silent or (returns and self.looks > 1):
                self.replies |= self.withheld
                return list(self.devices)
            return []

    monkeypatch.setattr(transports, "_PRESENCE_SECONDS", 0.01)
    monkeypatch.setattr(transports, "_RETURN_SECONDS", 0.2)
    a = next(iter(devices(digits, tmp_path).values()))
    grid = Flickering({11: a})
    transport = FlowerTransport(grid, seconds=20.0)  # type: ignore[arg-type]
    assert set(transport.look()) == {a.name}
    order = Order(run_spec(made("fedavg"), digits), "train", "aa", 0, 1, 0, each=False)
    payload = wire.encode(Models(task_of(order.agreement).init(0)))
    for _ in range(2):  # that it was away in one round says nothing about the next
        grid.silent, grid.looks = {11}, 0
        answer = transport.deliver("train", order, {a.name: payload})[a.name]
        if returns:
            assert isinstance(answer, Returned)
            assert grid.looks > 1, "nobody looked while it was away"
        else:
            assert answer == Failure("lost", "it left during the round")
            break


def test_messages_that_are_not_ours_are_refused() -> None:
    assert opened(content_of("text", b"bytes")) == ("text", b"bytes")
    assert opened(content_of("text")) == ("text", b"")
    with pytest.raises(WireError, match="not a message of coterie's"):
        opened(RecordDict())


def test_the_app_folder_is_one_that_flower_takes() -> None:
    (folder,) = coterie.deploy.flower.app.__path__
    assert len(build_fab_from_disk(Path(folder))) > 500


def test_bytes_are_normalised_by_all_clients_together() -> None:
    """10 and 30 samples: inside clients (0.3^2 + 3 * 0.03^2) / 4, between their means (0.3^2 + 3 * 0.1^2) / 4."""
    both = {"a": HELLO, "b": Hello("b", (1, 8, 8), 10, "uint8", 30, (0.1,), (0.03,))}
    normalise = pooled(both)
    assert normalise.mean == pytest.approx((0.2,))
    assert normalise.std == pytest.approx(((0.023175 + 0.03) ** 0.5,))
    flat = pooled({"a": Hello("a", (4,), 2, "float32", 10, (0.5,), (0.3,))})
    assert (flat.mean, flat.std, flat.scale) == ((0.0,), (1.0,), 1.0)


def test_clients_must_agree_on_the_form_of_their_data() -> None:
    own = from_tables({"method": "fedavg", "scenario": {"data": "clinics"}, "model": "digits-mlp"})
    odd = Hello("b", (1, 9, 9), 10, "uint8", 10, (0.5,), (0.3,))
    with pytest.raises(NoMajority, match=r"different forms \(a: bytes of shape \(1, 8, 8\), b: bytes of shape \(1, 9"):
        agree(own, {"a": HELLO, "b": odd})
    with pytest.raises(CoterieError, match="need a model"):
        agree(from_tables({"method": "fedavg", "scenario": {"data": "clinics"}}), {"a": HELLO})
    assert agree(own, {"a": HELLO}).classes == 10
    scaled = {"name": "rotated-digits", "pixels": "symmetric"}  # as the simulator does, which served runs once did not
    assert agree(from_tables({"method": "fedavg", "scenario": scaled}), {"a": HELLO}).normalise.mean == (0.5,)


def test_a_clients_data_are_a_file_or_a_part_of_a_scenario(tmp_path: Path) -> None:
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6)
    np.savez(tmp_path / "ward.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert client_data(tmp_path / "ward.npz", "ward").ids == ("ward",)
    (tmp_path / "run.toml").write_text('method = "fedavg"\n[scenario]\nname = "rotated-digits"\nclients = 4\n')
    assert len(client_data(tmp_path / "run.toml", "3").client("3").train)
    with pytest.raises(CoterieError, match=r"has no client 'x'; choose a --name among 0, 1, 2, 3"):
        client_data(tmp_path / "run.toml", "x")
    with pytest.raises(CoterieError, match="There is no file"):
        client_data(tmp_path / "nothing.npz", "a")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"method": "fedavg", "faults": {"dropout": 0.5}}, "leave the table"),
        ({"method": "gossip"}, "gossip has no server"),
        ({"method": "fedavg", "scenario": {"name": "nowhere"}}, "There is no scenario 'nowhere'"),
    ],
)
def test_what_a_server_cannot_serve_is_refused(tables: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=said):
        serve(from_tables(tables), tmp_path / "run", ServeOptions(), host="127.0.0.1", port=1)
    assert not (tmp_path / "run").exists()


def test_commands_say_what_is_missing(coterie: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('method = "gossip"\n')
    data = ("--name", "0", "--data", str(config))
    assert "Give either --config" in coterie("serve").err
    assert "Give either --config" in coterie("serve", "--config", config, "--resume", tmp_path).err
    assert "it has no config.toml" in coterie("serve", "--resume", tmp_path).err
    assert "--server needs HOST:PORT" in coterie("join", "--server", "here", *data).err
    assert "DIR/clients/0" in coterie("join", "--server", "a:1", *data, "--certs", tmp_path).err
    assert "--listen needs HOST:PORT" in coterie("peer", "--config", config, *data, "--listen", "here").err
    assert "--clients and --max-megabytes" in coterie("serve", "--config", config, "--clients", 0).err
    assert "give at least 2" in coterie("peers", "--local", 1, "--config", config, "--out", tmp_path / "o").err
    done = coterie("certs", tmp_path / "certs", "--names", "a, b")
    assert done.code == 0
    assert "node.key" in done.out


def test_a_served_run_is_not_gone_on_with_in_the_simulator(coterie: Command, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    (tmp_path / "deployment.json").write_text(json.dumps({}))
    assert "coterie serve --resume" in coterie("resume", tmp_path).err
