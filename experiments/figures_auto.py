"""auto beside the best of the others, which are told what auto must find (docs/results/auto.md)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.conditions import CONDITIONS, KINDS, Kind
from experiments.figures_methods import STORED
from experiments.figures_stress import Record, records, run_missing
from experiments.registry import experiment
from experiments.tables import Note, markdown

_RIVALS = ("local", "fedavg", "ifca", "md-icfl", "fedcg", "embedding", "cfl", "panm", "oracle")
_WHERE = ("home", "fifth", "drift-old", "alpha-3", "alpha-0.5", "one", "two-groups", "eight", "uneven", "few")


def scores(run: Record) -> dict[str, float]:
    """What a run gives, as it is and fine-tuned by its clients; Oracle counts fine-tuned alone."""
    tuned = {f"{run['method']}, fine-tuned": run["finetuned_accuracy"]}
    return tuned if run["method"] == "oracle" else {run["method"]: run["accuracy"], **tuned}


def differences(found: Sequence[Record], kind: str, condition: str) -> list[tuple[float, str, Record]]:
    """For each seed with all methods: auto less the best of the others, which that was, and auto's run."""
    runs: dict[int, dict[str, Record]] = defaultdict(dict)
    for record in found:
        if (record["data"], record["condition"]) == (kind, condition) and "accuracy" in record:
            runs[record["seed"]][record["method"]] = record
    rows = []
    for own in runs.values():
        if {"auto", *_RIVALS} <= own.keys():
            rivals = {name: score for rival in _RIVALS for name, score in scores(own[rival]).items()}
            best = max(rivals, key=rivals.__getitem__)
            rows.append((100 * (own["auto"]["accuracy"] - rivals[best]), best, own["auto"]))
    return rows


def table(found: Sequence[Record], kind: str) -> str:
    """A row a condition: auto, its groups, and how far it is from the best, seed by seed."""
    lines = []
    for condition in CONDITIONS:
        rows = differences(found, kind, condition.name)
        if rows:
            ari = [run["ari"] for _, _, run in rows if run["ari"] is not None]
            lines.append(
                [
                    condition.label,
                    f"{100 * statistics.fmean(run['accuracy'] for _, _, run in rows):.1f}",
                    f"{statistics.median(ari):.2f}" if ari else "–",
                    " ".join(str(run["n_clusters"]) for _, _, run in rows),
                    f"{statistics.fmean(each for each, _, _ in rows):+.1f}",
                    " ".join(f"{each:+.1f} ({best})" for each, best, _ in rows),
                ]
            )
    return markdown(["condition", "auto %", "ARI, median", "groups", "less the best, mean", "by seed"], lines)


def by_mean(found: Sequence[Record], kind: str, condition: str) -> tuple[list[Record], float, str] | None:
    """auto's runs with the seeds that all methods have, and its mean less that of the one method with the best mean."""
    runs: dict[str, dict[int, Record]] = defaultdict(dict)
    for record in found:
        if (record["data"], record["condition"]) == (kind, condition) and "accuracy" in record:
            runs[record["method"]][record["seed"]] = record
    seeds = sorted(set.intersection(*(set(runs[method]) for method in ("auto", *_RIVALS))))
    if not seeds:
        return None
    means: dict[str, float] = defaultdict(float)
    for rival in _RIVALS:
        for seed in seeds:
            for name, score in scores(runs[rival][seed]).items():
                means[name] += score / len(seeds)
    best = max(means, key=means.__getitem__)
    own = [runs["auto"][seed] for seed in seeds]
    return own, 100 * (statistics.fmean(run["accuracy"] for run in own) - means[best]), best


def matrix(found: Mapping[str, Sequence[Record]]) -> str:
    """A row a condition: auto beside the one method that is best there by its mean over the seeds, of each data."""
    rows, head = [], ["condition"]
    for kind in found:
        head += [f"{kind}, auto %", "seeds", "ARI, median", "less the best by its mean"]
    for condition in CONDITIONS:
        row = [condition.label]
        for kind, runs in found.items():
            known = by_mean(runs, kind, condition.name)
            if known is None:
                row += ["–"] * 4
                continue
            own, gap, best = known
            ari = [run["ari"] for run in own if run["ari"] is not None]
            said = f"{gap:+.1f} ({best})"
            row += [
                f"{100 * statistics.fmean(run['accuracy'] for run in own):.1f}",
                str(len(own)),
                f"{statistics.median(ari):.2f}" if ari else "–",
                f"**{said}**" if gap < -1 else said,
            ]
        rows.append(row)
    return markdown(head, rows)


@experiment("auto-matrix", "auto in the stored stress matrix, beside the best of nine others", minutes=0.1)
def stored(out: Path, *_: object) -> str:
    """The table of docs/results/auto.md."""
    text = matrix({kind.name: records(STORED / f"stress-{kind.name}-after.jsonl") for kind in KINDS})
    (out / "table.md").write_text(text)
    return text


def _against(kind: Kind, out: Path, seeds: Sequence[int], note: Note) -> str:
    file = out / "runs.jsonl"
    run_missing(file, kind, ("auto", *_RIVALS), seeds, note, _WHERE)
    text = table(records(file), kind.name)
    (out / f"auto-{kind.name}.md").write_text(text)
    return text


@experiment("auto-digits", "auto beside the best of nine others, 8 x 8 digits", minutes=60, seeds=range(501, 506))
def digits(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Ten conditions, digits."""
    return _against(KINDS[0], out, seeds, note)


@experiment("auto-fashion", "auto beside the best of nine others, Fashion-MNIST", minutes=300, seeds=range(501, 506))
def fashion(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Ten conditions, Fashion-MNIST."""
    return _against(KINDS[1], out, seeds, note)


@experiment("auto-mnist", "auto beside the best of nine others, MNIST, LeNet-5", minutes=600, seeds=range(501, 506))
def mnist(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Ten conditions, MNIST."""
    return _against(KINDS[2], out, seeds, note)
