"""A client that a finished run takes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from torch import nn

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import count
from coterie.methods.base import RoundMethod
from coterie.runs.predictions import Predictor


@dataclass(frozen=True)
class Newcomer:
    """A client that a finished run has taken in: its group, where there are groups, and the model it uses."""

    group: int | None
    model: nn.Module
    predictor: Predictor
    groups: int | None = None
    """How many groups the run has in use; None where its method has no groups."""
    own: bool = False
    """Whether the model was made for this client alone."""

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """One answer for each of the inputs."""
        return self.predictor(x)

    def __repr__(self) -> str:
        where = "one model for all" if self.group is None else f"the model of group {self.group}"
        if self.groups == 1:
            where = "one model for all, since the run has not found several groups"
        return f"<newcomer with {'a model of its own' if self.own else where}>"


def group_of(method: RoundMethod[Any], state: Any, fed: Federation, name: ClientId) -> int | None:
    """The group of a newcomer: as it chose itself, or as the server knows it."""
    value = method.assess(state, fed, [name]).value
    if value is not None and int(value.cluster[0]) >= 0:
        return int(value.cluster[0])
    known = method.clusters(state, [name])
    if known is None or known[0] >= 0:
        return None if known is None else known[0]
    return 0 if count(method.model_for(state, [name])[0]) == 1 else None  # where there is one group, all are in it
