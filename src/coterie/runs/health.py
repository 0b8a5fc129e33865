"""Whether a run learns anything: replies that do not count, training that diverges; each is said once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
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
    "late": "give clients more time (--timeout, a larger quorum, or faults.deadline where it is simulated)",
    "refused": "see the report for the reason of each",
    "withheld": "choose a method that does not ask for it, or let their owners allow it (--refuse, --most-questions)",
}
_OTHERWISE = "find out whether these clients are running"
_FACTOR = 2.0
_MANY = 8  # clients whose median can be believed after one round
_ROUNDING = 1e-9


@dataclass
class Health:
    """What has been seen of a run so far; it is part of the checkpoint."""

    asked: int = 0
    valid: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """The first reason of each kind of failure, as an example."""
    first: float | None = None
    """The median loss of the first round that had one, the lowest so far, and the latest."""
    lowest: float | None = None
    latest: float | None = None
    rising: int = 0
    """Rounds in succession in which it was too high."""
    watches_training: bool = False
    """Whether clients tell their training loss."""
    used_late: int = 0
    age: int = 0
    """Replies that came late and were used (`core.quorum`), and the sum of their ages in rounds."""
    said: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def replies(self, number: int, tally: Tally) -> list[str]:
        """After a round of training: what to say about its replies."""
        self.asked, self.valid = self.asked + tally.asked, self.valid + tally.valid
        self.used_late, self.age = self.used_late + len(tally.ages), self.age + sum(tally.ages)
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

    def trained(
        self, number: int, losses: Sequence[float], rate: float, guess: float | None, *, clients: int = 0
    ) -> list[str]:
        """After a round of training: what to say about the clients' training losses.

        `guess` is the loss of knowing nothing. Where few of the `clients` take part, the next round has others, some of
        them new to the model that they are sent: there a rise counts when a second round has it too.
        """
        self.watches_training |= bool(losses)
        few = len(losses) < _MANY and 2 * len(losses) < clients
        return self._losses(number, losses, "training", rate, guess, least=2 if few else 1)

    def evaluated(
        self, number: int, rounds: int, found: Evaluation, rate: float, guess: float | None, floor: float | None
    ) -> list[str]:
        """After an evaluation: what to say about the scores.

        `floor` is the score of a constant answer (see `Engine.floor`). A method that trains in a loop of its own tells
        no training loss; then the test loss stands for it.
        """
        texts = [] if self.watches_training else self._losses(number, found.losses, "test", rate, guess)
        late = 2 * (number + 1) >= rounds  # early rounds may well be worse than a constant answer
        return texts + (self._score(number, found, rate, floor) if late else [])

    def _losses(
        self, number: int, losses: Sequence[float], what: str, rate: float, guess: float | None, least: int = 1
    ) -> list[str]:
        """What to say about the losses of a round: clients may say anything, so the median decides.

        That it rises is said after `least` such rounds.
        """
        if not losses:
            return []
        broken = sum(not math.isfinite(loss) for loss in losses)
        middle = sorted(loss if math.isfinite(loss) else math.inf for loss in losses)[len(losses) // 2]
        first, lowest, before = self.first, self.lowest, self.latest
        if math.isfinite(middle):
            self.first = middle if first is None else first
            self.lowest = middle if lowest is None else min(lowest, middle)
            self.latest = middle
        remedy = f"try a smaller lr (now {rate:g}), or bring the inputs to values of about -1 to 1"
        if broken:
            # one client that says so must not use up what is said when most of them do
            key = "most not finite" if 2 * broken > len(losses) else "not finite"
            text = f"the {what} loss of {broken} of {len(losses)} clients is NaN or infinite; {remedy}"
            said = self._say(key, f"round {number + 1}: {text}")
            if said or not math.isfinite(middle):
                return said
        if first is None or lowest is None or before is None:
            return []  # the first may well be high: it is the mean over a round that began with an untrained model
        if guess is None:  # a loss without a known scale: more than at first, and far more than it was
            diverges, where = middle > max(first, _FACTOR**2 * lowest), ""
        else:
            hardly_falls = middle > _FACTOR * guess and _FACTOR * middle > before
            diverges = middle > guess and (middle > _FACTOR * lowest or hardly_falls)
            where = f", where guessing gives {guess:.3g}"
        self.rising = self.rising + 1 if diverges else 0
        if self.rising < least or not diverges:
            return []
        how = f"has risen from {lowest:.3g} to {middle:.3g}" if middle > lowest else f"is still {middle:.3g}"
        text = f"the clients' {what} loss {how}{where}: training diverges"
        return self._say("rising", f"round {number + 1}: {text}; {remedy}")

    def _score(self, number: int, found: Evaluation, rate: float, floor: float | None) -> list[str]:
        measure, known = found.measure, found.known
        if floor is None or not known or floor == (0.0 if measure.lower_is_better else 1.0):
            return []
        mean = sum(known) / len(known)
        if measure.ahead(mean, floor) > _ROUNDING * max(1.0, abs(floor)):
            return []
        numbers = found.standing is not None and found.standing.task == "regression"
        constant = "the mean of its own targets" if numbers else "its most frequent class"
        return self._say(
            "constant",
            f"round {number + 1}: the mean {measure.title}, {measure.text(mean)}, is not better than where every "
            f"client always answers {constant}, {measure.text(floor)}; train for longer, bring the inputs to values "
            f"of about -1 to 1, or try another lr (now {rate:g})",
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
