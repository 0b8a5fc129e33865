"""Flower's SuperLink behind a filter of requests: this file, run by Python, takes what `flower-superlink` takes.

The SuperLink answers its clients, its operators and its executors on one port, and only its clients must show who they
are: anyone who reaches the port could start a run, which is code, or stop one. So all but the clients' part is for this
machine alone and, there, for those who show the token that the run has made for itself, which other users of the
machine do not have. And the SuperLink takes messages of any length, in pieces, and the same reply again with other
pieces, and keeps them until the server says that it has read them: the filter counts all that comes for an order, and
all that a client has sent and the server not yet read. So a client can store twice what one message may have, and no
more, whatever it sends, in answer to however many orders.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from google.protobuf.message import DecodeError

from coterie.core.notes import Note
from coterie.deploy.flower.compat import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    ConfirmMessageReceivedRequest,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
)

PARENT = "COTERIE_PARENT_PID"
LIMIT = "COTERIE_MESSAGE_LIMIT"
TOKEN = "COTERIE_OPERATORS_TOKEN"
TOKEN_HEADER = "coterie-operator"
_FLEET, _HEALTH = "/v1/fleet/", "/health"
_ENTRIES = ("/v1/fleet/register-node", "/v1/fleet/activate-node")
_MESSAGE, _PIECE = "/v1/fleet/push-messages", "/v1/fleet/push-object"
_READ = "/v1/runtime/confirm-message-received"
_FRAMING = 1 << 20
_LARGEST_PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + _FRAMING
_UPLOADS = 1 << 16
_LOCAL = ("localhost", "testclient")
_MOST_LINES = 10_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Uploads:
    """How much has come for each order, in however many messages and sessions, and how much each client has stored."""

    def __init__(self, limit: int) -> None:
        # one piece more than allowed: the server reads what is there, and sees that it is too much
        self._limit, self._come, self._order = limit + _LARGEST_PIECE, dict[str, int](), dict[str, str]()
        # one reply that the server has not let go of yet, and the next
        self._most, self._stored = 2 * limit + _LARGEST_PIECE, dict[int, dict[str, int]]()
        self._node, self._reply = dict[str, int](), dict[str, str]()

    def refuses_message(self, body: bytes) -> str:
        """What is wrong with the head of a message, if anything: a client only answers."""
        heads = PushMessagesRequest.FromString(body).messages_list
        answers = len(heads) == 1 and heads[0].metadata.reply_to_message_id
        return "" if answers else "a message that is not a reply"

    def begin(self, body: bytes, answer: bytes) -> None:
        """The SuperLink has taken the head of a message and said what to send, and under which name."""
        told = PushMessagesResponse.FromString(answer)
        if not told.objects_to_push:  # refused, or all of it is there
            return
        request = PushMessagesRequest.FromString(body)
        about = request.messages_list[0].metadata  # of whom it is was checked by the SuperLink, by the order
        order = about.reply_to_message_id
        self._order[told.session_id] = order
        self._node[order] = about.src_node_id
        self._come.setdefault(order, 0)
        for tree in request.message_object_trees:
            self._reply[tree.object_id] = order
        for known in (self._order, self._come, self._node, self._reply):
            while len(known) > _UPLOADS:
                del known[next(iter(known))]

    def refuses(self, body: bytes) -> str:
        """What is wrong with this piece, if anything."""
        piece = PushObjectRequest.FromString(body)
        order, size = self._order.get(piece.session_id, ""), len(piece.object_content)
        if order not in self._come or order not in self._node:
            return "a piece that belongs to no message"
        self._come[order] += size
        if self._come[order] > self._limit:
            return "a message that is longer than what is allowed"
        stored = self._stored.setdefault(self._node[order], {})
        if sum(stored.values()) + size > self._most:
            return "more than is stored for one client, before the server has read it"
        stored[order] = stored.get(order, 0) + size
        return ""

    def read(self, body: bytes) -> None:
        """The server has read a reply, or does not want it: the SuperLink lets its pieces go, and takes no more."""
        order = self._reply.pop(ConfirmMessageReceivedRequest.FromString(body).message_object_id, "")
        self._come.pop(order, None)
        node = self._node.pop(order, None)
        stored = {} if node is None else self._stored.get(node, {})
        stored.pop(order, None)
        if node is not None and not stored:
            self._stored.pop(node, None)


class RequestFilter:
    """Lets clients to the clients' part, the run's own server to the rest; refuses what is too long; says so."""

    def __init__(self, app: App, limit: int, say: Note, token: str = "") -> None:
        self._app, self._limit, self._write, self._token = app, limit, say, token
        self._lines = 0
        self.uploads = Uploads(limit)

    def _say(self, text: str) -> None:
        """A line of the log, in which every character can be seen; strangers cannot fill the disk with them."""
        self._lines += 1
        if self._lines <= _MOST_LINES:
            self._write(ascii(text)[1:-1])
        elif self._lines == _MOST_LINES + 1:
            self._write("turned away: too many to write them all down")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request."""
        if scope["type"] == "websocket":  # Flower has none
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = scope["client"][0] if scope.get("client") else ""
        path = scope["path"]
        if not path.startswith(_FLEET) and not _is_local(host):
            await self._refuse(send, 403, f"{host} asked for {path}, which is for this machine alone")
            return
        asks_health = path == _HEALTH and TOKEN_HEADER.encode() not in dict(scope["headers"])
        if not path.startswith(_FLEET) and not asks_health and not self._is_operator(scope):
            await self._refuse(send, 403, f"{host} asked for {path} without the token of this run's operator")
            return
        if path.startswith(_FLEET):
            await self._clients_part(scope, receive, send, host, path)
        elif path == _READ:
            await self._letting_go(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _letting_go(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Our server confirms a reply: its head is looked at on its way."""
        body = await _read(scope, receive) or b""
        with suppress(DecodeError):
            self.uploads.read(body)
        await self._app(scope, _again(body, receive), send)

    def _is_operator(self, scope: Scope) -> bool:
        shown = dict(scope["headers"]).get(TOKEN_HEADER.encode(), b"")
        return not self._token or hmac.compare_digest(shown, self._token.encode())

    def _wrong(self, path: str, body: bytes | None) -> str:
        """What is wrong with a client's request, if anything."""
        if body is None:
            return "a request that is longer than any of Flower's"
        try:
            if path == _PIECE:
                return self.uploads.refuses(body)
            return self.uploads.refuses_message(body) if path == _MESSAGE else ""
        except DecodeError:
            return "something else than a message"

    async def _clients_part(self, scope: Scope, receive: Receive, send: Send, host: str, path: str) -> None:
        body = await _read(scope, receive)
        wrong = self._wrong(path, body)
        if wrong:
            await self._refuse(send, 413, f"{host} sent {wrong} (--max-megabytes {self._limit >> 20})")
            return
        status, answer, head = 0, b"", body or b""

        async def watched(event: MutableMapping[str, Any]) -> None:
            nonlocal status, answer
            if event["type"] == "http.response.start":
                status = event["status"]
                if path in _ENTRIES and status >= 400:
                    self._say(f"turned away: {host} has no key that is known here ({path}: {status})")
            elif path == _MESSAGE and status == 200:
                answer += event.get("body", b"")
                if event.get("more_body"):
                    return
                self.uploads.begin(head, answer)  # before the client is told, and sends the first piece
                event = {**event, "body": answer}
            await send(event)

        await self._app(scope, _again(head, receive), watched)

    async def _refuse(self, send: Send, status: int, reason: str) -> None:
        self._say(f"turned away: {reason}")
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": reason.encode()})


async def _read(scope: Scope, receive: Receive) -> bytes | None:
    """A request's body, if it is no longer than a piece of Flower's, whatever length it declares."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > _LARGEST_PIECE:
        return None
    body, more = bytearray(), True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event["type"] == "http.request" and event.get("more_body", False)
        if len(body) > _LARGEST_PIECE:
            return None
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """What has been read, to be read once more."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL


def main() -> None:
    """The SuperLink behind its filter, for as long as the process that started it lives."""
    from starlette.middleware import Middleware

    from coterie.deploy.flower.compat import extensions, flower_superlink, log, start_parent_process_monitor
    from coterie.deploy.flower.direct import call_directly

    call_directly()
    limit = int(os.environ.get(LIMIT, 1 << 29))
    token = os.environ.pop(TOKEN, "")
    filtering = Middleware(RequestFilter, limit=limit, say=lambda text: log(30, "%s", text), token=token)
    extensions.get_middleware = lambda: (filtering,)
    if PARENT in os.environ:
        start_parent_process_monitor(int(os.environ[PARENT]))
    flower_superlink()


if __name__ == "__main__":
    main()
