"""What one sees while a run is at work: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.core.terminal import harmless
from coterie.report.formatting import (
    UNKNOWN,
    clock,
    duration,
    human_bytes,
    method_title,
    number,
    percent,
    percent_spread,
    score,
)
from coterie.report.headlines import run_headline

from .fitted import FILE_WIDTH, Cell, fitted_table

Row = Mapping[str, Any]
_LEAST_BAR = 10
_HISTORY = 12
_LINES_A_RUN = 10
_NOTES = 4
_SHORT = 8


class _View(ABC):
    """A part of the terminal that is redrawn, or plain lines where there is no terminal."""

    def __init__(self, console: Console | None) -> None:
        self._console = console or Console()
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self._draw(), console=self._console, refresh_per_second=4, get_renderable=self._draw)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            # what ended before it began leaves no empty table above the sentence that says why
            self._live.transient = error is not None and self._is_empty
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """Something worth a line: a restarted pool, a method's remark, what a client far away has said."""
        line = harmless(text)
        self._notes.append(line)
        self._say(line)

    def _say(self, text: str) -> None:
        """A line for a log; a terminal shows the table instead."""
        if self._live is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Group:
        notes = [Text(f"  {note}", style="yellow") for note in self._notes]
        return Group(self._body(), *notes)

    @property
    def _is_empty(self) -> bool:
        """Whether there is nothing to show yet."""
        return False

    @abstractmethod
    def _body(self) -> Group:
        """What stands above the notes."""


class LiveView(_View):
    """The latest rounds of one run: `with LiveView("IFCA on digits", rounds=20) as view: view.update(row)`.

    A row has the columns of metrics.csv. Without a terminal about ten lines a run are printed, or
    one every `every` rounds.
    """

    def __init__(self, title: str, rounds: int, *, console: Console | None = None, every: int | None = None) -> None:
        super().__init__(console)
        self._title, self._rounds = title, rounds
        self._every = every or max(1, rounds // _LINES_A_RUN)
        self._rows: deque[Row] = deque(maxlen=_HISTORY)
        self._known: dict[str, None] = {}  # what has had a value in some round keeps its column
        self._within = ""

    def progress(self, what: str, done: int, asked: int) -> None:
        """Show how many clients are done in the round that is at work."""
        self._within = f"{what} {done} of {asked} clients"

    def update(self, row: Row) -> None:
        """Show the metrics of a round."""
        self._rows.append(dict(row))
        self._within = ""
        self._known |= dict.fromkeys(key for key in row if key != "log" and _is_known(row[key]))
        self._known |= dict.fromkeys(f"log.{key}" for key, value in (row.get("log") or {}).items() if _is_one(value))
        at = _whole(row.get("round"))
        if at % self._every == 0 or at in (1, self._rounds):
            self._say(self._line(row))

    @property
    def _is_empty(self) -> bool:
        return not self._rows

    def _line(self, row: Row) -> str:
        parts = [
            f"round {_whole(row.get('round'))}/{self._rounds}",
            f"accuracy {percent(_float(row, 'accuracy'))} (worst {percent(_float(row, 'worst_accuracy'))})",
        ]
        if _float(row, "n_clusters") is not None:
            parts.append(f"groups {number(_float(row, 'n_clusters'))}")
        if _float(row, "ari") is not None:
            parts.append(f"ARI {score(_float(row, 'ari'))}")
        if _float(row, "unseen_accuracy") is not None:
            parts.append(f"unseen clients {percent(_float(row, 'unseen_accuracy'))}")
        parts += _own_measures(row)
        down, up = human_bytes(_float(row, "bytes_down")), human_bytes(_float(row, "bytes_up"))
        parts.append(f"down {down}, up {up}")
        if _float(row, "failures"):
            parts.append(f"lost {number(_float(row, 'failures'))}")
        parts.append(_remaining(row, self._rounds))
        return f"{self._title}: " + ", ".join(parts)

    def _body(self) -> Group:
        shown: list[Row] = list(self._rows)
        columns: dict[str, list[Cell]] = {
            "round": [str(_whole(row.get("round"))) for row in shown],
            "accuracy": [percent(_float(row, "accuracy")) for row in shown],
            "worst client": [percent(_float(row, "worst_accuracy")) for row in shown],
            "groups": [number(_float(row, "n_clusters")) for row in shown],
            "ARI": [score(_float(row, "ari")) for row in shown],
            "unseen": [percent(_float(row, "unseen_accuracy")) for row in shown],
            "down": [human_bytes(_float(row, "bytes_down")) for row in shown],
            "up": [human_bytes(_float(row, "bytes_up")) for row in shown],
            "lost": [number(_float(row, "failures")) for row in shown],
        }
        for column, key in (("groups", "n_clusters"), ("ARI", "ari"), ("unseen", "unseen_accuracy")):
            if key not in self._known:
                del columns[column]
        own = [key.removeprefix("log.") for key in self._known if key.startswith("log.")]
        extra: dict[str, list[Cell]] = {
            "loss": [_short(_float(row, "loss")) for row in shown],
            "time": [clock(_float(row, "seconds")) for row in shown],
            **{key: [_short(_float(row.get("log") or {}, key)) for row in shown] for key in own},
        }
        styles = ["dim"] * (len(shown) - 1) + ["bold"] * bool(shown)
        spare = ("up", "groups", "worst client", "down")
        table = fitted_table(self._console, self._title, columns, styles, spare, extra)
        last: Row = shown[-1] if shown else {}
        heads = {str(column.header) for column in table.columns}
        below = [Text(f"  {', '.join(left)}", style="dim")] if (left := _own_measures(last, heads)) else []
        return Group(table, *below, self._foot(last))

    def _foot(self, last: Row) -> Table:
        """How far the run is, and how far its round."""
        done = _whole(last.get("round"))
        within = f", round {done + 1}: {self._within}" if self._within and done < self._rounds else ""
        text = f"{done}/{self._rounds} rounds, {_remaining(last, self._rounds)}{within}"
        # room for the longest text, so that the bar does not change its length with every word
        room = self._console.width - max(len(text), len(f"{text.partition(', round')[0]}, round {self._rounds}: ") + 36)
        foot = Table.grid(padding=(0, 1))
        foot.add_row(
            ProgressBar(total=max(self._rounds, 1), completed=done, width=min(max(room - 2, _LEAST_BAR), 60)),
            Text(text),
        )
        return foot


def _own_measures(row: Row, elsewhere: Collection[str] = ()) -> list[str]:
    """What the method itself measured in a round, number by number; of lists the short ones, such as histograms."""
    measures = []
    for key, value in (row.get("log") or {}).items():
        if key in elsewhere:
            continue
        if _is_one(value):
            measures.append(f"{key} {value:.3g}")
        elif isinstance(value, list) and 1 < len(value) <= _SHORT and all(isinstance(one, float) for one in value):
            measures.append(f"{key} {' '.join(f'{one:.2g}' for one in value)}")
    return measures


@dataclass
class _Job:
    """One line of the comparison: a method with a seed."""

    method: str
    seed: int
    state: str = "waiting"
    row: dict[str, Any] = field(default_factory=dict)


class CompareView(_View):
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
        self._within = f"{_name(job)}, round {_whole(job.row.get('round')) + 1}: {what} {done} of {asked} clients"

    def update(self, method: str, seed: int, row: Row) -> None:
        """Show the metrics of a round of one run."""
        job = self._jobs.setdefault((method, seed), _Job(method, seed))
        job.state, job.row = "running", dict(row)
        at = _whole(row.get("round"))
        if at % self._every == 0 and at < self._rounds:
            self._say(f"{_name(job)}: round {at}/{self._rounds}, accuracy {percent(_float(row, 'accuracy'))}")

    def end(self, method: str, seed: int, result: Row) -> None:
        """One run is finished."""
        job = self._jobs.setdefault((method, seed), _Job(method, seed))
        job.state, self._within = "done", ""
        job.row |= {key: result[key] for key in result if key in _RESULT_COLUMNS} | {"round": self._rounds}
        self._say(
            f"{_name(job)}: done, accuracy {percent(_float(job.row, 'accuracy'))} "
            f"(worst {percent(_float(job.row, 'worst_accuracy'))}) in {duration(_float(job.row, 'seconds'))}"
        )

    def _body(self) -> Group:
        shown, hidden = self._window()
        rows = [job.row for job in shown]
        total = max(self._rounds, 1)
        columns: dict[str, list[Cell]] = {
            "method": [method_title(job.method) for job in shown],
            "seed": [str(job.seed) for job in shown],
            "rounds": [ProgressBar(total, _whole(row.get("round")), width=10) for row in rows],
            "accuracy": [percent(_float(row, "accuracy")) for row in rows],
            "worst": [percent(_float(row, "worst_accuracy")) for row in rows],
            "ARI": [score(_float(row, "ari")) for row in rows],
            "groups": [number(_float(row, "n_clusters")) for row in rows],
            "sent": [human_bytes(_sent(row)) for row in rows],
            "time": [clock(_float(row, "seconds")) for row in rows],
        }
        styles = [{"waiting": "dim", "running": "bold"}.get(job.state, "") for job in shown]
        spare = ("groups", "worst", "time", "sent")
        extra: dict[str, list[Cell]] = {
            "lost": [number(_float(row, "failures")) for row in rows],
            "loss": [_short(_float(row, "loss")) for row in rows],
            "unseen": [percent(_float(row, "unseen_accuracy")) for row in rows],
        }
        table = fitted_table(self._console, self._title, columns, styles, spare, extra)
        done = sum(job.state == "done" for job in self._jobs.values())
        more = f", {hidden} more not shown" if hidden else ""
        within = f"; {self._within}" if self._within else ""
        return Group(table, Text(f"{done} of {len(self._jobs)} runs done{more}{within}"))

    def _window(self) -> tuple[list[_Job], int]:
        """As many jobs as the terminal has lines for, around the ones at work."""
        jobs = list(self._jobs.values())
        room = max(3, self._console.height - 7 - _NOTES)
        if len(jobs) <= room:
            return jobs, 0
        first_open = next((at for at, job in enumerate(jobs) if job.state != "done"), len(jobs))
        start = min(max(0, first_open - room // 2), len(jobs) - room)
        return jobs[start : start + room], len(jobs) - room


_RESULT_COLUMNS = frozenset(
    {"accuracy", "worst_accuracy", "ari", "n_clusters", "bytes_down", "bytes_up", "seconds", "failures"}
)


def print_result(result: Row, *, console: Console | None = None) -> None:
    """The end of a run: the headline, and what it cost."""
    out = console or Console()
    out.print(run_headline(result), style="bold", markup=False, highlight=False, soft_wrap=not out.is_terminal)
    down, up = human_bytes(_float(result, "bytes_down")), human_bytes(_float(result, "bytes_up"))
    facts = f"{down} down, {up} up, {duration(_float(result, 'seconds'))}"
    lost = _float(result, "failures")
    if lost:
        facts += f", {number(lost)} {'reply' if lost == 1 else 'replies'} lost"
    out.print(facts, markup=False, highlight=False)


def print_compare_table(rows: Sequence[Row], *, target: float | None = None, console: Console | None = None) -> None:
    """The end of a comparison: one line for each method, the best accuracy in bold."""
    out = console or Console()
    means = [_float(row, "accuracy_mean") for row in rows]
    spreads = [_float(row, "accuracy_sd") if _whole(row.get("runs")) > 1 else None for row in rows]
    columns: dict[str, list[Cell]] = {
        "method": [method_title(str(row.get("method", UNKNOWN))) for row in rows],
        "accuracy": [percent_spread(mean, spread) for mean, spread in zip(means, spreads, strict=True)],
        "worst": [percent(_float(row, "worst_mean")) for row in rows],
        "ARI": [score(_float(row, "ari_mean")) for row in rows],
        "groups": [number(_float(row, "n_clusters_mean"), 1) for row in rows],
        "down": [human_bytes(_float(row, "bytes_down")) for row in rows],
        "up": [human_bytes(_float(row, "bytes_up")) for row in rows],
    }
    if target is not None:
        prices = [_float(row, "bytes_to_target") for row in rows]
        columns[f"to {percent(target, 0)}"] = ["never" if it is None else human_bytes(it) for it in prices]
    columns["time"] = [duration(_float(row, "seconds")) for row in rows]
    best = max((mean for mean in means if mean is not None), default=None)
    styles = ["bold" if mean is not None and mean == best else "" for mean in means]
    if not out.is_terminal:
        # a file or a pipe has no width to keep to
        out = Console(file=out.file, width=FILE_WIDTH, no_color=True)
    out.print(fitted_table(out, "", columns, styles, ("time", "up", "groups", "worst")))


def _name(job: _Job) -> str:
    return f"{method_title(job.method)}, seed {job.seed}"


def _float(row: Row, key: str) -> float | None:
    """A number of the row; an empty cell or a missing key is unknown."""
    value = row.get(key)
    return None if value is None or value == "" else float(value)


def _is_known(value: Any) -> bool:
    return value is not None and value != ""


def _is_one(value: Any) -> bool:
    """One number, not a list of them."""
    return isinstance(value, (int, float))


def _short(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def _whole(value: Any) -> int:
    return 0 if value is None or value == "" else int(value)


def _sent(row: Row) -> float | None:
    down, up = _float(row, "bytes_down"), _float(row, "bytes_up")
    return None if down is None or up is None else down + up


def _remaining(row: Row, rounds: int) -> str:
    """What the rest takes if it goes on at the mean pace."""
    done, seconds = _whole(row.get("round")), _float(row, "seconds")
    if done >= rounds:
        return f"done in {duration(seconds)}"
    left = None if not done or seconds is None else seconds / done * (rounds - done)
    return f"{duration(left)} left"
