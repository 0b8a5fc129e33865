"""What clients of MD-ICFL say of themselves before the server compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from coterie.core.federation import Federation, Nothing
from coterie.core.samples import ClientId
from coterie.methods.md_icfl.messages import Distanced

if TYPE_CHECKING:
    from coterie.methods.md_icfl.method import MDICFL


def introduced(
    method: MDICFL, state: Distanced, fed: Federation, ids: Sequence[ClientId], again: Sequence[ClientId] = ()
) -> Distanced:
    """Have first-time participants say what the server may know of them: p_i(y) (line 6), the prior's mean.

    Ours: under weak privacy clients that are looked at again say it again, since their data may have changed.
    """
    known = state.labels if method.privacy == "weak" else state.means
    repeated = set(again) if method.privacy == "weak" else set()
    new = [client for client in ids if client not in known or client in repeated]
    if method.k == 1 or not new or (method.privacy == "strong" and method.prior_mean is not None):
        return state
    if method.privacy == "strong":
        shown = fed.ask(method.show_brightness, new, same=Nothing())
        return state if not shown.value else replace(state, means=_with(state.means, shown.ids, shown.value.mean))
    told = fed.ask(method.introduce, new, same=Nothing())
    if told.value is None:
        return state
    means, labels = _with(state.means, told.ids, told.value.mean), _with(state.labels, told.ids, told.value.labels)
    return replace(state, means=means, labels=labels)


def _with(known: dict[str, Tensor], ids: Sequence[ClientId], values: Tensor) -> dict[str, Tensor]:
    return {**known, **{client: values[i].clone() for i, client in enumerate(ids)}}
