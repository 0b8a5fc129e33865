"""The examples run as they stand, and a method outside the package is run, compared and resumed like any other."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core.cohort import Cohort
from coterie.core.states import row
from coterie.core.task import Task
from coterie.methods import METHODS, chosen_method

from . import forked
from .conftest import Command
from .tiny import one_weight, rows

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DITTO = f"{ROOT / 'examples' / 'my_ditto.py'}:MyDitto"
SMALL = ("--clients", 4, "--samples", 20, "--groups", 2, "--rounds", 3)


def test_the_examples_run_as_they_stand_and_are_short(tmp_path: Path) -> None:
    """One after the other in a fresh process: what other tests have imported must not help them."""
    assert len(EXAMPLES) >= 6
    for example in EXAMPLES:
        assert len(example.read_text().splitlines()) < (25 if example.stem == "my_ditto" else 40)
    runner = "import runpy, sys\nfor path in sys.argv[1:]: print('#', path), runpy.run_path(path, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", runner, *map(str, EXAMPLES)]
    done = forked.run(command, env=environment, cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    said = {part.partition("\n")[0].strip(): part.partition("\n")[2] for part in done.stdout.split("# ")[1:]}
    for example in EXAMPLES:
        assert any(sign.isdigit() for sign in said[str(example)]) or example.stem == "my_ditto", example.stem
    check_new_clients(tmp_path)


def check_new_clients(folder: Path) -> None:
    """Three scripts lead from CSV files to a new client's predictions, which beat the best constant answer clearly."""
    for example in EXAMPLES:
        assert len(example.read_text().splitlines()) < 15 or not example.stem.startswith("predict_")
    networks: dict[str, tuple[str, Any]] = {
        "scanners": ("scanner", lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))),
        "clinics": ("clinic", lambda: nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))),
        "programs": ("program", lambda: nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(64, 3))),
    }
    for name, (what, network) in networks.items():
        file = folder / f"new-{what}.csv"
        with file.open() as rows:
            true = [list(row.values())[-1] for row in csv.DictReader(rows)]
        run = coterie.load(folder / "runs" / name, model=network)
        found = run.admit(file).predict(file)
        if name == "clinics":
            numbers = np.array(true, float)
            assert np.abs(found - numbers).mean() < 0.8 * np.abs(numbers - np.median(numbers)).mean()
        else:
            right = np.mean([str(one) == other for one, other in zip(found, true, strict=True)])
            assert right > Counter(true).most_common(1)[0][1] / len(true) + 0.05
            assert name != "scanners" or (right > 0.9 and run.admit(file).group == run.groups["s7"] != run.groups["s0"])


def test_a_method_outside_the_package_is_run_compared_and_resumed(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert coterie("run", DITTO, *SMALL, "--set", "lam=0.3", "--out", out).code == 0
    whole = json.loads((out / "result.json").read_text())
    assert (whole["method"], whole["title"]) == ("my-ditto", "my-ditto")
    (out / "result.json").unlink()
    assert coterie("resume", out).code == 0
    assert json.loads((out / "result.json").read_text())["accuracy"] == whole["accuracy"]
    said = coterie("compare", "fedavg", DITTO, *SMALL, "--set", "my-ditto.lam=0.3", "--out", tmp_path / "both")
    assert said.code == 0, said.err
    assert (tmp_path / "both" / "my-ditto-seed0" / "result.json").is_file()
    assert json.loads((tmp_path / "both" / "compare.json").read_text())["methods"] == ["fedavg", "my-ditto"]


def test_ditto_by_hand() -> None:
    """One weight, one sample x = 1 with target y = 3, loss (w - 3)^2, w = v = 0, lr = 0.1, lambda = 0.5, two steps.

    Common model: w1 = 0 - 0.1 * 2 (0 - 3) = 0.6, w2 = 0.6 + 0.1 * 2 * 2.4 = 1.08.
    Own model, held near 0: v1 = 0.6, v2 = 0.6 - 0.1 (2 (0.6 - 3) + 0.5 * 0.6) = 1.05.
    """
    population = rows(([1.0], [3]))
    task = Task(one_weight, (1,), 10, population.normalise, loss="mse", dtype=torch.float64)
    kind: Any = chosen_method(DITTO)
    ditto = kind(lam=0.5, lr=0.1, momentum=0.0, epochs=2, batch=1)
    c = Cohort(("a",), task, (population.client("a"),))
    trained = ditto.train(c, coterie.Models({"weight": torch.zeros(1, 1, dtype=torch.float64)}))
    assert float(row(trained.model, 0)["weight"]) == pytest.approx(1.08)
    assert float(c.kept["model"]["weight"]) == pytest.approx(1.05)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("x = 1", "Ditto", "own.py has no 'Ditto' to take a method from."),
        ("Ditto = 3", "Ditto", "is not a method; let the class derive from coterie.ServerMethod or PeerMethod."),
        ("from coterie import FedAvg", "FedAvg", "has the name 'fedavg' of a method that exists"),
        ("1 / 0", "Ditto", "own.py, which has the method, cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_without_a_method_is_one_sentence(
    text: str, name: str, said: str, coterie: Command, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(text)
    ended = coterie("run", f"{tmp_path / 'own.py'}:{name}", *SMALL, "--out", tmp_path / "run")
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert "my-ditto" not in METHODS
