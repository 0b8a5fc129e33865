"""Means and products of many models as rows of numbers, where a compiled backend computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class RowMath(Protocol):
    """What a backend computes of rows; a sum is the same whatever other sums it is computed with."""

    def takes(self, rows: Tensor) -> bool:
        """Whether it computes with this kind of numbers."""

    def means(self, rows: Tensor, members: Tensor, sizes: Tensor) -> Tensor:
        """Means of rows of a matrix [R, D]: the first `sizes[0]` entries of `members` are the rows of the first mean,
        and so on; [len(sizes), D]."""

    def products(
        self, ends: Sequence[Tensor], begins: Sequence[Sequence[Tensor]], first: Tensor, second: Tensor
    ) -> Tensor:
        """Products of the ways models have gone: (e - b)[first] . (e - b)[second] for every pair of rows, [K, pairs].

        A model is in several matrices [R, D], the parts of `ends`. Each of the K `begins` has the same parts, with as
        many rows or with one for all.
        """
