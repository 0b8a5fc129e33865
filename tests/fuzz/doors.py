"""Every place where bytes from other machines come in, as a function of bytes, with well-formed input to begin from."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.samples import Normalise
from coterie.core.states import State
from coterie.data.own import OwnPopulation
from coterie.deploy.boundary import checked
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order, RunSpec, to_text
from coterie.methods.base import Models, Trained
from coterie.methods.embedding.autoencoder import Encoder
from coterie.runs.config import from_tables
from coterie.runs.spec import agree

from ..deploy.wiring import run_spec, task_of
from ..tiny import made, small_net
from .door import Door
from .mutations import (
    spoilt_bytes,
    spoilt_json,
    spoilt_value,
    spoilt_wire,
    to_json,
)

HELLO = Hello("a", (1, 8, 8), 10, "uint8", 10, (0.5,), (0.3,))


def texts() -> list[Door]:
    """Introductions, orders and run specs, as text."""
    order = Order(
        RunSpec("run", "fedavg", '{"epochs": 2}', "digits-mlp", (1, 8, 8), 10, Normalise(), "float64", 1),
        action="train", session="aa", round=0, era=1, safe=0, each=False, common=("x",),
    )  # fmt: skip
    config = from_tables({"method": "fedavg", "scenario": {"data": "clinics"}, "model": "digits-mlp"})

    def greet(data: bytes) -> None:
        hello = checked(Hello, data)
        agree(config, {"a": replace(HELLO, name="a"), "b": replace(HELLO, name="b"), "c": hello})

    return [
        Door("hello", (to_text(HELLO).encode(),), spoilt_json, greet),
        Door("order", (to_text(order).encode(),), spoilt_json, lambda data: checked(Order, data)),
        Door("run spec", (to_text(order.agreement).encode(),), spoilt_json, lambda data: _built(data)),
    ]


def _built(data: bytes) -> None:
    spec = checked(RunSpec, data)
    spec.build_method()


def messages() -> list[Door]:
    """The one format, read as several types."""
    state = small_net().state_dict()
    values: list[tuple[Any, Any]] = [
        (State, state),
        (Memory, {"a": torch.ones(3), "b": {"x": torch.zeros(2, dtype=torch.int64)}}),
        (Models, Models(state)),
        (Trained, Trained(state, torch.tensor(3.0))),
        (Encoder, Encoder("autoencoder-fc", (1, 8, 8), 1.0, {"w": torch.ones(2)})),
        (dict[str, Tensor | None], {"x": None, "y": torch.ones(1)}),
    ]
    doors = []
    for kind, value in values:

        def read(data: bytes, kind: Any = kind) -> None:
            wire.decode(data, kind, limit=1 << 20)
            wire.layout_of(data, limit=1 << 20)

        doors.append(Door(f"wire {getattr(kind, '__name__', kind)}", (wire.encode(value),), spoilt_wire, read))
    return doors


def flower() -> list[Door]:
    """Flower's messages in pieces, as JSON of object names and contents."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.task_identity import TaskIdentity

    from coterie.deploy.flower.content import content_of, opened
    from coterie.deploy.flower.pieces import put_together

    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1  # only a task of Flower's makes messages
    message = Message(content_of(to_text(HELLO), b"payload" * 5), 1, "query.hello")
    whole = {name: part.deflate().decode("latin-1") for name, part in get_all_nested_objects(message).items()}

    def together(data: bytes) -> None:
        found = json.loads(data)
        contents = {name: text.encode("latin-1") for name, text in found["contents"].items()}
        opened(put_together(found["id"], contents, 1 << 20).content)

    def mutate(random: Random, data: bytes) -> bytes:
        found = json.loads(data)
        name = random.choice(list(found["contents"]))
        content = found["contents"][name].encode("latin-1")
        head, _, body = content.partition(b"\0")
        how = random.randrange(6)
        if how == 0:
            content = spoilt_bytes(random, content)
        elif how == 1:
            content = spoilt_bytes(random, head) + b"\0" + body
        elif how == 2:
            content = head + b"\0" + spoilt_bytes(random, body)
        elif how == 3 and body[:1] == b"{":
            body = to_json(random, spoilt_value(random, json.loads(body)))
            kind, children, _ = head.split(b" ")
            content = b" ".join((kind, children, str(len(body)).encode())) + b"\0" + body
        elif how == 4:
            children = ",".join(random.choices(list(found["contents"]), k=random.randrange(4)))
            content = b" ".join((head.split(b" ")[0], children.encode(), head.split(b" ")[2])) + b"\0" + body
        else:
            content = found["contents"][random.choice(list(found["contents"]))].encode("latin-1")
        found["contents"][name] = content.decode("latin-1")
        if random.random() < 0.1:
            del found["contents"][random.choice(list(found["contents"]))]
        return json.dumps(found).encode()

    seed = json.dumps({"id": message.object_id, "contents": whole}).encode()
    return [Door("flower", (seed,), mutate, together)]


def peers(population: OwnPopulation) -> list[Door]:
    """What another peer can say: its answers, and what zenoh hands to our handlers."""
    from coterie.core.states import spread
    from coterie.deploy.zenoh.peer import Deployed, _alone, _Meeting
    from coterie.methods.p2p.base import Answers, Sketched

    learnt = made("panm", k=1, l=1)
    spec = run_spec(made("fedavg"), population)
    task = task_of(spec)
    state = spread(task.init(3), 1)
    nobody = torch.empty(1, 0, dtype=torch.int64)
    own = Answers(state, state, nobody)
    look = Sketched(torch.ones(1, 2, 512, dtype=torch.int8), nobody)
    fed = SimpleNamespace(task=task, round=0, refuse=lambda name, reason: _short(reason))

    def meeting(data: bytes) -> _Meeting:
        swarm = SimpleNamespace(limit=1 << 20, fetch=lambda *_, **__: {"b": data})
        peer = Deployed(learnt, swarm)  # type: ignore[arg-type]
        return _Meeting(peer, fed, {"change": own, "sketch": look}, [7], {7: "b"}, 1, None)

    def answer(data: bytes) -> None:
        meeting(data).models("change", [7])

    def sketch(data: bytes) -> None:
        meeting(data).sketches()

    return [
        Door("peer's answer", (wire.encode(_alone(own)),), spoilt_wire, answer),
        Door("peer's sketch", (wire.encode(_alone(look)),), spoilt_wire, sketch),
        _handlers(),
    ]


def _short(text: str) -> None:
    assert len(text) < 1000, "a long reason"


def bare_swarm() -> Any:
    """One peer's handlers without a session: only what arrives is looked at."""
    from coterie.deploy.presence import Presence
    from coterie.deploy.zenoh.connection import PeerConnection
    from coterie.deploy.zenoh.session import PeerSession

    shared, bare = object.__new__(PeerSession), object.__new__(PeerConnection)
    shared.limit, shared.met, shared.note, shared.root = 1 << 20, None, lambda _: None, "coterie/n"
    shared.presence, shared.here = Presence(["a"], _short), {"a": bare}
    shared._news, shared._closed = threading.Event(), threading.Event()
    bare.name, bare.limit, bare._identity, bare.session = "a", 1 << 20, None, shared
    bare._lock = threading.Lock()
    bare._answers, bare._waiting, bare._own_progress = {0: {"model": b"x", "change": b"y"}}, [], 0
    bare._texts, bare._latest_is_fine, bare.sent = {"hello": "h"}, False, 0
    return bare


def _handlers() -> Door:
    import zenoh

    handled = bare_swarm()
    shared = handled.session

    def arrive(data: bytes) -> None:
        said = json.loads(data)
        payload = Payload(str(said.get("payload", "")).encode(errors="replace"))
        event = SimpleNamespace(
            key_expr=str(said.get("key", "")), payload=payload, attachment=payload,
            kind=zenoh.SampleKind.PUT if said.get("put") else zenoh.SampleKind.DELETE,
            parameters=str(said.get("parameters", "")), reply=lambda *_, **__: None, drop=lambda: None,
        )  # fmt: skip
        for handler in (shared._on_life, shared._on_progress, handled._on_question, handled._on_request):
            shared.safely(handler)(event)
        shared.presence.look_up("b", str(said.get("payload", "")))
        assert len(handled._waiting) <= 4096

    seed = {"key": "coterie/n/alive/b", "payload": "3;1700", "put": True, "parameters": "0;1;500;ab"}
    return Door("peer's event", (json.dumps(seed).encode(),), _spoilt_object, arrive)


class Payload:
    """Bytes as zenoh hands them over."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def to_bytes(self) -> bytes:
        return self._data


def _spoilt_object(random: Random, data: bytes) -> bytes:
    found = json.loads(data)
    key = random.choice(list(found))
    if isinstance(found[key], str) and random.random() < 0.6:
        found[key] = spoilt_bytes(random, found[key].encode()).decode("latin-1")
    else:
        found[key] = spoilt_value(random, found[key])
    return json.dumps(found).encode()
