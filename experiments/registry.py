"""Every experiment by name: tables from `papers/*.toml`, and functions."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from experiments.tables import Note, run_table, tables_of

Run = Callable[[Path, Sequence[int], Note], str]
"""Does the work in a folder (resuming what is there) and returns the result as Markdown."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: what it shows, how long it takes on two cores, the seeds it is made with."""

    name: str
    summary: str
    minutes: float
    seeds: tuple[int, ...]
    run: Run


class _Experiments(dict[str, Experiment]):
    """Filled when first looked at: reading all papers costs time that `coterie list` should not spend."""

    _complete = False

    def load(self) -> _Experiments:
        """Read the tables and import the functions."""
        # not "if not self": a figures module that was imported by itself has registered its own already
        if not self._complete:
            self._complete = True
            for file in sorted(resources.files("experiments.papers").iterdir(), key=lambda each: each.name):
                if file.name.endswith(".toml"):
                    self._add_tables(tomllib.loads(file.read_text(encoding="utf-8")))
            for module in sorted(Path(__file__).parent.glob("figures_*.py")):
                import_module(f"experiments.{module.stem}")
        return self

    def _add_tables(self, paper: dict[str, Any]) -> None:
        for table in tables_of(paper):
            run = partial(run_table, table)
            self[table["name"]] = Experiment(
                table["name"], table["summary"], table["minutes"], tuple(table["seeds"]), run
            )


EXPERIMENTS = _Experiments()


def experiment(name: str, summary: str, *, minutes: float, seeds: Sequence[int] = (0,)) -> Callable[[Run], Run]:
    """Register a function as an experiment."""

    def register(run: Run) -> Run:
        EXPERIMENTS[name] = Experiment(name, summary, minutes, tuple(seeds), run)
        return run

    return register
