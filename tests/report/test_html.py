"""The reports: right words, nothing unescaped, nothing from the network, and no crash on thin runs."""

from __future__ import annotations

import json
import os
import re
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from coterie.core.errors import CoterieError
from coterie.core.panels import (
    Lines,
    Node,
    NodeGraph,
    Panel,
    Table,
    Text,
)
from coterie.report.headlines import compare_headline, run_headline
from coterie.report.html import write_compare_report, write_run_report
from coterie.report.page import Page

from .fakes import METHODS, fake_compare, fake_run, some_panels

NASTY = "<script>alert('x')</script>&\"</title>"


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The page without plotly's own source, and its figures."""
    text = path.read_text(encoding="utf-8")
    assert text.count('<script id="plotly">') == 1
    start = text.index('<script id="plotly">')
    end = text.index('<script id="figures"')
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    return text[:start] + text[end:], json.loads(found[1])


def result_of(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return value


def test_run_report_tells_the_whole_story(tmp_path: Path) -> None:
    lost = [(2, "c003", "no reply before the deadline"), (5, "c003", "no reply before the deadline")]
    folder = fake_run(tmp_path / "ifca", panels=some_panels(), failures=lost)
    assert write_run_report(folder) == folder / "report.html"
    text, figures = read(folder / "report.html")
    assert escape(run_headline(result_of(folder))) in text
    for words in (
        "The groups made against the true groups",
        "Map of the clients",
        "no reply before the deadline",
        "2, 5",
        f"coterie run --config {folder}/config.toml --out {folder}-again",
        "momentum = 0.9",
        "kernel, 2 threads",
        "Cluster sizes",
        "<strong>four</strong>",
        "<code>threshold</code>",
        "data:image/png;base64,",
        *(escape(panel.title) for panel in some_panels()),
    ):
        assert words in text, words
    assert text.count("title='client c0") == 40
    assert set(figures) == set(re.findall(r"class='chart' id='([^']+)'", text))


def test_compare_report_has_every_method_and_run(tmp_path: Path) -> None:
    folder = fake_compare(tmp_path, command="coterie compare --all")
    write_run_report(folder / "ifca-seed0")
    text, figures = read(write_compare_report(folder))
    assert escape(compare_headline(json.loads((folder / "compare.json").read_text(encoding="utf-8")))) in text
    assert "coterie compare --all" in text
    assert "31.0 MB (8.5 rounds)" in text
    assert "never" in text
    assert "href='ifca-seed0/report.html'" in text
    assert "href='ifca-seed1/report.html'" not in text
    curves = [trace for trace in figures["chart-0"]["data"] if trace.get("name")]
    assert len(curves) == len(METHODS)
    bands = [trace for trace in figures["chart-0"]["data"] if trace.get("fill") == "tonexty"]
    assert len(bands) == len(METHODS)
    # local training sends nothing, so it has no curve over bytes
    assert len(figures["chart-1"]["data"]) == len(METHODS) - 1
    boxes = figures["chart-2"]["data"]
    assert [len(box["y"]) for box in boxes] == [80] * len(METHODS)


def test_the_mean_curve_and_its_band_are_right(tmp_path: Path) -> None:
    for seed, values in ((0, (0.2, 0.4)), (1, (0.4, 0.8))):
        folder = fake_run(tmp_path / f"ifca-seed{seed}", seed=seed, rounds=2)
        lines = [f"{at},{value},{1e6 * at * (1 + seed)},0" for at, value in enumerate(values, 1)]
        text = "\n".join(["round,accuracy,bytes_down,bytes_up", *lines])
        (folder / "metrics.csv").write_text(text, encoding="utf-8")
    summary = {"scenario": "s", "target": None, "seeds": [0, 1], "rows": [{"method": "ifca", "runs": 2}],
               "runs": ["ifca-seed0", "ifca-seed1"]}  # fmt: skip
    (tmp_path / "compare.json").write_text(json.dumps(summary), encoding="utf-8")
    _, figures = read(write_compare_report(tmp_path))
    low, high, mean = figures["chart-0"]["data"]
    assert mean["y"] == pytest.approx([0.3, 0.6])
    assert low["y"] == pytest.approx([0.2, 0.4])
    assert high["y"] == pytest.approx([0.4, 0.8])
    assert figures["chart-1"]["data"][0]["x"] == pytest.approx([1.5, 3.0])


def test_reports_need_no_network(tmp_path: Path) -> None:
    run = write_run_report(fake_run(tmp_path / "run", panels=some_panels()))
    compare = write_compare_report(fake_compare(tmp_path / "compare", seeds=[0]))
    for path in (run, compare):
        text, _ = read(path)
        assert not re.search(r"""https?://|url\(|@import|<link|src=(?!'data:)""", text)


def test_figures_are_what_plotly_accepts(tmp_path: Path) -> None:
    _, one = read(write_run_report(fake_run(tmp_path / "run", panels=some_panels())))
    _, many = read(write_compare_report(fake_compare(tmp_path / "compare")))
    assert len(one) >= 10
    for figure in (*one.values(), *many.values()):
        go.Figure(figure)


def test_a_method_that_only_its_author_has_is_called_by_its_title(tmp_path: Path) -> None:
    text, _ = read(write_run_report(fake_run(tmp_path / "run", "sfed", title="Sample-Fed")))
    assert "Sample-Fed serves" in text


def test_everything_from_users_is_escaped(tmp_path: Path) -> None:
    panels: list[Panel] = [
        Lines(NASTY, [1, 2], {NASTY: [1.0, 2.0]}, NASTY, NASTY),
        NodeGraph(NASTY, [Node(NASTY)], []),
        Table(NASTY, [NASTY], [[NASTY]]),
        Text(NASTY, [NASTY]),
    ]
    folder = fake_run(
        tmp_path / "run", NASTY, clients=2, panels=panels, failures=[(1, NASTY, NASTY)], found=2,
        scenario=NASTY, client_ids=[NASTY, "b"], truth=[NASTY, "b"], engine=NASTY, seed=0, title=NASTY,
    )  # fmt: skip
    (folder / "config.toml").write_text(f"a = '''{NASTY}'''\n", encoding="utf-8")
    text, _ = read(write_run_report(folder))
    assert "<script>alert" not in text
    assert text.count("</title>") == 1
    assert escape(NASTY) in text
    summary = {"scenario": NASTY, "rows": [{"method": NASTY, "accuracy_mean": 0.5}], "runs": ["run"], "seeds": [0]}
    (tmp_path / "compare.json").write_text(json.dumps(summary), encoding="utf-8")
    text, _ = read(write_compare_report(tmp_path))
    assert "<script>alert" not in text
    assert text.count("</title>") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"truth": False},
        {"found": None},
        {"found": None, "truth": False, "rounds": 0},
        {"ari": None, "per_client_accuracy": None, "clusters": None, "client_ids": None, "engine": None},
        {"accuracy": None, "worst_accuracy": None, "seconds": None, "bytes_down": None},
        {"accuracy": float("nan"), "per_client_accuracy": [float("nan")] * 40},
        {"n_clusters": 40, "clusters": list(range(40))},
        {"clients": 1, "found": 1},
        {"clients": 6_000},
    ],
)
def test_thin_and_odd_runs_still_give_a_report(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = fake_run(tmp_path / "run", **changes)
    text, _ = read(write_run_report(folder))
    assert escape(run_headline(result_of(folder))) in text
    assert "NaN" not in text
    if changes.get("rounds") == 0:
        assert "Nothing to draw" in text


def test_only_the_result_is_needed(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    for name in ("metrics.csv", "events.jsonl", "config.toml"):
        (folder / name).unlink()
    text, _ = read(write_run_report(folder))
    assert f"coterie run ifca --scenario rotated-digits --rounds 20 --seed 0 --out {folder}-again" in text
    assert "--config" not in text


def test_the_command_of_the_run_is_shown_as_it_was(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", command="coterie run ifca --set k=4 --out runs/x")
    assert "coterie run ifca --set k=4 --out runs/x" in read(write_run_report(folder))[0]


def test_half_a_last_event_is_forgiven(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "rou')
    write_run_report(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("result.json", None, "is not finished; go on with it: coterie resume"),
        ("result.json", "{", "cannot be read"),
        ("result.json", "[]", "not a JSON object"),
        ("result.json", '{"method": "ifca"}', "lacks scenario, seed"),
        ("metrics.csv", "round,accuracy\n1,high\n", "table of numbers"),
        ("metrics.csv", "accuracy\n1\n", "no column 'round'"),
        ("metrics.csv", "round,accuracy\n1\n2,0.5\n", None),
        ("events.jsonl", "{\n{}\n", "Line 1"),
        ("config.toml", "a = = 1", "not readable TOML"),
        ("panels.json", "7", "not a list"),
    ],
)
def test_corrupt_run_folders(tmp_path: Path, name: str, content: str | None, words: str | None) -> None:
    folder = fake_run(tmp_path / "run")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content, encoding="utf-8")
    if words is None:
        write_run_report(folder)
    else:
        with pytest.raises(CoterieError, match=words):
            write_run_report(folder)
        assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clusters": [0]}, "do not agree in length"),
        ({"truth": 3}, "do not agree"),
        ({"rounds": "many"}, "rounds = 'many'"),
    ],
)
def test_results_that_do_not_add_up(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = fake_run(tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(result_of(folder) | changes), encoding="utf-8")
    with pytest.raises(CoterieError, match=words):
        write_run_report(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is neither a run nor a comparison"),
        ("{}", "lacks its rows or runs"),
        ('{"rows": [{}], "runs": []}', "row without a method"),
        ('{"rows": [], "runs": ["nowhere"]}', "There is no folder .*nowhere"),
    ],
)
def test_corrupt_comparisons(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "compare.json").write_text(content, encoding="utf-8")
    with pytest.raises(CoterieError, match=words):
        write_compare_report(tmp_path)


def test_a_full_disk_is_one_sentence_and_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_run(tmp_path / "run")
    report = write_run_report(folder)
    before = report.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CoterieError, match="No space left on device"):
        write_run_report(folder)
    assert report.read_bytes() == before
    assert not list(folder.glob("*.new"))


def test_a_long_value_of_a_tile_is_set_smaller(tmp_path: Path) -> None:
    page = Page("t", "e", "h", "m")
    page.tiles([("over local", "+10.7 points", ""), ("accuracy", "94.6 %", "")])
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<b class=long>+10.7 points</b>" in text
    assert "<b>94.6 %</b>" in text
