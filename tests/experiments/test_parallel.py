from __future__ import annotations

import operator
import os

import pytest
from experiments.parallel import side_by_side


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_has_its_own_result(processes: int) -> None:
    jobs = [(number, 10) for number in range(5)]
    found = dict(side_by_side(operator.add, jobs, processes))
    assert found == {(number, 10): number + 10 for number in range(5)}


def test_jobs_are_done_elsewhere_unless_there_is_one() -> None:
    here = os.getpid()
    assert [pid for _, pid in side_by_side(os.getpid, [()], 2)] == [here]
    assert here not in [pid for _, pid in side_by_side(os.getpid, [(), ()], 2)]


def test_what_a_job_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(operator.truediv, [(1, 1), (1, 0)], 2))
