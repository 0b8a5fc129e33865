"""How many clusters: rules that choose a cut of Ward's tree.

`paper` and `bayes` are the paper's (`algorithm2`); the others are ours, or the literature's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from coterie.core.errors import CoterieError, installing, unknown
from coterie.methods.embedding.clustering.algorithm2 import bayesian_search, every_cut
from coterie.methods.embedding.clustering.cuts import RuleInput, best_cut
from coterie.methods.embedding.clustering.mixture import groups_by_mixture
from coterie.methods.embedding.clustering.split_half import Bits, groups_by_halves
from coterie.methods.embedding.clustering.ward import Floats, Ints, Tree, silhouettes, squared_distances, ward

_USUALLY_HELD = 0.9
_NEARLY_ALL = 0.83  # of the classes; with 35 samples and even labels clients hold 0.98, with alpha = 10 0.79
_FEW_CLIENTS = 200  # the mixture takes seconds for a hundred clients, and finds too many groups among a thousand


@dataclass(frozen=True)
class FoundClusters:
    """The chosen clusters, the tree they were cut from, and what the rule looked at (scores by number of clusters)."""

    labels: Ints
    tree: Tree
    scores: dict[int, float]

    @property
    def clusters(self) -> int:
        """How many there are."""
        return int(self.labels.max()) + 1


Rule = Callable[[RuleInput], tuple[Ints, dict[int, float]]]


def choose(
    bits: Bits,
    classes: int,
    rule: str = "either",
    *,
    min_size: int = 0,
    seed: int = 0,
    held: Floats | None = None,
    ones: Floats | None = None,
) -> FoundClusters:
    """Cluster clients by their embeddings, [clients, bits], without being told the number of clusters.

    `classes` is the number of blocks of equal length that an embedding has. `min_size` is the least size of a cluster
    for the rules that have one; 0 stands for a tenth of the clients (the authors' 10 of 100), at least 2. `held`, the
    probability that a client holds a class, and `ones`, the probability that a bit is 1, are for "either" and
    "mixture"; without them, most are taken to be held, and bits to be what they are.
    """
    check_rule(rule)
    if min_size < 0:
        raise CoterieError(f"The least size of a cluster is {min_size}; give 0 (a tenth of the clients) or more.")
    if bits.ndim != 2 or not bits.size:
        raise CoterieError(f"Embeddings need a row of bits per client and {bits.shape} was given.")
    tree = ward(bits)
    alone = np.zeros(tree.points, np.int64)
    if tree.points < 2 or tree.heights[-1] <= 0:  # one client, or all clients equal
        return FoundClusters(alone, tree, {})
    known = np.full((len(bits), classes), _USUALLY_HELD) if held is None else held
    likely = bits.astype(np.float64) if ones is None else ones
    request = RuleInput(tree, bits, classes, min_size or max(2, tree.points // 10), seed, known, likely)
    labels, scores = RULES[rule](request)
    return FoundClusters(labels, tree, scores)


def check_rule(rule: str) -> None:
    """Raise for a rule that there is not, or whose package is not installed; best before any work has been done."""
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if rule == "bayes" and find_spec("bayes_opt") is None:
        raise CoterieError(
            f"rule=bayes needs the package bayesian-optimization: {installing('bayes')}, or take rule=paper, which "
            "looks at every threshold."
        )


def _halves(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    labels, scores = groups_by_halves(request.bits, request.classes)
    return labels, dict(enumerate(scores, 1))


def _mixture(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    return groups_by_mixture(request.ones, request.held, request.seed)


def _either(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    """Halves where clients hold nearly all classes, the mixture where they do not (and are not too many for it)."""
    lacking = float(request.held.mean()) < _NEARLY_ALL and len(request.bits) <= _FEW_CLIENTS
    return _mixture(request) if lacking else _halves(request)


def _calinski_harabasz(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    index = request.tree.calinski_harabasz
    return best_cut(request, {k: float(index[k - 1]) for k in range(2, request.tree.points)})


def _height_ratio(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    """Cut where a merge is highest compared with the one before it."""
    heights = request.tree.heights
    # clients with equal embeddings merge at height 0, and no ratio may be infinite
    floor = np.maximum(heights, heights[-1] * 1e-6)
    n = request.tree.points
    return best_cut(request, {k: float(floor[n - k] / floor[n - k - 1]) for k in range(2, n)})


def _silhouette(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    admissible = set(request.admissible)
    found = silhouettes(request.tree, squared_distances(request.bits), max(admissible, default=1))
    return best_cut(request, {k: score for k, score in found if k in admissible})


RULES: dict[str, Rule] = {
    "either": _either,
    "halves": _halves,
    "paper": every_cut,
    "height_ratio": _height_ratio,
    "calinski_harabasz": _calinski_harabasz,
    "silhouette": _silhouette,
    "bayes": bayesian_search,
    "mixture": _mixture,
}
"""The rules by name; the first is the default."""
