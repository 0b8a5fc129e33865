"""How models travel between a process and the workers it forks: through memory that both had before the fork."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.multiprocessing  # registers how tensors in shared memory are handed over
from torch import Tensor

from coterie.core.message import Message

_ALIGNMENT = 64
_CAPACITY = 1 << 30  # address space; only what is written takes memory


class Arena:
    """A stretch of shared memory that is written, read and written again; one side writes, the other reads.

    Handing a fresh block over costs a millisecond and its page faults each time, which small models feel.
    """

    def __init__(self, *, inherited: bool = True) -> None:
        self._inherited = inherited
        try:
            if not inherited:
                raise OSError("a process that is not forked has none of this one's memory")
            self._memory = mmap.mmap(-1, _CAPACITY)
        except OSError:  # a machine that does not promise so much: every parcel then brings its own block
            self._memory = mmap.mmap(-1, _ALIGNMENT)
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._end = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process that is sent an arena gets an empty one: parcels then bring blocks of their own."""
        return partial(Arena, inherited=False), ()

    def clear(self) -> None:
        """What was written may be written over."""
        self._end = 0

    @property
    def used(self) -> int:
        """How many bytes are written."""
        return self._end

    def reserve(self, size: int) -> int | None:
        """Where `size` bytes fit, or None."""
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        if not self._inherited or start + size > len(self.bytes):
            return None
        self._end = start + size
        return start


@dataclass(frozen=True)
class Parcel:
    """Any object: its plain values, and where its tensors are (in an arena, or in a block of the parcel's own)."""

    kind: Any
    skeleton: Any
    index: tuple[tuple[str, torch.dtype, tuple[int, ...], int, int], ...]
    common: tuple[str, ...]
    start: int
    block: Tensor | None

    @classmethod
    def of(
        cls, arena: Arena, kind: Any, skeleton: Any, tensors: dict[str, Tensor], common: tuple[str, ...] = ()
    ) -> Parcel:
        """Write the tensors into the arena."""
        index, end = [], 0
        for name, tensor in tensors.items():
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + tensor.numel() * tensor.element_size()
            index.append((name, tensor.dtype, tuple(tensor.shape), begin, end))
        start = arena.reserve(end)
        own = torch.empty(end, dtype=torch.uint8).share_memory_() if start is None else None
        parcel = cls(kind, skeleton, tuple(index), common, start or 0, own)
        for place, tensor in zip(parcel.tensors(arena).values(), tensors.values(), strict=True):
            place.copy_(tensor)
        return parcel

    def tensors(self, arena: Arena) -> dict[str, Tensor]:
        """The tensors, in place."""
        block = self.block if self.block is not None else arena.bytes[self.start :]
        return {name: block[a:b].view(dtype).view(shape) for name, dtype, shape, a, b in self.index}

    def message(self, arena: Arena, *, copy: bool = False) -> Message:
        """The parcel as a message; a copy outlives the arena's next use."""
        found = self.tensors(arena)
        tensors = {name: tensor.clone() for name, tensor in found.items()} if copy else found
        return Message(self.kind, self.skeleton, tensors, self.common)
