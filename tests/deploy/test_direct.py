"""Layers that call each other directly answer as Starlette's own do."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from coterie.deploy.flower.direct import call_directly


async def _translated(request: Request, call_next: RequestResponseEndpoint) -> Response:
    try:
        return await call_next(request)
    except ValueError as error:
        return JSONResponse({"wrong": str(error)}, 418)


class Marks(BaseHTTPMiddleware):
    """Reads the body before the end point does, and marks the answer."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        request.state.length = len(await request.body())
        answer = await call_next(request)
        answer.headers["x-mark"] = answer.headers.get("x-mark", "") + "+"
        return answer


class Replaces(BaseHTTPMiddleware):
    """Answers in place of the end point where it is asked to."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return Response("turned away", 403) if "x-away" in request.headers else await call_next(request)


async def _end(request: Request) -> Response:
    body = await request.body()
    if body == b"bad":
        raise ValueError("bad")
    if body == b"worse":
        raise KeyError("worse")
    return Response(body * 2, 201, {"x-length": str(request.state.length)}, "application/octet-stream")


async def _stream(request: Request) -> Response:
    return StreamingResponse(iter([b"a", b"b", b"c"]), headers={"x-length": str(request.state.length)})


def _app() -> Starlette:
    layers = [Middleware(BaseHTTPMiddleware, dispatch=_translated), *(Middleware(k) for k in (Marks, Replaces, Marks))]
    places = {"/v1/fleet/x": _end, "/v1/fleet/s": _stream, "/v1/control/s": _stream, "/v1/runtime/responses": _stream}
    return Starlette(routes=[Route(path, end, methods=["POST"]) for path, end in places.items()], middleware=layers)


@pytest.fixture
def usual() -> Iterator[None]:
    """Starlette's own way comes back after a test."""
    before = BaseHTTPMiddleware.__call__
    yield
    BaseHTTPMiddleware.__call__ = before  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "path", ["/v1/fleet/x", "/v1/fleet/s", "/v1/control/s", "/v1/runtime/responses", "/v1/fleet/nowhere"]
)
@pytest.mark.parametrize(
    ("body", "headers"), [(b"abc", {}), (b"", {}), (b"bad", {}), (b"worse", {}), (b"abc", {"x-away": "1"})]
)
def test_answers_are_those_of_starlettes_layers(path: str, body: bytes, headers: dict[str, str], usual: None) -> None:
    def answer() -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        with TestClient(_app(), raise_server_exceptions=False) as client:
            got = client.post(path, content=body, headers=headers)
            return got.status_code, got.content, sorted(got.headers.raw)

    before = answer()
    call_directly()
    assert answer() == before
    assert before[0] in (200, 201, 403, 404, 418, 500)


def test_a_layer_waits_for_the_next_one(usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream is made on the way, which is what the time went into."""
    made: list[object] = []
    real: Any = anyio

    class Counted(real.create_memory_object_stream):  # type: ignore[misc]
        def __new__(cls, *given: Any) -> Any:
            made.append(given)
            return real.create_memory_object_stream.__new__(cls.__base__, *given)

    counting = SimpleNamespace(**{**vars(real), "create_memory_object_stream": Counted})
    monkeypatch.setattr("starlette.middleware.base.anyio", counting)
    with TestClient(_app()) as client:
        client.post("/v1/fleet/x", content=b"a")
        assert len(made) == 4
        call_directly()
        client.post("/v1/fleet/x", content=b"a")
        assert len(made) == 4
        for streams, path in enumerate(("/v1/control/s", "/v1/runtime/responses"), start=2):
            client.post(path, content=b"a")
            assert len(made) == 4 * streams
