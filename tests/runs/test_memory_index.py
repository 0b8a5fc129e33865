"""The list of the clients' files in a checkpoint grows by what has changed, and nothing of it is believed unchecked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import run
from coterie.core.cohort import Memory
from coterie.core.wire import WireError
from coterie.data.own import OwnPopulation
from coterie.runs import memory_index
from coterie.runs.checkpoint import sealed, unsealed
from coterie.runs.folder import RunFolder
from coterie.runs.health import Health
from coterie.runs.memory_index import FOLDER, MemoryIndex
from tests.tiny import made, small_net

CHANGES = st.lists(st.sets(st.integers(0, 9), max_size=4), max_size=30)


class Files:
    """A folder that counts what is written to it."""

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, 0
        (path / FOLDER).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        self.written += len(data)
        (self.path / name).write_bytes(data)

    def extend(self, name: str, size: int, data: bytes) -> None:
        self.written += len(data)
        whole = (self.path / name).read_bytes()
        (self.path / name).write_bytes(whole[:size] + data)


@settings(deadline=None, max_examples=50)
@given(changes=CHANGES)
def test_the_list_is_read_as_it_was(changes: list[set[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever has changed and however often it was written again: the latest file of each client, as a dict has it."""
    files = Files(tmp_path_factory.mktemp("index"))
    index, expected, gone = MemoryIndex(files), dict[str, str](), set[str]()
    spare, memory_index._SPARE = memory_index._SPARE, 3
    try:
        for number, clients in enumerate(changes):
            changed = {f"c{client}": f"c{client}-{number}" for client in sorted(clients)}
            gone.update(index.add(changed, number))
            expected.update(changed)
            again = MemoryIndex(files)
            assert again.read(index.file, index.size, index.digest, {}) == expected
            assert not gone & {*again.files}
    finally:
        memory_index._SPARE = spare


def test_a_checkpoint_writes_what_has_changed(tmp_path: Path) -> None:
    """Of 5,000 clients 2 have changed: two lines are added, 5,000 are not written again."""
    files = Files(tmp_path)
    index = MemoryIndex(files)
    index.add({f"c{i}": f"c{i}-000001-0123456789abcdef" for i in range(5000)}, 1)
    before = files.written
    assert index.add({"c7": "c7-2", "c8": "c8-2"}, 2) == ["c7-000001-0123456789abcdef", "c8-000001-0123456789abcdef"]
    assert files.written - before == len('["c7", "c7-2"]\n["c8", "c8-2"]\n')
    assert index.add({}, 3) == []


@pytest.mark.parametrize("damage", ["shorter", "other", "gone"])
def test_a_damaged_list_is_found_out(damage: str, tmp_path: Path) -> None:
    files = Files(tmp_path)
    index = MemoryIndex(files)
    index.add({"a": "a-1", "b": "b-1"}, 1)
    place = tmp_path / FOLDER / index.file
    data = place.read_bytes()
    place.write_bytes(data[:-1] if damage == "shorter" else data.replace(b"b-1", b"b-2"))
    if damage == "gone":
        place.unlink()
    with pytest.raises((WireError, OSError)):
        MemoryIndex(files).read(index.file, index.size, index.digest, {})


def test_only_files_that_a_checkpoint_names_are_left(tmp_path: Path, digits: OwnPopulation) -> None:
    """A third of the clients trains each round, and every round is saved: one file a client, one list, one state."""
    out = tmp_path / "run"
    run(made("local", fraction=3), digits, small_net, rounds=4, out=out, checkpoint_seconds=0.0)
    kept = sorted(file.name for file in (out / FOLDER).iterdir())
    clients = [name for name in kept if not name.startswith("index-")]
    assert len(kept) - len(clients) == 1
    assert len({name.split("-")[0] for name in clients}) == len(clients)
    assert len(list((out / "checkpoint").glob("state-*"))) == 1


def test_a_checkpoint_that_names_the_files_itself_is_gone_on_with(tmp_path: Path) -> None:
    """As they were once made. Nothing has changed when it is saved again, and still nothing is lost."""
    folder = RunFolder.create(tmp_path / "run", "a = 1\n")
    state = {"x": torch.ones(1)}
    kept: dict[str, Memory] = {"a": {"y": torch.ones(2)}}

    def save(folder: RunFolder, touched: list[str]) -> None:
        folder.checkpoint.save(
            method="m", state=state, next_round=1, seconds=0.0, failures=0, health=Health(), ledger=({}, {}),
            memory=kept, touched=touched,
        )  # fmt: skip

    save(folder, ["a"])
    again = RunFolder.reopen(tmp_path / "run")
    latest = tmp_path / "run" / "checkpoint" / "latest.json"
    old = unsealed(latest.read_bytes())
    name = next(file.name for file in (tmp_path / "run" / FOLDER).iterdir() if not file.name.startswith("index-"))
    old = {**old, "memory": {"a": name}, "index": "", "index_size": 0, "index_digest": ""}
    latest.write_bytes(sealed(old))
    assert again.checkpoint.load("m", dict[str, torch.Tensor])[2].keys() == {"a"}
    save(again, [])
    assert RunFolder.reopen(tmp_path / "run").checkpoint.load("m", dict[str, torch.Tensor])[2].keys() == {"a"}
