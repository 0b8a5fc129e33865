"""What a few lying clients cost the honest ones, with the plain mean and with the rules of `core.aggregate`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from coterie.runs.compare import once
from coterie.runs.config import from_tables
from experiments.registry import experiment
from experiments.tables import Note, markdown

_METHODS = (
    *("fedavg", "ifca", "embedding", "fedcg", "md-icfl", "panm", "auto", "scaffold", "fedsem", "cfl", "ladd"),
    *("gossip", "pens"),
)
_ATTACKS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("-5 w", {"attack": "negate"}),
    ("norm limit", {"attack": "norm"}),
    ("size 10^9", {"attack": "size"}),
    ("size < 0", {"attack": "minus"}),
    ("-5 w, one cluster", {"attack": "negate", "join": True}),
    ("near", {"attack": "near"}),
    ("near, one cluster", {"attack": "near", "join": True}),
    ("near, joined with 10^9", {"attack": "claim"}),
    ("hidden", {"attack": "hidden"}),
    ("all else false", {"attack": "told"}),
)
_RULES = ("mean", "clipped")
_CLIENTS, _NUMBERS = 40, (1, 4)
_ROUNDS = 20
_IN_SMALL_CLUSTERS = ("fedavg", "ifca", "embedding", "fedcg", "md-icfl", "fedsem", "auto")
"""Methods with a server whose clusters have four members where 16 clients are in four groups."""
_SMALL = {"clients": 16, "samples": 100, "test_samples": 50}
_SCENARIOS: tuple[tuple[str, int, int, Mapping[str, Any]], ...] = (
    ("rotated-digits", 20, 10, {}),
    ("rotated-digits", 20, 10, {"partition": "quantity", "alpha": 1.0}),
    ("rotated-mnist", 15, 10, {"clients": 20, "samples": 100, "test_samples": 100}),
    ("rotated-fashion", 15, 10, {"clients": 20, "test_samples": 100}),
    ("swapped-fashion", 15, 10, {"clients": 20, "test_samples": 100}),
    ("swapped-rotated-mnist", 40, 5, {"clients": 16, "samples": 200, "test_samples": 100}),
    ("swapped-rotated-fashion", 40, 5, {"clients": 16, "samples": 200, "test_samples": 100}),
    ("multi-source-digits", 15, 5, {"clients": 16, "samples": 200, "test_samples": 100}),
    ("mnist-writers", 60, 5, {"clients": 20}),
    ("rotated-cifar10", 8, 3, _SMALL),
    ("swapped-cifar10", 8, 3, _SMALL),
    ("cycled-cifar10", 8, 3, _SMALL),
    ("swapped-rotated-cifar10", 8, 3, _SMALL),
    ("pacs", 8, 3, {**_SMALL, "image_size": 32}),
)
"""Every scenario whose data can be had here, made small: its rounds, how many seeds at most, its settings."""
_HONEST = ("fedavg", "ifca", "embedding", "gossip")
_LESS: Mapping[str, Mapping[str, Any]] = {"embedding": {"encoder_rounds": 3}}


class _Silent:
    """A view that passes on notes alone."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def update(self, row: Mapping[str, Any]) -> None:
        """Rounds pass in silence."""

    def note(self, text: str) -> None:
        """Pass it on."""
        self._note(text)


def _accuracies(
    method: str, rule: str, faults: Mapping[str, Any], folder: Path, seed: int, note: Note, clients: int = _CLIENTS
) -> dict[str, float]:
    """Each honest client's accuracy after the last round."""
    config = from_tables(
        {
            "method": method,
            "rounds": _ROUNDS,
            "evaluate_every": _ROUNDS,
            "checkpoint_seconds": 300.0,
            "scenario": {"name": "rotated-digits", "clients": clients},
            "settings": {"aggregate": rule, "finetune_epochs": 0},
            "faults": dict(faults),
        }
    )
    result = once(config, seed, folder, _Silent(note))
    return dict(zip(result["client_ids"], result["per_client_accuracy"], strict=True))


def lost(calm: Mapping[str, float], attacked: Mapping[str, float]) -> float:
    """Points that the honest have less than the same clients had in a run without attackers and with the mean."""
    return 100 * (statistics.fmean(calm[client] for client in attacked) - statistics.fmean(attacked.values()))


@experiment(
    "attacks", "points lost by the honest with 1 and 4 attackers of 40, mean and clipped", minutes=60, seeds=(0, 1)
)
def attacks(out: Path, seeds: Sequence[int], note: Note) -> str:
    """A row per method and rule; a cell holds the loss with 1 and with 4 attackers, a mean over the seeds."""
    return _table(out, seeds, note, _METHODS, _NUMBERS, _CLIENTS)


@experiment("attacks-small", "the same with 1 and 2 attackers of 16, in clusters of four", minutes=15, seeds=(71, 72))
def attacks_in_small_clusters(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Clusters in which an update must be more against the others before it is shortened (`lengths.FEW_AGAINST`)."""
    return _table(out, seeds, note, _IN_SMALL_CLUSTERS, (1, 2), 16)


def _table(
    out: Path, seeds: Sequence[int], note: Note, methods: Sequence[str], numbers: Sequence[int], clients: int
) -> str:
    lines = []
    for method in methods:
        for rule in _RULES:

            def ran(name: str, how: Mapping[str, Any], by: str, method: str = method) -> list[dict[str, float]]:
                folder = out / method / name
                return [_accuracies(method, by, how, folder / f"seed{s}", s, note, clients) for s in seeds]

            calm, honest = ran("calm-mean", {}, "mean"), ran(f"calm-{rule}", {}, rule)
            before = statistics.fmean(100 * statistics.fmean(own.values()) for own in honest)
            cells = []
            for label, how in _ATTACKS:
                name = label.replace(" ", "-").replace(",", "").replace("^", "").replace("<", "below")
                losses = []
                for number in numbers:
                    attacked = ran(f"{rule}-{name}-{number}", {"attackers": number, **how}, rule)
                    losses.append(f"{statistics.fmean(map(lost, calm, attacked)):.1f}")
                cells.append(" / ".join(losses))
            lines.append([method, rule, f"{before:.1f}", *cells])
            note(" | ".join(lines[-1]))
    text = markdown(["method", "aggregate", "honest %", *(label for label, _ in _ATTACKS)], lines)
    (out / "table.md").write_text(text)
    return text


def paired(plain: Sequence[float], clipped: Sequence[float]) -> tuple[float, float]:
    """The mean difference over seeds and half the width of its 95 % interval (Student's t; none of one seed)."""
    differences = [after - before for before, after in zip(plain, clipped, strict=True)]
    if len(differences) < 2:
        return differences[0], float("nan")
    wide = float(stats.t.ppf(0.975, len(differences) - 1))
    return statistics.fmean(differences), wide * statistics.stdev(differences) / len(differences) ** 0.5


@experiment(
    "attacks-honest",
    "what clipping costs where nobody attacks, every scenario, made small",
    minutes=90,
    seeds=tuple(range(30, 40)),
)
def honest(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Accuracy of honest runs with the mean, and how much clipping changes it, seed by seed and on average."""
    lines = []
    for scenario, rounds, most, sizes in _SCENARIOS:
        label = f"{scenario}, {sizes['partition']} {sizes['alpha']:g}" if "partition" in sizes else scenario
        for method in _HONEST:
            found: dict[str, list[float]] = {"mean": [], "clipped": []}
            for rule, values in found.items():
                config = from_tables(
                    {
                        "method": method,
                        "rounds": rounds,
                        "evaluate_every": rounds,
                        "checkpoint_seconds": 300.0,
                        "scenario": {"name": scenario, **sizes},
                        "settings": {"aggregate": rule, "finetune_epochs": 0, **_LESS.get(method, {})},
                    }
                )
                for seed in seeds[:most]:
                    folder = out / label.replace(", ", "-").replace(" ", "-") / method / rule / f"seed{seed}"
                    values.append(100 * once(config, seed, folder, _Silent(note))["accuracy"])
            difference, half = paired(found["mean"], found["clipped"])
            same = sum(before == after for before, after in zip(*found.values(), strict=True))
            runs = f"{len(seeds[:most])} x {rounds}"
            before = f"{statistics.fmean(found['mean']):.2f}"
            lines.append([label, method, runs, before, f"{difference:+.2f} \u00b1 {half:.2f}", f"{same}"])
            note(" | ".join(lines[-1]))
    text = markdown(["scenario", "method", "seeds x rounds", "mean %", "clipped less mean", "seeds alike"], lines)
    (out / "table.md").write_text(text)
    return text
