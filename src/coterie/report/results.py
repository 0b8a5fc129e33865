"""The results of runs, printed at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from coterie.core.measures import Measure, measure_of
from coterie.report.fitted import FILE_WIDTH, Cell, fitted_table
from coterie.report.formatting import UNKNOWN, duration, human_bytes, method_title, number, percent, score
from coterie.report.headlines import mean_score, run_headline
from coterie.report.rows import Row, cell, whole


def print_result(result: Row, *, console: Console | None = None) -> None:
    """The end of a run: the headline, and what it cost."""
    out = console or Console()
    out.print(run_headline(result), style="bold", markup=False, highlight=False, soft_wrap=not out.is_terminal)
    down, up = human_bytes(cell(result, "bytes_down")), human_bytes(cell(result, "bytes_up"))
    facts = f"{down} down, {up} up, {duration(cell(result, 'seconds'))}"
    lost = cell(result, "failures")
    if lost:
        facts += f", {number(lost)} {'reply' if lost == 1 else 'replies'} lost"
    out.print(facts, markup=False, highlight=False)


def print_compare_table(rows: Sequence[Row], *, target: float | None = None, console: Console | None = None) -> None:
    """The end of a comparison: one line for each method, the best accuracy in bold."""
    out = console or Console()
    measure = measure_of(rows[0]) if rows else Measure()
    means = [mean_score(row) for row in rows]
    spreads = [row.get("score_sd", row.get("accuracy_sd")) if whole(row.get("runs")) > 1 else None for row in rows]
    floors = [floor for row in rows if (floor := cell(row, "floor_mean")) is not None]
    columns: dict[str, list[Cell]] = {
        "method": [method_title(str(row.get("method", UNKNOWN))) for row in rows],
        measure.title: [measure.spread(mean, spread) for mean, spread in zip(means, spreads, strict=True)],
        "fine-tuned": [measure.text(cell(row, "finetuned_mean")) for row in rows],
        "worst": [measure.text(cell(row, "worst_mean")) for row in rows],
        "ARI": [score(cell(row, "ari_mean")) for row in rows],
        "groups": [number(cell(row, "n_clusters_mean"), 1) for row in rows],
        "down": [human_bytes(cell(row, "bytes_down")) for row in rows],
        "up": [human_bytes(cell(row, "bytes_up")) for row in rows],
    }
    if all(row.get("finetuned_mean") is None for row in rows):
        del columns["fine-tuned"]
    if target is not None:
        prices = [cell(row, "bytes_to_target") for row in rows]
        columns[f"to {percent(target, 0) if measure.is_share else measure.text(target)}"] = [
            "never" if it is None else human_bytes(it) for it in prices
        ]
    columns["time"] = [duration(cell(row, "seconds")) for row in rows]
    best = measure.best(mean for mean in means if mean is not None)
    styles = ["bold" if mean is not None and mean == best else "" for mean in means]
    if not (out.is_terminal or out.record):
        # a file or a pipe has no width to keep to
        out = Console(file=out.file, width=FILE_WIDTH, no_color=True)
    out.print(fitted_table(out, "", columns, styles, ("time", "up", "groups", "worst")))
    if floors:
        text = (
            f"floor (the most frequent class, or the mean, of each client): {measure.text(sum(floors) / len(floors))}"
        )
        out.print(text, markup=False, highlight=False)
