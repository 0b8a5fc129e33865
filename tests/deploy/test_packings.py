"""How often a message is packed or opened on its way: once each at the server and at the client, and once each back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.core import wire
from coterie.core.states import spread
from coterie.data.own import OwnPopulation
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order
from coterie.deploy.server import RemoteFederation
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg

from .wiring import Grid, Here, devices, federation, run_spec, task_of


class Counted:
    """The outermost calls of `wire.pack` and `wire.unpack`; the envelope (`Order`, `Hello`) is not the message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._inside = False
        for name in ("pack", "unpack"):
            monkeypatch.setattr(wire, name, self._counting(name, getattr(wire, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def called(first: Any, *others: Any) -> Any:
            if self._inside:
                return function(first, *others)
            if not isinstance(first, Order | Hello) and first not in (Order, Hello):
                self.calls.append(name)
            self._inside = True
            try:
                return function(first, *others)
            finally:
                self._inside = False

        return called


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("how", ["each", "same"])
def test_a_question_and_its_reply_are_packed_once_and_opened_once(
    how: str, digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Flower's transport: packed by the server, opened by the client, and the same for the reply; four."""
    method = FedAvg(epochs=1, batch=4, lr=0.05)
    client = devices(digits, tmp_path)[digits.ids[0]]
    spec = run_spec(method, digits)
    transport = FlowerTransport(Grid({11: client}), seconds=5.0)  # type: ignore[arg-type]
    fed = RemoteFederation(task_of(spec), spec, transport, patience=0.0)
    model = fed.task.init(fed.seed)

    def asked() -> tuple[str, ...]:
        if how == "each":
            return fed.ask(method.judge, [client.name], each=Models(spread(model, 1))).ids
        return fed.ask(method.train, [client.name], same=Models(model)).ids

    asked()  # asked for the first time of one client alone, the server imagines a reply, for its form
    counted = Counted(monkeypatch)
    assert asked() == (client.name,)
    assert counted.calls == ["pack", "unpack", "pack", "unpack"]


def _retyped(data: bytes) -> bytes:
    """A reply whose sample count has become a text: well-formed, with the usual tensors but one, of another type."""
    skeleton, tensors = wire.parse(data)
    del tensors["size"]
    return wire.encode_packed({**skeleton, "size": "many"}, tensors)


@pytest.mark.parametrize("liars", [1, 5, 9])
def test_replies_of_another_type_have_no_vote_and_are_refused_by_name(
    liars: int, digits: OwnPopulation, tmp_path: Path
) -> None:
    """Of nine clients: one, most of them, and all, whose replies are then of one form."""
    bad = digits.ids[:liars]
    clients = Here(devices(digits, tmp_path), lambda name, data: _retyped(data) if name in bad else data)
    method = FedAvg(epochs=1, batch=4, lr=0.05)
    fed = federation(method, digits, clients)
    replies = fed.ask(method.train, digits.ids, same=Models(fed.task.init(fed.seed)))
    assert replies.ids == tuple(digits.ids[liars:])
    assert set(replies.failed) == set(bad)
    assert (replies.value is None) == (liars == 9)
    for failure in replies.failed.values():
        assert failure.kind == "wrong shape"
        assert "hold a str where a Tensor belongs" in failure.reason
