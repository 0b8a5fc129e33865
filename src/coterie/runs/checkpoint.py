"""The checkpoint of a run: the method's state, the clients' memories, and the one file that names them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.files import digest, writing
from coterie.core.samples import ClientId
from coterie.core.settings import differing
from coterie.core.terminal import brief
from coterie.runs.health import Health
from coterie.runs.memory_index import FOLDER as MEMORY_FOLDER
from coterie.runs.memory_index import MemoryIndex
from coterie.runs.records import CONFIG_FILE, EVENTS_FILE, METRICS_FILE

_LATEST, _END = "checkpoint/latest.json", "checkpoint/end.safetensors"
_SEAL = "digest"
_FREE = {
    "rounds",
    "checkpoint_seconds",
    "track",
    "engine.workers",
    "engine.lanes",
    "engine.backend",
    "engine.address",
    "scenario.root",
}
"""Settings that may differ when a run is resumed: they do not change what any of its rounds computes."""


@dataclass(frozen=True)
class Progress:
    """What a checkpoint holds beside the method's state: where the run is and what it has cost."""

    method: str
    next_round: int
    seconds: float
    failures: int
    down: dict[str, int]
    up: dict[str, int]
    events: int
    metrics: int
    state: str
    memory: dict[str, str]
    """As checkpoints were once made; now the clients' files are in a list of their own."""
    config: str
    health: Health
    index: str = ""
    index_size: int = 0
    index_digest: str = ""
    logs: str = ""
    """A digest of what the logs held then: a run that goes on keeps it."""


class _CheckpointFolder(Protocol):
    """What a checkpoint needs of the folder that it is in."""

    path: Path

    @property
    def config(self) -> str:
        """The text of config.toml."""

    @property
    def go_on(self) -> str:
        """How to go on with the run."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""

    def extend(self, name: str, size: int, data: bytes) -> None:
        """Put bytes behind the first `size` of a file, for good."""


class Checkpoint:
    """Saves a run so that it can be resumed, and reads what was saved."""

    def __init__(self, folder: _CheckpointFolder) -> None:
        self._folder = folder
        self._index = MemoryIndex(folder)
        self._state, self._swept = "", False

    @property
    def exists(self) -> bool:
        """Whether there is anything to go on from."""
        return (self._folder.path / _LATEST).is_file()

    def save(
        self,
        *,
        method: str,
        state: object,
        next_round: int,
        seconds: float,
        failures: int,
        health: Health,
        ledger: tuple[Mapping[str, int], Mapping[str, int]],
        memory: Mapping[ClientId, Memory],
        touched: Sequence[ClientId],
    ) -> None:
        """Write the new files first, then the one file that names them; then remove the old files."""
        name = self._put("checkpoint", f"state-{next_round:06d}", wire.encode(state))
        new: dict[ClientId, str] = {}
        for client in touched:
            whose = f"{quote(client, safe='')}-{next_round:06d}"
            new[client] = self._put(MEMORY_FOLDER, whose, wire.encode(memory[client]))
        old = self._index.add(new, next_round)
        # read once, so that sizes and digest belong together even if the logs grow meanwhile
        events, metrics = (self._log(file) for file in (EVENTS_FILE, METRICS_FILE))
        progress = Progress(
            method=method,
            next_round=next_round,
            seconds=seconds,
            failures=failures,
            down=dict(ledger[0]),
            up=dict(ledger[1]),
            events=len(events),
            metrics=len(metrics),
            state=name,
            memory={},
            config=self._folder.config,
            health=health,
            index=self._index.file,
            index_size=self._index.size,
            index_digest=self._index.digest if self._index.file else "",
            logs=digest(events + metrics),
        )
        self._folder.write(_LATEST, sealed(asdict(progress)))
        self._remove_old(name, old)

    def save_end(self, state: object) -> None:
        """Write the method's state at the end, beside the checkpoint from before the last round."""
        self._folder.write(_END, wire.encode(state))

    def load(
        self, method: str, kind: type[Any], rounds: int | None = None
    ) -> tuple[Progress, Any, dict[ClientId, Memory]]:
        """Read what was saved, and cut the logs back to where they were then.

        A checkpoint that was made with other settings, or is beyond the `rounds` wanted, is refused.
        """
        with self._readable():
            progress, state = self._saved(method, kind, rounds)
            index = MemoryIndex(self._folder)
            names = index.read(progress.index, progress.index_size, progress.index_digest, progress.memory)
            memory = {client: self._get(MEMORY_FOLDER, name, Memory) for client, name in names.items()}
        self._cut(EVENTS_FILE, progress.events)
        self._cut(METRICS_FILE, progress.metrics)
        if progress.logs and progress.logs != digest(self._log(EVENTS_FILE) + self._log(METRICS_FILE)):
            raise CoterieError(
                f"{EVENTS_FILE} or {METRICS_FILE} in {self._folder.path} has been changed since the checkpoint was "
                "made; put it back as it was, or start a new run with another --out."
            )
        self._index, self._state = index, progress.state
        return progress, state, memory

    def state(self, method: str, kind: type[Any]) -> Any:
        """The method's state at the end, or as it was last saved; nothing in the folder changes."""
        end = self._folder.path / _END
        with self._readable():
            if end.is_file():
                return wire.decode(end.read_bytes(), kind, header_limit=wire.OWN_HEADER_LIMIT)
            return self._saved(method, kind, None)[1]

    def _saved(self, method: str, kind: type[Any], rounds: int | None) -> tuple[Progress, Any]:
        # checkpoints were once made without these; their replies are not known, so they do not fail the run
        unmarked = {"config": "", "health": {"valid": 1}, "index": "", "index_size": 0, "index_digest": "", "logs": ""}
        stored = {**unmarked, **unsealed((self._folder.path / _LATEST).read_bytes())}
        stored["health"] = {**asdict(Health()), **stored["health"]}  # it has grown, too
        progress = wire.unpack(Progress, stored, {})
        if progress.method != method:
            raise CoterieError(
                f"The checkpoint in {self._folder.path} is of {brief(progress.method, 100)}, not of {method}; "
                f"run {method} with another --out."
            )
        self._check_settings(progress, rounds)
        return progress, self._get("checkpoint", progress.state, kind)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn a file that is missing or damaged into one sentence."""
        try:
            yield
        except (OSError, wire.WireError, *UNREADABLE) as error:
            raise CoterieError(
                f"The checkpoint in {(self._folder.path / _LATEST).parent} cannot be read ({brief(str(error))}); "
                "restore it, or start with another --out."
            ) from error

    def _check_settings(self, progress: Progress, rounds: int | None) -> None:
        folder = self._folder
        changed = changed_settings(progress.config, folder.config) if progress.config else []
        if changed:
            raise CoterieError(
                f"{folder.path / CONFIG_FILE} has been changed since the checkpoint was made "
                f"({', '.join(changed)}); put it back as it was, or start a new run with another --out."
            )
        if rounds is not None and rounds < progress.next_round:
            raise CoterieError(
                f"{rounds} rounds are wanted but the run in {folder.path} has reached round {progress.next_round}; "
                "set rounds to at least that."
            )

    def _log(self, name: str) -> bytes:
        return (self._folder.path / name).read_bytes()

    def _cut(self, name: str, size: int) -> None:
        """Shorten a log to what it was when the checkpoint was made."""
        log = self._folder.path / name
        if not log.is_file() or not 0 <= size <= log.stat().st_size:
            raise CoterieError(f"{log} is shorter than its checkpoint says; start again with another --out.")
        with writing(log, self._folder.go_on):
            os.truncate(log, size)

    def _put(self, where: str, what: str, data: bytes) -> str:
        """Write a file whose name ends in a digest of its content, so that a damaged one is found out."""
        name = f"{what}-{digest(data)}.safetensors"
        self._folder.write(f"{where}/{name}", data)
        return name

    def _get(self, where: str, name: str, kind: type[Any]) -> Any:
        data = (self._folder.path / where / name).read_bytes()
        if not name.endswith(f"-{digest(data)}.safetensors"):
            raise wire.WireError(f"{name} is damaged")
        return wire.decode(data, kind, header_limit=wire.OWN_HEADER_LIMIT)

    def _remove_old(self, state: str, old: Sequence[str]) -> None:
        """Remove what the new checkpoint has replaced; the first time, all that a session cut short may have left."""
        folder = self._folder.path
        if self._swept:
            for file in [*(folder / MEMORY_FOLDER / name for name in old), folder / "checkpoint" / self._state]:
                if file.name != state:
                    file.unlink(missing_ok=True)
        else:
            keep = {state, "latest.json", *self._index.files}
            for file in (folder / "checkpoint").rglob("*"):
                if file.is_file() and file.name not in keep:
                    file.unlink(missing_ok=True)
        self._state, self._swept = state, True


def changed_settings(old: str, new: str) -> list[str]:
    """Settings in which two config.toml differ, of those that a resumed run must keep."""
    return sorted(differing(old, new) - _FREE)


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A JSON file that a run goes on from, with a digest of all that it says.

    The checkpoint's other files have their digests in their names, which stand in it: so one digest covers them all.
    """
    return json.dumps({**content, _SEAL: _seal(content)}, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The content of a sealed file, if it is what was written. Files without a digest, as once written, are read."""
    content = json.loads(data)
    if not isinstance(content, dict):
        raise wire.WireError("it is damaged")
    seal = content.pop(_SEAL, None)
    if seal is not None and seal != _seal(content):
        raise wire.WireError("it is damaged")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())
