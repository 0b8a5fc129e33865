"""What all tests share."""

from __future__ import annotations

import os

import torch

# one torch thread: two on a shared machine are slower than one, and sums would depend on their number
torch.set_num_threads(1)
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")
