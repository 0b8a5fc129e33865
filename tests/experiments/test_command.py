"""`python -m experiments`: the list, and a name that does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from experiments import EXPERIMENTS
from tests import forked

ROOT = Path(__file__).resolve().parents[2]


def _called(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "experiments", *arguments]
    return forked.run(command, cwd=ROOT, env=environment)


def test_the_list_names_every_experiment_and_cuts_no_word() -> None:
    said = _called()
    assert said.returncode == 0, said.stderr
    assert all(len(line) <= 80 for line in said.stdout.splitlines())
    words = set(said.stdout.split())
    for each in EXPERIMENTS.load().values():
        assert {each.name, *each.summary.split()} <= words


def test_a_name_that_does_not_exist_is_one_sentence() -> None:
    said = _called("panm-figure9")
    assert said.returncode == 2
    assert said.stderr.startswith("coterie: There is no experiment 'panm-figure9'; did you mean 'panm-figure")
