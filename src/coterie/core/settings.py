"""Settings: the same names in Python, in TOML and on the command line, checked against the fields of a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from coterie.core.errors import CoterieError, unknown
from coterie.core.terminal import shown

T = TypeVar("T")
AUTO = "auto"
"""A setting that may be left to be found out has this key in its metadata, and with it the value that says so."""
_LARGEST = (1 << 64) - 1  # of a seed; nothing else is nearly as large


class Quoted(str):
    """Text of a TOML file, which has numbers of its own; on the command line everything is text."""


def quoted(value: Any) -> Any:
    """What a TOML file says, its texts marked as such."""
    if isinstance(value, dict):
        return {key: quoted(part) for key, part in value.items()}
    if isinstance(value, list):
        return [quoted(part) for part in value]
    return Quoted(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=256)
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def from_settings(kind: type[T], settings: Mapping[str, Any], owner: str) -> T:
    """Make a dataclass from settings; an unknown key or a wrong type is refused by name."""
    hints = _type_hints(typing.cast(Any, kind))
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {owner}", key, known)
    found = {key: value for key, value in settings.items() if value == AUTO and AUTO in known[key].metadata}
    given = {key: coerce(hints[key], value, f"{owner}.{key}") for key, value in settings.items() if key not in found}
    return kind(**given, **{key: known[key].metadata[AUTO] for key in found})


def check_keywords(function: str, kind: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse keywords that a function's TypedDict does not have, as Python does where each is a parameter."""
    for name in given:
        if name not in kind.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def left_open(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that say "auto", as they may in Python too, and what that stands for."""
    able = [f for f in dataclasses.fields(value) if AUTO in f.metadata]
    return {f.name: f.metadata[AUTO] for f in able if getattr(value, f.name) == AUTO}


def coerce(kind: Any, value: Any, key: str) -> Any:
    """Read a value (a TOML value, or text from the command line) as the type a field has."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            raise unknown(f"value of {key}", value if isinstance(value, str) else shown(value), map(str, arguments))
        return value
    if origin in (typing.Union, types.UnionType):
        plain = [a for a in arguments if a is not type(None)]
        if value is None or value in ("", "none") or (value == "auto" and plain[0] in (int, float)):
            return None  # a number that is not set is found out
        for other in plain:
            with contextlib.suppress(CoterieError):
                return coerce(other, value, key)
        return coerce(plain[0], value, key)  # what is wrong, for the first of the kinds
    if origin is tuple:
        return _sequence(arguments, value, key)
    readers = {bool: _bool, int: _int, float: _float, str: _text}
    if kind not in readers:
        raise CoterieError(f"{key} cannot be set from text; set it in Python.")
    try:
        return readers[kind](value)
    except (ValueError, TypeError, KeyError, OverflowError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
        raise CoterieError(f"{key} needs {wanted}, not {shown(value)}.") from None


def _sequence(arguments: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    """A list: [1, 2] in TOML, on the command line also 1,2; pairs are [[5, 4]], on the command line also 5:4."""
    repeated = len(arguments) == 2 and arguments[1] is Ellipsis
    if isinstance(value, str) and value.startswith("["):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"list = {value}")["list"]
    if isinstance(value, str):
        value = [part.strip() for part in value.split("," if repeated else ":") if part.strip()]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    if repeated:
        return tuple(coerce(arguments[0], part, key) for part in value)
    if len(value) != len(arguments):
        like = ":".join("1" if kind is int else "0.5" if kind is float else "NAME" for kind in arguments)
        text = ":".join(map(str, value))
        raise CoterieError(f"{key} needs {len(arguments)} values joined by ':', such as {like}, not {shown(text)}.")
    return tuple(coerce(kind, part, key) for kind, part in zip(arguments, value, strict=True))


def _bool(value: Any) -> bool:
    if isinstance(value, Quoted):
        raise ValueError
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]


def _int(value: Any) -> int:
    if isinstance(value, (bool, Quoted)) or (isinstance(value, float) and value != int(value)):
        raise ValueError
    if not -_LARGEST <= int(value) <= _LARGEST:
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, (bool, Quoted)):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, (str, Path)):
        raise TypeError
    return str(value)


def split_assignments(assignments: typing.Iterable[str]) -> dict[str, str]:
    """`key=value` texts of the command line -> a dict."""
    result = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise CoterieError(f"--set takes key=value, not {text!r}.")
        result[key.strip()] = value.strip()
    return result


def to_toml(tables: Mapping[str, Any]) -> str:
    """Write plain values and one level of tables as TOML (tomllib reads it back); what is None is left out."""
    tables = {name: _set_ones(value) if isinstance(value, Mapping) else value for name, value in tables.items()}
    tables = _set_ones(tables)
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping) and table:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _set_ones(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    # JSON's text is TOML's, but for one character that only TOML escapes
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def differing(before: str, now: str) -> set[str]:
    """The keys, as key or table.key, in which two TOML texts differ."""
    if before == now:
        return set()
    one, other = _flat(tomllib.loads(before)), _flat(tomllib.loads(now))
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    nested = {name: table for name, table in tables.items() if isinstance(table, Mapping)}
    return plain | {f"{name}.{key}": value for name, table in nested.items() for key, value in table.items()}


def changed_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    plain = {}
    for f in dataclasses.fields(value):
        current = getattr(value, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if current != default and current is not None:
            plain[f.name] = current
    return plain
