"""Mutated files: checkpoints, memories, saved models, configurations and the user's own data."""

from __future__ import annotations

from pathlib import Path

from . import file_doors
from .test_messages import drive, place

__all__ = ["place"]
CASES = 200


def test_files(place: Path) -> None:
    for door in file_doors.files(place):
        assert drive(door, CASES, place) < CASES
