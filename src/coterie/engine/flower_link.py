"""Flower's SuperLink with a door-keeper: `python flower_link.py` takes what `flower-superlink` takes.

The SuperLink answers its clients, its operators and its executors on one port, and asks only its clients who they are:
whoever reaches the port could start a run, which is code. So all but the clients' part is for this machine alone.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

PARENT = "COTERIE_PARENT_PID"
LIMIT = "COTERIE_MESSAGE_LIMIT"
_FLEET = "/v1/fleet/"
_DOORS = ("/v1/fleet/register-node", "/v1/fleet/activate-node")
_FRAMING = 1 << 20  # Flower cuts messages into pieces of 5 MB; a whole request is never much longer than our limit
_LOCAL = ("localhost", "testclient")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class DoorKeeper:
    """Lets clients to the clients' part, this machine to the rest; refuses requests that are too long; says so."""

    def __init__(self, app: App, limit: int, say: Callable[[str], None]) -> None:
        self._app, self._limit, self._say = app, limit, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = scope["client"][0] if scope.get("client") else ""
        path = scope["path"]
        if not path.startswith(_FLEET) and not _is_local(host):
            await self._refuse(send, 403, f"{host} asked for {path}, which is for this machine alone")
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._limit + _FRAMING:
            await self._refuse(send, 413, f"{host} sent a message that is larger than the {self._limit} bytes allowed")
            return

        async def watched(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start" and path in _DOORS and event["status"] >= 400:
                self._say(f"turned away: {host} has no key that is known here ({path}: {event['status']})")
            await send(event)

        await self._app(scope, receive, watched)

    async def _refuse(self, send: Send, status: int, reason: str) -> None:
        self._say(f"turned away: {reason}")
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": reason.encode()})


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL


def main() -> None:
    """The SuperLink behind its door-keeper, for as long as the process that started it lives."""
    from flwr.supercore import log
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    limit = int(os.environ.get(LIMIT, 1 << 29))
    keeper = Middleware(DoorKeeper, limit=limit, say=lambda text: log(30, text))
    extensions.get_middleware = lambda: (keeper,)
    if PARENT in os.environ:
        start_parent_process_monitor(int(os.environ[PARENT]))
    flower_superlink()


if __name__ == "__main__":
    main()
