"""Flower's SuperLink behind a filter of requests: this file, run by Python, takes what `flower-superlink` takes.

The SuperLink answers its clients, its operators and its executors on one port, and only its clients must show who they
are: anyone who reaches the port could start a run, which is code, or stop one. So all but the clients' part is for this
machine alone and, there, for those who show the token that the run has made for itself, which other users of the
machine do not have. And the SuperLink takes messages of any length, in pieces: the filter counts them, and refuses a
message that is longer than what is allowed.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

from google.protobuf.message import DecodeError

from coterie.core.notes import Note
from coterie.deploy.flower.compat import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, PushMessagesResponse, PushObjectRequest

PARENT = "COTERIE_PARENT_PID"
LIMIT = "COTERIE_MESSAGE_LIMIT"
TOKEN = "COTERIE_OPERATORS_TOKEN"
TOKEN_HEADER = "coterie-operator"
_FLEET, _HEALTH = "/v1/fleet/", "/health"
_ENTRIES = ("/v1/fleet/register-node", "/v1/fleet/activate-node")
_MESSAGE, _PIECE = "/v1/fleet/push-messages", "/v1/fleet/push-object"
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
    """How much has come of each message that is being sent in pieces."""

    def __init__(self, limit: int) -> None:
        # one piece more than allowed: the server reads what is there, and sees that it is too much
        self._limit, self._come = limit + _LARGEST_PIECE, dict[str, int]()

    def begin(self, answer: bytes) -> None:
        """The SuperLink has said what to send, and under which name."""
        self._come[PushMessagesResponse.FromString(answer).session_id] = 0
        while len(self._come) > _UPLOADS:
            del self._come[next(iter(self._come))]

    def refuses(self, body: bytes) -> str:
        """What is wrong with this piece, if anything."""
        piece = PushObjectRequest.FromString(body)
        if piece.session_id not in self._come:
            return "a piece that belongs to no message"
        self._come[piece.session_id] += len(piece.object_content)
        return "" if self._come[piece.session_id] <= self._limit else "a message that is longer than what is allowed"


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
        if not path.startswith(_FLEET) and path != _HEALTH and not self._is_operator(scope):
            await self._refuse(send, 403, f"{host} asked for {path} without the token of this run's operator")
            return
        if path.startswith(_FLEET):
            await self._clients_part(scope, receive, send, host, path)
        else:
            await self._app(scope, receive, send)

    def _is_operator(self, scope: Scope) -> bool:
        shown = dict(scope["headers"]).get(TOKEN_HEADER.encode(), b"")
        return not self._token or hmac.compare_digest(shown, self._token.encode())

    async def _clients_part(self, scope: Scope, receive: Receive, send: Send, host: str, path: str) -> None:
        body = await _read(scope, receive)
        wrong = "a request that is longer than any of Flower's" if body is None else ""
        try:
            wrong = wrong or (self.uploads.refuses(body or b"") if path == _PIECE else "")
        except DecodeError:
            wrong = "something else than a piece"
        if wrong:
            await self._refuse(send, 413, f"{host} sent {wrong} (--max-megabytes {self._limit >> 20})")
            return
        status, answer = 0, b""

        async def again() -> MutableMapping[str, Any]:
            nonlocal body
            if body is None:
                return await receive()
            event, body = {"type": "http.request", "body": body, "more_body": False}, None
            return event

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
                self.uploads.begin(answer)  # before the client is told, and sends the first piece
                event = {**event, "body": answer}
            await send(event)

        await self._app(scope, again, watched)

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


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL


def main() -> None:
    """The SuperLink behind its filter, for as long as the process that started it lives."""
    from starlette.middleware import Middleware

    from coterie.deploy.flower.compat import extensions, flower_superlink, log, start_parent_process_monitor

    limit = int(os.environ.get(LIMIT, 1 << 29))
    token = os.environ.pop(TOKEN, "")
    filtering = Middleware(RequestFilter, limit=limit, say=lambda text: log(30, "%s", text), token=token)
    extensions.get_middleware = lambda: (filtering,)
    if PARENT in os.environ:
        start_parent_process_monitor(int(os.environ[PARENT]))
    flower_superlink()


if __name__ == "__main__":
    main()
