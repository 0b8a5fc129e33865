"""`k = "auto"` with real clients: as in the simulator, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import run
from coterie.deploy.flower.transport import FlowerTransport
from coterie.methods.how_many import in_rounds
from coterie.models.named import builder_named
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions

from ..methods.test_how_many import asking, clients
from ..tiny import fingerprint
from .wiring import MODEL, Grid, Here, devices, federation


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(("name", "flower"), [("ifca", True), ("fedcg", False)])
def test_real_clients_count_as_simulated_ones(name: str, flower: bool, tmp_path: Path) -> None:
    """Over a wire, Flower's or another: the devices learn of the number in the orders that they get."""
    some = clients(2)
    model = builder_named(MODEL, some.shape, some.classes)
    alone = run(asking(name), some, model, rounds=8, seed=11, dtype=torch.float64, evaluate_every=8)
    there = devices(some, tmp_path)
    carrier: Any = Here(there)
    if flower:
        grid: Any = Grid({11 + place: device for place, device in enumerate(there.values())})
        carrier = FlowerTransport(grid, seconds=60.0)
    options = RunOptions(rounds=8, evaluate_every=8)
    remote = RoundLoop(in_rounds(asking(name)), federation(asking(name), some, carrier), options).run()
    assert alone.state.number == 2
    assert fingerprint(remote) == fingerprint(alone)
