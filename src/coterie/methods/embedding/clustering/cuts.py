"""What a rule that chooses a cut of Ward's tree is given."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.methods.embedding.bits import Bits
from coterie.methods.embedding.clustering.ward import Floats, Ints, Tree


@dataclass(frozen=True)
class RuleInput:
    """What a rule is given."""

    tree: Tree
    bits: Bits
    classes: int
    min_size: int
    seed: int
    held: Floats
    """The probability that a client holds a class, [clients, classes]."""
    ones: Floats
    """The probability that a bit is 1, if its class is held, [clients, bits]."""

    @property
    def admissible(self) -> list[int]:
        """Numbers of clusters, from 2, of the cuts whose smallest cluster has `min_size` members."""
        return [k for k in range(2, self.tree.points) if self.tree.smallest[k - 1] >= self.min_size]


def best_cut(request: RuleInput, scores: dict[int, float]) -> tuple[Ints, dict[int, float]]:
    """The cut with the highest score (the fewest clusters among equals); one cluster where no cut may be chosen."""
    best = max(scores, key=lambda k: (scores[k], -k)) if scores else 1
    return request.tree.cut(best), scores
