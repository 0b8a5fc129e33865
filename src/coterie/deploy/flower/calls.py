"""Calls to a SuperLink that a request to end this process does not cut in two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from coterie.core.interrupts import uninterrupted


class WholeCalls:
    """Flower's interceptor of calls: each is made as a whole, and a request to end is raised after it.

    Cut in two, a call can leave a lock of the connection locked for ever. The calls by which a server or a client says
    goodbye would wait for it, and the process would never end.
    """

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Make the call."""
        with uninterrupted():
            return call_next(context)
