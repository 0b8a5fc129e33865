"""Local training, by hand."""

from __future__ import annotations

import pytest

from coterie import run
from coterie.methods.local import Local

from ..tiny import one_weight, rows


def test_two_rounds_by_hand() -> None:
    """The model is w * x with loss (w x - y)^2, one step of rate 0.25 a round, each client from its own last model.

    a has (1, 2): 0, then 0.25 * 2 * 2 = 1, then 1 + 0.25 * 2 * 1 = 1.5. b has (1, 6): 3, then 3 + 0.25 * 2 * 3 = 4.5.
    On their own samples, tested the same way, the losses are 0.5^2 and 1.5^2, so 1.25 on average.
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    seen: list[float] = []

    class Losses:
        def update(self, row: dict[str, float]) -> None:
            seen.append(row["loss"])

        def note(self, text: str) -> None: ...

    method = Local(lr=0.25, epochs=1, batch=0, momentum=0.0)
    result = run(method, clients, one_weight(), rounds=2, loss="mse", view=Losses())  # type: ignore[arg-type]
    models = {name: float(model["weight"]) for name, model in result.models.items()}
    assert models == pytest.approx({"client-a": 1.5, "client-b": 4.5}, abs=1e-6)
    assert seen[-1] == pytest.approx(1.25, abs=1e-5)
    assert result.clusters is None
