"""plotly's script: packed in a report that stands alone, one copy for the runs of a comparison."""

from __future__ import annotations

import base64
import gzip
import re
import shutil
from pathlib import Path

from plotly.offline import get_plotlyjs

from coterie.report import charts
from coterie.report.html import write_run_report

from ..conftest import Command
from .fakes import fake_run

SMALL = ("--clients", 6, "--samples", 8, "--groups", 2, "--rounds", 1, "--set", "epochs=1")
REFERENCE = f'<script id="plotly" src="../{charts.SHARED}"></script>'


def test_a_report_carries_all_of_plotly_in_less_than_half_its_size(tmp_path: Path) -> None:
    text = write_run_report(fake_run(tmp_path / "run")).read_text(encoding="utf-8")
    found = re.search(r'<script id="plotly">const plotlyPacked = "([^"]+)";', text)
    assert found
    assert gzip.decompress(base64.b64decode(found[1])).decode() == get_plotlyjs()
    assert len(text) < len(get_plotlyjs()) / 2
    assert "can be sent as it is" in text


def test_the_runs_of_a_comparison_share_one_copy(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "both"
    assert coterie("compare", "fedavg", "local", *SMALL, "--out", out).code == 0
    assert (out / charts.SHARED).read_bytes() == charts.packed()
    for run in ("fedavg-seed0", "local-seed0"):
        text = (out / run / "report.html").read_text(encoding="utf-8")
        assert REFERENCE in text
        assert len(text) < 100_000
        assert f"the file {charts.SHARED} in the folder above it" in text
    assert "const plotlyPacked" in (out / "report.html").read_text(encoding="utf-8")
    shutil.copytree(out / "local-seed0", tmp_path / "alone" / "local-seed0")
    assert coterie("report", tmp_path / "alone" / "local-seed0").code == 0
    text = (tmp_path / "alone" / "local-seed0" / "report.html").read_text(encoding="utf-8")
    assert "const plotlyPacked" in text
    assert REFERENCE not in text
