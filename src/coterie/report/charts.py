"""plotly's script for the reports, packed: a third of its size, unpacked by the browser.

A report carries it, so that it can be sent as one file. The runs of a comparison do not: one copy lies beside the
comparison's report, in the folder that holds them all, and they refer to it.
"""

from __future__ import annotations

import base64
import gzip
from functools import cache
from pathlib import Path

SHARED = "charts.js"


@cache
def packed() -> bytes:
    """A script that defines `plotlyPacked`: plotly's own, compressed, as text."""
    from plotly.offline import get_plotlyjs

    small = gzip.compress(get_plotlyjs().encode(), mtime=0)
    return b'const plotlyPacked = "' + base64.b64encode(small) + b'";\n'


def element(report: Path) -> str:
    """The element that brings the script into a report: a reference to the folder's copy, or all of it."""
    if _shares(report):
        return f'<script id="plotly" src="../{SHARED}"></script>'
    return f'<script id="plotly">{packed().decode()}</script>'


def sendable(report: Path) -> str:
    """What a reader may do with the report."""
    if _shares(report):
        return f"It needs no network, but for its charts the file {SHARED} in the folder above it."
    return "This file needs no network and can be sent as it is."


def _shares(report: Path) -> bool:
    return (report.resolve().parent.parent / SHARED).is_file()
