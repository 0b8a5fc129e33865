"""Notes: what is worth a line to the user, from any layer to the one view of a run."""

from __future__ import annotations

from collections.abc import Callable

Note = Callable[[str], None]


def silent(*_: object) -> None:
    """Take a note, or any other call of a listener, and do nothing: the default where nothing listens."""
