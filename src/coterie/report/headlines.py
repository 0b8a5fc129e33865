"""The headline of a report: what happened, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.measures import measure_of, score_of
from coterie.report.formatting import human_bytes, method_title, percent, plural, score


def run_headline(result: Mapping[str, Any]) -> str:
    """How one method serves the clients, and how well."""
    method, clients = method_title(str(result["method"])), int(result["clients"])
    measure, worst = measure_of(result), score_of(result, worst=True)
    served = f"{measure.text(score_of(result))} {'mean ' if clients > 1 else ''}{measure.title}"
    tail = f"; the worst client has {measure.text(worst)}." if worst is not None and clients > 1 else "."
    doubts = len(result.get("warnings") or ())
    tail += f" There {'is' if doubts == 1 else 'are'} {plural(doubts, 'warning')}." if doubts else ""
    groups, ari = result.get("n_clusters"), result.get("ari")
    agreement = f" (ARI {score(ari)} against the true ones)" if ari is not None else ""
    crowd = plural(clients, "client")
    if not groups or (groups == clients and clients > 1 and not result.get("clusters")):
        return f"{method} serves {crowd} with {served}{tail}"
    if result["method"] == "oracle":
        told = plural(int(groups), "true group")
        return f"{method} was told the {told} of {crowd} and serves them with {served}{tail}"
    if groups == 1:
        return f"{method} serves {crowd} with one common model and {served}{tail}"
    if groups == clients:
        return f"{method} gives each of {crowd} a model of its own and reaches {served}{tail}"
    # how many there are, not that they are real: groups are made also where the clients are all alike
    made = plural(int(groups), "group")
    return f"{method} serves {crowd} in {made}{agreement} with {served}{tail}"


def compare_headline(summary: Mapping[str, Any]) -> str:
    """Which method serves the clients best, by how much, and at what price."""
    rows = [row for row in summary["rows"] if mean_score(row) is not None]
    scenario = str(summary.get("scenario", "this scenario"))
    if not rows:
        return f"No method has a result on {scenario} yet."
    # The oracle is told the truth, so it is the yardstick and not a competitor.
    rivals = [row for row in rows if row["method"] != "oracle"] or rows
    measure = measure_of(rows[0])
    ranked = sorted(rivals, key=lambda row: -measure.ahead(mean_score(row) or 0.0, 0.0))
    best = ranked[0]
    reached = measure.spread(mean_score(best), best.get("score_sd", best.get("accuracy_sd")))
    alike = [row for row in ranked if measure.text(mean_score(row)) == measure.text(mean_score(best))]
    verdict = "serves the clients of {} best" if len(alike) == 1 else "serve the clients of {} equally well"
    text = f"{_named(alike)} {verdict.format(scenario)}, with {reached} mean {measure.title}"
    others = ranked[len(alike) :]
    baseline = next((row for row in ranked if row["method"] == "fedavg"), None)
    if baseline is None or any(row is baseline for row in alike):
        baseline = next(iter(others), None)
    if baseline is not None:
        ahead = measure.ahead(mean_score(best) or 0.0, mean_score(baseline) or 0.0)
        by = f"{100 * ahead:.1f} points above" if measure.is_share else f"{measure.text(ahead)} better than"
        text += f", {by} {method_title(baseline['method'])}"
    oracle = next((row for row in rows if row["method"] == "oracle"), None)
    if oracle is not None and best is not oracle:
        text += f"; knowing the true groups would give {measure.text(mean_score(oracle))}"
    target, price = summary.get("target"), best.get("bytes_to_target")
    if target is not None and price is not None:
        wanted = percent(target, 0) if measure.is_share else measure.text(target)
        text += f". It reaches {wanted} after {human_bytes(price)}"
    return text + "."


def _named(rows: Sequence[Mapping[str, Any]]) -> str:
    """FedAvg; FedAvg and IFCA; FedAvg, IFCA and 3 other methods."""
    names = [method_title(row["method"]) for row in rows]
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} other methods"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def mean_score(row: Mapping[str, Any]) -> float | None:
    """The mean score of a line of a comparison; in older ones it is the accuracy."""
    mean: float | None = row.get("score_mean", row.get("accuracy_mean"))
    return mean


def lost_words(lost: Mapping[str, int] | None, otherwise: str) -> str:
    """Why replies were lost, the commonest reason first: 24 too large, 3 late."""
    ranked = sorted((lost or {}).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in ranked) or otherwise


def compare_warnings(summary: Mapping[str, Any]) -> list[str]:
    """What went wrong in the runs of a comparison, those that have no result first."""
    failed = [
        f"{method_title(str(one['method']))}, seed {one['seed']}: {one['why']}" for one in summary.get("failed", ())
    ]
    rows = [(method_title(str(row["method"])), text) for row in summary["rows"] for text in row.get("warnings", ())]
    return [*failed, *(f"{method}, {text}" for method, text in rows)]
