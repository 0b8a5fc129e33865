"""Layers of the SuperLink's web application that call each other directly.

Flower puts nine of Starlette's `BaseHTTPMiddleware` around each other. Each starts a task and two streams for every
request, so that answers without an end can pass. Clients' and executors' answers have an end, and an order and its
reply cross the SuperLink in 16 requests: there each layer simply waits for the next (docs/deployment-costs.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

_PATHS = ("/v1/fleet/", "/v1/runtime/")
_STREAMS = ("/v1/runtime/responses",)
"""Answers that are read while they are made."""

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Layer = Callable[[BaseHTTPMiddleware, Event, Receive, Send], Awaitable[None]]


class _Kept:
    """What has come of a request, for each layer from the beginning."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._events = receive, list[Event]()

    def again(self) -> Receive:
        place = 0

        async def receive() -> Event:
            nonlocal place
            if place == len(self._events):
                self._events.append(await self._receive())
            place += 1
            return self._events[place - 1]

        return receive


def call_directly() -> None:
    """From now on, in this process."""
    usual: Layer = BaseHTTPMiddleware.__call__

    async def layer(self: BaseHTTPMiddleware, scope: Event, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(_PATHS) or path.startswith(_STREAMS):
            await usual(self, scope, receive, send)
            return
        kept = _Kept(receive)

        async def call_next(_: Request) -> Response:
            events: list[Event] = []

            async def keep(event: Event) -> None:
                events.append(event)

            await self.app(scope, kept.again(), keep)
            if not events:
                raise RuntimeError("No response returned.")
            answer = Response(b"".join(event.get("body", b"") for event in events[1:]), events[0]["status"])
            answer.raw_headers = events[0]["headers"]
            return answer

        answer = await self.dispatch_func(Request(scope, kept.again()), call_next)
        await answer(scope, kept.again(), send)

    BaseHTTPMiddleware.__call__ = layer  # type: ignore[method-assign]
