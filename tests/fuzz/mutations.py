"""How well-formed input is spoilt: bytes, JSON values, safetensors headers, TOML text and .npz archives."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import safetensors.torch
import torch

Mutate = Callable[[Random, bytes], bytes]

WORDS = (
    "", " ", "x" * 70, "y" * 5000, "..", "../../VICTIM/x", "/tmp/VICTIM", "a/b", "a\0b", "\x1b[2J", "a\nround 1/9",
    "\u202e", "\ud800", "é" * 40, "evil.py:build", "os:abort", "os:system", "{}", "[]", "null", "nan", "-1", "9" * 30,
    "complex128", "BOOL", "F8_E4M3", "F4", "C64", "I64", "F16", "train", "judge", "__class__", "__init__", "digits-mlp",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 63, 1 << 64, 10**18, 10**100, int("9" * 400), -(10**400),
    0.5, -0.0, 1e-300, 1e30, 1e300, -1e300, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": ""}, [0] * 300, [1 << 40, 1 << 40], [[[[1]]]], ["a", 1, None],
    {"$tensor": "model/x"}, {"$tensor": 3}, {"$tensor": {}},
    {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]},
)  # fmt: skip
_DEEP = "@deep@"
_ALPHABET = '0123456789eE+-.,:[]{}"\\ntrufalsNaInity\x00= #\n'


def spoilt_bytes(random: Random, data: bytes) -> bytes:
    """Some bytes flipped, cut, doubled, or put in."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        if not changed:
            return bytes(random.randbytes(random.randrange(20)))
        at, length = random.randrange(len(changed)), random.choice((1, 1, 2, 4, 8, 64))
        how = random.randrange(6)
        if how == 0:
            changed[at] ^= 1 << random.randrange(8)
        elif how == 1:
            changed[at : at + length] = random.randbytes(length)
        elif how == 2:
            del changed[at : at + length]
        elif how == 3:
            changed[at:at] = changed[max(at - length, 0) : at + length]
        elif how == 4:
            changed[at : at + length] = random.choice((b"\0", b"\xff", b"\x80")) * length
        else:
            del changed[at if random.random() < 0.5 else len(changed) - 1 :]
    return bytes(changed)


def spoilt_text(random: Random, data: bytes) -> bytes:
    """Some characters replaced by others that mean something in JSON or TOML."""
    letters = list(data.decode(errors="replace"))
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(letters) + 1)
        letters[at : at + random.randrange(3)] = random.choices(_ALPHABET, k=random.randrange(4))
    return "".join(letters).encode(errors="replace")


def extreme(random: Random) -> Any:
    """A value that is seldom thought of."""
    kind = random.randrange(8)
    if kind == 0:
        return _DEEP
    return random.choice(NUMBERS if kind < 4 else WORDS if kind < 6 else OTHERS)


def spoilt_value(random: Random, value: Any) -> Any:
    """A JSON value with one of its parts replaced, removed, doubled or added; also inside of texts that are JSON."""
    inner = _inside(value)
    if inner is not None and random.random() < 0.85:
        return json.dumps(spoilt_value(random, inner))
    if isinstance(value, dict) and value and random.random() < 0.93:
        return _spoilt_table(random, value)
    if isinstance(value, list) and value and random.random() < 0.8:
        return _spoilt_list(random, value)
    return extreme(random)


def _spoilt_table(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    key = random.choice(list(value))
    how = random.randrange(12)
    if how == 0:
        return {k: v for k, v in value.items() if k != key}
    if how == 1:
        return {**value, str(random.choice((*WORDS, *value))): extreme(random)}
    if how == 2:
        return {**value, key: value[random.choice(list(value))]}
    if how == 3:
        return {(random.choice(WORDS) if k == key else k): v for k, v in value.items()}
    return {**value, key: spoilt_value(random, value[key])}


def _spoilt_list(random: Random, value: list[Any]) -> list[Any]:
    at = random.randrange(len(value))
    how = random.randrange(8)
    if how == 0:
        return [*value[:at], *value[at + 1 :]]
    if how == 1:
        return [*value, extreme(random)]
    if how == 2:
        return value * random.choice((2, 100))
    return [*value[:at], spoilt_value(random, value[at]), *value[at + 1 :]]


def _inside(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return json.loads(value)
    except ValueError:
        return None


def to_json(random: Random, value: Any) -> bytes:
    """JSON in which what is marked as deep is nested hundreds or thousands of times."""
    text = json.dumps(value)
    if _DEEP in text:
        depth = random.choice((50, 900, 20_000))
        text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth)
    return text.encode()


def spoilt_json(random: Random, data: bytes) -> bytes:
    """JSON with a part of its meaning changed, or its text, or its bytes."""
    how = random.randrange(10)
    if how == 0:
        return spoilt_bytes(random, data)
    if how == 1:
        return spoilt_text(random, data)
    return to_json(random, spoilt_value(random, json.loads(data)))


def spoilt_wire(random: Random, data: bytes) -> bytes:
    """A safetensors message with its header, its skeleton, its bytes or the length of its header changed."""
    how = random.randrange(10)
    (length,) = struct.unpack_from("<Q", data)
    if how < 2:
        return spoilt_bytes(random, data)
    if how == 2:
        claimed = random.choice((0, 1, length - 1, length + 1, 1 << 20, (1 << 20) + 1, 1 << 40, (1 << 64) - 1))
        return struct.pack("<Q", claimed) + data[8:]
    text, body = data[8 : 8 + length], data[8 + length :]
    if how == 3:
        header = spoilt_text(random, text)
    elif how == 4:  # a name twice, the second with something else
        known = json.loads(text)
        name = random.choice(list(known))
        header = text.rstrip()[:-1] + b"," + to_json(random, {name: spoilt_value(random, known[name])})[1:]
    else:
        header = to_json(random, spoilt_value(random, json.loads(text)))
    if random.random() < 0.2:
        body = spoilt_bytes(random, body)
    return struct.pack("<Q", len(header)) + header + body


def other_numbers(random: Random, data: bytes) -> bytes:
    """A well-formed message of which one tensor has extreme numbers, another shape or another dtype."""
    (length,) = struct.unpack_from("<Q", data)
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    tensors = safetensors.torch.load(data)
    small = [name for name, tensor in tensors.items() if tensor.numel() <= 64]
    name = random.choice(small if small and random.random() < 0.7 else list(tensors))
    how, tensor = random.randrange(8), tensors[name]
    if how < 4:
        whole = not tensor.is_floating_point()
        numbers = (
            (0, 1, -1, 3, 1 << 20, 1 << 40, 1 << 62, -(1 << 62)) if whole else (0.0, -1.0, 1e-30, 1e9, 1e30, 1e300)
        )
        value = random.choice(numbers if whole else (*numbers, float("nan"), float("inf")))
        if tensor.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32):
            value = random.choice((0, 1))
        tensors[name] = torch.full_like(tensor, value)
    elif how == 4:
        tensors[name] = tensor.to(random.choice((torch.float16, torch.float64, torch.int64, torch.bool, torch.uint8)))
    elif how == 5:
        tensors[name] = tensor.new_zeros(random.choice(((), (0,), (1,), (3,), (0, 4), (2, 2))))
    elif how == 6:
        tensors[name] = tensor.unsqueeze(0).contiguous()
    else:
        tensors[name] = -5 * tensor if tensor.dtype != torch.bool else ~tensor
    return safetensors.torch.save(tensors, metadata=metadata)


def spoilt_toml(random: Random, data: bytes) -> bytes:
    """A TOML file with one of its values, keys or lines changed."""
    lines = data.decode().splitlines()
    at, how = random.randrange(len(lines)), random.randrange(10)
    key, equals, _ = lines[at].partition(" = ")
    if how < 6 and equals:
        lines[at] = f"{key} = {_toml(random)}"
    elif how == 6:
        lines[at:at] = [f"{random.choice(('rounds', 'x', 'faults', 'scenario', 'engine'))} = {_toml(random)}"]
    elif how == 7:
        lines[at:at] = [random.choice(("[settings]", "[[scenario]]", "[a.b]", "[faults]", "[engine]", "["))]
    elif how == 8:
        return spoilt_text(random, data)
    else:
        return spoilt_bytes(random, data)
    return "\n".join(lines).encode(errors="replace")


def _toml(random: Random) -> str:
    depth = random.choice((3, 300, 20_000))
    return random.choice(
        (
            json.dumps(random.choice(WORDS)), repr(random.choice(NUMBERS)), "9" * 5000, "0x" + "f" * 5000, "[]", "{}",
            "{a = 1}", "[" * depth + "]" * depth, "{a = " * depth + "1" + "}" * depth, "2026-02-30", "2026-02-03",
            "12:61:00", "'''x'''", "true", "[1, 'a', [2]]", "[[1, 2], [3]]", "nan", "-inf", "1e999", "-1", "0", "0.5",
            "[[5, 4]]", "'none'", "''", "1_000_000_000_000",
        )
    )  # fmt: skip


def spoilt_npz(random: Random, data: bytes) -> bytes:
    """An archive of arrays whose bytes, or whose members' headers, are changed, or that lacks a member."""
    if random.random() < 0.3:
        return spoilt_bytes(random, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    how = random.randrange(8)
    if how == 0:
        del members[name]
    elif how == 1:
        members[random.choice(("x.npy", "y.npy", "group.npy", "layout.npy", "../x.npy", "z"))] = members[name]
    elif how == 2:
        members[name] = members[random.choice(list(members))]
    elif how == 3:
        members[name] = spoilt_bytes(random, members[name])
    else:
        members[name] = _other_array(random, members[name])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return out.getvalue()


def _other_array(random: Random, member: bytes) -> bytes:
    """The same numbers under another dtype or shape, or under a header that promises too many."""
    end = member.index(b"\n") + 1
    kinds = (
        "<f4",
        ">f8",
        "<f2",
        "|u1",
        "<u2",
        "<i8",
        "<u8",
        "|b1",
        "<c16",
        "<U3",
        "|S5",
        "<M8[s]",
        "|O",
        "|V8",
        "<f16",
    )
    shapes = (
        (),
        (0,),
        (1,),
        (6,),
        (6, 0),
        (6, 0, 8, 8),
        (6, 1, 8, 8),
        (1 << 40,),
        (1 << 62, 4),
        (-1,),
        (6, 64),
        (64, 6),
    )
    head = {"descr": random.choice(kinds), "fortran_order": random.random() < 0.2, "shape": random.choice(shapes)}
    body = member[end:] if random.random() < 0.5 else random.randbytes(4096)
    text = (repr(head) + " \n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body
