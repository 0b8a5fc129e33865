"""A client's embedding (Algorithm 1): per class, the mean code of its samples, as randomly flipped bits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.targets import TaskKind
from coterie.methods.embedding.privacy import check_flip

Bits = NDArray[np.uint8]


def in_blocks(codes: Tensor, targets: Tensor, kind: TaskKind, blocks: int) -> tuple[Tensor, Tensor]:
    """Codes with the block that each belongs to: its class; ours, where targets are not classes, another.

    With several labels a sample, a code counts for each of them. Of numbers, a client's own quantiles are the blocks:
    a sample with m smaller targets among n is in block floor(m * blocks / n), so that each client fills them all and no
    target is told. Several numbers a sample have one block.
    """
    if kind == "multilabel":
        rows, labels = (targets > 0.5).nonzero(as_tuple=True)
        return codes[rows], labels
    if kind != "regression":
        return codes, targets
    if blocks == 1:
        return codes, torch.zeros(len(targets), dtype=torch.int64)
    flat = targets.reshape(-1)
    return codes, torch.searchsorted(flat.sort().values, flat) * blocks // max(len(flat), 1)


def binarise(means: Tensor) -> Bits:
    """Each class stretched to [0, 1] and rounded, [classes * code]; a constant class, which has no range, is all 0."""
    low, high = means.min(1, keepdim=True).values, means.max(1, keepdim=True).values
    width = high - low
    stretched = torch.where(width > 0, (means - low) / torch.where(width > 0, width, 1.0), 0.0)
    bits: Bits = stretched.round().to(torch.uint8).numpy().reshape(-1)
    return bits


def held_classes(labels: Tensor, classes: int) -> Bits:
    """One bit a class: whether there is a sample of it."""
    known = labels[(labels >= 0) & (labels < classes)]
    held: Bits = (torch.bincount(known, minlength=classes) > 0).to(torch.uint8).numpy()
    return held


def flip(bits: Bits, probability: float, generator: np.random.Generator) -> Bits:
    """Randomised response: every bit is flipped with this probability.

    Each bit has one coin for the value 0 and one for the value 1. With the same generator an unchanged bit is answered
    the same each time, so that asking again does not average the noise away.
    """
    check_flip(probability)
    coins = generator.random((2, len(bits))) < probability
    flipped: Bits = bits ^ np.where(bits == 0, coins[0], coins[1]).astype(np.uint8)
    return flipped


def pack_bits(bits: Bits) -> Tensor:
    """Eight bits a byte: 200 bits are 25 bytes."""
    return torch.from_numpy(np.packbits(bits))


def packed_size(length: int) -> int:
    """Bytes of an embedding of that many bits."""
    return -(-length // 8)


def unpack_bits(packed: Tensor, length: int) -> Bits:
    """The rows of bits that were packed, [clients, length]."""
    return np.unpackbits(packed.numpy(), axis=1, count=length)


def packing_flaws(packed: Tensor, length: int) -> dict[int, str]:
    """What is wrong with which rows of a stack of packed embeddings."""
    rows = range(len(packed))
    if packed.dtype != torch.uint8:
        return dict.fromkeys(rows, f"its embedding is {str(packed.dtype)[6:]}, not packed bits")
    if packed.dim() != 2 or packed.shape[1] != packed_size(length):
        found = tuple(packed.shape[1:])
        return dict.fromkeys(rows, f"its embedding has shape {found} instead of ({packed_size(length)},)")
    spare = packed_size(length) * 8 - length
    if not spare:
        return {}
    beyond = (packed[:, -1].numpy() & ((1 << spare) - 1)) != 0
    return {row: f"its embedding has bits set beyond its length of {length}" for row in rows if beyond[row]}
