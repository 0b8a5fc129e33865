"""How numbers and names are written for people: one place for the terminal and the HTML report."""

from __future__ import annotations

from math import isfinite

UNKNOWN = "–"


def method_title(name: str) -> str:
    """A method's name as its paper spells it; unknown names stay as they are."""
    from coterie.methods import title_of  # it needs torch, which other uses of this module do not

    return title_of(name)


def human_bytes(count: float | None) -> str:
    """12.3 MB; decimal units, three significant digits."""
    if count is None or not isfinite(count):
        return UNKNOWN
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.5 would print as 1000 of the smaller unit
        if abs(size) < 999.5 or unit == "TB":
            break
        size /= 1000
    if unit == "B":
        return f"{size:.0f} B"
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def percent(share: float | None, digits: int = 1) -> str:
    """0.941 -> 94.1 %."""
    return UNKNOWN if share is None or not isfinite(share) else f"{100 * share:.{digits}f} %"


def score(value: float | None) -> str:
    """An ARI: 0.98."""
    if value is None or not isfinite(value):
        return UNKNOWN
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def number(value: float | None, digits: int = 2) -> str:
    """A count or an average: 4, 4.5, 12,000."""
    if value is None or not isfinite(value):
        return UNKNOWN
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float | None) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def clock(seconds: float | None) -> str:
    """The same in at most seven letters, for a column of a table: 0.4 s, 12 s, 3:20, 2:05:00."""
    if seconds is None or not isfinite(seconds) or round(seconds) < 60:
        return duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def plural(count: int, noun: str) -> str:
    """1 client, 40 clients."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
