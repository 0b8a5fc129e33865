"""A run as a folder: configuration, events, metrics, checkpoint, models. Every write is whole or not there at all."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.samples import ClientId, Normalise
from coterie.core.settings import differing
from coterie.core.states import State
from coterie.runs.health import Health
from coterie.runs.kind import (
    IN_PYTHON,
    KIND_FILE,
    Kind,
    check_kind,
    kind_of,
)
from coterie.runs.saved import encode_model

METRICS = (
    "round", "accuracy", "worst_accuracy", "loss", "n_clusters", "ari", "unseen_accuracy", "bytes_down", "bytes_up",
    "bytes_evaluation", "failures", "seconds",
)  # fmt: skip
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DRAFT = ".new"
_SEAL = "digest"
_FREE = {"rounds", "checkpoint_seconds", "track", "engine.workers", "engine.lanes", "scenario.root"}
"""Settings that a resumed run may have anew: they do not change what any of its rounds computes."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says beside the method's state: where the run is and what it has cost."""

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
    config: str
    health: Health


class RunFolder:
    """Writes and reads the folder of one run."""

    def __init__(self, path: Path, kind: Kind = Kind.SIMULATION) -> None:
        self.path = path
        self.go_on = kind.go_on(path)
        self._memory: dict[ClientId, str] = {}

    @classmethod
    def create(cls, path: Path, config: str, kind: Kind = Kind.SIMULATION) -> RunFolder:
        """A folder for a new run; one that holds anything else is left alone."""
        # all that a run killed at its very start has left
        begun = {KIND_FILE, f"{KIND_FILE}{_DRAFT}", f"config.toml{_DRAFT}"}
        if path.exists() and (not path.is_dir() or any(file.name not in begun for file in path.iterdir())):
            if (path / "result.json").is_file():
                raise CoterieError(f"{path} already holds a run that is finished; choose another --out.")
            held = kind_of(path)
            lasting = held is not Kind.NETWORK and (path / "config.toml").is_file()
            how = f", or go on with it: {held.go_on(path)}" if lasting else ""
            raise CoterieError(f"{path} already holds something; choose another --out{how}.")
        folder = cls(path, kind)
        folder.write(KIND_FILE, f"{kind}\n".encode())
        folder.write("config.toml", config.encode())
        folder.restart()
        return folder

    @classmethod
    def reopen(cls, path: Path, kind: Kind = Kind.SIMULATION) -> RunFolder:
        """The folder of a run to go on with, which must be of the same kind."""
        check_kind(path, kind)
        return cls(path, kind)

    @contextmanager
    def starting(self, resume: bool) -> Iterator[None]:
        """Leave nothing behind of a new run that is refused before its first round."""
        try:
            yield
        except Unfinished:
            raise
        except CoterieError:
            events = self.path / "events.jsonl"
            if not resume and events.is_file() and not events.stat().st_size:
                self.discard()
            raise

    @contextmanager
    def writing(self, path: Path, then: str = "") -> Iterator[None]:
        """Turn a failure to write into one sentence; `then` is what to do once there is room, if not to go on."""
        try:
            yield
        except OSError as error:
            what = f"Cannot write {path}: {error.strerror or error}"
            if error.errno not in _FULL:
                raise Unfinished(f"{what}; choose a folder that can be written to.") from error
            raise Unfinished(
                f"{what}; what was saved before is intact: make room, then {then or self.go_on}."
            ) from error

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""
        target = self.path / name
        with self.writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(target.name + _DRAFT)
            try:
                with open(draft, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(draft, target)
            finally:
                draft.unlink(missing_ok=True)

    def append(self, name: str, text: str) -> None:
        """Add lines to a log."""
        with self.writing(self.path / name), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)

    def event(self, kind: str, **values: Any) -> None:
        """Log an event."""
        self.append("events.jsonl", json.dumps({"event": kind, **values}) + "\n")

    def metrics(self, row: Row) -> None:
        """Log a round's metrics."""
        self.append("metrics.csv", _csv_line(["" if row.get(name) is None else row[name] for name in METRICS]))

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
        """Checkpoint: new files first, then the one file that names them, then the old files go."""
        name = self._put("checkpoint", f"state-{next_round:06d}", wire.encode(state))
        for client in touched:
            whose = f"{quote(client, safe='')}-{next_round:06d}"
            self._memory[client] = self._put("checkpoint/memory", whose, wire.encode(memory[client]))
        progress = Progress(
            method=method,
            next_round=next_round,
            seconds=seconds,
            failures=failures,
            down=dict(ledger[0]),
            up=dict(ledger[1]),
            events=(self.path / "events.jsonl").stat().st_size,
            metrics=(self.path / "metrics.csv").stat().st_size,
            state=name,
            memory=dict(self._memory),
            config=self.config,
            health=health,
        )
        self.write("checkpoint/latest.json", sealed(asdict(progress)))
        self._sweep(progress)

    def _put(self, where: str, what: str, data: bytes) -> str:
        """Write a file of the checkpoint; its name ends in a digest, by which a damaged one is found out."""
        name = f"{what}-{_digest(data)}.safetensors"
        self.write(f"{where}/{name}", data)
        return name

    def _get(self, where: str, name: str, kind: type[Any]) -> Any:
        data = (self.path / where / name).read_bytes()
        if not name.endswith(f"-{_digest(data)}.safetensors"):
            raise wire.WireError(f"{name} is damaged")
        return wire.decode(data, kind, header_limit=wire.OWN_HEADER_LIMIT)

    def _sweep(self, progress: Progress) -> None:
        keep = {progress.state, "latest.json", *progress.memory.values()}
        for file in (self.path / "checkpoint").rglob("*"):
            if file.is_file() and file.name not in keep:
                file.unlink(missing_ok=True)

    @cached_property
    def config(self) -> str:
        """The text of config.toml when this session began."""
        file = self.path / "config.toml"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is anything to go on from."""
        return (self.path / "checkpoint" / "latest.json").is_file()

    def load(
        self, method: str, kind: type[Any], rounds: int | None = None
    ) -> tuple[Progress, Any, dict[ClientId, Memory]]:
        """Read the checkpoint, and cut the logs back to where they were when it was written.

        One that was made with other settings, or is beyond the `rounds` wanted, is refused.
        """
        path = self.path / "checkpoint" / "latest.json"
        try:
            # checkpoints were once made without these; their replies are not known, so they do not fail the run
            unmarked = {"config": "", "health": asdict(Health(valid=1))}
            progress = wire.unpack(Progress, {**unmarked, **unsealed(path.read_bytes())}, {})
            if progress.method != method:
                raise CoterieError(
                    f"The checkpoint in {self.path} is of {progress.method}, not of {method}; "
                    f"run {method} with another --out."
                )
            self._check_settings(progress, rounds)
            state = self._get("checkpoint", progress.state, kind)
            memory = {client: self._get("checkpoint/memory", name, Memory) for client, name in progress.memory.items()}
        except (OSError, ValueError, TypeError, wire.WireError) as error:
            raise CoterieError(
                f"The checkpoint in {path.parent} cannot be read ({error}); restore it, or start with another --out."
            ) from error
        for name, size in (("events.jsonl", progress.events), ("metrics.csv", progress.metrics)):
            if not (self.path / name).is_file() or (self.path / name).stat().st_size < size:
                raise CoterieError(
                    f"{self.path / name} is shorter than its checkpoint says; start again with another --out."
                )
            with self.writing(self.path / name):
                os.truncate(self.path / name, size)
        self._memory = dict(progress.memory)
        return progress, state, memory

    def check_same(self, config: str) -> None:
        """Refuse to go on, from Python, with other settings than the run began with."""
        if f'name = "{IN_PYTHON}"' not in self.config:  # once it had none of them
            return
        changed = differing(self.config, config) - _FREE
        if changed:
            raise CoterieError(
                f"The run in {self.path} began with other settings ({', '.join(sorted(changed))}); go on with the same "
                "ones, or start a new run with another folder."
            )

    def _check_settings(self, progress: Progress, rounds: int | None) -> None:
        changed = differing(progress.config, self.config) - _FREE if progress.config else set()
        if changed:
            raise CoterieError(
                f"{self.path / 'config.toml'} has been changed since the checkpoint was made "
                f"({', '.join(sorted(changed))}); put it back as it was, or start a new run with another --out."
            )
        if rounds is not None and rounds < progress.next_round:
            raise CoterieError(
                f"{rounds} rounds are wanted but the run in {self.path} has reached round {progress.next_round}; "
                "set rounds to at least that."
            )

    def restart(self) -> None:
        """Empty logs: of a new run, or of one that died before its first checkpoint, so before its first round."""
        reached = self._logged()
        if reached:
            raise CoterieError(
                f"The logs in {self.path} reach round {reached} but there is no checkpoint; "
                f"restore {self.path / 'checkpoint'}, or start again with another --out."
            )
        self.write("metrics.csv", _csv_line(METRICS).encode())
        self.write("events.jsonl", b"")

    def _logged(self) -> int:
        """How many rounds the logs hold, be the last one half a line."""
        files = (self.path / name for name in ("metrics.csv", "events.jsonl"))
        metrics, events = (file.read_text(errors="replace").splitlines() if file.is_file() else [] for file in files)
        return max(len(metrics[1:]), sum(line.startswith('{"event": "round"') for line in events))

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that its place is free for another try."""
        shutil.rmtree(self.path, ignore_errors=True)

    def models(self, models: Mapping[str, State], normalise: Normalise) -> None:
        """One file per model, with the normalisation of its inputs; `coterie.load_model` reads it."""
        for name, state in models.items():
            self.write(f"models/{quote(name, safe='')}.safetensors", encode_model(state, normalise))

    def read_metrics(self) -> list[Row]:
        """The metrics written so far."""
        return read_metrics(self.path)


def holds_comparison(path: Path) -> bool:
    """Whether a folder is that of a comparison, finished or not."""
    return (path / "compare.json").is_file() or any(path.glob("*-seed*/config.toml"))


def read_metrics(path: Path) -> list[Row]:
    """The rows of a run's metrics.csv; an empty cell is None."""
    with open(path / "metrics.csv", encoding="utf-8", newline="") as file:
        return [
            {name: float(cell) if cell not in ("", None) else None for name, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A JSON file that a run goes on from, with a digest of all that it says.

    The checkpoint's other files have their digests in their names, which stand in it: so one digest covers them all.
    """
    return json.dumps({**content, _SEAL: _seal(content)}, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """What it says, if that is what was written. Files from before there was a digest are read as they are."""
    content = json.loads(data)
    if not isinstance(content, dict):
        raise wire.WireError("it is damaged")
    seal = content.pop(_SEAL, None)
    if seal is not None and seal != _seal(content):
        raise wire.WireError("it is damaged")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return _digest(json.dumps(content, sort_keys=True).encode())


def finished(path: Path) -> CoterieError:
    """What to say of a run that is over, whether or not its report could be written."""
    report = path / "report.html"
    if report.is_file():
        return CoterieError(f"The run in {path} is finished; see {report}.")
    return CoterieError(f"The run in {path} is finished but has no report yet; write it: coterie report {path}")


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _csv_line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
