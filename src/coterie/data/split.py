"""Which of a client's own samples are kept for testing: the same ones wherever this is asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.core.rng import rng
from coterie.core.samples import ClientId

_TEST_FRACTION = 0.2

Rows = npt.NDArray[np.int64]


def split_rows(client: ClientId, samples: int, seed: int) -> tuple[Rows, Rows]:
    """Training and test rows of a client that has no test part of its own: a fifth is kept, at least one."""
    order = rng(seed, "own-test", client).permutation(samples)
    cut = max(1, round(_TEST_FRACTION * samples))
    return np.sort(order[cut:]), np.sort(order[:cut])


def training_rows(client: ClientId, samples: int, seed: int) -> Rows:
    """The training rows alone; all rows where there are not two."""
    return split_rows(client, samples, seed)[0] if samples > 1 else np.arange(samples)
