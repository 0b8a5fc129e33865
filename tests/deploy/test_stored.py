"""A hostile client and a real SuperLink: what it can store there before the server has read it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
from flwr.app import ConfigRecord, Message, RecordDict

from coterie.deploy.flower.client import Security, Session
from coterie.deploy.flower.outbox import Outbox
from coterie.deploy.flower.superlink import own_superlink

from .processes import free_port

REPLY = 1_900_000


def _answered(session: Session) -> int:
    """Answer the next order with 1.9 MB, whatever it is; what the SuperLink says."""
    received = session.receive(1 << 20)
    assert received is not None
    order, wrong = received
    assert not wrong
    reply = Message(RecordDict({"x": ConfigRecord({"x": os.urandom(REPLY)})}), reply_to=order)
    try:
        session.send(reply, 0.0, lambda text: None)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def test_a_client_stores_no_more_than_two_messages_and_a_piece(tmp_path: Path) -> None:
    """1 MB is allowed, so 8 MB are stored for one client: four of its replies. Each that is read makes room for one."""
    port = free_port()
    with own_superlink("127.0.0.1", port, None, tmp_path / "superlink.log", 1 << 20) as link, link.grid() as grid:
        session = Session(f"127.0.0.1:{port}", Security(), Outbox(tmp_path / "outbox"))
        try:
            node = session.node.node_id
            content = RecordDict({"x": ConfigRecord({"x": "an order"})})
            orders = list(grid.push_messages([Message(content, node, "query.x", ttl=600.0) for _ in range(8)]))
            assert [_answered(session) for _ in orders[:5]] == [200] * 4 + [413]
            (read,) = grid.pull_messages(orders[:1])
            stored = read.content["x"]["x"]
            assert isinstance(stored, bytes)
            assert len(stored) == REPLY
            assert [_answered(session) for _ in range(2)] == [200, 413]
        finally:
            session.close()
    assert (
        "more than is stored for one client, before the server has read it" in (tmp_path / "superlink.log").read_text()
    )
