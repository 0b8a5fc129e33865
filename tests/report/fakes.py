"""Run folders as the runner writes them, with made-up but plausible numbers."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from coterie.core.panels import (
    Edge,
    Heatmap,
    Histogram,
    Lines,
    Node,
    NodeGraph,
    Panel,
    Table,
    Text,
    image_grid,
    save_panels,
)
from coterie.core.rng import rng

COLUMNS = (
    "round", "accuracy", "worst_accuracy", "loss", "n_clusters", "ari", "bytes_down", "bytes_up",
    "bytes_evaluation", "failures", "seconds",
)  # fmt: skip
MODEL_BYTES = 19_400


def some_panels() -> list[Panel]:
    """One panel of every kind."""
    draw = rng(0, "panels")
    centres = [[0.9 if i // 5 == j // 5 else 0.2 for j in range(20)] for i in range(20)]
    edges = [Edge(i, j, centres[i][j]) for i in range(20) for j in range(i) if draw.random() < centres[i][j] ** 2]
    pictures = torch.rand(3, 6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return [
        Lines("Switched clients", [1, 2, 3, 4], {"switched": [0.6, 0.2, 0.05, 0.0]}, y_label="share"),
        Heatmap("Similarity of the clients", [[x + 0.05 * draw.random() for x in row] for row in centres],
                note="Blocks are groups."),
        Histogram("Loss of own and of other models", {
            "own group": draw.normal(0.4, 0.1, 200).tolist(),
            "others": draw.normal(1.1, 0.2, 600).tolist()}),
        image_grid("Pseudo samples", pictures, ["group 0", "group 1", "group 2"], list("012345")),
        NodeGraph("Who asks whom", [Node(f"c{i:02d}", i // 5) for i in range(20)], edges),
        Table("Thresholds tried", ["threshold", "groups", "score"], [[12.5, 4, 0.81], [20.0, 2, None]]),
        Text("What this means", ["The cut with **four** groups won.", "See `threshold` in the config."]),
    ]  # fmt: skip


def fake_run(
    folder: Path,
    method: str = "ifca",
    *,
    seed: int = 0,
    rounds: int = 20,
    clients: int = 40,
    final: float = 0.94,
    speed: float = 4.0,
    down: int = 4,
    found: int | None = 4,
    truth: bool | list[str] = True,
    panels: Sequence[Panel] = (),
    failures: Sequence[tuple[int, str, str]] = (),
    **changes: Any,
) -> Path:
    """Write a finished run and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = rng(seed, "fake run", method)
    final += 0.01 * (seed - 0.5)
    rows: list[dict[str, Any]] = []
    for at in range(1, rounds + 1):
        accuracy = final - (final - 0.12) * 2.718 ** (-at / speed) + float(draw.normal(0, 0.006))
        rows.append({
            "round": at, "accuracy": accuracy, "worst_accuracy": max(accuracy - 0.07 - 0.3 / at, 0.0),
            "loss": 2.3 * (1 - accuracy), "n_clusters": "" if found is None else min(found, 1 + at),
            "ari": min(1.0, 0.25 * at) if truth and found else "",
            "bytes_down": at * clients * down * MODEL_BYTES,
            "bytes_up": at * clients * (MODEL_BYTES if down else 0),
            "bytes_evaluation": at * clients * MODEL_BYTES,
            "failures": sum(1 for lost in failures if lost[0] <= at),
            "seconds": 0.42 * at,
        })  # fmt: skip
    with (folder / "metrics.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    events: list[dict[str, Any]] = [{"event": "start"}, {"event": "engine", "text": "kernel, 2 threads"}]
    for row in rows:
        events += [
            {"event": "failure", "round": at, "client": client, "reason": reason}
            for at, client, reason in failures
            if at == row["round"]
        ]
        sizes = [10 + 5 * (index - 1.5) / row["round"] for index in range(4)]
        events.append({"event": "round", **row, "log": {"cluster_sizes": sizes, "step_norm": 3 / row["round"]}})
    events.append({"event": "end"})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    (folder / "config.toml").write_text(
        f'method = "{method}"\nseed = {seed}\nrounds = {rounds}\n\n[scenario]\nname = "rotated-digits"\n'
        f"clients = {clients}\nsamples = 35\n\n[optimiser]\nlr = 0.1\nmomentum = 0.9\nbatch = 16\n",
        encoding="utf-8",
    )
    groups = [index % 4 for index in range(clients)]
    values = [min(1.0, max(0.0, float(draw.normal(final, 0.03)))) for _ in range(clients)]
    last = rows[-1] if rows else {}
    result: dict[str, Any] = {
        "method": method, "scenario": "rotated-digits", "seed": seed, "rounds": rounds, "clients": clients,
        "accuracy": sum(values) / len(values) if values else None,
        "worst_accuracy": min(values, default=None),
        "clusters": None if found is None else [(group + 1) % found for group in groups],
        "client_ids": [f"c{index:03d}" for index in range(clients)],
        "truth": truth if isinstance(truth, list) else groups if truth else None,
        "n_clusters": found, "ari": (1.0 if found == 4 else 0.0) if truth and found else None,
        "bytes_down": last.get("bytes_down", 0), "bytes_up": last.get("bytes_up", 0),
        "bytes_evaluation": last.get("bytes_evaluation", 0), "seconds": last.get("seconds", 0.0),
        "failures": len(failures), "per_client_accuracy": values,
        "engine": "kernel, 2 threads: every layer is one that the kernel knows",
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result | changes), encoding="utf-8")
    if panels:
        save_panels(folder / "panels.json", panels)
    return folder


METHODS: dict[str, dict[str, Any]] = {
    "local": {"final": 0.77, "speed": 2.0, "down": 0, "found": None},
    "fedavg": {"final": 0.87, "speed": 5.0, "down": 1, "found": 1},
    "fedprox": {"final": 0.868, "speed": 5.5, "down": 1, "found": 1},
    "scaffold": {"final": 0.88, "speed": 4.0, "down": 2, "found": 1},
    "ifca": {"final": 0.935, "speed": 4.2, "down": 4, "found": 4},
    "fedsem": {"final": 0.90, "speed": 4.8, "down": 1, "found": 3},
    "oracle": {"final": 0.943, "speed": 3.5, "down": 1, "found": 4},
}


def fake_compare(folder: Path, seeds: Sequence[int] = (0, 1), **changes: Any) -> Path:
    """Write a comparison of all methods above and return its folder."""
    rows, names = [], []
    for method, settings in METHODS.items():
        results = []
        for seed in seeds:
            names.append(f"{method}-seed{seed}")
            fake_run(folder / names[-1], method, seed=seed, **settings)
            results.append(json.loads((folder / names[-1] / "result.json").read_text(encoding="utf-8")))
        accuracies = torch.tensor([result["accuracy"] for result in results], dtype=torch.float64)
        reached = settings["final"] > 0.9
        rows.append({
            "method": method, "runs": len(seeds), "accuracy_mean": float(accuracies.mean()),
            "accuracy_sd": float(accuracies.std(correction=0)), "ari_mean": results[0]["ari"],
            "worst_mean": sum(result["worst_accuracy"] for result in results) / len(results),
            "n_clusters_mean": results[0]["n_clusters"], "bytes_down": results[0]["bytes_down"],
            "bytes_up": results[0]["bytes_up"], "bytes_to_target": 31_000_000 if reached else None,
            "rounds_to_target": 8.5 if reached else None, "seconds": results[0]["seconds"],
        })  # fmt: skip
    summary = {
        "scenario": "rotated-digits", "target": 0.9, "methods": list(METHODS), "seeds": list(seeds),
        "rows": rows, "runs": names,
    }  # fmt: skip
    (folder / "compare.json").write_text(json.dumps(summary | changes), encoding="utf-8")
    return folder
