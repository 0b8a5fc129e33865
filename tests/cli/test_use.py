"""`coterie predict` and `coterie export`: from tables of the clients to predictions for new rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from coterie.data.schema import Schema
from coterie.runs.predictions import as_csv

from ..conftest import Command

BUILD = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
"""


def table(path: Path, sign: float, *, rows: int = 40, columns: tuple[str, ...] = ("a", "b", "c", "weather")) -> None:
    """A CSV file: the weather follows from column a."""
    x = np.random.default_rng(rows).normal(size=(rows, 3))
    held = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "weather": np.where(sign * x[:, 0] > 0, "rain", "sun")}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(held[name] for name in columns), strict=True))


@pytest.fixture
def made_run(coterie: Command, tmp_path: Path) -> Path:
    """A finished run of four clients in two groups."""
    (tmp_path / "stations").mkdir()
    for number in range(4):
        table(tmp_path / "stations" / f"station-{number}.csv", 1.0 if number < 2 else -1.0)
    (tmp_path / "net.py").write_text(BUILD)
    ended = coterie(
        *("run", "ifca", "--set", "k=2", "--set", "lr=0.3", "--data", tmp_path / "stations"),
        *("--target-column", "weather", "--model", f"{tmp_path / 'net.py'}:build", "--rounds", 4),
        *("--out", tmp_path / "run"),
    )
    assert ended.code == 0, ended.err
    return tmp_path / "run"


def test_a_word_that_looks_like_a_formula_is_quoted() -> None:
    """Names of classes come from other clients, and predictions are opened in spreadsheets."""
    words = ["=cmd()", "+evil", "@x", "-x", "-1", "+2.5", "+", "-", "fine", "a=b"]
    made = as_csv(np.array(words), Schema((1,), 2, target="y"))
    assert made.splitlines()[1:] == ["'=cmd()", "'+evil", "'@x", "'-x", *words[4:]]
    assert as_csv(np.array([-1.5]), Schema((1,), 1)).splitlines()[1] == "-1.5"


def test_new_rows_are_predicted_in_words(made_run: Path, coterie: Command, tmp_path: Path) -> None:
    """A target column among the new rows is ignored, and so is the order of the columns."""
    table(tmp_path / "new.csv", 1.0, rows=30)
    table(tmp_path / "bare.csv", 1.0, rows=30, columns=("c", "a", "b"))
    said = []
    for name in ("new.csv", "bare.csv"):
        ended = coterie(
            *("predict", made_run, "--client", "station-1", "--data", tmp_path / name, "--out", tmp_path / f"y-{name}")
        )
        assert ended.code == 0, ended.err
        said.append((tmp_path / f"y-{name}").read_text().splitlines())
    assert said[0] == said[1]
    assert said[0][0] == "weather"
    with (tmp_path / "new.csv").open() as file:
        true = [row["weather"] for row in csv.DictReader(file)]
    assert np.mean([a == b for a, b in zip(said[0][1:], true, strict=True)]) > 0.8
    printed = coterie("predict", made_run, "--client", "station-1", "--data", tmp_path / "new.csv")
    assert printed.out.splitlines() == said[0]


@pytest.mark.parametrize("kind", ["state_dict", "torchscript", "onnx"])
def test_a_model_is_exported(kind: str, made_run: Path, coterie: Command, tmp_path: Path) -> None:
    ended = coterie("export", made_run, "--client", "station-0", "--format", kind, "--out", tmp_path / "model")
    assert ended.code == 0, ended.err
    assert (tmp_path / "model").stat().st_size > 500


def test_bad_input_is_one_sentence(made_run: Path, coterie: Command, tmp_path: Path) -> None:
    table(tmp_path / "short.csv", 1.0, columns=("a", "b"))
    (tmp_path / "empty").mkdir()
    good = tmp_path / "stations" / "station-0.csv"
    cases = [
        (("predict", made_run, "--client", "station1", "--data", good), "did you mean 'station-1'?"),
        (("predict", made_run, "--client", "station-1", "--data", tmp_path / "short.csv"), "has no column 'c'"),
        (("predict", made_run, "--client", "station-1", "--data", tmp_path / "no.csv"), "There is no file"),
        (("predict", made_run, "--client", "station-1", "--data", tmp_path / "empty"), "holds no images"),
        (("predict", tmp_path / "empty", "--client", "station-1", "--data", good), "is neither a run nor a comparison"),
        (("export", made_run, "--client", "station-1", "--format", "onx", "--out", "x"), "did you mean 'onnx'?"),
    ]
    for words, said in cases:
        ended = coterie(*words)
        assert ended.code == 2, words
        assert said in ended.err, ended.err
        assert "Traceback" not in ended.err
    (made_run / "result.json").unlink()
    ended = coterie("predict", made_run, "--client", "station-1", "--data", good)
    assert ended.code == 2
    assert "is not finished; go on with it: coterie resume" in ended.err


def test_a_loss_and_a_metric_of_ones_own_are_named(coterie: Command, tmp_path: Path) -> None:
    """In run, compare and resume, as options or with --set; panm, which has a metric of its own, keeps it."""
    g = np.random.default_rng(0)
    for name in "abc":
        x = g.normal(size=(20, 2))
        rows = [f"{a:.3f},{b:.3f},{a - 2 * b:.3f}" for a, b in x]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    code = tmp_path / "mine.py"
    code.write_text(
        "import coterie\nfrom torch import nn\nfrom torch.nn import functional as F\n"
        "def build():\n    return nn.Linear(2, 1)\n"
        "def loss(output, target):\n    return F.l1_loss(output.flatten(), target.float())\n"
        "def near(prediction, target):\n    return ((prediction - target).abs() < 1).double().mean()\n"
        "off = coterie.Metric('off', lambda p, t: (p - t).abs().max(), lower_is_better=True)\n"
    )
    base = ("--data", tmp_path / "data", "--model", f"{code}:build", "--rounds", 1, "--workers", 1, "--set", "lr=0.1")
    named = ("--loss", f"{code}:loss", "--metric", f"{code}:near")
    out = tmp_path / "run"
    done = coterie("run", "fedavg", *base, *named, "--out", out)
    assert done.code == 0, done.err
    assert coterie("resume", out, "--rounds", 2).code == 0
    result = json.loads((out / "result.json").read_text())
    assert (result["metric"], result["rounds"], result["inputs"]) == ("near", 2, "as they are")
    assert f'loss = "{code}:loss"' in (out / "config.toml").read_text()
    assert "inputs as they are" in (out / "report.html").read_text()
    both = tmp_path / "both"
    done = coterie(
        "compare", "fedavg", "panm", *base, "--metric", f"{code}:off", "--set", f"loss={code}:loss",
        "--set", "panm.metric=loss", "--out", both,
    )  # fmt: skip
    assert done.code == 0, done.err
    rows_ = json.loads((both / "compare.json").read_text())["rows"]
    assert [(row["metric"], row["lower_is_better"]) for row in rows_] == [("off", True)] * 2
    for option, said in (
        (("--loss", f"{code}:nothing"), "has no 'nothing' to take a loss from"),
        (("--loss", code), "name the loss in it"),
        (("--metric", "f1"), "There is no metric of a task of regression 'f1'; known: auto, mae, r2, rmse."),
        (("--loss", "nothing"), "There is no loss 'nothing'"),
    ):
        refused = coterie("run", "fedavg", *base, *option, "--out", tmp_path / "no")
        assert (refused.code, said in refused.err) == (2, True), refused.err
