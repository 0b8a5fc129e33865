"""The one format: everything comes back as it went in, and anything else is refused."""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core import wire
from coterie.core.rng import torch_rng
from coterie.core.wire import WireError


@dataclass(frozen=True)
class Inner:
    model: dict[str, Tensor]
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    name: str
    number: int
    share: float
    flag: bool
    one: Tensor
    maybe: Tensor | None
    inner: Inner
    several: tuple[Inner, ...]
    pair: tuple[int, str]
    either: dict[str, Tensor | dict[str, Tensor]]


DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of several dtypes, empty and scalar ones among them."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=torch_rng(draw(st.integers(0, 99)), "wire")) * 4
    return values.abs().to(draw(st.sampled_from(DTYPES)))


texts = st.text(max_size=6)
named = st.dictionaries(st.text("ab/.", min_size=1, max_size=4), tensors(), max_size=3)
inners = st.builds(Inner, named, st.dictionaries(st.integers(-5, 5), st.integers(), max_size=3))
messages = st.builds(
    Message,
    texts,
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    tensors(),
    st.none() | tensors(),
    inners,
    st.lists(inners, max_size=2).map(tuple),
    st.tuples(st.integers(), texts),
    st.dictionaries(st.text("ab/", min_size=1, max_size=3), tensors() | named, max_size=3),
)


def same(a: object, b: object) -> bool:
    """Equal in type, structure and every bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (Message, Inner)):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b) and a == b


@given(messages)
def test_what_goes_in_comes_out(message: Message) -> None:
    data = wire.encode(message)
    assert same(wire.decode(data, Message), message)
    assert wire.encoded_size(message) == len(data)
    skeleton, parts = wire.pack(message)
    assert {name: shape for name, (_, shape) in wire.layout_of(data).items()} == {
        name: tuple(tensor.shape) for name, tensor in parts.items()
    }
    assert same(wire.unpack(Message, skeleton, parts), message)


def example() -> Message:
    inner = Inner({"w": torch.arange(6.0).view(2, 3)}, {3: 4})
    return Message("m", 1, 0.5, True, torch.tensor(2), None, inner, (inner,), (1, "x"), {"k": torch.ones(2)})


def test_views_and_repeated_tensors_are_sent_whole() -> None:
    weights = torch.arange(12.0).view(3, 4)
    sent = Inner({"a": weights[1], "b": weights[1], "c": weights.T, "d": weights[:1].expand(5, 4)})
    assert same(wire.decode(wire.encode(sent), Inner), Inner({k: v.clone() for k, v in sent.model.items()}))


@given(st.integers(0, 10_000))
def test_a_message_cut_off_anywhere_is_refused(place: int) -> None:
    data = wire.encode(example())
    with pytest.raises(WireError):
        wire.decode(data[: place % len(data)], Message)


@settings(max_examples=300)
@given(st.integers(0, 100_000))
def test_a_flipped_bit_is_refused_or_changes_only_a_value(bit: int) -> None:
    """In the header it is refused (or hits a plain value); nothing else than a message of the type ever comes out."""
    data = bytearray(wire.encode(example()))
    place = bit % (8 * len(data))
    data[place // 8] ^= 1 << place % 8
    try:
        found = wire.decode(bytes(data), Message)
    except WireError:
        return
    assert isinstance(found, Message)
    assert isinstance(found.inner, Inner)


@given(st.binary(max_size=80))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(data, Message)
    with pytest.raises(WireError):
        wire.layout_of(data)


def with_header(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        b"[1, 2]",
        b"[" * 100_000,
        b'{"__metadata__": 3}',
        b'{"__metadata__": {"other": "{}"}}',
        b'{"__metadata__": {"coterie": "not json"}}',
        b'{"__metadata__": {"coterie": "' + b"[" * 100_000 + b'"}}',
        b'{"a": 3, "__metadata__": {"coterie": "{}"}}',
        b'{"a": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4000000]}, "__metadata__": {"coterie": "{}"}}',
    ],
)
def test_hostile_headers_are_refused(header: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(with_header(header), Message)


def test_a_malformed_layout_is_refused() -> None:
    for header in (b'{"a": 3}', b'{"a": {"dtype": "F32"}}', b'{"a": {"dtype": "F32", "shape": 4}}'):
        with pytest.raises(WireError):
            wire.layout_of(with_header(header))


def test_oversized_messages_are_refused_before_they_are_read() -> None:
    data = wire.encode(example())
    for read in (lambda: wire.decode(data, Message, limit=100), lambda: wire.layout_of(data, limit=100)):
        with pytest.raises(WireError, match=f"{len(data)} bytes is larger than the 100"):
            read()


def test_another_type_is_refused() -> None:
    with pytest.raises(WireError, match="hold"):
        wire.decode(wire.encode(example()), Inner)
    with pytest.raises(WireError):
        wire.decode(wire.encode(example().inner), Message)
    with pytest.raises(WireError):
        wire.decode(wire.encode({"model": {"w": "text"}, "counts": {}}), Inner)
    with pytest.raises(WireError):
        wire.decode(wire.encode({"model": {}, "counts": {"x": 1}}), Inner)
    with pytest.raises(WireError, match="bool"):
        wire.decode(wire.encode({"a": True}), dict[str, int])
    with pytest.raises(WireError, match="bool"):
        wire.decode(wire.encode({"a": True}), dict[str, float])


def test_pickles_are_refused_and_never_made() -> None:
    with pytest.raises(WireError):
        wire.decode(pickle.dumps(example()), Message)
    header = json.loads(wire.encode(example())[8:].split(b"\x00")[0].rsplit(b"}", 1)[0] + b"}")
    assert set(header) == {"__metadata__", *wire.pack(example())[1]}


def test_what_has_no_place_in_a_message() -> None:
    with pytest.raises(TypeError, match="inner/x is a set"):
        wire.encode({"inner": {"x": {1, 2}}})
    with pytest.raises(WireError, match="cannot hold"):
        wire.decode(wire.encode({"a": 1}), dict[str, object])


@pytest.mark.parametrize(
    ("skeleton", "held"),
    [
        ({"model": {"w": {"$tensor": "x"}}, "counts": {}}, ["x"]),
        ({"model": {"w": {"$tensor": "model/w"}, "b": {"$tensor": "model/w"}}, "counts": {}}, ["model/w"]),
        ({"model": {"w": {"$tensor": "model/w"}, "b": {"$tensor": "model/w", "y": 1}}, "counts": {}}, ["model/w"]),
        ({"model": {"w": {"$tensor": "model/w"}}, "counts": {}}, ["model/w", "model/more"]),
        ({"model": {"w": {"$tensor": "model/w"}, "b": {"$tensor": "model/b"}}, "counts": {}}, ["model/w"]),
    ],
)
def test_a_tensor_bears_the_name_of_the_one_place_where_it_is_used(skeleton: object, held: list[str]) -> None:
    """Replies are checked by the names of their tensors: under another name, or used twice, one was not checked."""
    tensors = {name: torch.ones(2) for name in held}
    data = safetensors.torch.save(tensors, metadata={"coterie": json.dumps(skeleton)})
    with pytest.raises(WireError, match=r"name the tensor at|do not hold the tensors"):
        wire.decode(data, Inner)


def test_packed_objects_are_encoded_and_read_as_they_are() -> None:
    """Keys with slashes that look like paths included: `pack` tells them apart by a plus sign."""
    value = {"a/b": torch.ones(1), "a": {"b": torch.zeros(2)}, "c": 1}
    skeleton, parts = wire.pack(value)
    assert list(parts) == ["a/b", "a/b+"]
    data = wire.encode_packed(skeleton, parts)
    assert data == wire.encode(value)
    again, read = wire.parse(data)
    assert again == skeleton
    assert list(read) == list(parts)
    assert all(torch.equal(read[name], parts[name]) for name in parts)
