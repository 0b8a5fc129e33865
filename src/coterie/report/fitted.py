"""Tables that fit the terminal, and keep their columns while their numbers grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table

Cell = str | ProgressBar
FILE_WIDTH = 120
_LEFT = ("method", "seed", "rounds", "choice")
# each as wide as its widest usual cell from the start, or numbers that grow would push columns out in mid-run
_WIDTHS = {
    "accuracy": 8, "worst client": 12, "worst": 7, "groups": 6, "ARI": 5, "unseen": 7, "down": 7, "up": 7, "sent": 7,
    "lost": 5, "time": 7, "loss": 8,
}  # fmt: skip
_OWN_WIDTH = 9


def fitted_table(
    console: Console,
    title: str,
    columns: Mapping[str, Sequence[Cell]],
    styles: Sequence[str],
    spare: Sequence[str],
    extra: Mapping[str, Sequence[Cell]] | None = None,
) -> Table:
    """A table as wide as the terminal allows.

    It leaves out its spare columns, first ones first, until it fits; where all fit, it takes in extra ones while they
    do, first ones first.
    """

    def made(columns: Mapping[str, Sequence[Cell]]) -> Table:
        table = Table(title=escape(title) or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for head in columns:
            least = _OWN_WIDTH if head in (extra or {}) and head not in _WIDTHS else _WIDTHS.get(head)
            table.add_column(head, justify="left" if head in _LEFT else "right", no_wrap=True, min_width=least)
        for at, style in enumerate(styles):
            cells = (column[at] for column in columns.values())
            table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in cells), style=style)
        return table

    def fits(table: Table) -> bool:
        unlimited = console.options.update(max_width=10 * FILE_WIDTH)
        return Measurement.get(console, unlimited, table).maximum <= console.width

    for left_out in range(len(spare) + 1):
        kept = {head: cells for head, cells in columns.items() if head not in spare[:left_out]}
        table = made(kept)
        if fits(table):
            break
    if len(kept) == len(columns):
        for head, cells in (extra or {}).items():
            if not fits(wider := made({**kept, head: cells})):
                break
            kept, table = {**kept, head: cells}, wider
    return table
