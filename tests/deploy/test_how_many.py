"""`k = "auto"` with real clients: as in the simulator, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import run
from coterie.deploy.client import Device
from coterie.deploy.flower.transport import FlowerTransport
from coterie.methods.how_many import in_rounds
from coterie.models.named import builder_named
from coterie.runs.client_folder import keeping
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions

from ..methods.test_how_many import asking, clients
from ..tiny import fingerprint
from .wiring import MODEL, Grid, Here, federation


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(("name", "flower"), [("ifca", True), ("fedcg", False)])
def test_real_clients_count_as_simulated_ones(name: str, flower: bool, tmp_path: Path) -> None:
    """Over a wire, Flower's or another: the devices learn of the number in the orders that they get."""
    some = clients(2)
    model = builder_named(MODEL, some.shape, some.classes)
    alone = run(asking(name), some, model, rounds=8, seed=11, dtype=torch.float64, evaluate_every=8)
    kept = {client: keeping(tmp_path / "kept" / client) for client in some.ids}
    there = {client: Device(client, some, tmp_path / client, at_end=kept[client]) for client in some.ids}
    carrier: Any = Here(there)
    if flower:
        grid: Any = Grid({11 + place: device for place, device in enumerate(there.values())})
        carrier = FlowerTransport(grid, seconds=60.0)
    options = RunOptions(rounds=8, evaluate_every=8)
    remote = RoundLoop(in_rounds(asking(name)), federation(asking(name), some, carrier), options).run()
    assert alone.state.number == 2
    here, far = fingerprint(alone), fingerprint(remote)
    # real clients are asked for the floor of their scores, which counts as evaluation
    assert {**far, "bytes": far["bytes"][:2]} == {**here, "bytes": here["bytes"][:2]}
    if flower:  # what a client keeps for itself; FedCG's network needs what the server knows
        first = some.ids[0]
        said = coterie.load(tmp_path / "kept" / first).predict(first, some.clients[first].test.x.numpy())
        right = (np.asarray(said) == some.clients[first].test.y.numpy()).mean()
        assert right == pytest.approx(remote.per_client_accuracy[0])
