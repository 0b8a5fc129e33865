"""Means and products of many models in the compiled kernel, every argument checked before it goes there.

Columns are cut into pieces that depend on nothing but their number, and pieces are added in their order: threads share
them out, and change no bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.threads import worker_pool
from coterie.kernel.library import DTYPES, Library, MeansCall, ProductsCall

W = TypeVar("W")
_PIECE = 1 << 15  # columns: a whole number of the kernel's strips, and enough work for a thread


def means(library: Library, rows: Tensor, members: Tensor, sizes: Tensor) -> Tensor:
    """Means of rows of a matrix [R, D]: the first `sizes[0]` entries of `members` are the rows of the first mean, and
    so on; [len(sizes), D]."""
    dtype = _check_rows("rows", rows)
    _check_index("members", members, len(rows))
    _check_index("sizes", sizes, len(members) + 1)
    if not len(sizes) or bool((sizes < 1).any()) or int(sizes.sum()) != len(members):
        raise CoterieError("sizes must be at least 1 each, and members hold as many rows as they say together.")
    ends = sizes.cumsum(0)
    out = torch.empty(len(sizes), rows.shape[1], dtype=rows.dtype)

    def piece(span: tuple[int, int]) -> None:
        call = MeansCall(
            rows=rows.data_ptr(),
            stride=rows.stride(0),
            width=rows.shape[1],
            members=members.data_ptr(),
            ends=ends.data_ptr(),
            means=len(sizes),
            first_column=span[0],
            last_column=span[1],
            out=out.data_ptr(),
        )
        library.call("means", dtype, call)

    _in_threads(piece, _pieces(rows.shape[1]))
    return out


def products(
    library: Library, ends: Sequence[Tensor], begins: Sequence[Sequence[Tensor]], first: Tensor, second: Tensor
) -> Tensor:
    """Products of the ways models have gone: (e - b)[first] . (e - b)[second] for every pair of rows, [K, pairs].

    A model is in several matrices [R, D], the parts of `ends`. Each of the K `begins` has the same parts, with as many
    rows or with one for all. Sums over up to 512 columns are of the models' precision, all above them of float64.
    """
    dtype = _check_parts(ends, begins)
    count = len(ends[0])
    for name, index in (("first", first), ("second", second)):
        _check_index(name, index, count)
    if len(first) != len(second):
        raise CoterieError(f"first and second are two sides of pairs, but hold {len(first)} and {len(second)} rows.")
    if not len(first):
        return torch.zeros(len(begins), 0, dtype=torch.float64)
    pairs = _Pairs.of(first, second, count)
    work = [(part, span) for part, matrix in enumerate(ends) for span in _pieces(matrix.shape[1])]
    sums = torch.zeros(len(work), len(begins), len(pairs.partners), dtype=torch.float64)

    def piece(number: int) -> None:
        part, span = work[number]
        kinds = [kind[part] for kind in begins]
        strides = [matrix.stride(0) if len(matrix) > 1 else 0 for matrix in kinds]
        call = ProductsCall(
            ends=ends[part].data_ptr(),
            end_stride=ends[part].stride(0),
            begins=(ctypes.c_void_p * len(kinds))(*(matrix.data_ptr() for matrix in kinds)),
            begin_strides=(ctypes.c_int64 * len(kinds))(*strides),
            kinds=len(kinds),
            rows=pairs.rows.data_ptr(),
            row_count=len(pairs.rows),
            partners=pairs.partners.data_ptr(),
            pair_ends=pairs.ends.data_ptr(),
            pairs=len(pairs.partners),
            first_column=span[0],
            last_column=span[1],
            products=sums[number].data_ptr(),
        )
        library.call("products", dtype, call)

    _in_threads(piece, range(len(work)))
    total = sums[0]
    for more in sums[1:]:
        total += more
    return total[:, pairs.place]


@dataclass(frozen=True)
class _Pairs:
    """Pairs as the kernel takes them: each only once, whichever side it was asked from, and by the lower row."""

    rows: Tensor
    """The rows in use."""
    partners: Tensor
    """Places in `rows`: the partners of the first row, of the second, ..."""
    ends: Tensor
    """Where in `partners` each row's end."""
    place: Tensor
    """Where in `partners` each pair that was asked for is."""

    @classmethod
    def of(cls, first: Tensor, second: Tensor, count: int) -> _Pairs:
        lower, upper = torch.minimum(first, second), torch.maximum(first, second)
        once, place = torch.unique(lower * count + upper, return_inverse=True)
        lower, upper = once // count, once % count
        rows, both = torch.unique(torch.cat([lower, upper]), return_inverse=True)
        ends = torch.bincount(both[: len(once)], minlength=len(rows)).cumsum(0)
        return cls(rows, both[len(once) :].contiguous(), ends, place)


def _pieces(width: int) -> list[tuple[int, int]]:
    return [(first, min(first + _PIECE, width)) for first in range(0, width, _PIECE)]


def _in_threads(do: Callable[[W], None], work: Sequence[W]) -> None:
    """Do each of it, in as many threads as torch may use here."""
    threads = min(torch.get_num_threads(), len(work))
    if threads < 2:
        for piece in work:
            do(piece)
        return
    with worker_pool(threads) as pool:
        list(pool.map(do, work))


def takes(tensor: Tensor) -> bool:
    """Whether rows of this tensor can go to the kernel."""
    return tensor.dtype in DTYPES and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _check_rows(name: str, matrix: Tensor) -> torch.dtype:
    if not isinstance(matrix, Tensor) or matrix.dim() != 2 or 0 in matrix.shape:
        raise CoterieError(f"{name} must be a matrix with one model per row.")
    if not takes(matrix):
        raise CoterieError(f"{name} must be float32 or float64 on the CPU, not {matrix.dtype} on {matrix.device}.")
    if (matrix.shape[1] > 1 and matrix.stride(1) != 1) or matrix.is_neg():
        raise CoterieError(f"The numbers of a row of {name} must lie side by side; call .contiguous() first.")
    return matrix.dtype


def _check_parts(ends: Sequence[Tensor], begins: Sequence[Sequence[Tensor]]) -> torch.dtype:
    if not ends or not begins or any(len(kind) != len(ends) for kind in begins):
        raise CoterieError("products needs at least one part and one kind of beginning, each with as many parts.")
    dtypes = {_check_rows("ends", matrix) for matrix in ends}
    dtypes |= {_check_rows("begins", matrix) for kind in begins for matrix in kind}
    if len(dtypes) > 1:
        raise CoterieError("All parts of the models must be of one type.")
    for part, end in enumerate(ends):
        if len(end) != len(ends[0]):
            raise CoterieError(f"Part {part} holds {len(end)} models, but the first one holds {len(ends[0])}.")
        for kind in begins:
            if kind[part].shape[1] != end.shape[1] or len(kind[part]) not in (1, len(end)):
                raise CoterieError(
                    f"A beginning has shape {tuple(kind[part].shape)}, which is not that of part {part}, "
                    f"{tuple(end.shape)}, nor one row for all."
                )
    return dtypes.pop()


def _check_index(name: str, index: Tensor, limit: int) -> None:
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype != torch.int64 or not index.is_contiguous():
        raise CoterieError(f"{name} must be a contiguous list of whole numbers (int64).")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < limit:
        raise CoterieError(f"{name} must hold numbers from 0 to {limit - 1}.")


@dataclass(frozen=True)
class KernelRows:
    """The functions above for one library, as `RowMath`."""

    library: Library

    def takes(self, rows: Tensor) -> bool:
        """Whether rows of this tensor can go to the kernel."""
        return takes(rows)

    def means(self, rows: Tensor, members: Tensor, sizes: Tensor) -> Tensor:
        """Means of rows."""
        return means(self.library, rows, members, sizes)

    def products(
        self, ends: Sequence[Tensor], begins: Sequence[Sequence[Tensor]], first: Tensor, second: Tensor
    ) -> Tensor:
        """Products of the ways models have gone."""
        return products(self.library, ends, begins, first, second)
