"""What is shown while a run is going on: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.core.measures import Measure, measure_of, score_of
from coterie.core.terminal import harmless
from coterie.report.fitted import Cell, fitted_table
from coterie.report.formatting import clock, human_bytes, number, percent, score
from coterie.report.rows import Row, cell, is_known, is_number, remaining, short, whole
from coterie.runs.result import Result
from coterie.runs.view import SilentView

_LEAST_BAR = 10
_HISTORY = 12
_LINES_A_RUN = 10
MOST_NOTES = 4
_SHORT = 8


class TerminalView(ABC):
    """A part of the terminal that is redrawn, or plain lines where there is no terminal."""

    def __init__(self, console: Console | None) -> None:
        self._console = console or Console()
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
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
        # padding, not spaces: a note that is wrapped is indented in all its lines
        notes = [Padding(Text(note, style="yellow"), (0, 0, 0, 2)) for note in self._notes]
        return Group(self._body(), *notes)

    @property
    def _is_empty(self) -> bool:
        """Whether there is nothing to show yet."""
        return False

    @abstractmethod
    def _body(self) -> Group:
        """What stands above the notes."""


class LiveView(TerminalView, SilentView):
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
        self.result: Result | None = None

    def progress(self, what: str, done: int, asked: int) -> None:
        """Show how many clients are done in the present round."""
        self._within = f"{what} {done} of {asked} clients"

    def update(self, row: Row) -> None:
        """Show the metrics of a round."""
        self._rows.append(dict(row))
        self._within = ""
        self._known |= dict.fromkeys(key for key in row if key != "log" and is_known(row[key]))
        self._known |= dict.fromkeys(f"log.{key}" for key, value in (row.get("log") or {}).items() if is_number(value))
        at = whole(row.get("round"))
        if at % self._every == 0 or at in (1, self._rounds):
            self._say(self._line(row))

    def finished(self, result: Result, folder: Path | None) -> None:
        """Keep the result, to be shown below the table."""
        self.result = result

    @property
    def _is_empty(self) -> bool:
        return not self._rows

    def _line(self, row: Row) -> str:
        measure = measure_of(row)
        parts = [
            f"round {whole(row.get('round'))}/{self._rounds}",
            f"{measure.title} {measure.text(score_of(row))} (worst {measure.text(score_of(row, worst=True))})",
        ]
        if cell(row, "floor") is not None:
            parts.append(f"floor {measure.text(cell(row, 'floor'))}")
        if cell(row, "n_clusters") is not None:
            parts.append(f"groups {number(cell(row, 'n_clusters'))}")
        if cell(row, "ari") is not None:
            parts.append(f"ARI {score(cell(row, 'ari'))}")
        if cell(row, "unseen_accuracy") is not None:
            parts.append(f"unseen clients {percent(cell(row, 'unseen_accuracy'))}")
        parts += _own_measures(row)
        down, up = human_bytes(cell(row, "bytes_down")), human_bytes(cell(row, "bytes_up"))
        parts.append(f"down {down}, up {up}")
        if cell(row, "failures"):
            parts.append(f"lost {number(cell(row, 'failures'))}")
        parts.append(remaining(row, self._rounds))
        return f"{self._title}: " + ", ".join(parts)

    def _body(self) -> Group:
        shown: list[Row] = list(self._rows)
        measure = measure_of(shown[-1]) if shown else Measure()
        columns: dict[str, list[Cell]] = {
            "round": [str(whole(row.get("round"))) for row in shown],
            measure.title: [measure.text(score_of(row)) for row in shown],
            "worst client": [measure.text(score_of(row, worst=True)) for row in shown],
            "groups": [number(cell(row, "n_clusters")) for row in shown],
            "ARI": [score(cell(row, "ari")) for row in shown],
            "unseen": [percent(cell(row, "unseen_accuracy")) for row in shown],
            "down": [human_bytes(cell(row, "bytes_down")) for row in shown],
            "up": [human_bytes(cell(row, "bytes_up")) for row in shown],
            "lost": [number(cell(row, "failures")) for row in shown],
        }
        for column, key in (("groups", "n_clusters"), ("ARI", "ari"), ("unseen", "unseen_accuracy")):
            if key not in self._known:
                del columns[column]
        own = [key.removeprefix("log.") for key in self._known if key.startswith("log.")]
        extra: dict[str, list[Cell]] = {
            "floor": [measure.text(cell(row, "floor")) for row in shown],
            "loss": [short(cell(row, "loss")) for row in shown],
            "time": [clock(cell(row, "seconds")) for row in shown],
            **{key: [short(cell(row.get("log") or {}, key)) for row in shown] for key in own},
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
        done = whole(last.get("round"))
        within = f", round {done + 1}: {self._within}" if self._within and done < self._rounds else ""
        text = f"{done}/{self._rounds} rounds, {remaining(last, self._rounds)}{within}"
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
        if is_number(value):
            measures.append(f"{key} {value:.3g}")
        elif isinstance(value, list) and 1 < len(value) <= _SHORT and all(isinstance(one, float) for one in value):
            measures.append(f"{key} {' '.join(f'{one:.2g}' for one in value)}")
    return measures
