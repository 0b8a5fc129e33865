"""Algorithm 2: the threshold whose clusters have the least Calinski-Harabasz index (line 8).

The paper's text names no conditions; the authors' code admits only cuts of more than 2 clusters with at least
`min_size` members each, and the results depend on that. The paper searches for the threshold by Bayesian optimisation
(`bayesian_search`, rule `bayes`). `every_cut` (rule `paper`) looks at all of them: how it searches is ours, what it
searches for is the paper's.
"""

from __future__ import annotations

import numpy as np

from coterie.core.rng import key64
from coterie.core.threads import one_thread_everywhere
from coterie.methods.embedding.clustering.cuts import RuleInput, best_cut
from coterie.methods.embedding.clustering.ward import Floats, Ints

_KAPPA = 2.576
"""How much the upper confidence bound of Bayesian optimisation adds for not knowing."""
_RANDOM_PROBES, _GUIDED_PROBES = 30, 5
"""Evaluations of the authors' Bayesian optimisation."""


def every_cut(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    """The best of all admissible cuts: since the tree is known, there are only as many as clients."""
    return best_cut(request, _scores(request))


def _scores(request: RuleInput) -> dict[int, float]:
    index = request.tree.calinski_harabasz
    return {k: -float(index[k - 1]) for k in request.admissible if k > 2}


def bayesian_search(request: RuleInput) -> tuple[Ints, dict[int, float]]:
    """Thresholds tried by a Gaussian process and its upper confidence bound; the best tried is taken."""
    from bayes_opt import BayesianOptimization
    from bayes_opt.acquisition import UpperConfidenceBound

    tree, exact = request.tree, _scores(request)
    if not exact:
        return np.zeros(tree.points, np.int64), {}
    # the authors' -500 is better than an admissible index above 500; this is worse than any
    penalty = 2 * min(exact.values()) - 1

    def score(d: float) -> float:
        return exact.get(tree.clusters_at(d), penalty)

    search = BayesianOptimization(
        score,
        {"d": _bounds(tree.heights)},
        acquisition_function=UpperConfidenceBound(kappa=_KAPPA),
        random_state=key64(request.seed, "bayes") % (1 << 32),
        verbose=0,
        allow_duplicate_points=True,
    )
    with one_thread_everywhere():  # on matrices this small more threads only wait for each other
        search.maximize(init_points=_RANDOM_PROBES, n_iter=_GUIDED_PROBES)
    tried = {tree.clusters_at(float(probe["params"]["d"])): float(probe["target"]) for probe in search.res}
    return best_cut(request, {k: value for k, value in tried.items() if k in exact})


def _bounds(heights: Floats) -> tuple[float, float]:
    """Thresholds from the lowest merge to just above the highest (the authors' 1 to 100 does not fit long vectors)."""
    return float(heights[0]), float(heights[-1]) * 1.01
