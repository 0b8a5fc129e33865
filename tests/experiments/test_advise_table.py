from __future__ import annotations

from experiments.figures_advise import behind


def test_the_recommended_choice_is_behind_the_best_run_in_full() -> None:
    """FedAvg fine-tuned has 70 %, the best is IFCA with 72.5; Oracle, which is told the groups, does not count."""
    home = {"data": "digits", "condition": "home", "seed": 3}
    full = [
        {**home, "method": "fedavg", "accuracy": 0.6, "finetuned_accuracy": 0.7},
        {**home, "method": "ifca", "accuracy": 0.725, "finetuned_accuracy": None},
        {**home, "method": "oracle", "accuracy": 0.9, "finetuned_accuracy": 0.9},
        {**home, "method": "cfl", "refused": "so"},
    ]
    advised = [
        {"case": "rotated digits", "seed": 3, "recommended": "FedAvg, fine-tuned"},
        {"case": "rotated digits", "seed": 4, "recommended": "auto"},  # nothing was run in full
        {"case": "PACS", "seed": 3, "recommended": "auto"},
    ]
    assert "| rotated digits | 2.5 (ifca, 2 methods) |" in behind(advised, full)
    assert "PACS" not in behind(advised, full)
