"""Whether FedCG's domains have collapsed: what a round's log and the report show of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from coterie.core.panels import Heatmap, Lines, Panel, Table
from coterie.core.states import State
from coterie.methods.base import Log


def measures(model: State, counts: Tensor, agreed: Tensor, lambdas: Sequence[str]) -> Log:
    """How evenly domains are used, how often the student agrees, and how much the residuals weigh."""
    samples = counts.sum().clamp_min(1)
    scales = [float(model[name]) for name in lambdas]
    return {
        "largest domain": float(counts.max() / samples),
        "evenness": evenness(counts),
        "agreement": float(agreed.sum() / samples),
        "lambda": sum(scales) / len(scales) if scales else 1.0,
        "domains": [float(n) for n in counts / samples],
        "lambdas": scales,
        **({"adjacency": model["adjacency"].flatten().tolist()} if "adjacency" in model else {}),
    }


def lengthened(history: Mapping[str, Sequence[float]], log: Log) -> dict[str, list[float]]:
    """What was measured in all rounds, with this one."""
    new = {key: [*history.get(key, []), value] for key, value in log.items() if isinstance(value, float)}
    return {**{key: list(values) for key, values in history.items()}, **new}


def evenness(counts: Tensor) -> float:
    """The entropy of a histogram relative to its largest: 1 is even, 0 is collapsed to one domain."""
    shares = counts.double() / counts.sum().clamp_min(1)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum()
    return max(0.0, float(entropy / np.log(len(counts)))) if len(counts) > 1 else 1.0


def domain_panels(
    history: Mapping[str, Sequence[float]], samples: Sequence[float], adjacency: Tensor | None
) -> list[Panel]:
    """How evenly domains were used in every round, how much the residuals weigh, and who is joined to whom."""
    curves = {key: list(history[key]) for key in ("largest domain", "evenness", "agreement") if key in history}
    if not curves:
        return []
    rounds = [float(number + 1) for number in range(len(curves["evenness"]))]
    shown: list[Panel] = [
        Lines("how evenly domains are used", rounds, dict(curves)),
        Lines("weight of the residuals (lambda, mean over layers)", rounds, {"lambda": history["lambda"]}),
        Table("samples of the last round by domain", ["domain", "samples"], list(enumerate(samples))),
    ]
    if adjacency is not None:
        shown.append(Heatmap("adjacency of the domains", adjacency.tolist()))
    return shown
