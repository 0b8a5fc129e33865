"""Whether a run learns anything: replies that do not count, training that diverges; each is said once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from coterie.core.errors import NothingLearnt
from coterie.core.federation import Failure, Tally
from coterie.runs.evaluation import Evaluation

_SMALLER = "try a smaller lr, or bring the inputs to values of about -1 to 1"
_REMEDIES = {
    "not finite": _SMALLER,
    "too large": _SMALLER,
    "wrong shape": "let all clients run the same version of coterie and the same model",
    "dropped": "find out why these clients do not answer, or take a smaller faults.dropout where it is simulated",
    "late": "give clients more time (--timeout, or faults.deadline where it is simulated)",
    "refused": "see the report for the reason of each",
}
_OTHERWISE = "find out whether these clients are running"
_FACTOR = 2.0
_ROUNDING = 1e-9


@dataclass
class Health:
    """What has been seen of a run so far; it is part of the checkpoint."""

    asked: int = 0
    valid: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """The first reason of each kind of failure, as an example."""
    lowest: float | None = None
    said: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def replies(self, number: int, tally: Tally) -> list[str]:
        """After a round of training: what to say about its replies."""
        self.asked, self.valid = self.asked + tally.asked, self.valid + tally.valid
        missing = tally.asked - tally.valid
        if 2 * missing <= tally.asked or not tally.failures:
            return []
        kind, example = _commonest(tally.failures)
        return self._say(
            f"replies {kind}",
            f"round {number + 1}: {missing} of {tally.asked} replies do not count, most of them {kind} "
            f"({example}); {_REMEDIES.get(kind, _OTHERWISE)}",
        )

    def failed(self, failures: list[Failure]) -> None:
        """Count every lost reply by its kind, those to an evaluation too."""
        for failure in failures:
            self.lost[failure.kind] = self.lost.get(failure.kind, 0) + 1
            self.reasons.setdefault(failure.kind, failure.reason)

    def evaluated(
        self, number: int, rounds: int, found: Evaluation, rate: float, guess: float | None, majority: float | None
    ) -> list[str]:
        """After an evaluation: what to say about the losses and the accuracy.

        `guess` is the loss of knowing nothing, `majority` the accuracy of always answering the most frequent class.
        """
        return [
            *self._losses(number, found.losses, rate, guess),
            *self._accuracy(number, rounds, found.known, rate, majority),
        ]

    def _losses(self, number: int, losses: list[float], rate: float, guess: float | None) -> list[str]:
        if not losses:
            return []
        broken = sum(not math.isfinite(loss) for loss in losses)
        # the median: one client that fits badly does not mean divergence
        middle = sorted(loss if math.isfinite(loss) else math.inf for loss in losses)[len(losses) // 2]
        lowest = self.lowest
        self.lowest = middle if lowest is None else min(lowest, middle)
        remedy = f"try a smaller lr (now {rate:g}), or bring the inputs to values of about -1 to 1"
        if broken:
            text = f"the loss of {broken} of {len(losses)} clients is NaN or infinite; {remedy}"
            return self._say("not finite", f"round {number + 1}: {text}")
        risen = lowest is not None and middle > _FACTOR * lowest
        if guess is not None and middle > guess and (risen or middle > _FACTOR * guess):
            text = f"the clients' loss is {middle:.3g}, where guessing gives {guess:.3g}: training diverges or overfits"
            return self._say("rising", f"round {number + 1}: {text}; {remedy}")
        if guess is None and lowest is not None and middle > _FACTOR**2 * lowest:
            text = f"the clients' loss has risen from {lowest:.3g} to {middle:.3g}: training diverges or overfits"
            return self._say("rising", f"round {number + 1}: {text}; {remedy}")
        return []

    def _accuracy(self, number: int, rounds: int, known: list[float], rate: float, majority: float | None) -> list[str]:
        # early rounds may well be worse than a constant answer
        if majority is None or majority >= 1 or not known or 2 * (number + 1) < rounds:
            return []
        mean = sum(known) / len(known)
        if mean > majority + _ROUNDING:
            return []
        return self._say(
            "constant",
            f"round {number + 1}: the mean accuracy, {100 * mean:.1f} %, is not above that of always answering the "
            f"most frequent class, {100 * majority:.1f} %; train for longer, bring the inputs to values of about -1 "
            f"to 1, or try another lr (now {rate:g})",
        )

    def check_end(self, method: str, rounds: int) -> None:
        """Fail a run in which no reply ever counted: its result would be that of the untrained model."""
        if self.valid or not self.asked:
            return
        kind = max(self.lost, key=lambda each: self.lost[each], default="lost")
        reason = self.reasons.get(kind, "no client answered")
        raise NothingLearnt(
            f"{method}: nothing was learnt, for no reply counted in any of the {rounds} rounds; "
            f"{self.lost.get(kind, 0)} were {kind} ({reason}): {_REMEDIES.get(kind, _OTHERWISE)}."
        )

    def _say(self, key: str, text: str) -> list[str]:
        if key in self.said:
            return []
        self.said.append(key)
        self.warnings.append(text)
        return [text]


def _commonest(failures: list[Failure]) -> tuple[str, str]:
    """The kind that most failures are of, and one of its reasons."""
    kind, _ = Counter(failure.kind for failure in failures).most_common(1)[0]
    return kind, next(failure.reason for failure in failures if failure.kind == kind)
