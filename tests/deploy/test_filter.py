"""The filter before a SuperLink: who may ask for what, and how much a client may send."""

from __future__ import annotations

import asyncio
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage

from coterie.deploy.flower.link import RequestFilter


class Filtered:
    """A filter before a SuperLink that says yes to all but strangers."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.said: list[str] = []
        self.got: list[bytes] = []
        self.filter = RequestFilter(self._superlink, limit, self.said.append)
        self.session, self.wanted = "s", ["a piece"]

    async def _superlink(self, scope: Any, receive: Any, send: Any) -> None:
        self.got.append((await receive())["body"])
        known = not scope["path"].endswith("activate-node")
        await send({"type": "http.response.start", "status": 200 if known else 412})
        body = PushMessagesResponse(session_id=self.session, objects_to_push=self.wanted).SerializeToString()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def asks(self, path: str, host: str = "192.0.2.7", body: bytes = b"", length: int | None = None) -> int:
        """The status of a request that comes in two parts."""
        sent: list[Any] = []
        parts = iter([(body[: len(body) // 2], True), (body[len(body) // 2 :], False)])

        async def receive() -> Any:
            part, more = next(parts)
            return {"type": "http.request", "body": part, "more_body": more}

        async def send(event: Any) -> None:
            if event.get("body") and path.endswith("push-messages"):  # who has read this may send pieces at once
                early = PushObjectRequest(session_id=self.session).SerializeToString()
                assert ("belongs to no message" in self.filter.uploads.refuses(early)) == (not self.wanted)
            sent.append(event)

        headers = [] if length is None else [(b"content-length", str(length).encode())]
        scope = {"type": "http", "path": path, "client": (host, 1), "headers": headers}
        asyncio.run(self.filter(scope, receive, send))
        return int(sent[0]["status"])

    def head(self, *orders: str, node: int = 7) -> int:
        """The status of the head of a message that answers these orders."""
        heads = [ProtoMessage(metadata=Metadata(reply_to_message_id=order, src_node_id=node)) for order in orders]
        trees = [ObjectTree(object_id=f"reply to {order}") for order in orders]
        request = PushMessagesRequest(messages_list=heads, message_object_trees=trees)
        return self.asks("/v1/fleet/push-messages", body=request.SerializeToString())

    def reads(self, order: str) -> int:
        """The status of the server's word that it has read the reply to an order."""
        body = ConfirmMessageReceivedRequest(message_object_id=f"reply to {order}").SerializeToString()
        return self.asks("/v1/runtime/confirm-message-received", "127.0.0.1", body=body)

    def piece(self, size: int, session: str = "s") -> int:
        """The status of a piece of a message."""
        request = PushObjectRequest(object_content=bytes(size), session_id=session)
        return self.asks("/v1/fleet/push-object", body=request.SerializeToString())


def test_the_filter_is_open_to_clients_and_to_this_machine_alone() -> None:
    link = Filtered()
    assert link.asks("/v1/fleet/pull-messages", body=b"body") == 200
    assert link.asks("/v1/control/start-run", "127.0.0.1") == 200
    assert link.asks("/v1/control/start-run", "::1") == 200
    assert (link.got[0], link.said) == (b"body", [])
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"):
        assert link.asks(path) == 403
        assert "192.0.2.7 asked for" in link.said.pop()
    assert link.asks("/v1/fleet/activate-node") == 412
    assert "has no key that is known here" in link.said.pop()


def test_a_message_that_is_too_long_is_stopped_by_the_filter_piece_by_piece() -> None:
    """1 MB is allowed, 5 MB and framing more are let in: three pieces of 2 MB fit and the fourth does not."""
    link = Filtered(1 << 20)
    assert link.piece(10) == 413
    assert "sent a piece that belongs to no message" in link.said.pop()
    assert link.head("order") == 200
    assert [link.piece(2 << 20) for _ in range(4)] == [200, 200, 200, 413]
    assert "a message that is longer than what is allowed (--max-megabytes 1)" in link.said.pop()
    assert link.piece(2 << 20, "another") == 413
    before = len(link.got)
    for length in (None, 8 << 20):  # not declared, declared: it is the bytes that count
        assert link.asks("/v1/fleet/pull-messages", body=bytes(7 << 20), length=length) == 413
    assert link.asks("/v1/fleet/push-object", body=b"no piece at all") == 413
    assert len(link.got) == before


def test_an_order_is_answered_once_however_often_it_is_answered() -> None:
    """1 MB is allowed and 6 MB let in: a second session for the same order goes on where the first one was."""
    link = Filtered(1 << 20)
    for session, statuses in (("s", [200, 200]), ("t", [200, 413]), ("u", [413, 413])):
        link.session = session
        assert link.head("order") == 200
        assert [link.piece(2 << 20, session) for _ in range(2)] == statuses
    link.session = "v"
    assert link.head("another order") == 200
    assert link.piece(2 << 20, "v") == 200
    link.session, link.wanted = "w", []  # the SuperLink did not take it
    assert link.head("no order of ours") == 200
    assert link.piece(10, "w") == 413
    before = len(link.got)
    for orders in ((), ("",), ("one", "two")):  # an order of a client's own, or several at once
        assert link.head(*orders) == 413
        assert "sent a message that is not a reply" in link.said.pop()
    assert link.asks("/v1/fleet/push-messages", body=b"no message at all") == 413
    assert len(link.got) == before


def test_what_a_client_stores_is_bounded_whatever_it_answers() -> None:
    """1 MB is allowed: two of them and one piece, 8 MB, are stored for one client, over all orders, until read."""
    link = Filtered(1 << 20)

    def send(order: str, node: int = 7) -> int:
        link.session = f"session of {order}"
        assert link.head(order, node=node) == 200
        return link.piece(2 << 20, link.session)

    assert [send(f"order {number}") for number in range(6)] == [200] * 4 + [413] * 2
    assert "sent more than is stored for one client, before the server has read it" in link.said.pop()
    assert send("of another", node=8) == 200, "one client's store is not another's"
    assert link.reads("order 2") == 200
    assert link.piece(2 << 20, "session of order 2") == 413, "what is read is not gone on with"
    assert [send("order 6"), send("order 7")] == [200, 413]
    for _ in range(3):  # what is refused takes no room, and what is read leaves none
        assert link.reads("order 6") == 200
        assert send("order 6") == 200
    assert link.asks("/v1/runtime/confirm-message-received", "127.0.0.1", body=b"no word of ours") == 200
