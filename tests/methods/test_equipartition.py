"""Equal clusters from sums over clients: one step by hand, and clients with one domain stay whole."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from coterie.methods.fedcg.equipartition import (
    MOST_PASSES,
    first_offsets,
    is_even,
    next_offsets,
    soft_assignments,
)


def per_client(outputs: Tensor) -> Tensor:
    """What FedCG's `balance` did before: Sinkhorn's balancing of one client's samples by themselves."""
    plan = outputs.exp()
    for _ in range(50):
        plan = plan / plan.sum(0, keepdim=True)
        plan = plan / plan.sum(1, keepdim=True)
    return plan.argmax(1)


def over_all(clients: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Offsets from sums alone, as the server finds them, and the clusters of every client's samples."""
    number = float(sum(len(outputs) for outputs in clients))
    total, squares = sum(o.sum(0) for o in clients), sum((o**2).sum(0) for o in clients)
    offsets, sharpness = first_offsets(torch.as_tensor(total), torch.as_tensor(squares), number)
    for _ in range(MOST_PASSES):
        assigned = [soft_assignments(outputs, offsets, sharpness) for outputs in clients]
        soft, products = (
            torch.stack(each).sum(0) for each in ([p.sum(0) for p in assigned], [p.T @ p for p in assigned])
        )
        if is_even(soft):
            break
        offsets = next_offsets(offsets, soft, products, sharpness)
    assert is_even(soft)
    return offsets, [(outputs + offsets).argmax(1) for outputs in clients]


def test_one_step_by_hand() -> None:
    """Four samples that are each .75 in cluster 0 and .25 in cluster 1, sharpness 2.

    Slope (.25, -.25), curvature diag(.75, .25) - p p^T = 3/16 (1, -1; -1, 1), so along (1, -1) the step is
    .25 / (2 * 3/16) = 2/3, but for the .001 that steadies it, and the offsets change by half of that. Three quarters
    against one is a difference of log 3 = 1.10, of which a first step takes 4/3.
    """
    share = torch.tensor([0.75, 0.25])
    products = 4 * torch.outer(share, share)
    found = next_offsets(torch.tensor([1.0, 0.0]).double(), 4 * share, products, torch.tensor(2.0).double())
    assert found.tolist() == pytest.approx([1 - 1 / 3, 1 / 3], abs=2e-3)


def test_certain_assignments_have_no_curvature_and_still_a_bounded_step() -> None:
    """Three samples wholly in cluster 0 and none in cluster 1: along the slope, as far as 3 / sharpness."""
    soft, products = torch.tensor([3.0, 0.0]), torch.diag(torch.tensor([3.0, 0.0]))
    found = next_offsets(torch.zeros(2).double(), soft, products, torch.tensor(2.0).double())
    assert found.tolist() == pytest.approx([-1.5, 1.5])


def test_the_first_offsets_centre_the_outputs_by_hand() -> None:
    """Outputs (1, 0) and (3, 0): means 2 and 0, variances 1 and 0, deviation sqrt(1/2), made 10."""
    offsets, sharpness = first_offsets(torch.tensor([4.0, 0.0]), torch.tensor([10.0, 0.0]), 2)
    assert offsets.tolist() == [-2.0, 0.0]
    assert float(sharpness) == pytest.approx(10 * math.sqrt(2))
    same, finite = first_offsets(torch.tensor([4.0, 0.0]), torch.tensor([8.0, 0.0]), 2)
    assert same.tolist() == [-2.0, 0.0]
    assert math.isfinite(float(finite))


def test_clients_with_one_domain_stay_whole() -> None:
    """Twelve clients of one of three domains, whose outputs all name cluster 0 as that of an untrained teacher does."""
    g = torch.Generator().manual_seed(0)
    truth = [k % 3 for k in range(12)]
    middle = 0.02 * torch.eye(3) + torch.tensor([0.5, 0.0, -0.3])
    clients = [(middle[k] + 0.004 * torch.randn(50, 3, generator=g)).double() for k in truth]
    right = [k for k in truth for _ in range(50)]
    assert len(torch.cat(clients).argmax(1).unique()) == 1
    alone = torch.cat([per_client(outputs) for outputs in clients])
    offsets, together = over_all(clients)
    assert normalized_mutual_info_score(right, alone) < 0.1
    assert normalized_mutual_info_score(right, torch.cat(together)) > 0.95
    assert torch.bincount(torch.cat(together), minlength=3).tolist() == pytest.approx([200] * 3, abs=20)
    assert offsets.isfinite().all()


def test_one_large_domain_is_cut_so_that_all_are_used() -> None:
    """Equal parts are wanted, not natural ones: a domain with 80 % of the samples is cut."""
    g = torch.Generator().manual_seed(1)
    middle = torch.tensor([[0.1, 0.0], [0.0, 0.1]])
    clients = [(middle[int(k == 0)] + 0.05 * torch.randn(60, 2, generator=g)).double() for k in range(5)]
    _, found = over_all(clients)
    assert torch.bincount(torch.cat(found), minlength=2).tolist() == pytest.approx([150, 150], abs=20)
