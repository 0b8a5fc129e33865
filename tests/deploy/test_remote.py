"""Clients that keep their own data and memory behind a wire: the same as the simulator's, whatever they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import Result, run
from coterie.core import wire
from coterie.core.errors import CoterieError, Interrupted, Unfinished
from coterie.core.federation import Failure, Purpose
from coterie.data.own import OwnPopulation
from coterie.deploy.boundary import checked
from coterie.deploy.memory import DiskMemory
from coterie.deploy.protocol import Order, Returned, to_text
from coterie.methods import METHODS
from coterie.methods.p2p.base import PeerMethod
from coterie.models.named import builder_named
from coterie.runs.folder import RunFolder
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions
from coterie.simulation.faults import Faults

from ..tiny import StopAt, fingerprint, made, only, six_digits
from .wiring import MODEL, Here, devices, federation, poisoned, run_spec

SERVED = [name for name, kind in METHODS.items() if not issubclass(kind, PeerMethod) and name != "oracle"]


def simulated(name: str, digits: OwnPopulation, **options: Any) -> Result:
    model = builder_named(MODEL, digits.shape, digits.classes)
    return run(made(name), digits, model, rounds=3, seed=11, dtype=torch.float64, **options)


def server_side(result: Result) -> dict[str, Any]:
    """All but the models that clients keep for themselves, which no server of a deployment sees."""
    whole = fingerprint(result)
    whole["models"] = {name: model for name, model in whole["models"].items() if not name.startswith("client-")}
    return whole


@pytest.mark.parametrize("name", SERVED)
def test_real_clients_end_as_simulated_ones(name: str, tmp_path: Path) -> None:
    six = six_digits()
    alone = simulated(name, six)
    clients = Here(devices(six, tmp_path))
    remote = RoundLoop(made(name), federation(made(name), six, clients), RunOptions(rounds=3)).run()
    assert server_side(remote) == server_side(alone)
    for client in six.ids:
        kept = alone.models.get(f"client-{client}")
        if kept is not None:
            memory = DiskMemory(tmp_path / client, "test").recall("nobody", 99)
            latest = made(name).own_models(remote.state, {client: memory})[client]
            assert all(torch.equal(latest[entry], tensor) for entry, tensor in kept.items())


class Nonsense(Here):
    """One client sends an absurd training loss with its replies."""

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[str, bytes], **how: int
    ) -> dict[str, Returned | Failure]:
        answers = super().deliver(purpose, order, payloads, **how)
        first = min(answers)
        lie = -1e308 if len(self.payloads) % 2 else float("nan")
        honest = answers[first]
        return {**answers, first: honest if isinstance(honest, Failure) else replace(honest, loss=lie)}


@pytest.mark.parametrize("kind", [Here, Nonsense])
def test_the_training_loss_comes_beside_the_reply(kind: type[Here], digits: OwnPopulation, tmp_path: Path) -> None:
    """A server warns as the simulator does, without an evaluation; results and counted bytes are the same.

    A client that sends nonsense changes nothing but what is said of its own loss.
    """
    method = replace(made("fedavg"), lr=40.0)
    model = builder_named(MODEL, digits.shape, digits.classes)
    alone = run(method, digits, model, rounds=4, seed=11, dtype=torch.float64, evaluate_every=100)
    fed = federation(method, digits, kind(devices(digits, tmp_path)))
    remote = RoundLoop(method, fed, RunOptions(rounds=4, evaluate_every=100)).run()
    assert server_side(remote) == server_side(alone)
    (simulated,) = alone.warnings
    assert re.match(r"round \d: the clients' training loss .* training diverges", simulated)
    if kind is Here:
        assert remote.warnings == [simulated]
    else:
        lie, said = sorted(remote.warnings)
        assert "the training loss of 1 of 9 clients is NaN" in lie
        assert "the clients' training loss" in said, "a round later at most: the median is another"


def test_a_loss_that_is_no_number_says_nothing() -> None:
    assert Returned.of(Returned(b"x", 0.123456789).text, b"x") == Returned(b"x", 0.123457)
    assert Returned.of(Returned(b"x").text, b"x") == Returned(b"x")
    for text in ("one", "1" * 25, "", "0x10", "1 2"):
        assert Returned.of(text, b"") == Returned(b"")
    assert Returned.of("-1e999", b"").loss == -float("inf")


@pytest.mark.parametrize("name", ["scaffold", "local", "fedsem"])
def test_a_server_that_died_goes_on_from_its_checkpoint_with_the_clients_memories_of_that_time(
    name: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """The clients have seen rounds that the server has lost: they go back with it."""
    folder = RunFolder.create(tmp_path / "run", "")
    first = Here(devices(digits, tmp_path))
    with pytest.raises(Interrupted):
        RoundLoop(made(name), federation(made(name), digits, first), RunOptions(rounds=3), folder, view=StopAt(2)).run()
    kept = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    ahead = Here(devices(digits, tmp_path))
    with pytest.raises(Interrupted):  # a session that gets further, and whose checkpoint is lost
        RoundLoop(made(name), federation(made(name), digits, ahead), RunOptions(rounds=4), folder, view=StopAt(3)).run(
            resume=True
        )
    for file, data in kept.items():
        file.write_bytes(data)
    again = Here(devices(digits, tmp_path))
    result = RoundLoop(made(name), federation(made(name), digits, again), RunOptions(rounds=3), folder).run(resume=True)
    assert server_side(result) == server_side(simulated(name, digits))


def test_a_client_that_comes_back_has_its_memory_and_a_late_one_is_admitted(
    digits: OwnPopulation, tmp_path: Path
) -> None:
    late, away = digits.ids[0], digits.ids[4]

    class Coming(StopAt):
        def update(self, row: Any) -> None:
            clients.absent = {away} if row["round"] == 1 else set()

    clients, notes = Here(devices(digits, tmp_path)), Coming(0)
    clients.absent = {late}
    fed = federation(made("scaffold"), digits, clients, note=notes.note)
    result = RoundLoop(made("scaffold"), fed, RunOptions(rounds=3), view=notes).run()
    assert f"{late} joins in round 2" in notes.notes
    assert result.clients == len(digits.ids)
    assert sorted(result.client_ids) == sorted(digits.ids)
    eras = sorted(int(file.name[:8]) for file in (tmp_path / away / "memory" / "test").glob("*"))
    assert eras == [1, 3]  # rounds 1 and 3: nothing was lost while it was away


def test_what_a_client_sends_is_checked_before_it_is_believed(digits: OwnPopulation, tmp_path: Path) -> None:
    a, b, c, d, e = digits.ids[:5]

    def tamper(client: str, data: bytes) -> bytes | Failure:
        if client == a:
            return poisoned(data, lambda _, t: t * torch.nan if t.is_floating_point() else t)
        if client == b:
            return poisoned(data, lambda _, t: torch.cat([t, t]) if t.dim() else t)
        if client == c:
            return data[:-9]
        if client == d:
            return bytes(200_000)
        if client == e:
            return poisoned(data, lambda _, t: t.float())
        return data

    method, clients = made("fedavg"), Here(devices(digits, tmp_path), tamper)
    fed = federation(method, digits, clients, limit=100_000)
    state = method.init(fed)
    after, _ = method.step(state, fed)
    kinds = {client: failure.kind for _, client, failure in fed.failures}
    assert kinds == {a: "not finite", b: "wrong shape", c: "wrong shape", d: "too large", e: "wrong shape"}
    honest = only(digits, [client for client in digits.ids if client not in kinds])
    alone = federation(method, honest, Here(devices(honest, tmp_path / "honest")))
    assert wire.encode(after) == wire.encode(method.step(method.init(alone), alone)[0])


def test_a_model_that_has_diverged_is_judged_all_the_same(digits: OwnPopulation, tmp_path: Path) -> None:
    """A loss that is not finite is an answer; a number of correct answers that is not finite is none."""
    diverged, liar = digits.ids[:2]
    wrong = {diverged: "loss", liar: "correct"}

    def tamper(client: str, data: bytes) -> bytes:
        return poisoned(data, lambda name, t: t * torch.nan if name == wrong.get(client) else t)

    method = made("fedavg")
    fed = federation(method, digits, Here(devices(digits, tmp_path), tamper))
    replies = method.assess(method.init(fed), fed, digits.ids)
    assert replies.value is not None
    assert bool(replies.value.loss[replies.ids.index(diverged)].isnan())
    assert {client: failure.reason for client, failure in replies.failed.items()} == {
        liar: "correct has NaN or infinite numbers"
    }


def test_a_client_that_says_something_else_than_the_others_is_refused(digits: OwnPopulation, tmp_path: Path) -> None:
    odd = digits.ids[0]

    def tamper(client: str, data: bytes) -> bytes:
        return poisoned(data, lambda name, t: t.expand(3).clone() if name == "size" else t) if client == odd else data

    method, clients = made("fedavg"), Here(devices(digits, tmp_path), tamper)
    fed = federation(method, digits, clients)
    method.step(method.init(fed), fed)
    assert [(client, failure.kind) for _, client, failure in fed.failures] == [(odd, "wrong shape")]


def test_a_silent_client_is_waited_for_once_a_round(digits: OwnPopulation, tmp_path: Path) -> None:
    dead = digits.ids[2]
    asked: list[str] = []

    def tamper(client: str, data: bytes) -> bytes | Failure:
        asked.append(client)
        return Failure("late", "no answer") if client == dead else data

    fed = federation(made("fedavg"), digits, Here(devices(digits, tmp_path), tamper))
    result = RoundLoop(made("fedavg"), fed, RunOptions(rounds=2)).run()
    assert asked.count(dead) == 2
    assert result.failures == 2
    assert dead not in result.client_ids


def test_no_image_is_in_what_crosses(digits: OwnPopulation, tmp_path: Path) -> None:
    replies: list[bytes] = []

    def tamper(_: str, data: bytes) -> bytes:
        replies.append(data)
        return data

    clients = Here(devices(digits, tmp_path), tamper)
    RoundLoop(made("ifca"), federation(made("ifca"), digits, clients), RunOptions(rounds=1)).run()
    crossed = b"".join(replies + clients.payloads)
    for client in digits.ids:
        for image in digits.client(client).train.x:
            assert image.numpy().tobytes() not in crossed
            assert image.double().numpy().tobytes() not in crossed


def test_too_few_clients_end_the_run_with_a_sentence(digits: OwnPopulation, tmp_path: Path) -> None:
    clients = Here(devices(digits, tmp_path))
    with pytest.raises(Unfinished, match=r"10 clients are needed and after 0 s there are: .*--resume"):
        federation(made("fedavg"), digits, clients, least=10)


def test_a_client_of_another_shape_is_not_admitted(digits: OwnPopulation, tmp_path: Path) -> None:
    heard: list[str] = []
    clients = Here(devices(digits, tmp_path))
    stranger = clients.devices[digits.ids[0]]
    stranger.__dict__["hello"] = replace(stranger.hello, shape=(3, 32, 32))
    fed = federation(made("fedavg"), digits, clients, note=heard.append)
    fed.begin(0)
    assert digits.ids[0] not in fed.ids
    assert len(heard) == 1
    assert "is not admitted: it has inputs of shape (3, 32, 32)" in heard[0]


def test_the_oracle_is_refused(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="only the simulator knows"):
        RoundLoop(
            made("oracle"), federation(made("oracle"), digits, Here(devices(digits, tmp_path))), RunOptions(rounds=1)
        ).run()


def test_a_device_refuses_what_is_not_its_method_or_its_model(digits: OwnPopulation, tmp_path: Path) -> None:
    device = devices(digits, tmp_path)[digits.ids[0]]
    spec = run_spec(made("fedavg"), digits)
    order = Order(spec, "train", "aa", 0, 1, 0, each=False)

    def asked(**changes: Any) -> str:
        with pytest.raises(CoterieError) as caught:
            device.perform(to_text(replace(order, **changes)), b"")
        return str(caught.value)

    assert "no client function 'model_for'" in asked(action="model_for")
    assert "no client function '__init__'" in asked(action="__init__")
    assert "--model evil.py:net" in asked(agreement=replace(spec, model="evil.py:net"))
    assert "There is no method 'os.system'" in asked(agreement=replace(spec, method="os.system"))
    assert "not (1, 8, 8)" in asked(agreement=replace(spec, shape=(1, 9, 9)))
    assert "does not begin with a safetensors header" in asked()
    with pytest.raises(wire.WireError, match="a list where a Order belongs"):
        device.perform("[]", b"")
    with pytest.raises(wire.WireError, match="not a whole Order"):
        checked(Order, "{")


def test_simulated_faults_are_the_simulators(digits: OwnPopulation) -> None:
    """A guard for the equality above: with faults the simulator does differ."""
    assert server_side(simulated("fedavg", digits, faults=Faults(dropout=0.5))) != server_side(
        simulated("fedavg", digits)
    )


def test_a_damaged_memory_is_said(digits: OwnPopulation, tmp_path: Path) -> None:
    memory = DiskMemory(tmp_path, "a run")
    memory.keep("aa", 1, {"x": torch.ones(2)}, 0)
    assert torch.equal(memory.recall("bb", 2)["x"], torch.ones(2))  # type: ignore[arg-type]
    next(memory.path.glob("*")).write_bytes(b"rot")
    with pytest.raises(CoterieError, match=r"cannot be read .* to start again"):
        memory.recall("bb", 2)


def test_memories_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="choose another --memory"):
        DiskMemory(tmp_path / "file", "run").keep("aa", 1, {"x": torch.ones(2)}, 0)
