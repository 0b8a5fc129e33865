"""Several methods and seeds on the same scenario, side by side."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from coterie.core.errors import CoterieError, NothingLearnt
from coterie.core.measures import MEASURES, Measure, measure_of, score_of
from coterie.runs.config import RunConfig
from coterie.runs.experiment import check, config_of, defaults_of, execute, population_of, rated_config, resume
from coterie.runs.folder import RunFolder
from coterie.runs.records import COMPARE_FILE, CONFIG_FILE, RESULT_FILE, read_metrics
from coterie.runs.standing import known
from coterie.runs.view import View


class SomeFailed(NothingLearnt):
    """Some runs of a comparison came to nothing; `rows` are those of the others, whose report is written."""

    def __init__(self, failed: Sequence[Mapping[str, Any]], rows: list[dict[str, Any]]) -> None:
        more = f"{len(failed)} runs have no result; the first: " if len(failed) > 1 else ""
        super().__init__(f"{more}{failed[0]['why']}")
        self.rows = rows


class ComparisonView(Protocol):
    """What follows a comparison."""

    def begin(self, folder: Path) -> None:
        """The comparison begins in this folder."""

    def of_run(self, config: RunConfig, folder: Path) -> View:
        """The view of one of its runs."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""

    def end(self, method: str, seed: int, result: Mapping[str, Any]) -> None:
        """One run is finished."""

    def finished(self, folder: Path) -> None:
        """All runs are finished, and compare.json is written."""


def compare(
    configs: Sequence[RunConfig], seeds: Sequence[int], out: Path, view: ComparisonView, *, target: float | None = None
) -> list[dict[str, Any]]:
    """Run every configuration with every seed; write a folder per run and `compare.json`; the view writes the report.

    Runs that are finished in `out` are kept and half-finished ones resumed, so an interrupted comparison goes on where
    it stopped. A run that learns nothing is named in the report and at the end, and the others go on.
    """
    check_target(target, configs[0].task)
    if (out / CONFIG_FILE).exists():
        raise CoterieError(f"{out} holds a single run; choose another --out for the comparison.")
    _check_own(configs, seeds, out)
    configs = _rated(configs, seeds, out, view)
    _check(configs, seeds, out)
    home = RunFolder(out)
    view.begin(out)
    results: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    failed: list[dict[str, Any]] = []
    for config in configs:
        for seed in seeds:
            folder = _home(out, config, seed)
            try:
                result = once(config, seed, folder, view.of_run(replace(config, seed=seed), folder))
            except NothingLearnt as error:
                failed.append({"method": config.label, "seed": seed, "why": str(error)})
                view.note(str(error))
                continue
            view.end(config.label, seed, result)
            results.setdefault(config.label, []).append((folder, result))
    if not results:
        raise NothingLearnt(failed[0]["why"])
    rows = [summary(method, runs, target) for method, runs in results.items()]
    home.write(COMPARE_FILE, compared(configs[0].subject, target, seeds, rows, failed, results))
    view.finished(out)
    if failed:
        raise SomeFailed(failed, rows)
    return rows


def check_target(target: float | None, task: str = "auto") -> None:
    """Refuse a score that cannot be reached."""
    if target is not None and not 0 < target <= (math.inf if task == "regression" else 1):
        what = (
            "The target must be a score above 0" if task == "regression" else "The target accuracy must lie in (0, 1]"
        )
        raise CoterieError(f"{what}, not {target}.")


def compared(
    subject: str,
    target: float | None,
    seeds: Sequence[int],
    rows: Sequence[Mapping[str, Any]],
    failed: Sequence[Mapping[str, Any]],
    results: Mapping[str, Sequence[tuple[Path, Mapping[str, Any]]]],
) -> bytes:
    """The content of compare.json."""
    report = {
        "scenario": subject,
        "target": target,
        "methods": list(results),
        "seeds": list(seeds),
        "rows": rows,
        "failed": failed,
        "runs": [folder.name for runs in results.values() for folder, _ in runs],
    }
    return json.dumps(report, indent=1).encode()


def _home(out: Path, config: RunConfig, seed: int) -> Path:
    return out / f"{config.label}-seed{seed}"


def _rated(configs: Sequence[RunConfig], seeds: Sequence[int], out: Path, view: ComparisonView) -> Sequence[RunConfig]:
    """The configurations with one learning rate for each kind of optimiser, where they have none (see `rated_config`).

    It is found once, with the first seed, or kept from the runs that the folder holds already.
    """
    rates: dict[tuple[str, float], float] = {}
    without = [config for config in configs if _optimiser(config)[1] in (None, "auto")]
    for config in without:
        for seed in seeds:
            folder = _home(out, config, seed)
            if (folder / CONFIG_FILE).is_file():
                rates |= {_optimiser(config)[0]: rate for rate in [config_of(folder).settings.get("lr")] if rate}
    for config in without:
        if _optimiser(config)[0] not in rates:
            population = population_of(config.scenario, seeds[0], config.task)
            found = rated_config(replace(config, seed=seeds[0]), population, view.note)
            rates[_optimiser(config)[0]] = found.settings["lr"]
    return [
        replace(config, settings={**config.settings, "lr": rates[_optimiser(config)[0]]})
        if config in without
        else config
        for config in configs
    ]


def _optimiser(config: RunConfig) -> tuple[tuple[str, float], object]:
    """What a rate belongs to, and the rate where one is set."""
    method = config.build_method(defaults_of(config))
    return (method.optimiser, method.momentum), method.lr


def _check(configs: Sequence[RunConfig], seeds: Sequence[int], out: Path) -> None:
    """A run that cannot be is refused before the first of them has taken its time."""
    for config in configs:
        for seed in seeds:
            _check_same(replace(config, seed=seed), _home(out, config, seed))
    unfinished = [c for c in configs if any(not (_home(out, c, seed) / RESULT_FILE).is_file() for seed in seeds)]
    check([replace(config, seed=seeds[0]) for config in unfinished])


def _check_own(configs: Sequence[RunConfig], seeds: Sequence[int], out: Path) -> None:
    """Refuse a folder with runs of another comparison, whose report would be replaced by one without them."""
    wanted = {_home(out, config, seed).name for config in configs for seed in seeds}
    others = sorted({file.parent.name for file in out.glob("*-seed*/config.toml")} - wanted)
    if others:
        raise CoterieError(
            f"{out} holds a comparison with other runs ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}); "
            "choose another --out, or name their methods and seeds too."
        )


def _check_same(config: RunConfig, folder: Path) -> None:
    file = folder / CONFIG_FILE
    if file.is_file() and file.read_text() != config.to_toml() and config_of(folder) != config:
        raise CoterieError(f"{folder} holds a run with other settings; choose another --out.")


def once(config: RunConfig, seed: int, folder: Path, view: View) -> dict[str, Any]:
    """The result of a run in its folder: read if it is finished, resumed if it is not, else run now."""
    config = replace(config, seed=seed)
    _check_same(config, folder)
    if (folder / CONFIG_FILE).is_file():
        if (folder / RESULT_FILE).is_file():
            kept: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text())
            return kept
        result = resume(folder, view=view)
    else:
        result = execute(config, folder, view=view)
    finished: dict[str, Any] = json.loads(result.to_json())
    return finished


def summary(method: str, runs: Sequence[tuple[Path, dict[str, Any]]], target: float | None) -> dict[str, Any]:
    """One line of the comparison: means over seeds, and what reaching the target accuracy cost."""
    results = [result for _, result in runs]
    measure = measure_of(results[0])
    scores = known([score_of(result) for result in results])
    accuracy = known([result["accuracy"] for result in results])
    reached = [_reached(folder, target, measure) for folder, _ in runs] if target is not None else []
    everyone = bool(reached) and all(cost is not None for cost in reached)
    costs = [cost for cost in reached if cost is not None] if everyone else []
    return {
        "method": method,
        "runs": len(runs),
        "metric": measure.name,
        "lower_is_better": measure.lower_is_better,
        "score_mean": _mean_known(scores),
        "score_sd": statistics.stdev(scores) if len(scores) > 1 else None,
        "finetuned_mean": _mean_known([result.get("finetuned_score") for result in results]),
        "floor_mean": _mean_known([result.get("floor") for result in results]),
        "metrics": {name: _mean_known([one.get("metrics", {}).get(name) for one in results]) for name in MEASURES},
        "accuracy_mean": _mean_known(accuracy),
        "accuracy_sd": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
        "finetuned_accuracy_mean": _mean_known([result.get("finetuned_accuracy") for result in results]),
        "worst_mean": _mean_known([score_of(result, worst=True) for result in results]),
        "ari_mean": _mean_known([result["ari"] for result in results]),
        "n_clusters_mean": _mean_known([result["n_clusters"] for result in results]),
        "bytes_down": statistics.fmean(result["bytes_down"] for result in results),
        "bytes_up": statistics.fmean(result["bytes_up"] for result in results),
        "lost_mean": statistics.fmean(result["failures"] for result in results),
        "lost": dict(sum((Counter(result.get("lost", {})) for result in results), Counter())),
        "warnings": [f"seed {result['seed']}, {text}" for result in results for text in result.get("warnings", ())],
        "bytes_to_target": statistics.fmean(cost for _, cost in costs) if costs else None,
        "rounds_to_target": statistics.fmean(rounds for rounds, _ in costs) if costs else None,
        "seconds": statistics.fmean(result["seconds"] for result in results),
    }


def _reached(folder: Path, target: float, measure: Measure) -> tuple[float, float] | None:
    """Rounds and bytes until the mean score first reached the target, or None if it never did."""
    for row in read_metrics(folder):
        score = score_of(row)
        if score is not None and measure.at_least(score, target):
            return row["round"], row["bytes_down"] + row["bytes_up"]
    return None


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
