from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from coterie.report.live import LiveView
from coterie.report.live_compare import CompareView
from coterie.report.results import print_compare_table, print_result


def row(at: int, **changes: Any) -> dict[str, Any]:
    base = {
        "round": at, "accuracy": 0.5 + 0.02 * at, "worst_accuracy": 0.3 + 0.02 * at, "loss": 1.0, "n_clusters": 4,
        "ari": 1.0, "bytes_down": at * 3_000_000, "bytes_up": at * 1_000_000, "bytes_evaluation": 0,
        "failures": 0, "seconds": 0.5 * at,
    }  # fmt: skip
    return base | changes


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def terminal(width: int = 100, height: int = 40) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, _environ={"TERM": "xterm"})


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_plain_lines_every_few_rounds() -> None:
    console = plain()
    with LiveView("IFCA on rotated-digits", 20, console=console, every=10) as view:
        for at in range(1, 21):
            view.update(row(at, failures=3 if at == 20 else ""))
        view.note("the pool was restarted")
    lines = said(console).splitlines()
    assert lines == [
        "IFCA on rotated-digits: round 1/20, accuracy 52.0 % (worst 32.0 %), groups 4, ARI 1.00, "
        "down 3.00 MB, up 1.00 MB, 9.5 s left",
        "IFCA on rotated-digits: round 10/20, accuracy 70.0 % (worst 50.0 %), groups 4, ARI 1.00, "
        "down 30.0 MB, up 10.0 MB, 5.0 s left",
        "IFCA on rotated-digits: round 20/20, accuracy 90.0 % (worst 70.0 %), groups 4, ARI 1.00, "
        "down 60.0 MB, up 20.0 MB, lost 3, done in 10 s",
        "the pool was restarted",
    ]


def test_unknown_cells_are_left_out_of_lines() -> None:
    console = plain()
    with LiveView("x", 3, console=console) as view:
        view.update({"round": 1, "accuracy": "", "ari": None})
    assert said(console) == "x: round 1/3, accuracy – (worst –), down –, up –, – left\n"


def test_a_terminal_gets_one_table_of_the_latest_rounds() -> None:
    console = terminal()
    with LiveView("IFCA [1]", 20, console=console) as view:
        for at in range(1, 16):
            view.update(row(at, bytes_down=at * 7e9))
        view.note("client c003 is late")
    last = said(console).split("IFCA [1]")[-1]
    assert "80.0 %" in last
    assert "28.0 GB" in last
    assert "14.0 GB" not in last, "round 2 has scrolled out"
    assert "ARI" in last
    assert "15/20 rounds, 2.5 s left" in last
    assert "client c003 is late" in last


def test_a_note_that_is_wrapped_is_indented_in_all_its_lines() -> None:
    console = terminal(width=80)
    with LiveView("IFCA", 20, console=console) as view:
        view.update(row(1))
        view.note("word " * 40)
    last = said(console).split("IFCA")[-1]
    lines = [line for line in last.replace("\x1b[33m", "").replace("\x1b[0m", "").splitlines() if "word" in line]
    assert len(lines) >= 3
    assert all(line.startswith("  word") for line in lines)


def test_ari_has_no_column_where_the_truth_is_unknown() -> None:
    console = terminal()
    with LiveView("x", 20, console=console) as view:
        view.update(row(1, ari=None))
    assert "ARI" not in said(console)


@pytest.mark.parametrize("width", [50, 64, 80, 200])
def test_tables_fit_the_terminal_by_leaving_columns_out(width: int) -> None:
    console = terminal(width)
    with CompareView("title", [("fedavg", 0)], 20, console=console) as view:
        view.update("fedavg", 0, row(7))
    text = said(console)
    assert "…" not in text
    assert "64.0 %" in text
    assert ("groups" in text) == (width >= 100)


def test_compare_view_in_a_terminal() -> None:
    console = terminal()
    with CompareView("2 methods", [("fedavg", 0), ("ifca", 0)], 20, console=console) as view:
        view.update("fedavg", 0, row(20))
        view.end("fedavg", 0, row(20, accuracy=0.876, clients=40))
        view.update("ifca", 0, row(3))
    last = said(console).split("2 methods")[-1]
    assert "87.6 %" in last
    assert "56.0 %" in last
    assert "1 of 2 runs done" in last


def test_compare_view_shows_the_runs_at_work_when_there_are_more_than_lines() -> None:
    console = terminal(height=20)
    jobs = [("ifca", seed) for seed in range(100, 140)]
    with CompareView("many", jobs, 20, console=console) as view:
        for _, seed in jobs[:30]:
            view.end("ifca", seed, row(20))
        view.update("ifca", 130, row(3))
    last = said(console).split("many")[-1]
    assert "130" in last
    assert "100" not in last
    assert "30 of 40 runs done, 31 more not shown" in last


def test_compare_view_without_a_terminal() -> None:
    console = plain()
    with CompareView("t", [("ifca", 1)], 4, console=console) as view:
        view.update("ifca", 1, row(1))
        view.update("ifca", 1, row(4))
        view.end("ifca", 1, row(4))
    assert said(console).splitlines() == [
        "IFCA, seed 1: round 1/4, accuracy 52.0 %",
        "IFCA, seed 1: done, accuracy 58.0 % (worst 38.0 %) in 2.0 s",
    ]


def test_nothing_but_plain_text_without_a_terminal() -> None:
    console = plain()
    with LiveView("[bold]x[/bold]", 5, console=console) as view:
        view.update(row(5))
    print_result(row(5, method="ifca", clients=4), console=console)
    print_compare_table([{"method": "[red]m", "accuracy_mean": 0.5}], console=console)
    assert "\x1b" not in said(console)
    assert "[bold]x[/bold]" in said(console)
    assert "[red]m" in said(console)


def test_print_result_says_what_happened_and_what_it_cost() -> None:
    console = plain()
    print_result(row(20, method="ifca", clients=40, failures=2), console=console)
    assert said(console).splitlines() == [
        "IFCA serves 40 clients in 4 groups (ARI 1.00 against the true ones) with 90.0 % mean accuracy; "
        "the worst client has 70.0 %.",
        "60.0 MB down, 20.0 MB up, 10 s, 2 replies lost",
    ]


def test_a_table_of_errors_has_the_least_in_bold_and_the_floor_below() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    same = {"runs": 1, "metric": "rmse", "lower_is_better": True, "floor_mean": 12.0}
    rows = [
        {"method": "fedavg", "score_mean": 5.5, "finetuned_mean": 3.25, **same},
        {"method": "local", "score_mean": 7.0, "finetuned_mean": None, **same},
    ]
    print_compare_table(rows, target=None, console=console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "RMSE" in text
    assert "fine-tuned" in text
    assert "of each client): 12" in text
    fedavg, local = (line for line in text.splitlines() if "5.5" in line or ("7" in line and "ocal" in line))
    assert "\x1b[1m" in fedavg
    assert "\x1b[1m" not in local


def test_print_compare_table() -> None:
    console = plain()
    rows = [
        {"method": "fedavg", "runs": 1, "accuracy_mean": 0.87, "accuracy_sd": 0.0, "worst_mean": 0.8,
         "ari_mean": None, "n_clusters_mean": 1, "bytes_down": 1e6, "bytes_up": 1e6, "bytes_to_target": None,
         "seconds": 5},
        {"method": "ifca", "runs": 2, "accuracy_mean": 0.94, "accuracy_sd": 0.004, "worst_mean": 0.9,
         "ari_mean": 0.98, "n_clusters_mean": 3.5, "bytes_down": 4e6, "bytes_up": 1e6, "bytes_to_target": 2e6,
         "seconds": 9},
    ]  # fmt: skip
    print_compare_table(rows, target=0.9, console=console)
    table = [line.split() for line in said(console).splitlines() if "%" in line]
    assert table[0] == ["method", "accuracy", "worst", "ARI", "groups", "down", "up", "to", "90", "%", "time"]
    assert table[1] == ["FedAvg", "87.0", "%", "80.0", "%", "–", "1", "1.00", "MB", "1.00", "MB", "never", "5.0", "s"]
    assert table[2] == [
        "IFCA",
        "94.0",
        "±",
        "0.4",
        "%",
        "90.0",
        "%",
        "0.98",
        "3.5",
        "4.00",
        "MB",
        "1.00",
        "MB",
        "2.00",
        "MB",
        "9.0",
        "s",
    ]


def drawn_now(view: LiveView | CompareView, console: Console) -> list[str]:
    """The lines of the picture as it is now."""
    page = Console(file=io.StringIO(), width=console.width)
    page.print(view._draw())
    return [line.rstrip() for line in said(page).splitlines() if line.strip()]


@pytest.mark.parametrize("width", [80, 140])
def test_a_round_at_work_shows_how_many_clients_are_done(width: int) -> None:
    console = terminal(width)
    with LiveView("TITLE", 20, console=console) as view:
        view.progress("training", 0, 40)
        assert "0/20 rounds, – left, round 1: training 0 of 40 clients" in drawn_now(view, console)[-1]
        view.update(row(1))
        assert "1/20 rounds, 9.5 s left" in drawn_now(view, console)[-1]
        assert "clients" not in drawn_now(view, console)[-1]
        view.progress("evaluation", 15, 40)
        assert drawn_now(view, console)[-1].endswith("1/20 rounds, 9.5 s left, round 2: evaluation 15 of 40 clients")
        assert all(len(line) <= width for line in drawn_now(view, console))


def test_a_comparison_shows_how_many_clients_are_done() -> None:
    console = terminal(80)
    with CompareView("TITLE", [("fedavg", 0), ("ifca", 3)], 20, console=console) as view:
        view.update("ifca", 3, row(4))
        view.progress("ifca", 3, "training", 5, 40)
        last = drawn_now(view, console)[-1]
        assert last == "0 of 2 runs done; IFCA, seed 3, round 5: training 5 of 40 clients"
        view.end("ifca", 3, row(20))
        assert drawn_now(view, console)[-1] == "1 of 2 runs done"


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_columns_stay_while_numbers_grow(width: int) -> None:
    """From the first round to the last the heading is the same, however long the numbers become."""
    console = terminal(width)
    heads = []
    with LiveView("TITLE", 2000, console=console) as view:
        for at in range(1, 1600, 133):
            judged = {"ari": 1.0, "n_clusters": 4} if at % 2 else {"ari": None, "n_clusters": None}
            grown = {
                "bytes_down": at**3 * 1e3,
                "bytes_up": at**4,
                "failures": at,
                "seconds": at * 2.0,
                "log": {"k": at},
            }
            view.update(row(at, **judged, **grown))
            heads.append(drawn_now(view, console)[1])
    assert len(set(heads)) == 1


def test_a_wide_terminal_shows_more() -> None:
    """What a method measures itself gets columns where there is room, and else stands below the table."""
    pictures = {}
    for width in (80, 140):
        console = terminal(width)
        with LiveView("TITLE", 20, console=console) as view:
            view.update(row(1, log={"moved": 6, "entropy": 0.25, "sizes": [0.5, 0.5]}))
            pictures[width] = drawn_now(view, console)
    assert "moved" not in pictures[80][1]
    assert "  moved 6, entropy 0.25, sizes 0.5 0.5" in pictures[80]
    for head in ("loss", "time", "moved", "entropy"):
        assert head in pictures[140][1]
    assert "  sizes 0.5 0.5" in pictures[140]
