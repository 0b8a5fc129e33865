"""Where the real files are, for the tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from coterie.data.datasets import ROOT_VARIABLE


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def real() -> Path:
    """The root of the real datasets; a test that asks for it is skipped where there are none."""
    root = os.environ.get(ROOT_VARIABLE)
    if not root:
        pytest.skip(f"{ROOT_VARIABLE} does not point to the real datasets")
    return Path(root)
