"""What peers are made of, by hand: means, similarities, what a peer refuses, whom it can reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.states import Stack
from coterie.core.task import Task
from coterie.methods.p2p.base import (
    Answers,
    Inbox,
    PeerView,
    aggregate,
    best,
)
from coterie.methods.p2p.inbox import inbox_of
from coterie.methods.p2p.neighbourhood import quality
from coterie.methods.p2p.similarity import by_loss
from coterie.methods.p2p.topology import (
    NO_PEER,
    peer_key,
    peer_keys,
)
from coterie.methods.panm.ours import discriminating
from coterie.methods.panm.similarity import by_direction, directions

from ..tiny import answer_of, cohort, one_weight, rows, small_net


def models(*values: list[float]) -> Stack:
    return {"weight": torch.tensor(values)}


def inbox(model: Stack, index: list[list[int]], start: Stack | None = None) -> Inbox:
    """Peer i has row i; the peer in row j has key 100 + j."""
    rows_ = torch.tensor(index)
    keys = torch.where(rows_ >= 0, rows_ + 100, NO_PEER)
    heard = torch.empty(len(model["weight"]), 0, dtype=torch.int64)
    return Inbox(Answers(model, start, heard), torch.arange(len(index)), keys, rows_, torch.full((len(index),), 9))


def test_means_by_hand() -> None:
    """Peer 0 takes rows 1 and 2: (1 + 3 + 8) / 3 = 4. Peer 1 takes nothing and keeps its own."""
    box = inbox(models([1.0, 0.0], [3.0, 0.0], [8.0, 3.0]), [[1, 2], [0, -1]])
    chosen = torch.tensor([[True, True], [False, False]])
    assert aggregate(box, chosen)["weight"].tolist() == [[4.0, 1.0], [3.0, 0.0]]


def test_counters_are_averaged_and_rounded() -> None:
    box = inbox(models([1.0], [3.0]), [[1]])
    pool = replace(box.pool, model={"seen": torch.tensor([[3], [8]])})
    assert aggregate(replace(box, pool=pool), box.mask)["seen"].tolist() == [[6]]  # 5.5, to even


def test_the_best_and_ties() -> None:
    scores, keys = torch.tensor([[0.5, 0.9, 0.5, 0.7]]), torch.tensor([[4, 3, 2, 1]])
    usable = torch.tensor([[True, False, True, True]])
    assert best(scores, keys, usable, 2).tolist() == [[False, False, True, True]]
    assert best(scores, keys, usable, 9).tolist() == usable.tolist()


def test_cosines_by_hand() -> None:
    """Models end - start: (1, 0), (1, 1), (0, 0) and (-2, 0): cosines of peer 0 with the others 0.7071, 0 and -1."""
    start = models([1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0])
    end = models([2.0, 1.0], [3.0, 3.0], [3.0, 3.0], [2.0, 4.0])
    task = Task(lambda: torch.nn.Linear(2, 1, bias=False), (2,), 1)
    c = replace(cohort(rows(([1.0], [1])), task), seed=0)
    box = inbox(end, [[1, 2, 3, -1]], start)
    assert by_direction(c, box, 1.0)[0].tolist() == pytest.approx([0.5**0.5, 0.0, -1.0, 0.0])
    origin = task.init(0)["weight"].flatten()
    ways = [end["weight"][j] - origin for j in range(4)]
    expected = [float(torch.cosine_similarity(ways[0], ways[j], dim=0)) for j in (1, 2, 3)]
    assert by_direction(c, box, 0.0)[0, :3].tolist() == pytest.approx(expected, abs=1e-6)
    angles = by_direction(c, box, 1.0), by_direction(c, box, 0.0)
    assert torch.allclose(by_direction(c, box, 0.25), 0.25 * angles[0] + 0.75 * angles[1])
    known = torch.tensor([[True, False, False, False]])
    weight = float(discriminating(*angles, box.mask, known, 0.9))
    assert 0 < weight < 0.9
    for most in (0.9, 1.0):
        assert torch.allclose(by_direction(c, box, most, known), weight * angles[0] + (1 - weight) * angles[1])
    with pytest.raises(CoterieError, match="where local training began"):
        by_direction(c, replace(box, pool=replace(box.pool, start=None)), 0.5)


def test_the_weight_of_theta1_by_hand() -> None:
    """Neighbours 0.8, 0.6 and others 0.2, 0.4: 0.4 apart, variance 0.01, worth 40; the fair one: 0.2 / 0.01."""
    good, fair = torch.tensor([[0.8, 0.6, 0.2, 0.4]]), torch.tensor([[0.5, 0.3, 0.3, 0.1]])
    mask, known = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, True, False, False]])
    assert discriminating(fair, good, mask, known, 0.5).item() == pytest.approx(1 / 3)
    assert discriminating(good, fair, mask, known, 0.5).item() == 0.5  # 2 / 3, but no more than that
    assert discriminating(good.flip(1), fair, mask, known, 0.5).item() == 0.0  # strangers are nearer: noise
    assert discriminating(good.flip(1), fair.flip(1), mask, known, 0.5).item() == 0.5  # neither says anything
    for nobody in (~mask, mask):
        assert discriminating(fair, good, mask, nobody, 0.5).item() == 0.5  # nothing to compare
    silent = torch.cat([fair, torch.tensor([[9.0]])], 1), torch.cat([good, torch.tensor([[-9.0]])], 1)
    came, listed = (torch.cat([part, torch.zeros(1, 1, dtype=torch.bool)], 1) for part in (mask, known))
    assert discriminating(*silent, came, listed, 0.5).item() == pytest.approx(1 / 3)
    g = torch.Generator().manual_seed(0)
    angles, near = torch.rand(2, 1, 13, generator=g, dtype=torch.float64), torch.arange(13)[None] < 6
    for width in (13, 14, 20, 33):  # wider rows, as among other peers, change no bit
        wide = [torch.nn.functional.pad(part, (0, width - 13)) for part in (*angles, near | True, near)]
        weight = discriminating(wide[0], wide[1] + wide[3], wide[2], wide[3], 1.0)
        assert weight.equal(discriminating(angles[0], angles[1] + near, near | True, near, 1.0))
    flat = torch.tensor([[1.0, 1.0, 0.0, 0.0]])  # no variance at all: finite
    assert discriminating(fair, flat, mask, known, 0.5).item() == pytest.approx(20 / (20 + 1e6))


def test_the_kernel_and_torch_agree_on_directions_and_means() -> None:
    """Twelve models in float64, of which three times four meet; where there is no kernel both are torch."""
    tasks = [Task(small_net, (1, 8, 8), 10, dtype=torch.float64, use_kernel=use) for use in (True, False)]
    origin = tasks[0].init(0)
    end, start = ({n: torch.randn(12, *t.shape, dtype=t.dtype) for n, t in origin.items()} for _ in range(2))
    index = torch.tensor([[1, 2, 3, -1], [0, 2, -1, 11], [-1, -1, -1, -1], [0, 1, 2, 2]])
    heard = torch.empty(12, 0, dtype=torch.int64)
    keys = torch.where(index >= 0, index + 100, NO_PEER)
    box = Inbox(Answers(end, start, heard), torch.arange(4), keys, index, torch.full((4,), 9))
    fast_one, plain = (directions(task, origin, box, 0.3) for task in tasks)
    assert torch.allclose(fast_one, plain, rtol=0, atol=1e-12)
    assert int((plain != 0).sum()) == int(box.mask.sum())
    chosen = box.mask & (index != 2)
    mixed, mean = (aggregate(box, chosen, task.row_math) for task in tasks)
    assert max(float((mixed[n] - mean[n]).abs().max()) for n in origin) < 1e-12


def test_similarity_by_loss_by_hand() -> None:
    """Model w x, loss (w x - y)^2 on (1, 2): models 1 and 4 have losses 1 and 4."""
    task = Task(one_weight, (1,), 10, loss="mse")
    box = inbox({"weight": torch.tensor([[[0.0]], [[1.0]], [[4.0]]])}, [[1, 2, -1]])
    c = cohort(rows(([1.0], [2])), task)
    assert by_loss(c, box, "negative")[0].tolist() == pytest.approx([-1.0, -4.0, 0.0])
    assert by_loss(c, box, "inverse")[0].tolist() == pytest.approx([1 / 1.00001, 1 / 4.00001, 0.0])
    lost = inbox({"weight": torch.tensor([[[0.0]], [[1.0]], [[4.0]], [[torch.nan]]])}, [[1, 2, 3, -1]])
    assert by_loss(c, lost, "negative")[0].tolist() == pytest.approx([-1.0, -4.0, -4.0, 0.0])
    assert by_loss(c, lost, "inverse")[0].tolist() == pytest.approx([1 / 1.00001, 1 / 4.00001, 0.0, 0.0])


def test_a_real_peer_refuses_bad_answers_by_key_and_goes_on() -> None:
    template = {"weight": torch.tensor([3.0, 4.0])}

    def answer(*values: float, start: bool = True, told: int = 1) -> Answers:
        model = {"weight": torch.tensor([list(values)])}
        return answer_of(model, model if start else None, [7], told)

    answers = {
        1: answer(1.0, 2.0),
        2: answer(float("nan"), 0.0),
        3: answer(1.0, 2.0, 3.0),
        4: answer(1e9, 0.0),
        5: answer(1.0, 2.0, start=False),
        6: answer(1.0, 2.0, told=2),
        7: Answers({"bias": torch.ones(1, 2)}, None, torch.tensor([[7]])),
        9: answer(5.0, 6.0),
    }
    box, refused = inbox_of(answer(0.0, 0.0), [1, 2, 3, 4, 5, 6, 7, 8, 9], answers, template, known=20)
    assert {key: failure.kind for key, failure in refused.items()} == {
        2: "not finite", 3: "wrong shape", 4: "too large", 5: "wrong shape", 6: "wrong shape", 7: "wrong shape",
    }  # fmt: skip
    assert box.index.tolist() == [[1, -1, -1, -1, -1, -1, -1, -1, 2]]
    assert box.pool.model["weight"].tolist() == [[0.0, 0.0], [1.0, 2.0], [5.0, 6.0]]
    assert aggregate(box, box.mask)["weight"].tolist() == [[2.0, pytest.approx(8 / 3)]]


def test_views_keep_to_what_a_peer_can_reach() -> None:
    keys = np.sort(peer_keys(["a", "b", "c", "d"]))
    whole = PeerView(("a", "b"), 0, 0, keys)
    assert set(whole.draw(0, 9).tolist()) == set(peer_keys(["b", "c", "d"]).tolist())
    part = PeerView(("a", "b"), 0, 0, keys, known=(np.array([peer_key("c")]), np.array([], dtype=np.int64)))
    assert part.draw(0, 9).tolist() == [peer_key("c")]
    assert part.draw(1, 9).tolist() == []
    assert part.sees(0, keys).tolist() == [peer_key("c")]
    assert part.sees(1, keys).tolist() == []
    alone = PeerView(("b",), 0, 0, keys)
    assert alone.draw(0, 2).tolist() == whole.draw(1, 2).tolist()  # keyed by the peer, not by its place


def test_precision_and_recall_by_hand() -> None:
    """Groups 0 0 0 1; peer 0 lists 1 and 3, peer 1 lists 0 and 2, peer 2 nobody, peer 3 lists 0.

    Precision (1/2 + 1 + 0) / 3 = 0.5 over those with a list; recall (1/2 + 1 + 0) / 3 = 0.5 over those with mates;
    one list of three is pure.
    """
    lists = torch.tensor([[11, 13], [10, 12], [-1, -1], [10, -1]])
    assert quality([0, 0, 0, 1], np.array([10, 11, 12, 13]), lists) == pytest.approx((0.5, 0.5, 1 / 3))
