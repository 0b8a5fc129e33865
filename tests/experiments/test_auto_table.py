"""auto beside the best of the others: what counts as the best, and what a row says."""

from __future__ import annotations

from typing import Any

from experiments.figures_auto import by_mean, differences, matrix, table


def run(method: str, accuracy: float, tuned: float, seed: int = 1) -> dict[str, Any]:
    return {
        **{"data": "digits", "condition": "home", "method": method, "seed": seed, "accuracy": accuracy},
        **{"finetuned_accuracy": tuned, "ari": 1.0, "n_clusters": 4},
    }


def rivals(seed: int) -> list[dict[str, Any]]:
    others = [run(name, 0.5, 0.6, seed) for name in ("local", "ifca", "md-icfl", "fedcg", "embedding", "cfl", "panm")]
    return [*others, run("oracle", 0.99, 0.9, seed), run("fedavg", 0.8, 0.7 + seed / 10, seed)]


def test_the_best_may_be_fine_tuned_and_oracle_is() -> None:
    """Seed 1: FedAvg 0.8 either way, Oracle fine-tuned 0.9 (0.99 as it is does not count); seed 3: FedAvg tuned 1.0."""
    found = [*rivals(1), run("auto", 0.92, 0.0), *rivals(3), run("auto", 0.92, 0.0, 3)]
    assert [(round(gap, 6), best) for gap, best, _ in differences(found, "digits", "home")] == [
        (2.0, "oracle, fine-tuned"),
        (-8.0, "fedavg, fine-tuned"),
    ]
    row = table(found, "digits").splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("home ground", "92.0", "1.00", "4 4", "-3.0"),
        "+2.0 (oracle, fine-tuned) -8.0 (fedavg, fine-tuned)",
    ]


def test_a_seed_that_lacks_a_method_does_not_count() -> None:
    assert differences([*rivals(1)[1:], run("auto", 0.9, 0.9)], "digits", "home") == []
    assert differences([*rivals(1), run("auto", 0.9, 0.9)], "mnist", "home") == []


def test_the_best_by_its_mean_is_one_method() -> None:
    """FedAvg, fine-tuned, has 0.8 and 1.0, Oracle, fine-tuned, 0.9 twice: both 0.9 in the mean, auto 0.92 and 0.84."""
    found = [*rivals(1), run("auto", 0.92, 0.0), *rivals(3), run("auto", 0.84, 0.0, 3), *rivals(4)]
    known = by_mean(found, "digits", "home")
    assert known is not None
    own, gap, _ = known
    assert [each["seed"] for each in own] == [1, 3]
    assert round(gap, 6) == -2.0
    assert by_mean(found, "digits", "swap") is None
    row = matrix({"digits": found, "mnist": []}).splitlines()[2]
    assert "| 88.0 | 2 | 1.00 | **-2.0" in row.replace("  ", " ")
