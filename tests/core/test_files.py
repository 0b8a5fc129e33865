"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from coterie.core.errors import Unfinished
from coterie.core.files import write_whole, writing


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    write_whole(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_the_draft_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json.new").write_bytes(b"half")
    write_whole(tmp_path / "a.json", b"whole")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.json", b"whole")]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_private_file_is_for_its_owner_alone(private: bool, mode: int, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "a", b"", private=private)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("number", "said"), [(28, "make room, then coterie resume x."), (13, "choose a folder that can be written to.")]
)
def test_a_failure_to_write_is_one_sentence(number: int, said: str) -> None:
    with pytest.raises(Unfinished, match=said), writing(Path("x/a"), "coterie resume x"):
        raise OSError(number, os.strerror(number))
