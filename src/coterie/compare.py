"""Several methods and seeds on the same scenario, side by side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.config import RunConfig
from coterie.errors import CoterieError
from coterie.experiment import check, execute, resume
from coterie.folder import RunFolder, read_metrics
from coterie.report import charts
from coterie.report.html import write_compare_report
from coterie.report.live import CompareView
from coterie.run import View


@dataclass(frozen=True)
class _OneOfMany:
    """What one run tells the common view."""

    view: CompareView
    method: str
    seed: int

    def update(self, row: Mapping[str, Any]) -> None:
        self.view.update(self.method, self.seed, row)

    def note(self, text: str) -> None:
        self.view.note(text)

    def progress(self, what: str, done: int, asked: int) -> None:
        self.view.progress(self.method, self.seed, what, done, asked)


def compare(
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    out: Path,
    view: CompareView,
    *,
    target: float | None = None,
) -> list[dict[str, Any]]:
    """Run every configuration with every seed; write a folder per run, `compare.json` and one report.

    Runs that are finished in `out` are kept and half-finished ones resumed, so an interrupted comparison goes on where
    it stopped.
    """
    if target is not None and not 0 < target <= 1:
        raise CoterieError(f"The target accuracy must lie in (0, 1], not {target}.")
    if (out / "config.toml").exists():
        raise CoterieError(f"{out} holds a single run; choose another --out for the comparison.")
    _check(configs, seeds, out)
    home = RunFolder(out)
    home.write(charts.SHARED, charts.packed())  # one copy for the reports of all runs
    results: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for config in configs:
        for seed in seeds:
            folder = _home(out, config, seed)
            result = once(config, seed, folder, _OneOfMany(view, config.method, seed))
            view.end(config.method, seed, result)
            results.setdefault(config.method, []).append((folder, result))
    rows = [summary(method, runs, target) for method, runs in results.items()]
    first = configs[0]
    report = {
        "scenario": first.scenario.data or first.scenario.name,
        "target": target,
        "methods": list(results),
        "seeds": list(seeds),
        "rows": rows,
        "runs": [folder.name for runs in results.values() for folder, _ in runs],
    }
    home.write("compare.json", json.dumps(report, indent=1).encode())
    with home.writing(out / "report.html"):
        write_compare_report(out)
    return rows


def _home(out: Path, config: RunConfig, seed: int) -> Path:
    return out / f"{config.method}-seed{seed}"


def _check(configs: Sequence[RunConfig], seeds: Sequence[int], out: Path) -> None:
    """A run that cannot be is refused before the first of them has taken its time."""
    for config in configs:
        for seed in seeds:
            _check_same(replace(config, seed=seed), _home(out, config, seed))
    unfinished = [c for c in configs if any(not (_home(out, c, seed) / "result.json").is_file() for seed in seeds)]
    check([replace(config, seed=seeds[0]) for config in unfinished])


def _check_same(config: RunConfig, folder: Path) -> None:
    file = folder / "config.toml"
    if file.is_file() and file.read_text() != config.to_toml():
        raise CoterieError(f"{folder} holds a run with other settings; choose another --out.")


def once(config: RunConfig, seed: int, folder: Path, view: View) -> dict[str, Any]:
    """The result of a run in its folder: read if it is finished, resumed if it is not, else run now."""
    config = replace(config, seed=seed)
    _check_same(config, folder)
    if (folder / "config.toml").is_file():
        if (folder / "result.json").is_file():
            kept: dict[str, Any] = json.loads((folder / "result.json").read_text())
            return kept
        result = resume(folder, view=view)
    else:
        result = execute(config, folder, view=view)
    finished: dict[str, Any] = json.loads(result.to_json())
    return finished


def summary(method: str, runs: Sequence[tuple[Path, dict[str, Any]]], target: float | None) -> dict[str, Any]:
    """One line of the comparison: means over seeds, and what reaching the target accuracy cost."""
    results = [result for _, result in runs]
    accuracy = [result["accuracy"] for result in results]
    reached = [_reached(folder, target) for folder, _ in runs] if target is not None else []
    everyone = bool(reached) and all(cost is not None for cost in reached)
    costs = [cost for cost in reached if cost is not None] if everyone else []
    return {
        "method": method,
        "runs": len(runs),
        "accuracy_mean": statistics.fmean(accuracy),
        "accuracy_sd": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
        "worst_mean": statistics.fmean(result["worst_accuracy"] for result in results),
        "ari_mean": _mean_known([result["ari"] for result in results]),
        "n_clusters_mean": _mean_known([result["n_clusters"] for result in results]),
        "bytes_down": statistics.fmean(result["bytes_down"] for result in results),
        "bytes_up": statistics.fmean(result["bytes_up"] for result in results),
        "bytes_to_target": statistics.fmean(cost for _, cost in costs) if costs else None,
        "rounds_to_target": statistics.fmean(rounds for rounds, _ in costs) if costs else None,
        "seconds": statistics.fmean(result["seconds"] for result in results),
    }


def _reached(folder: Path, target: float) -> tuple[float, float] | None:
    """Rounds and bytes until the mean accuracy first reached the target, or None if it never did."""
    for row in read_metrics(folder):
        if row["accuracy"] is not None and row["accuracy"] >= target:
            return row["round"], row["bytes_down"] + row["bytes_up"]
    return None


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
