"""The parts of a run's report that are not simple charts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from coterie.core.measures import client_scores, measure_of
from coterie.core.panels import Heatmap, Histogram, ImageGrid, Lines, NodeGraph, Panel, Table
from coterie.runs.folder import RunFolder

from . import figures
from .page import Page, card, painted, paragraphs, table

_MOST_NUMBERED = 300
_MOST_CELLS = 5_000
_MOST_COLUMNS = 24
_LEAST_ROUNDS = 3
_MOST_CURVES = 12


def client_map(result: Mapping[str, Any]) -> str:
    """Every client as a cell in the colour of the group it was put in, in rows of true groups (or of those)."""
    clusters: Sequence[int] = result["clusters"]
    truth: Sequence[object] | None = result.get("truth")
    names = result.get("client_ids") or [str(index) for index in range(len(clusters))]
    accuracies, measure = client_scores(result) or [None] * len(clusters), measure_of(result)
    rows: dict[object, list[str]] = defaultdict(list)
    for index, cluster in enumerate(clusters[:_MOST_CELLS]):
        words = f"client {names[index]}: in group {cluster}"
        if truth is not None:
            words += f", true group {truth[index]}"
        if accuracies[index] is not None:
            words += f", {measure.title} {measure.text(accuracies[index])}"
        row = truth[index] if truth is not None else cluster
        rows[row].append(f"<i style='{painted(cluster)}' title='{escape(words)}'>{cluster}</i>")
    kind = "true group" if truth is not None else "group"
    many = " many" if len(clusters) > _MOST_NUMBERED else ""
    lines = [
        f"<span>{kind} {escape(str(name))}</span><div class='cells{many}'>{''.join(cells)}</div>"
        for name, cells in sorted(rows.items(), key=lambda pair: _order(pair[0]))
    ]
    left = len(clusters) - _MOST_CELLS
    more = f"<p class='note'>{left:,} more clients are not drawn.</p>" if left > 0 else ""
    return f"<div class='map'>{''.join(lines)}</div>{more}"


def contingency(result: Mapping[str, Any]) -> str:
    """How many clients of each true group are in each group that was made; empty where unknown or too wide to read."""
    truth, clusters = result.get("truth"), result.get("clusters")
    if not truth or not clusters or len(set(clusters)) > _MOST_COLUMNS:
        return ""
    counts = Counter(zip(truth, clusters, strict=True))
    rows = sorted(set(truth), key=_order)
    # groups stand in the order of the true group they mostly hold, so that agreement is a diagonal
    columns = sorted(
        set(clusters), key=lambda found: (max(range(len(rows)), key=lambda at: counts[rows[at], found]), found)
    )
    most = max(counts.values())
    body = []
    for row in rows:
        cells = []
        for column in columns:
            count = counts[row, column]
            share = 0.12 + 0.5 * count / most if count else 0.03
            cells.append(f"<td style='background:rgba(68,119,170,{share:.2f})'>{count or ''}</td>")
        body.append(f"<tr><th>true group {escape(str(row))}</th>{''.join(cells)}</tr>")
    head = "".join(
        f"<th><span class='dot' style='background:{figures.colour(column)}'></span>group {column}</th>"
        for column in columns
    )
    return (
        f"<div class='scroll'><table class='contingency'><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def warning_card(warnings: Sequence[str] | None) -> list[str]:
    """What went wrong, in a card of its own; nothing where nothing did."""
    if not warnings:
        return []
    items = "".join(f"<li>{escape(str(text))}</li>" for text in warnings)
    return [card("Read this before you trust the result", f"<ul>{items}</ul>", wide=True)]


def failures_table(run: RunFolder) -> str:
    """Lost replies by client and reason, the most frequent first; empty where there are none."""
    rounds: dict[tuple[str, str], list[object]] = defaultdict(list)
    for event in run.events:
        if event.get("event") == "failure":
            rounds[str(event.get("client")), str(event.get("reason"))].append(event.get("round"))
    ranked = sorted(rounds.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    rows = [(client, reason, len(when), _shortened(when)) for (client, reason), when in ranked]
    return table(["Client", "Reason", "Times", "Rounds"], rows) if rows else ""


def panel_cards(page: Page, panels: Sequence[Panel]) -> list[str]:
    """What the method itself wants shown."""
    cards = []
    for panel in panels:
        if isinstance(panel, Lines):
            cards.append(page.chart(panel.title, figures.lines(panel)))
        elif isinstance(panel, Heatmap):
            cards.append(page.chart(panel.title, figures.heatmap(panel), panel.note))
        elif isinstance(panel, Histogram):
            cards.append(page.chart(panel.title, figures.histogram(panel)))
        elif isinstance(panel, NodeGraph):
            cards.append(page.chart(panel.title, figures.graph(panel)))
        elif isinstance(panel, ImageGrid):
            cards.append(card(panel.title, _pictures(panel)))
        elif isinstance(panel, Table):
            cards.append(card(panel.title, table(panel.columns, panel.rows)))
        else:
            cards.append(card(panel.title, paragraphs(panel.paragraphs)))
    return cards


def log_cards(page: Page, run: RunFolder) -> list[str]:
    """The numbers that the method logged each round: curves, or a heat map for long lists."""
    logged: dict[str, dict[float, object]] = defaultdict(dict)
    for event in run.events:
        if event.get("event") == "round" and isinstance(event.get("log"), dict):
            for name, value in event["log"].items():
                logged[str(name)][float(event.get("round", 0))] = value
    cards = []
    for name, by_round in logged.items():
        x = sorted(by_round)
        values = [_numbers(by_round[at]) for at in x]
        width = max(len(value) for value in values)
        padded = [value + [None] * (width - len(value)) for value in values]
        # a number that never changes, or that was there in a round or two, says nothing as a curve
        if width == 0 or len(x) < _LEAST_ROUNDS or len({tuple(value) for value in padded}) < 2:
            continue
        title = name[:1].upper() + name[1:].replace("_", " ")
        if width <= _MOST_CURVES:
            curves = [title] if width == 1 else [str(at) for at in range(width)]
            series = {curve: [value[at] for value in padded] for at, curve in enumerate(curves)}
            cards.append(page.chart(title, figures.lines(Lines(title, x, series))))
        else:
            across = [list(column) for column in zip(*padded, strict=True)]
            panel = Heatmap(title, across, [f"{at:g}" for at in x])
            cards.append(page.chart(title, figures.heatmap(panel), "Rounds from left to right."))
    return cards


def _pictures(panel: ImageGrid) -> str:
    columns = max((len(row) for row in panel.images), default=0)
    labelled = bool(panel.row_labels)
    cells = []
    if panel.col_labels:
        cells += ["<span></span>"] * labelled
        cells += [f"<span class='column'>{escape(str(label))}</span>" for label in panel.col_labels]
    for at, row in enumerate(panel.images):
        if labelled:
            label = panel.row_labels[at] if at < len(panel.row_labels) else ""
            cells.append(f"<span class='row'>{escape(str(label))}</span>")
        cells += [f"<img alt='' src='data:image/png;base64,{escape(picture)}'>" for picture in row]
    style = f"grid-template-columns:repeat({columns + labelled},max-content)"
    return f"<div class='scroll'><div class='pictures' style='{style}'>{''.join(cells)}</div></div>"


def _numbers(value: object) -> list[float | None]:
    items = value if isinstance(value, list) else [value]
    return [float(item) if isinstance(item, int | float) else None for item in items]


def _shortened(rounds: Sequence[object], most: int = 8) -> str:
    shown = ", ".join(str(at) for at in rounds[:most])
    return shown + (f" and {len(rounds) - most} more" if len(rounds) > most else "")


def _order(name: object) -> tuple[int, float, str]:
    """Numbers by size, then words by alphabet."""
    return (0, float(name), "") if isinstance(name, int | float) else (1, 0.0, str(name))
