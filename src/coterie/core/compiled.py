"""What training and evaluation ask of a compiled backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Generator, Tensor

from coterie.core.optimiser import Optimiser
from coterie.core.rows import RowMath
from coterie.core.samples import Samples
from coterie.core.states import Stack

InputGradients = Callable[[int, Tensor, Tensor], tuple[float, Tensor]]
"""(model, ready inputs, labels) -> the summed loss and its gradient with respect to the inputs."""
BACKENDS = ("coterie.kernel.bridge",)
"""Modules that offer `compile_task(task) -> Compiled | Refusal`.

Core knows them by name alone: a task imports them when it is first asked how it is computed. So core needs no backend.
"""


@dataclass(frozen=True)
class Refusal:
    """No backend takes this network; `reason` is one line that names what it does not know."""

    reason: str


class Compiled(Protocol):
    """A task that a backend computes without torch's autograd. What it computes is what the torch loop would."""

    @property
    def row_math(self) -> RowMath:
        """What it computes of many models as rows."""

    def takes(self, extra: Tensor | None, models: int = 1) -> bool:
        """Whether it computes samples of which this is known, for that many models in one call."""

    def train(
        self,
        start: Stack,
        clients: Sequence[Samples],
        order: Callable[[int], Tensor],
        generator: Callable[[int], Generator],
        opt: Optimiser,
        rate: float,
        *,
        mu: float = 0.0,
        prox: Stack | None = None,
        correction: Stack | None = None,
        only: Collection[str] | None = None,
    ) -> tuple[Stack, dict[int, float]]:
        """Train every client from its row of `start`; see `local_sgd`. `order(i)` holds client i's sample numbers,
        from `generator(i)` its layers draw.

        Also returned is the mean loss over the samples that each client saw, by its row.
        """

    def score(self, models: Stack, samples: Samples) -> tuple[Tensor, Tensor]:
        """The mean loss and the share of correct answers (NaN where there is none) of every model, [K] each."""

    def outputs(self, models: Stack, samples: Samples) -> Tensor:
        """What every model's network answers to raw samples, [K, n, outputs]."""

    def probabilities(self, models: Stack, inputs: Tensor) -> Tensor:
        """Class probabilities of every model for ready inputs, [K, n, classes]."""

    def input_gradients(self, models: Stack) -> InputGradients | None:
        """The gradients of the loss with respect to the inputs, for these models as they are now; None: by torch."""
