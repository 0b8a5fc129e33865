"""One self-contained HTML page: cards, tables and charts, everything from users escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole

from . import charts
from .figures import Figure, colour

_WIDE = 10
"""Longer values of a tile are set smaller: a tile is 8 rem wide inside, where five stand side by side."""


class Page:
    """Collects the parts of a report in order and writes them as one file."""

    def __init__(self, title: str, eyebrow: str, headline: str, meta: str) -> None:
        self._words = {"title": title, "eyebrow": eyebrow, "headline": headline, "meta": meta}
        self._parts: list[str] = []
        self._figures: dict[str, Figure] = {}

    def tiles(self, tiles: Sequence[tuple[str, str, str]]) -> None:
        """Key figures: (name, value, remark)."""
        inside = "".join(
            f"<div class='tile'><span>{escape(name)}</span><b{' class=long' if len(value) > _WIDE else ''}>"
            f"{escape(value)}</b><span>{escape(remark)}</span></div>"
            for name, value, remark in tiles
        )
        self._parts.append(f"<section class='tiles'>{inside}</section>")

    def section(self, title: str, cards: Sequence[str]) -> None:
        """A titled group of cards; nothing where there are no cards."""
        if cards:
            inside = "\n".join(cards)
            self._parts.append(f"<section><h2>{escape(title)}</h2><div class='grid'>{inside}</div></section>")

    def chart(self, title: str, figure: Figure, note: str = "", *, wide: bool = False) -> str:
        """A card with a chart; a sentence instead of it where there is nothing to draw."""
        if not any(_has_points(trace) for trace in figure["data"]):
            return card(title, "<p class='note'>Nothing to draw: the run has no such numbers.</p>", note, wide=wide)
        name = f"chart-{len(self._figures)}"
        self._figures[name] = figure
        return card(title, f"<div class='chart' id='{name}'></div>", note, wide=wide)

    def write(self, path: Path) -> Path:
        """Write the page in one move, so that a reader never sees half of it."""
        here = resources.files(__package__ or "coterie.report")
        template = Template((here / "page.html").read_text(encoding="utf-8"))
        text = template.substitute(
            {name: escape(words) for name, words in self._words.items()},
            # a number stays on one line with its unit and its name
            unbroken=escape(re.sub(r" (?=%|±)|(?<=±) |(?<=ARI) ", "\u00a0", self._words["headline"])),
            style=(here / "style.css").read_text(encoding="utf-8"),
            body="\n".join(self._parts),
            plotly=charts.element(path) if self._figures else "",
            footer=charts.sendable(path),
            # "<" could end the script element early
            figures=json.dumps(self._figures, allow_nan=False).replace("<", "\\u003c"),
        )
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise CoterieError(
                f"The report cannot be written to {path} ({error.strerror}); make room or move it."
            ) from error
        return path


def card(title: str, inside: str, note: str = "", *, wide: bool = False) -> str:
    """A framed part of the page; `inside` is HTML, title and note are plain words."""
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure class='card{' wide' * wide}'><h3>{escape(title)}</h3>{inside}{caption}</figure>"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of plain values; numbers stand right."""
    numeric = [
        bool(rows) and all(isinstance(row[at], int | float) or row[at] is None for row in rows if at < len(row))
        for at in range(len(columns))
    ]
    head = "".join(
        f"<th{_number_class(right)}>{escape(name)}</th>" for name, right in zip(columns, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_number_class(at < len(numeric) and numeric[at])}>{escape(_cell(value))}</td>"
            for at, value in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def paragraphs(texts: Sequence[str]) -> str:
    """Plain words with `code` and **bold**."""
    out = []
    for text in texts:
        safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
        safe = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
        out.append(f"<p>{safe}</p>")
    return "".join(out)


def painted(index: int) -> str:
    """Background and readable text colour of the i-th cluster, as a style."""
    shade = colour(index)
    red, green, blue = (int(shade[at : at + 2], 16) for at in (1, 3, 5))
    ink = "#1b2330" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"
    return f"background:{shade};color:{ink}"


def _has_points(trace: Figure) -> bool:
    if trace["type"] == "heatmap":
        return any(value is not None for row in trace["z"] for value in row)
    values = trace["y"] if "y" in trace else trace["x"]
    return any(value is not None for value in values)


def _number_class(right: bool) -> str:
    return " class='number'" if right else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
