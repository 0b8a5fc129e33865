"""The populations that FedCG's experiments are made with."""

from __future__ import annotations

import torch
from experiments.figures_fedcg import mixed_clients
from experiments.figures_fedcg_partly import partly_mixed

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


def test_of_partly_mixed_clients_every_fifth_has_several_turns() -> None:
    upright = build("rotated-digits", seed=0, groups=1, clients=10, unseen=5, samples=30)
    population = partly_mixed(upright, 0)
    turns, several = set[int](), list[int]()
    for place, client in enumerate((*upright.ids, *upright.unseen_ids)):
        before, after = upright.client(client).train, population.client(client).train
        assert after.extra is not None
        turn = int(after.extra[0])
        assert torch.equal(torch.rot90(before.x[0], turn, (1, 2)), after.x[0])
        turns.add(turn)
        several += [place] if len(after.extra.unique()) > 1 else []
    assert turns == {0, 1, 2, 3}
    assert several, "a Dirichlet 0.5 may still give one of them a single turn"
    assert all(place % 5 == 0 for place in several)
