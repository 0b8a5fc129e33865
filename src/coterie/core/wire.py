"""The one format of everything that leaves memory: messages, checkpoints, saved models.

An object (frozen dataclasses, dicts, tuples, tensors, plain values) becomes safetensors bytes: its tensors as they are,
the rest as a JSON skeleton in the header, in which a tensor is a placeholder. Reading is driven by the type the reader
expects, so the bytes choose neither classes nor code; there is no pickle anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.terminal import brief

T = TypeVar("T")
_TENSOR = "$tensor"
_HEADER = "coterie"
_ALIGNMENT = 64
DEFAULT_LIMIT = 1 << 31
HEADER_LIMIT = 1 << 20
"""No message has a longer JSON header: parsed, it takes thirty times its length. What is on our own disk may have one
of up to `OWN_HEADER_LIMIT`, as the state of a run with many clients has."""
OWN_HEADER_LIMIT = 1 << 27
LATER = "later"
"""In the metadata of a field with a default: older checkpoints lack it. No message from another machine has such."""


class WireError(CoterieError):
    """Bytes that are not what they should be: truncated, oversized, of another type, shape or dtype.

    Its text may quote them and goes into logs and to other machines, so its length has a bound.
    """

    def __init__(self, text: str) -> None:
        super().__init__(brief(text))


def laid_out(value: T) -> T:
    """The same object with every tensor in memory as `decode` would put it: row by row, at a multiple of 64 bytes.

    The last bits of a matrix product depend on both. So what is used here lies as it would after a checkpoint or a
    message: results are then the same on either side of one. Where all lies so already, it is the object itself.
    """
    if isinstance(value, Tensor):
        return typing.cast(T, _row_by_row(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        moved = {name: new for name, part in parts.items() if (new := laid_out(part)) is not part}
        return typing.cast(T, dataclasses.replace(value, **moved)) if moved else value
    if isinstance(value, Mapping):
        items = {key: laid_out(part) for key, part in value.items()}
        return typing.cast(T, items) if any(items[key] is not part for key, part in value.items()) else value
    if isinstance(value, (list, tuple)):
        rows = [laid_out(part) for part in value]
        same = all(new is part for new, part in zip(rows, value, strict=True))
        return value if same else typing.cast(T, rows if isinstance(value, list) else tuple(rows))
    return value


def _row_by_row(tensor: Tensor) -> Tensor:
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= max(size, 1)
    # is_contiguous() says nothing about axes of length 1, by which torch chooses between layouts of images
    if tensor.stride() == tuple(reversed(strides)) and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def pack(value: object) -> tuple[Any, dict[str, Tensor]]:
    """Split an object into a JSON skeleton and its tensors, laid out as encoded and named by their path."""
    tensors: dict[str, Tensor] = {}
    return _skeleton(value, "", tensors), tensors


def _skeleton(part: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """The plain values of a part of an object; its tensors are added to the others.

    (Not a function inside `pack`: one that calls itself holds what it uses until the garbage collector comes by, which
    for large models is late.)
    """
    if isinstance(part, Tensor):
        while path in tensors:  # a key with a slash in it can look like a path
            path += "+"
        tensors[path] = _row_by_row(part)
        return {_TENSOR: path}
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = dataclasses.fields(part)
        return {f.name: _skeleton(getattr(part, f.name), _join(path, f.name), tensors) for f in fields}
    if isinstance(part, Mapping):
        return {str(key): _skeleton(item, _join(path, str(key)), tensors) for key, item in part.items()}
    if isinstance(part, (list, tuple)):
        return [_skeleton(item, _join(path, str(i)), tensors) for i, item in enumerate(part)]
    if part is None or isinstance(part, (bool, int, float, str)):
        return part
    raise TypeError(f"{path or 'the object'} is a {type(part).__name__}, which has no place in a message")


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def unpack(kind: Any, skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Build an object of the expected type from a skeleton and its tensors."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(arguments, skeleton, tensors)
    if kind is Tensor:
        return tensors[_expect(skeleton, dict, kind)[_TENSOR]]
    if dataclasses.is_dataclass(kind):
        return _unpack_dataclass(kind, skeleton, tensors)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        items = _expect(skeleton, dict, kind).items()
        return {_key(arguments[0], key): unpack(arguments[1], part, tensors) for key, part in items}
    if isinstance(origin, type) and issubclass(origin, typing.Sequence):
        return _unpack_sequence(kind, skeleton, tensors)
    return _plain_value(kind, skeleton)


def _unpack_sequence(kind: Any, skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    parts = _expect(skeleton, list, kind)
    fixed = origin is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis
    kinds = arguments if fixed else (arguments[0],) * len(parts)
    values = [unpack(k, part, tensors) for k, part in zip(kinds, parts, strict=True)]
    return values if origin is list else tuple(values)


def _plain_value(kind: Any, skeleton: Any) -> Any:
    if kind is float and isinstance(skeleton, int) and not isinstance(skeleton, bool):
        return float(skeleton)
    if kind in (int, float, str, bool) or kind is type(None):
        return _expect(skeleton, kind, kind)
    raise WireError(f"A message cannot hold a {kind}; use tensors, dataclasses, dicts, tuples and plain values.")


def _first_that_fits(union: tuple[Any, ...], skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    if skeleton is None and type(None) in union:
        return None
    kinds = [kind for kind in union if kind is not type(None)]
    for kind in kinds[:-1]:
        try:
            return unpack(kind, skeleton, tensors)
        except (WireError, KeyError):
            continue
    return unpack(kinds[-1], skeleton, tensors)


def _unpack_dataclass(kind: Any, skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    parts = _expect(skeleton, dict, kind)
    names = [f.name for f in dataclasses.fields(kind)]
    later = {f.name for f in dataclasses.fields(kind) if f.metadata.get(LATER)}
    if not set(names) - later <= set(parts) <= set(names):
        raise WireError(f"These bytes hold {sorted(parts)}, but a {kind.__name__} has {sorted(names)}.")
    hints = _hints(kind)
    return kind(**{name: unpack(hints[name], parts[name], tensors) for name in names if name in parts})


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _key(kind: Any, key: str) -> Any:
    return int(key) if kind is int else key


def _expect(skeleton: Any, kind: type, wanted: Any) -> Any:
    if not isinstance(skeleton, kind) or (kind is int and isinstance(skeleton, bool)):
        name = getattr(wanted, "__name__", str(wanted))
        raise WireError(f"These bytes hold a {type(skeleton).__name__} where a {name} belongs.")
    return skeleton


def encode(value: object) -> bytes:
    """The bytes that are sent or saved."""
    return encode_packed(*pack(value))


def encode_packed(skeleton: Any, tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of an object that has been packed already."""
    # safetensors refuses views that share memory, which rows of a stack do
    own = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    return safetensors.torch.save(own, metadata={_HEADER: json.dumps(skeleton)})


def encoded_size(value: object) -> int:
    """`len(encode(value))`, computed once per layout: equal names, shapes and plain values give equal lengths."""
    return size_of(*pack(value))


def size_of(skeleton: Any, tensors: Mapping[str, Tensor]) -> int:
    """The encoded size of an object that has been packed already."""
    layout = tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items())
    return _size_of_layout(json.dumps(skeleton), layout)


@lru_cache(maxsize=4096)
def _size_of_layout(skeleton: str, layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> int:
    blank = {name: torch.zeros(shape, dtype=getattr(torch, dtype[6:])) for name, dtype, shape in layout}
    return len(safetensors.torch.save(blank, metadata={_HEADER: skeleton}))


def layout_of(data: bytes, *, limit: int = DEFAULT_LIMIT) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes declared in the header, read before any tensor is allocated."""
    if len(data) > limit:
        raise WireError(f"A message of {len(data)} bytes is larger than the {limit} that are allowed here.")
    header = _header(data, HEADER_LIMIT)
    try:
        return {name: (str(h["dtype"]), tuple(h["shape"])) for name, h in header.items() if name != "__metadata__"}
    except UNREADABLE as error:
        raise WireError("A message does not declare its tensors as it should: it is corrupt or not ours.") from error


def _header(data: bytes, most: int) -> dict[str, Any]:
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > most:
            raise WireError(f"A message declares a header of {length} bytes, more than the {most} that are allowed.")
        if length > len(data) - 8:
            raise WireError("A message ends before its header does: it was cut off on the way.")
        header = json.loads(data[8 : 8 + length])
    except (struct.error, *UNREADABLE) as error:
        raise WireError("A message does not begin with a safetensors header: it is corrupt or not ours.") from error
    if not isinstance(header, dict):
        raise WireError("A message does not begin with a safetensors header: it is corrupt or not ours.")
    return header


def decode(data: bytes, kind: type[T], *, limit: int = DEFAULT_LIMIT, header_limit: int = HEADER_LIMIT) -> T:
    """Read bytes as an object of the expected type; anything else is refused with a `WireError`."""
    return typing.cast(T, build(kind, *parse(data, limit=limit, header_limit=header_limit)))


def parse(
    data: bytes, *, limit: int = DEFAULT_LIMIT, header_limit: int = HEADER_LIMIT
) -> tuple[Any, dict[str, Tensor]]:
    """Bytes as the skeleton and the tensors that `pack` made, which are laid out and in the order of the skeleton.

    Every tensor must bear the name of the place where it is used, and be used there alone: so a check of a tensor by
    its name is a check of the part of the object that it becomes.
    """
    if len(data) > limit:
        raise WireError(f"A message of {len(data)} bytes is larger than the {limit} that are allowed here.")
    header = _header(data, header_limit)
    try:
        skeleton = json.loads(header["__metadata__"][_HEADER])
        paths = _paths(skeleton)
        loaded = safetensors.torch.load(data)
        if paths.keys() != loaded.keys():
            odd = sorted(paths.keys() ^ loaded.keys())
            raise WireError(f"These bytes do not hold the tensors that they declare: {', '.join(odd[:3])}.")
        return skeleton, {path: _row_by_row(loaded[path]) for path in paths}
    except (SafetensorError, *UNREADABLE) as error:
        raise WireError(f"These bytes are not a whole message: {error}.") from error


def build(kind: Any, skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """An object of the expected type from parts that may come from elsewhere; a `WireError` if they do not fit."""
    try:
        return unpack(kind, skeleton, tensors)
    except UNREADABLE as error:
        name = getattr(kind, "__name__", str(kind))
        raise WireError(f"These bytes are not a whole {name}: {error}.") from error


def _paths(skeleton: Any) -> dict[str, None]:
    """The paths of a skeleton's tensors, in its order, as `pack` names them."""
    found: dict[str, None] = {}

    def walk(part: Any, path: str) -> None:
        if isinstance(part, dict) and _TENSOR in part:
            while path in found:
                path += "+"
            if part != {_TENSOR: path}:
                raise WireError(f"These bytes name the tensor at {path!r} otherwise: they are corrupt or not ours.")
            found[path] = None
        elif isinstance(part, dict):
            for name, item in part.items():
                walk(item, _join(path, name))
        elif isinstance(part, list):
            for index, item in enumerate(part):
                walk(item, _join(path, str(index)))

    walk(skeleton, "")
    return found
