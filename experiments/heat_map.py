"""A heat map as SVG: methods down, conditions across, colour and number by points lost, ARI below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from experiments.conditions import Condition

_WIDE, _HIGH, _LEFT, _TOP = 46, 30, 96, 170
_SCALE = ((1.0, "#e6f2ea"), (3.0, "#fdf3d8"), (6.0, "#fbdcae"), (12.0, "#f2a98a"), (25.0, "#d9705f"))
_WORST, _UNKNOWN = "#a83232", "#ededed"


@dataclass(frozen=True)
class Cell:
    """Means over seeds: points lost against Oracle, ARI, bytes both ways; and how many runs."""

    lost: float | None
    ari: float | None
    sent: float | None
    runs: int


def heat_map(
    cells: Mapping[tuple[str, str], Cell], methods: Sequence[str], conditions: Sequence[Condition], title: str
) -> str:
    """The picture. Green: within a point of Oracle; the darker the red, the more points are lost."""
    width, height = _LEFT + _WIDE * len(conditions) + 60, _TOP + _HIGH * len(methods) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="14">{escape(title)}: points lost against Oracle (large), ARI (small)</text>',
    ]
    for place, condition in enumerate(conditions):
        x = _LEFT + _WIDE * place + _WIDE // 2
        turned = f"rotate(-50 {x} {_TOP - 6})"
        parts.append(f'<text x="{x}" y="{_TOP - 6}" transform="{turned}">{escape(condition.label)}</text>')
    for row, method in enumerate(methods):
        y = _TOP + _HIGH * row
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 19}" text-anchor="end">{escape(method)}</text>')
        for place, condition in enumerate(conditions):
            parts.append(_cell(cells.get((method, condition.name)), _LEFT + _WIDE * place, y))
    steps = " | ".join(f"≤ {limit:g}" for limit, _ in _SCALE)
    legend = f"colour steps in points: {steps} | more; grey: refused or not run"
    parts.append(f'<text x="8" y="{height - 10}">{legend}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _cell(cell: Cell | None, x: int, y: int) -> str:
    lost = None if cell is None else cell.lost
    box = f'<rect x="{x}" y="{y}" width="{_WIDE - 1}" height="{_HIGH - 1}" fill="{_colour(lost)}"/>'
    if cell is None or lost is None:
        return box
    ink = "white" if lost > _SCALE[-1][0] else "black"
    middle = x + _WIDE // 2
    text = f'<text x="{middle}" y="{y + 14}" text-anchor="middle" fill="{ink}">{lost:.1f}</text>'
    below = "" if cell.ari is None else f"{cell.ari:.2f}"
    return f'{box}{text}<text x="{middle}" y="{y + 25}" text-anchor="middle" font-size="9" fill="{ink}">{below}</text>'


def _colour(lost: float | None) -> str:
    if lost is None:
        return _UNKNOWN
    return next((colour for limit, colour in _SCALE if lost <= limit), _WORST)
