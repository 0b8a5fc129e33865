"""Text from elsewhere on its way to a terminal or a log: shown, never obeyed."""

from __future__ import annotations

from collections.abc import Callable


def harmless(text: str) -> str:
    """One line in which every character can be seen.

    Names and reasons come from other machines. An escape sequence in them would change the terminal, a line break would
    forge a line of the log, a change of direction would show a name backwards: each is written as Python would.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortly(value: object, longest: int = 60) -> str:
    """A value from elsewhere as it stands in a sentence: ASCII alone, and not long."""
    return _cut(value, ascii, longest)


def shown(value: object, longest: int = 200) -> str:
    """A value of this machine's user as it stands in a sentence, in the user's own letters."""
    return _cut(value, repr, longest)


def brief(text: str, longest: int = 600) -> str:
    """A sentence that quotes something from elsewhere, of a length that a log or a terminal can take."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def _cut(value: object, how: Callable[[object], str], longest: int) -> str:
    try:
        return brief(how(value), longest)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists without end
        return f"a {type(value).__name__} that is too long to show"
