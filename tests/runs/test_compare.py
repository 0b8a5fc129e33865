"""Several methods side by side: the table, what a target costs, going on with a comparison."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import tomllib
from pathlib import Path

import numpy as np
import pytest

from coterie.data.own import OwnPopulation
from coterie.runs.records import read_metrics
from tests.conftest import Command

SMALL = (
    "--clients", 8, "--samples", 30, "--groups", 2, "--rounds", 3, "--set", "epochs=5",
    "--set", "scenario.test_samples=20",
)  # fmt: skip


def result(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "result.json").read_text())
    return found


def test_a_comparison_is_a_table_over_seeds(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "both"
    said = coterie("compare", "fedavg", "oracle", *SMALL, "--seeds", "0,1", "--target", 0.2, "--out", out)
    assert said.code == 0, said.err
    report = json.loads((out / "compare.json").read_text())
    assert report["methods"] == ["fedavg", "oracle"]
    assert report["seeds"] == [0, 1]
    assert report["scenario"] == "rotated-digits"
    assert report["runs"] == ["fedavg-seed0", "fedavg-seed1", "oracle-seed0", "oracle-seed1"]
    assert (out / "report.html").is_file()
    for row in report["rows"]:
        runs = [out / f"{row['method']}-seed{seed}" for seed in (0, 1)]
        accuracy = [result(run)["accuracy"] for run in runs]
        assert row["runs"] == 2
        assert row["accuracy_mean"] == pytest.approx(statistics.fmean(accuracy))
        assert row["accuracy_sd"] == pytest.approx(statistics.stdev(accuracy))
        assert row["bytes_up"] == pytest.approx(statistics.fmean(result(run)["bytes_up"] for run in runs))
        assert row["n_clusters_mean"] == (2 if row["method"] == "oracle" else None)
        assert row["ari_mean"] == (1.0 if row["method"] == "oracle" else None)
        costs = []
        for run in runs:
            reached = next(r for r in read_metrics(run) if r["accuracy"] >= 0.2)
            costs.append((reached["round"], reached["bytes_down"] + reached["bytes_up"]))
        assert row["rounds_to_target"] == pytest.approx(statistics.fmean(rounds for rounds, _ in costs))
        assert row["bytes_to_target"] == pytest.approx(statistics.fmean(size for _, size in costs))
    assert "Oracle" in said.out
    assert "FedAvg" in said.out


def test_a_target_that_is_never_reached_costs_nothing_that_can_be_said(coterie: Command, tmp_path: Path) -> None:
    said = coterie("compare", "local", *SMALL, "--target", 1.0, "--out", tmp_path / "one")
    assert said.code == 0, said.err
    (row,) = json.loads((tmp_path / "one" / "compare.json").read_text())["rows"]
    assert row["bytes_to_target"] is None
    assert row["rounds_to_target"] is None
    assert "never" in said.out


def test_settings_go_to_the_methods_that_have_them(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "some"
    said = coterie(
        "compare", "fedavg", "ifca", "fedprox", *SMALL, "--set", "k=2", "--set", "fedprox.lr=0.02", "--set", "mu=0.5",
        "--set", "lr=0.07", "--set", "faults.dropout=0.1", "--out", out,
    )  # fmt: skip
    assert said.code == 0, said.err
    configs = {
        method: tomllib.loads((out / f"{method}-seed0" / "config.toml").read_text())
        for method in ("fedavg", "ifca", "fedprox")
    }
    assert configs["fedavg"]["settings"] == {"epochs": 5, "lr": 0.07}
    assert configs["ifca"]["settings"] == {"epochs": 5, "k": 2, "lr": 0.07}
    assert configs["fedprox"]["settings"] == {"epochs": 5, "mu": 0.5, "lr": 0.02}
    assert all(config["faults"] == {"dropout": 0.1} for config in configs.values())


def test_the_order_of_assignments_does_not_matter(coterie: Command, tmp_path: Path) -> None:
    """A setting for one method alone wins over the one for all, wherever it stands."""
    for number, assignments in enumerate((["lr=0.07", "fedprox.lr=0.02"], ["fedprox.lr=0.02", "lr=0.07"])):
        out = tmp_path / str(number)
        settings = [part for each in assignments for part in ("--set", each)]
        assert coterie("compare", "fedprox", *SMALL, *settings, "--out", out).code == 0
        config = tomllib.loads((out / "fedprox-seed0" / "config.toml").read_text())
        assert config["settings"]["lr"] == 0.02


def test_a_comparison_goes_on_where_it_stopped(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is kept as it is, one that was cut short is resumed, the rest is run."""
    whole, out = tmp_path / "whole", tmp_path / "parts"
    methods = ("fedavg", "scaffold", "local")
    assert coterie("compare", *methods, *SMALL, "--out", whole).code == 0

    from coterie.methods.scaffold import Scaffold

    step = Scaffold.step

    def interrupted(self: Scaffold, state: object, fed: object) -> object:
        if fed.round == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return step(self, state, fed)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Scaffold, "step", interrupted)
        said = coterie("compare", *methods, *SMALL, "--out", out)
    assert said.code == 130
    assert "Stopped after 2 of 3 rounds" in said.err
    assert not (out / "compare.json").exists()
    for command in ("report", "resume"):
        refusal = coterie(command, out)
        assert refusal.code == 2
        assert refusal.err.strip().endswith("; the same `coterie compare` command goes on with it.")
    assert coterie("run", "fedavg", *SMALL, "--out", out).err.strip() == (
        f"coterie: {out} already holds something; choose another --out."
    )
    before = (out / "fedavg-seed0" / "result.json").read_bytes()
    assert coterie("compare", *methods, *SMALL, "--out", out).code == 0
    assert (out / "fedavg-seed0" / "result.json").read_bytes() == before
    for method in methods:
        files = sorted((whole / f"{method}-seed0" / "models").iterdir())
        assert files
        for file in files:
            assert (out / f"{method}-seed0" / "models" / file.name).read_bytes() == file.read_bytes()


def test_a_method_or_seed_named_twice_counts_once(coterie: Command, tmp_path: Path) -> None:
    said = coterie("compare", "fedavg", "fedavg", *SMALL, "--seeds", "1,1", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert row["runs"] == 1


def test_what_a_later_method_lacks_is_said_before_the_first_run(
    coterie: Command, tmp_path: Path, digits: OwnPopulation
) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.mkdir()
    for client in digits.ids[:2]:
        train = digits.client(client).train
        np.savez(mine / f"{client}.npz", x=train.x.numpy(), y=train.y.numpy())
    own = ("--data", mine, "--model", "digits-mlp", "--rounds", 1, "--out", out)
    for last, extra in (("oracle", ()), ("gossip", ("--set", "gossip.partners=oracle"))):
        said = coterie("compare", "fedavg", last, *own, *extra)
        assert said.code == 2
        assert said.err.strip() == (
            f"coterie: {last} needs the true groups of the clients, which are not known here; leave {last} out."
        )
        assert not out.exists()


def test_other_settings_of_a_later_method_are_found_before_the_first_run(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert coterie("compare", "local", *SMALL, "--out", out).code == 0
    said = coterie("compare", "fedavg", "local", *SMALL, "--set", "local.lr=0.3", "--out", out)
    assert "local-seed0 holds a run with other settings" in said.err
    assert not (out / "fedavg-seed0").exists()


def test_another_comparison_is_not_replaced(coterie: Command, tmp_path: Path) -> None:
    """A folder with other runs is refused, finished or not; one that is made larger keeps all it had."""
    out = tmp_path / "out"
    assert coterie("compare", "local", "fedavg", *SMALL, "--out", out).code == 0
    before = [(out / name).read_bytes() for name in ("compare.json", "report.html")]
    for change in (("fedprox",), ("local", "fedprox"), ("local", "fedavg", "--seeds", "1")):
        said = coterie("compare", *change, *SMALL, "--out", out)
        assert said.code == 2
        assert "holds a comparison with other runs (" in said.err
        assert "choose another --out, or name their methods and seeds too" in said.err
    assert [(out / name).read_bytes() for name in ("compare.json", "report.html")] == before
    (out / "compare.json").unlink()  # as if it had been interrupted
    assert coterie("compare", "fedprox", *SMALL, "--out", out).code == 2
    assert coterie("compare", "local", "fedavg", "fedprox", *SMALL, "--out", out).code == 0
    assert json.loads((out / "compare.json").read_text())["methods"] == ["local", "fedavg", "fedprox"]


def test_lost_replies_and_their_reasons_are_shown(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = coterie("compare", "fedavg", "local", *SMALL, "--set", "faults.nan=0.4", "--out", out)
    assert said.code == 0, said.err
    rows = {row["method"]: row for row in json.loads((out / "compare.json").read_text())["rows"]}
    lost = result(out / "fedavg-seed0")["failures"]
    assert rows["fedavg"]["lost_mean"] == lost > 0
    assert rows["fedavg"]["lost"] == {"not finite": lost}
    assert f"FedAvg, seed 0: {lost} replies lost ({lost} not finite)" in said.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Replies lost" in page
    assert f"{lost} not finite" in page


def test_a_run_that_learns_nothing_is_named_and_the_others_go_on(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.runs.health import Health

    whole = Health.check_end

    def strict(self: Health, method: str, rounds: int) -> None:
        if method == "fedavg":
            self.valid = 0
        whole(self, method, rounds)

    monkeypatch.setattr(Health, "check_end", strict)
    out = tmp_path / "out"
    said = coterie("compare", "fedavg", "local", *SMALL, "--out", out)
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("coterie: fedavg: nothing was learnt")
    assert re.search(r"Local training +\d", said.out)  # the table of those that have a result
    assert f"report: {out / 'report.html'}" in said.out
    report = json.loads((out / "compare.json").read_text())
    assert [row["method"] for row in report["rows"]] == ["local"]
    assert report["failed"][0]["method"] == "fedavg"
    assert "FedAvg, seed 0: fedavg: nothing was learnt" in (out / "report.html").read_text(encoding="utf-8")
    alone = coterie("compare", "fedavg", *SMALL, "--out", tmp_path / "alone")
    assert (alone.code, (tmp_path / "alone" / "compare.json").exists()) == (2, False)


@pytest.mark.parametrize(
    "where", ["coterie.methods.local.Local.step", "coterie.report.live_compare.write_compare_report"]
)
def test_who_stops_a_comparison_is_told_the_command_that_goes_on_with_it(
    where: str, coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not `coterie resume` of the run it was at: that would leave the rest undone. The command works as it stands."""

    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "two words"
    with monkeypatch.context() as once:
        once.setattr(where, stops)
        said = coterie("compare", "fedavg", "local", *SMALL, "--out", out)
    assert said.code == 130
    told, _, command = said.err.strip().rpartition(": ")
    assert told.startswith("Stopped ")
    assert told.endswith("nothing is lost")
    assert "resume" not in said.err
    program, *arguments = shlex.split(command)
    assert program == "coterie"
    assert not (out / "report.html").exists()
    assert coterie(*arguments).code == 0
    assert (out / "report.html").exists()
