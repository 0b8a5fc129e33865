"""The one boundary: what another machine says is checked here, before anything uses it.

A dataclass that crosses between machines declares the range of every field with `Annotated`, and `checked` reads it
from text: the length is looked at before the text is parsed, then types, then ranges, then what the class itself says
about its fields together (`wrong`). `unbounded` lists fields without a range; a test keeps that list empty.

What still fails afterwards is the failure of its sender (`blamed`), never the end of the process.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import typing
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import quote

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.terminal import harmless, shortly

T = TypeVar("T")
LONGEST_TEXT = 1 << 17
"""No introduction, order or run spec has more characters than this; it is looked at before the text is parsed."""
LATEST = 10**8 - 1
"""The last round or era that there can be: eight digits, as in the names of files."""
_NAME = re.compile(r"\w(?:[\w .@+-]{0,62}[\w.@+-])?")
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_LONGEST_FILE_NAME = 200
_LONGEST_REASON = 300
_log = logging.getLogger(__name__)


class Rule(Protocol):
    """What a value must be."""

    def wrong(self, value: Any) -> str:
        """What is wrong with it, as the end of a sentence; nothing if it is as it should be."""


@dataclass(frozen=True)
class Between:
    """A number from `least` to `most`; NaN is never between."""

    least: float
    most: float

    def wrong(self, value: Any) -> str:
        """Outside."""
        return "" if self.least <= value <= self.most else f"is not between {self.least:g} and {self.most:g}"


@dataclass(frozen=True)
class Length:
    """A tuple with so many entries."""

    least: int
    most: int

    def wrong(self, value: Any) -> str:
        """Too few, too many."""
        return "" if self.least <= len(value) <= self.most else f"has not {self.least} to {self.most} entries"


@dataclass(frozen=True)
class PlainLine:
    """One line of at most so many characters, all of which can be seen."""

    most: int

    def wrong(self, value: Any) -> str:
        """Too long, or with control characters."""
        fits = len(value) <= self.most and value.isprintable()
        return "" if fits else f"is not one plain line of at most {self.most} characters"


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def wrong(self, value: Any) -> str:
        """Another word."""
        return "" if value in self.words else f"is none of {', '.join(self.words)}"


@dataclass(frozen=True)
class _Named:
    """What can be the name of a run, a session, a client or a network: it becomes part of files' names."""

    def wrong(self, value: Any) -> str:
        if _NAME.fullmatch(value) is None or len(quote(value, safe="")) > _LONGEST_FILE_NAME:
            return "cannot be a name: use 1 to 64 letters, digits, spaces and . _ - @ +, a letter or digit first"
        # two names that look alike are one to who reads them
        if unicodedata.normalize("NFKC", value) != value or _UNSEEN.search(value):
            return "cannot be a name: it has letters that cannot be seen or look like others; use plain ones"
        return ""


Name = Annotated[str, _Named()]
"""The one type of all names that cross."""


def check_name(name: str, what: str) -> str:
    """A name that this machine's user has given, if it can be one."""
    wrong = _Named().wrong(name)
    if wrong:
        raise CoterieError(f"{what} {shortly(name)} {wrong}.")
    return name


def place(root: Path, name: str) -> Path:
    """Where something of that name is on disk: the one way from a name to a path, and never outside `root`."""
    if _Named().wrong(name):
        raise wire.WireError(f"{shortly(name)} {_Named().wrong(name)}.")
    return root / quote(name, safe="")


def checked(kind: type[T], text: str | bytes) -> T:
    """Text as the expected dataclass, every key, type and range checked; anything else is a `WireError`."""
    if len(text) > LONGEST_TEXT:
        raise wire.WireError(
            f"Its {kind.__name__} of {len(text)} characters is longer than the {LONGEST_TEXT} allowed."
        )
    with blamed(f"This is not a whole {kind.__name__}"):
        value: T = wire.unpack(kind, json.loads(text), {})
        check(kind, value, kind.__name__)
    return value


def check(kind: Any, value: Any, path: str) -> None:
    """Raise unless a value of the right type is within the ranges that its type declares."""
    rules, plain = _parts(kind)
    for rule in rules:
        wrong = rule.wrong(value)
        if wrong:
            raise wire.WireError(f"{path} {wrong}: {shortly(value)}.")
    if dataclasses.is_dataclass(plain):
        for name, hint in _hints(plain).items():
            check(hint, getattr(value, name), f"{path}.{name}")
        together = getattr(value, "wrong", None)
        wrong = together() if together is not None else ""
        if wrong:
            raise wire.WireError(f"{path}: {wrong}.")
    elif typing.get_origin(plain) is tuple:
        for item in value:
            check(typing.get_args(plain)[0], item, path)
    elif isinstance(value, float) and not isfinite(value):
        raise wire.WireError(f"{path} is not finite.")


def unbounded(kind: Any, path: str = "") -> list[str]:
    """The parts of a type that cross without a range; there should be none."""
    rules, plain = _parts(kind)
    if dataclasses.is_dataclass(plain):
        whole = getattr(plain, "__name__", "")
        return [part for name, hint in _hints(plain).items() for part in unbounded(hint, f"{path or whole}.{name}")]
    missing = [path] if plain is not bool and not rules else []
    if typing.get_origin(plain) is tuple:
        return missing + unbounded(typing.get_args(plain)[0], f"{path}[]")
    return missing


def _parts(kind: Any) -> tuple[tuple[Rule, ...], Any]:
    if typing.get_origin(kind) is not Annotated:
        return (), kind
    plain, *rules = typing.get_args(kind)
    return tuple(rules), plain


def _hints(kind: Any) -> dict[str, Any]:
    return _hints_of(kind)


@lru_cache(maxsize=64)
def _hints_of(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def whole_number(text: str | bytes, least: int, most: int) -> int | None:
    """A short text as a number of that range, or None."""
    try:
        number = int(text) if len(text) <= 20 and text.isascii() else None
    except ValueError:
        return None
    return number if number is not None and least <= number <= most else None


def reason_of(error: BaseException) -> str:
    """An unforeseen error in one short line."""
    text = harmless(f"{type(error).__name__}: {error}".splitlines()[0])
    return text[:_LONGEST_REASON].rstrip(".")


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Whatever still fails inside is the failure of who sent it: a `WireError` of one line, and a note in the log."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        _log.debug("%s", what, exc_info=True)
        raise wire.WireError(f"{what}: {reason_of(error)}.") from error
