"""The populations that FedCG's experiments are made with."""

from __future__ import annotations

import torch
from experiments.figures_fedcg import mixed_clients

from coterie.data import build


def test_mixed_clients_say_how_each_image_is_turned() -> None:
    upright = build("rotated-digits", seed=0, groups=1, clients=3, unseen=1, samples=20)
    population = mixed_clients(upright, upright.ids, upright.unseen_ids, 0)
    assert tuple(population.ids) == tuple(upright.ids)
    assert population.unseen_ids == upright.unseen_ids
    kinds = set()
    for client in (*upright.ids, *upright.unseen_ids):
        before, after = upright.client(client).train, population.client(client).train
        assert after.extra is not None
        assert torch.equal(before.y, after.y)
        for image, turned, turn in zip(before.x, after.x, after.extra.tolist(), strict=True):
            assert torch.equal(torch.rot90(image, turn, (1, 2)), turned)
            kinds.add(turn)
    assert kinds == {0, 1, 2, 3}
