"""Ports are looked at before anything is made or started."""

from __future__ import annotations

import socket
import time

from coterie.core.errors import CoterieError
from coterie.core.interrupts import pause

_LAST = 65535
_LOOK_SECONDS = 0.2


def check_port(port: int) -> None:
    """Refuse a number that is not a port."""
    if not 1 <= port <= _LAST:
        raise CoterieError(f"{port} is not a port; choose a --port from 1 to {_LAST}.")


def check_free(host: str, port: int, remedy: str) -> None:
    """Refuse an address at which this machine cannot listen now."""
    check_port(port)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port just left is free
            probe.bind((host, port))
    except OSError as error:
        raise CoterieError(
            f"Cannot listen at {host}:{port} ({error.strerror or error}); choose another {remedy}."
        ) from error


def await_free(host: str, port: int, remedy: str, seconds: float) -> None:
    """Wait so long for an address that somebody who is about to end may still listen at."""
    until = time.monotonic() + seconds
    while True:
        try:
            return check_free(host, port, remedy)
        except CoterieError:
            if time.monotonic() > until:
                raise
            pause(_LOOK_SECONDS)


def check_address(option: str, given: str, example: str) -> None:
    """Refuse what is not HOST:PORT."""
    host, _, port = given.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= _LAST:
        raise CoterieError(f"{option} needs HOST:PORT, such as {example}, not {given!r}.")
