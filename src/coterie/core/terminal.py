"""Text from elsewhere on its way to a terminal or a log: shown, never obeyed."""

from __future__ import annotations


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
    text = ascii(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
