"""The live view shows what a method measures itself, and unseen clients where there are any."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from coterie.report.live import LiveView


def lines(**extra: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    with LiveView("fedcg", rounds=2, console=console) as view:
        view.update({"round": 1, "accuracy": 0.5, "worst_accuracy": 0.25, "seconds": 1.0, **extra})
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_numbers_and_short_lists_of_the_log_are_shown() -> None:
    text = lines(
        log={"evenness": 0.98765, "lambda": 2.0, "domains": [0.5, 0.5], "lambdas": [2.0], "adjacency": [0.1] * 9},
        unseen_accuracy=0.75,
    )
    assert "evenness 0.988" in text
    assert "lambda 2" in text
    assert "domains 0.5 0.5" in text
    assert "lambdas" not in text  # one number is told already
    assert "adjacency" not in text
    assert "unseen clients 75" in text


def test_nothing_more_is_shown_where_nothing_was_measured() -> None:
    assert "unseen" not in lines(log={})
