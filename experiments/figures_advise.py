"""What `advise` says where the answer is known: how many groups, who they are, what it recommends, in what time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_rand_score

from coterie.runs.advice import advise
from coterie.runs.config import from_tables
from coterie.runs.experiment import builder_of, defaults_of, population_of
from experiments.conditions import GIVEN_K
from experiments.figures_methods import STORED
from experiments.figures_stress import records, run_tables
from experiments.parallel import side_by_side
from experiments.registry import experiment
from experiments.tables import Note, markdown

_SKEW = {"alpha": 0.5, "partition": "dirichlet-client"}
_SMALL = {"clients": 40, "samples": 100, "test_samples": 20}
_CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "rotated digits": (4, {"name": "rotated-digits"}),
    "swapped digits": (4, {"name": "rotated-digits", "shift": "swap"}),
    "two groups": (2, {"name": "rotated-digits", "groups": 2}),
    "eight groups": (8, {"name": "rotated-digits", "groups": 8}),
    "one group": (1, {"name": "rotated-digits", "groups": 1}),
    "one group, alpha = 0.5": (1, {"name": "rotated-digits", "groups": 1, **_SKEW}),
    "rotated Fashion-MNIST": (4, {"name": "rotated-fashion", **_SMALL}),
    "rotated MNIST": (4, {"name": "rotated-mnist", **_SMALL}),
    "PACS": (4, {"name": "pacs", "samples": 100, "test_samples": 30, "image_size": 24}),
    "writers": (1, {"name": "mnist-writers"}),
}


_CONDITIONS = {
    "rotated digits": ("digits", "home"),
    "swapped digits": ("digits", "swap"),
    "two groups": ("digits", "two-groups"),
    "eight groups": ("digits", "eight"),
    "one group": ("digits", "one"),
    "one group, alpha = 0.5": ("digits", "one-skewed"),
    "rotated Fashion-MNIST": ("fashion", "home"),
    "rotated MNIST": ("mnist", "home"),
}
"""Where the stress matrix has runs in full of the same clients."""
_FULL: dict[str, tuple[int, dict[str, Any]]] = {"PACS": (30, {}), "writers": (20, {"lr": "auto"})}
"""Cases that the stress matrix does not have: rounds and settings of runs in full (`advise-full`).

Writers are run at the rate that a test finds, as they are advised: by the scenario's they learn little in 60 rounds.
"""
_METHODS = ("auto", "fedavg", "local", "ifca", "md-icfl", "embedding", "fedcg", "cfl", "panm", "oracle")
_IN_FULL = {
    "auto": ("auto", "accuracy"),
    "FedCG": ("fedcg", "accuracy"),
    "FedAvg": ("fedavg", "accuracy"),
    "FedAvg, fine-tuned": ("fedavg", "finetuned_accuracy"),
    "local training": ("local", "accuracy"),
}
_NOT_CHOSEN = ("oracle",)  # it is told the groups


@experiment("advise", "what advise says where the answer is known", minutes=60, seeds=range(5))
def advice(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Every case and seed once; a run that is cut short goes on."""
    file = out / "runs.jsonl"
    there = {(record["case"], record["seed"]) for record in records(file)}
    for seed in seeds:
        for case in _CASES:
            if (case, seed) not in there:
                found = _advised(case, seed)
                with file.open("a") as lines:
                    lines.write(json.dumps(found) + "\n")
                note(f"{case}, seed {seed}: {found['groups']} groups of {found['truth']}, {found['recommended']}")
    kept = [*sorted(STORED.glob("stress-*-after.jsonl")), STORED / "advise-full.jsonl"]
    full = [record for stored in kept for record in records(stored)]
    text = f"{_table(records(file))}\n{behind(records(file), full)}"
    (out / "table.md").write_text(text)
    return text


def _advised(case: str, seed: int) -> dict[str, Any]:
    groups, scenario = _CASES[case]
    config = from_tables({"method": "auto", "scenario": scenario, "seed": seed, "engine": {"workers": 1}})
    population = population_of(config.scenario, seed)
    chosen = {key: value for key, value in defaults_of(config).items() if key != "lr"}  # advise has the scenario's
    begun = time.perf_counter()
    found = advise(
        population,
        builder_of(config, population),
        training={**chosen, **config.settings},
        options=config,
        engine=config.engine,
    )
    truth = [population.group(client) or 0 for client in found.clients]
    return {
        "case": case,
        "seed": seed,
        "truth": groups,
        "groups": found.groups,
        "ari": float(adjusted_rand_score(truth, list(found.clients.values()))),
        "recommended": found.recommended.name,
        "scores": {choice.name: choice.score for choice in found.choices},
        "seconds": time.perf_counter() - begun,
    }


def _table(found: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in _CASES:
        own = [record for record in found if record["case"] == case]
        if own:
            right = sum(record["groups"] == record["truth"] for record in own)
            ari = min(record["ari"] for record in own)
            said = ", ".join(sorted({record["recommended"] for record in own}))
            seconds = max(record["seconds"] for record in own)
            rows.append([case, f"{right} of {len(own)}", f"{ari:.2f}", said, f"{seconds:.0f}"])
    return markdown(["data", "groups right", "least ARI", "recommended", "most seconds"], rows)


def behind(found: Sequence[dict[str, Any]], full: Sequence[dict[str, Any]]) -> str:
    """Points that the recommended choice, run in full, is behind the best of all methods, as they are or fine-tuned."""
    by: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for run in full:
        if "accuracy" in run and run["method"] not in _NOT_CHOSEN:
            by.setdefault((run["data"], run["condition"], run["seed"]), {})[run["method"]] = run
    rows = []
    for case, (data, condition) in {**_CONDITIONS, **{case: (case, "full") for case in _FULL}}.items():
        said = []
        for record in sorted((each for each in found if each["case"] == case), key=lambda each: int(each["seed"])):
            runs = by.get((data, condition, record["seed"]), {})
            method, kept = _IN_FULL[record["recommended"]]
            if len(runs) > 1 and method in runs:
                scores = {name: run["accuracy"] for name, run in runs.items()}
                scores |= {f"{name}, fine-tuned": run.get("finetuned_accuracy") or 0.0 for name, run in runs.items()}
                best = max(scores, key=scores.__getitem__)
                said.append(f"{100 * (scores[best] - runs[method][kept]):.1f} ({best}, {len(runs)} methods)")
        if said:
            rows.append([case, ", ".join(said)])
    return markdown(["data", "points behind the best in full, by seed"], rows)


def _run_in_full(case: str, seed: int, method: str) -> dict[str, Any]:
    rounds, settings = _FULL[case]
    told = {GIVEN_K[method]: 4} if method in GIVEN_K else {}
    tables = {
        "method": method,
        "rounds": rounds,
        "evaluate_every": rounds,
        "scenario": _CASES[case][1],
        "settings": {**settings, **told},
        "engine": {"workers": 1},
        "seed": seed,
    }
    return {"data": case, "condition": "full", "method": method, "seed": seed, **run_tables(tables)}


@experiment(
    "advise-full",
    "runs in full of the data that advise is tried on and the stress matrix lacks",
    minutes=60,
    seeds=range(5),
)
def in_full(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Ten methods, those that take a number of groups told the true one (4 where there is one)."""
    file = out / "runs.jsonl"
    there = {(record["data"], record["seed"], record["method"]) for record in records(file)}
    missing = [job for job in product(_FULL, seeds, _METHODS) if job not in there]
    for (case, seed, method), found in side_by_side(_run_in_full, missing):
        with file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        note(f"{case}, {method}, seed {seed}: {found.get('refused') or found['accuracy']}")
    rows = [
        [r["data"], str(r["seed"]), r["method"], *(f"{100 * r[key]:.1f}" for key in ("accuracy", "finetuned_accuracy"))]
        for r in records(file)
        if "accuracy" in r
    ]
    return markdown(["data", "seed", "method", "%", "fine-tuned %"], rows)
