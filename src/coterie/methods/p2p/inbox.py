"""The inbox of one real peer: what came is checked, and what is bad is refused by the key of who sent it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from coterie.core.checks import check_reply, largest_norm, model_norms
from coterie.core.federation import Failure
from coterie.core.states import State, concat
from coterie.methods.p2p.base import Answers, Inbox, Sketched

A = TypeVar("A")


def inbox_of(
    own: Answers,
    wanted: Sequence[int],
    answers: Mapping[int, Answers],
    template: State,
    known: int,
    stride: Tensor | None = None,
) -> tuple[Inbox, dict[int, Failure]]:
    """The inbox of one real peer from the answers that came (one model each), the bad ones refused by key.

    An answer of another shape, with NaN, or far too large is treated as if it had never come.
    """
    # against its own model, which no other peer can influence
    limit = largest_norm(model_norms({f"model/{name}": t for name, t in own.model.items()}, template))
    good, refused = _sorted_out(wanted, answers, lambda answer: _wrong(answer, own, template, limit))
    return _inbox_of_one(_joined([own, *good.values()]), wanted, good, known, stride=stride), refused


def sketches_of(
    own: Sketched, wanted: Sequence[int], came: Mapping[int, Sketched], known: int, stride: Tensor | None
) -> tuple[Inbox, dict[int, Failure]]:
    """The same for sketches: the inbox of one real peer, and the bad ones refused by key."""
    agreed = _sketch_form(own)

    def wrong(other: Sketched) -> Failure | None:
        fits = _sketch_form(other) == agreed
        return None if fits else Failure("wrong shape", "its sketch is not of the agreed length")

    good, refused = _sorted_out(wanted, came, wrong)
    pool = Answers({}, None, torch.cat([own.heard, *(each.heard for each in good.values())]))
    sketches = torch.cat([own.sketch, *(each.sketch for each in good.values())])
    return _inbox_of_one(pool, wanted, good, known, sketches, stride), refused


def _sketch_form(sent: Sketched) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in (sent.sketch, sent.heard)]


def _sorted_out(
    wanted: Sequence[int], came: Mapping[int, A], wrong: Callable[[A], Failure | None]
) -> tuple[dict[int, A], dict[int, Failure]]:
    """What came and is good, in the order in which it was asked for; and what is wrong with the rest."""
    failures = {key: wrong(came[key]) for key in wanted if key in came}
    good = {key: came[key] for key, failure in failures.items() if failure is None}
    return good, {key: failure for key, failure in failures.items() if failure is not None}


def _inbox_of_one(
    pool: Answers,
    wanted: Sequence[int],
    good: Iterable[int],
    known: int,
    sketches: Tensor | None = None,
    stride: Tensor | None = None,
) -> Inbox:
    """The inbox of one peer: row 0 of the pool is its own answer, the rows after it those of the `good` keys."""
    rows = {key: position + 1 for position, key in enumerate(good)}
    index = torch.tensor([[rows.get(key, -1) for key in wanted]], dtype=torch.int64).reshape(1, -1)
    keys = torch.tensor([list(wanted)], dtype=torch.int64).reshape(1, -1)
    return Inbox(pool, torch.zeros(1, dtype=torch.int64), keys, index, torch.tensor([known]), sketches, stride)


def _wrong(answer: Answers, own: Answers, template: State, limit: float) -> Failure | None:
    for models in (answer.model, answer.start):
        if models is None:
            continue
        if set(models) != set(template):
            return Failure("wrong shape", "it has other entries than the model of this federation")
        _, bad = check_reply(["it"], {f"model/{name}": t for name, t in models.items()}, template, limit)
        if bad:
            return bad["it"]
    if own.start is not None and answer.start is None:
        return Failure("wrong shape", "it does not say where its local training began")
    if answer.heard.shape != own.heard.shape or answer.heard.dtype != own.heard.dtype:
        return Failure("wrong shape", "its hearsay is not a list of keys of the agreed length")
    return None


def _joined(answers: Sequence[Answers]) -> Answers:
    """Several answers (one model each) as one pool."""
    starts = [answer.start for answer in answers if answer.start is not None]
    return Answers(
        concat([answer.model for answer in answers]),
        concat(starts) if answers[0].start is not None else None,
        torch.cat([answer.heard for answer in answers]),
    )
