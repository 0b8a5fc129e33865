"""Randomness keyed by what it is for, never by who drew before.

Every draw in the package comes from a generator made from (seed, purpose, round, client, ...). So an absent client
changes no other client's numbers, the order of clients does not matter, and a resumed run draws the same numbers.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

Key = str | int


def key64(seed: int, purpose: str, *key: Key) -> int:
    """A 64-bit integer that depends on the whole key and on nothing else."""
    text = "\x1f".join([str(seed), purpose, *(f"{type(part).__name__}:{part}" for part in key)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def rng(seed: int, purpose: str, *key: Key) -> np.random.Generator:
    """A numpy generator for this key: `rng(seed, "batches", round, client)`."""
    return np.random.Generator(np.random.PCG64(key64(seed, purpose, *key)))


def torch_rng(seed: int, purpose: str, *key: Key) -> torch.Generator:
    """A torch generator for this key."""
    return torch.Generator().manual_seed(key64(seed, purpose, *key) >> 1)
