"""What a method and its clients send each other: packed once by the sender, opened once by the receiver.

In between only its tensors are looked at: rows are picked for single clients, replies are checked and stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core import wire


@dataclass(frozen=True)
class Message:
    """A packed object: its type, its plain values and its tensors by path; `common` paths are the same for everyone."""

    kind: Any
    skeleton: Any
    tensors: dict[str, Tensor]
    common: tuple[str, ...] = ()

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Entries whose numbers need not be finite, as the type of the message says."""
        return getattr(self.kind, "unbounded", ())

    @classmethod
    def of(cls, value: Any, common: Sequence[str] = ()) -> Message:
        """Pack an object."""
        return cls(type(value), *wire.pack(value), common=tuple(common))

    @classmethod
    def read(cls, data: bytes, kind: Any, common: Sequence[str] = (), *, limit: int = wire.DEFAULT_LIMIT) -> Message:
        """The message in these bytes, still packed: that it is of its type is found out when it is opened."""
        return cls(kind, *wire.parse(data, limit=limit), common=tuple(common))

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return wire.encode_packed(self.skeleton, self.tensors)

    def open(self) -> Any:
        """The object; a `WireError` if it is not one of its type."""
        return wire.build(self.kind, self.skeleton, self.tensors)

    def holding(self, tensors: Mapping[str, Tensor]) -> Message:
        """The same message with other tensors under the same paths."""
        return replace(self, tensors=dict(tensors))

    def rows(self, index: Sequence[int]) -> Message:
        """The same message with only these rows of every tensor that is not common."""
        picked = torch.tensor(index)
        return self._changed(lambda tensor: tensor[picked])

    def row(self, index: int) -> Message:
        """What one client is sent: its row, without the leading axis, and all that is common."""
        return self._changed(lambda tensor: tensor[index])

    def with_axis(self) -> Message:
        """The inverse of `row`: one client's part as a cohort of one; what is common has no such axis."""
        return self._changed(lambda tensor: tensor.unsqueeze(0))

    @property
    def size(self) -> int:
        """Bytes when encoded."""
        return wire.size_of(self.skeleton, self.tensors)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Message:
        return self.holding(
            {path: t if self._is_common(path) else wire.laid_out(change(t)) for path, t in self.tensors.items()}
        )

    def _is_common(self, path: str) -> bool:
        """Whether an entry is common by its own name, or part of one that is."""
        return any(path == whole or path.startswith(f"{whole}/") for whole in self.common)
