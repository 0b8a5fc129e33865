"""What one sees while several runs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from coterie.core.measures import Measure, measure_of, score_of
from coterie.report import charts
from coterie.report.fitted import Cell, fitted_table
from coterie.report.formatting import clock, duration, human_bytes, method_title, number, percent, score
from coterie.report.headlines import lost_words
from coterie.report.html import write_compare_report
from coterie.report.live import MOST_NOTES, TerminalView
from coterie.report.observers import with_report
from coterie.report.rows import Row, cell, sent, short, whole
from coterie.runs.config import RunConfig
from coterie.runs.folder import RunFolder
from coterie.runs.view import SilentView, View


@dataclass
class _Job:
    """One line of the comparison: a method with a seed."""

    method: str
    seed: int
    state: str = "waiting"
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _OneOfMany(SilentView):
    """What one run tells the common view."""

    view: CompareView
    method: str
    seed: int

    def update(self, row: Row) -> None:
        self.view.update(self.method, self.seed, row)

    def note(self, text: str) -> None:
        self.view.note(text)

    def progress(self, what: str, done: int, asked: int) -> None:
        self.view.progress(self.method, self.seed, what, done, asked)


class CompareView(TerminalView):
    """Several methods and seeds side by side, one line each."""

    def __init__(
        self, title: str, jobs: Sequence[tuple[str, int]], rounds: int, *, console: Console | None = None
    ) -> None:
        super().__init__(console)
        self._title, self._rounds = title, rounds
        self._jobs = {(method, seed): _Job(method, seed) for method, seed in jobs}
        self._every = max(1, rounds // 4)
        self._within = ""

    def progress(self, method: str, seed: int, what: str, done: int, asked: int) -> None:
        """Show how many clients are done in the round that a run is at."""
        job = self._jobs.setdefault((method, seed), _Job(method, seed))
        job.state = "running"
        self._within = f"{_name(job)}, round {whole(job.row.get('round')) + 1}: {what} {done} of {asked} clients"

    def update(self, method: str, seed: int, row: Row) -> None:
        """Show the metrics of a round of one run."""
        job = self._jobs.setdefault((method, seed), _Job(method, seed))
        job.state, job.row = "running", dict(row)
        at = whole(row.get("round"))
        if at % self._every == 0 and at < self._rounds:
            self._say(f"{_name(job)}: round {at}/{self._rounds}, {_scored(row)}")

    def end(self, method: str, seed: int, result: Row) -> None:
        """One run is finished."""
        job = self._jobs.setdefault((method, seed), _Job(method, seed))
        job.state, self._within = "done", ""
        job.row |= {key: result[key] for key in result if key in _RESULT_COLUMNS} | {"round": self._rounds}
        self._say(
            f"{_name(job)}: done, {_scored(job.row)} "
            f"(worst {measure_of(job.row).text(score_of(job.row, worst=True))}) "
            f"in {duration(cell(job.row, 'seconds'))}"
        )
        if result.get("failures"):
            why = lost_words(result.get("lost"), "reasons in its report")
            self.note(f"{_name(job)}: {result['failures']} replies lost ({why})")

    def begin(self, folder: Path) -> None:
        """Write the one copy of the chart library that the reports of all runs share."""
        RunFolder(folder).write(charts.SHARED, charts.packed())

    def of_run(self, config: RunConfig, folder: Path) -> View:
        """The view of one run, which also writes its report."""
        return with_report(_OneOfMany(self, config.label, config.seed), folder, config.track)

    def finished(self, folder: Path) -> None:
        """Write the report of all runs together."""
        with RunFolder(folder).writing(folder / "report.html"):
            write_compare_report(folder)

    def _body(self) -> Group:
        shown, hidden = self._window()
        rows = [job.row for job in shown]
        total = max(self._rounds, 1)
        measure = next((measure_of(row) for row in rows if "metric" in row), Measure())
        columns: dict[str, list[Cell]] = {
            "method": [method_title(job.method) for job in shown],
            "seed": [str(job.seed) for job in shown],
            "rounds": [ProgressBar(total, whole(row.get("round")), width=10) for row in rows],
            measure.title: [measure.text(score_of(row)) for row in rows],
            "worst": [measure.text(score_of(row, worst=True)) for row in rows],
            "ARI": [score(cell(row, "ari")) for row in rows],
            "groups": [number(cell(row, "n_clusters")) for row in rows],
            "sent": [human_bytes(sent(row)) for row in rows],
            "time": [clock(cell(row, "seconds")) for row in rows],
        }
        styles = [{"waiting": "dim", "running": "bold"}.get(job.state, "") for job in shown]
        spare = ("groups", "worst", "time", "sent")
        extra: dict[str, list[Cell]] = {
            "fine-tuned": [measure.text(cell(row, "finetuned_score")) for row in rows],
            "floor": [measure.text(cell(row, "floor")) for row in rows],
            "lost": [number(cell(row, "failures")) for row in rows],
            "loss": [short(cell(row, "loss")) for row in rows],
            "unseen": [percent(cell(row, "unseen_accuracy")) for row in rows],
        }
        table = fitted_table(self._console, self._title, columns, styles, spare, extra)
        done = sum(job.state == "done" for job in self._jobs.values())
        more = f", {hidden} more not shown" if hidden else ""
        within = f"; {self._within}" if self._within else ""
        return Group(table, Text(f"{done} of {len(self._jobs)} runs done{more}{within}"))

    def _window(self) -> tuple[list[_Job], int]:
        """As many jobs as the terminal has lines for, around the ones at work."""
        jobs = list(self._jobs.values())
        room = max(3, self._console.height - 7 - MOST_NOTES)
        if len(jobs) <= room:
            return jobs, 0
        first_open = next((at for at, job in enumerate(jobs) if job.state != "done"), len(jobs))
        start = min(max(0, first_open - room // 2), len(jobs) - room)
        return jobs[start : start + room], len(jobs) - room


_RESULT_COLUMNS = frozenset(
    (
        *("accuracy", "worst_accuracy", "score", "worst_score", "metric", "lower_is_better", "finetuned_score"),
        *("floor", "ari", "n_clusters", "bytes_down", "bytes_up", "seconds", "failures"),
    )
)


def _scored(row: Row) -> str:
    measure = measure_of(row)
    return f"{measure.title} {measure.text(score_of(row))}"


def _name(job: _Job) -> str:
    return f"{method_title(job.method)}, seed {job.seed}"
