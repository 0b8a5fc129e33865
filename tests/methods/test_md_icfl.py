"""MD-ICFL: equal to FedAvg where it must be, private where it says so, and what it does when things go missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.jobs import (
    Job,
    Outcome,
    Setting,
    perform,
)
from coterie.core.message import Message
from coterie.core.samples import ClientData, Samples
from coterie.core.states import row
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.md_icfl.method import MDICFL
from coterie.runs.config import from_tables
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import Simulator

from ..tiny import batchnorm_net, fingerprint, largest_gap, made, one_weight, rows, small_net

SMALL: dict[str, Any] = {
    "k": 3, "per_class": 2, "steps": 10, "warm_steps": 4, "generator_steps": 10, "hold": 0, "trust": 100.0,
}  # fmt: skip


def md(**settings: Any) -> MDICFL:
    """Quick sampling and short local training."""
    method = made("md-icfl", **{**SMALL, **settings})
    assert isinstance(method, MDICFL)
    return method


def test_one_cluster_is_fedavg_bit_for_bit(digits: OwnPopulation) -> None:
    """The same model, the same bytes: with K = 1 nothing is asked, sampled or compared."""
    one = run(md(k=1), digits, small_net, rounds=3)
    average = run(made("fedavg"), digits, small_net, rounds=3)
    assert largest_gap(one.models["cluster-0"], average.models["global"]) == 0
    assert (one.bytes_down, one.bytes_up) == (average.bytes_down, average.bytes_up)


def test_seeding_rounds_are_fedavg_bit_for_bit(digits: OwnPopulation) -> None:
    seeding = run(md(seeding="cosine", patience=9), digits, small_net, rounds=1)
    average = run(made("fedavg"), digits, small_net, rounds=1)
    assert all(largest_gap(model, average.models["global"]) == 0 for model in seeding.models.values())


@pytest.mark.parametrize("sampling", ["back-search", "generator"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_strong_privacy_gives_what_weak_privacy_gives(sampling: str, fraction: float, digits: OwnPopulation) -> None:
    common = {"seeding": "none", "sampling": sampling, "fraction": fraction, "label_noise": 0.0}
    weak = run(md(**common, privacy="weak"), digits, small_net, rounds=3)
    strong = run(md(**common, privacy="strong"), digits, small_net, rounds=3)
    assert weak.clusters == strong.clusters
    assert len(set(weak.clusters or [])) > 1
    assert fingerprint(weak)["models"] == fingerprint(strong)["models"]


class Wiretap:
    """Every tensor that crosses between server and clients, with the names of message and entry."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, Tensor]] = []

    def listen(self, message: Message) -> None:
        self.heard += [(message.kind.__name__, path, tensor) for path, tensor in message.tensors.items()]


@pytest.fixture
def wiretap(monkeypatch: pytest.MonkeyPatch) -> Wiretap:
    """Hears all messages of all simulators, both ways."""
    tap = Wiretap()
    asked = Simulator.ask

    def overheard(self: Simulator, function: Any, ids: Sequence[str], **how: Any) -> Any:
        tap.listen(Message.of(how["each"] if how.get("same") is None else how["same"]))
        return asked(self, function, ids, **how)

    def answered(setting: Setting, job: Job, message: Message) -> Outcome:
        outcome = perform(setting, job, message)
        tap.listen(outcome.reply)
        return outcome

    monkeypatch.setattr(Simulator, "ask", overheard)
    monkeypatch.setattr("coterie.simulation.workers.perform", answered)
    return tap


def shares_of(population: OwnPopulation) -> list[Tensor]:
    return [
        torch.bincount(population.client(client).train.y, minlength=10).double() / len(population.client(client).train)
        for client in population.ids
    ]


def crossings(tap: Wiretap, shares: Sequence[Tensor]) -> int:
    """How many vectors that crossed are a client's p(y), as it is or as counts, whatever they are called."""
    found = 0
    for _, _, tensor in tap.heard:
        if tensor.shape[-1:] != (10,):
            continue
        vectors = tensor.reshape(-1, 10).double()
        totals = vectors.sum(1, keepdim=True)
        scaled = vectors / torch.where(totals == 0, 1, totals)
        found += sum(bool(torch.isclose(scaled, p, atol=1e-6).all(1).any()) for p in shares)
    return found


@pytest.mark.parametrize("seeding", ["none", "cosine"])
def test_label_shares_never_cross_under_strong_privacy(seeding: str, wiretap: Wiretap, digits: OwnPopulation) -> None:
    """No message of the whole run carries a client's p(y); only these messages go either way."""
    shares = shares_of(digits)
    run(md(privacy="strong", seeding=seeding, patience=2), digits, small_net, rounds=4)
    assert crossings(wiretap, shares) == 0
    kinds = {kind for kind, _, _ in wiretap.heard}
    always = {"Brightness", "Models", "Trained", "Assessment"}
    # seeded clients are asked only where they are looked at again
    assert always <= kinds <= always | {"ClassDistances", "Choice", "Examination"}
    assert seeding == "cosine" or "Choice" in kinds
    identities = [tensor for kind, _, tensor in wiretap.heard if kind == "Choice"]
    assert all(tensor.dtype == torch.int64 and tensor.dim() == 1 for tensor in identities)
    distances = [tensor for _, path, tensor in wiretap.heard if path == "distances"]
    assert all(tensor.shape[1:] == (3, 10) for tensor in distances)


def test_label_shares_cross_exactly_once_under_weak_privacy(wiretap: Wiretap, digits: OwnPopulation) -> None:
    """The same tap does hear them where they are sent: once for each client that took part, in six rounds."""
    known = run(md(privacy="weak", seeding="none", fraction=0.5), digits, small_net, rounds=6).state.labels
    told = [tensor for kind, path, tensor in wiretap.heard if (kind, path) == ("Introduction", "labels")]
    assert sum(len(tensor) for tensor in told) == len(known) > 5
    assert crossings(wiretap, shares_of(digits)) >= len(known)


def test_a_prior_that_is_set_needs_no_introductions_under_strong_privacy(
    wiretap: Wiretap, digits: OwnPopulation
) -> None:
    result = run(md(privacy="strong", seeding="none", prior_mean=0.3), digits, small_net, rounds=2)
    assert not any(kind in ("Brightness", "Introduction") for kind, _, _ in wiretap.heard)
    assert result.state.means == result.state.labels == {}


def test_each_client_downloads_one_model(digits: OwnPopulation) -> None:
    """IFCA sends K models; the message's frame and the introductions are the rest."""
    mine, theirs = run(md(), digits, small_net, rounds=4), run(made("ifca", k=3), digits, small_net, rounds=4)
    average = run(made("fedavg"), digits, small_net, rounds=4)
    assert average.bytes_down < mine.bytes_down < average.bytes_down + 9 * 200
    assert mine.bytes_down < 0.45 * theirs.bytes_down


def test_a_client_model_with_nan_is_refused_by_name(digits: OwnPopulation) -> None:
    """One client's pixels are NaN, so its model is; the others go on, and it is named every time."""
    broken = digits.clients["c3"]
    bad = Samples(torch.full(broken.train.x.shape, torch.nan), broken.train.y)
    population = replace(digits, clients={**digits.clients, "c3": ClientData(bad, broken.test)})
    method = md(seeding="none")
    task = Task.of(small_net, population)
    fed = Simulator(method, task, population, seed=0)
    state = method.init(fed)
    for number in range(2):
        fed.round = number
        state, _ = method.step(state, fed)
        fed.commit()
    fed.close()
    assert {client for _, client, _ in fed.failures} == {"c3"}
    assert any(failure.kind == "not finite" for _, _, failure in fed.failures)
    assert set(state.cluster) == set(digits.ids) - {"c3"}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.models.values())


def test_a_class_that_a_client_lacks_does_not_count(digits: OwnPopulation) -> None:
    """The server's p(y) of a client without the digit 7 is 0 there, and the run goes on as ever."""
    data = digits.clients["c1"]
    kept = data.train.take(torch.nonzero(data.train.y != 7).flatten())
    population = replace(digits, clients={**digits.clients, "c1": ClientData(kept, data.test)})
    result = run(md(seeding="none"), population, small_net, rounds=2)
    assert float(result.state.labels["c1"][7]) == 0.0
    assert float(result.state.labels["c1"].sum()) == pytest.approx(1.0)
    assert len(result.clusters or []) == 9


def test_an_empty_cluster_keeps_its_model(digits: OwnPopulation) -> None:
    """With nine clusters for nine clients at random, some are empty after a round: they still hold the shared start."""
    result = run(md(k=9, seeding="none"), digits, small_net, rounds=1)
    start = Task.of(small_net, digits).init(0)
    empty = set(range(9)) - set(result.clusters or [])
    assert empty
    for k in range(9):
        assert (largest_gap(row(result.state.models, k), start) == 0) == (k in empty)
    assert set(result.models) == {f"cluster-{k}" for k in set(range(9)) - empty}, "models of no client are not saved"


@pytest.mark.parametrize(
    "settings", [{"sampling": "generator"}, {"warm_steps": 0}, {"clip": 1.0, "prior_squared": True}]
)
def test_every_way_of_sampling_on_a_net_with_buffers(settings: dict[str, Any], digits: OwnPopulation) -> None:
    result = run(md(seeding="none", **settings), digits, batchnorm_net, rounds=2)
    assert result.state.samples.shape == (3, 10, 2, 1, 8, 8)
    assert bool(torch.isfinite(result.state.samples).all())


def test_warm_samples_are_the_last_ones_moved_on(digits: OwnPopulation) -> None:
    """One tiny warm step leaves them nearly where they were; from noise they would be elsewhere."""
    start = run(md(seeding="none"), digits, small_net, rounds=2).state.samples
    warm = run(md(seeding="none", warm_steps=1, search_lr=0.1), digits, small_net, rounds=3).state.samples
    cold = run(md(seeding="none", warm_steps=0), digits, small_net, rounds=3).state.samples
    assert float((warm - start).abs().max()) < 0.11 < float((cold - start).abs().max())


def test_lost_introductions_and_lost_rounds_do_no_harm(digits: OwnPopulation) -> None:
    for privacy in ("weak", "strong"):
        result = run(md(seeding="none", privacy=privacy), digits, small_net, rounds=4, faults=Faults(dropout=0.4))
        assert result.failures > 0
        method = md(seeding="none", privacy=privacy)
        fed = Simulator(method, Task.of(small_net, digits), digits, seed=0, faults=Faults(dropout=1.0))
        gone, _ = method.step(method.init(fed), fed)
        assert method.clusters(gone, digits.ids) == [-1] * 9
        fed.close()


def test_the_paper_is_a_preset() -> None:
    """In one place, for Python, TOML and the command line; what else is set wins."""
    paper = MDICFL.preset("paper", k=3, epochs=4)
    assert (paper.start, paper.seeding, paper.prior_mean, paper.per_class) == ("independent", "none", 0.5, 30)
    assert (paper.k, paper.epochs, paper.momentum) == (3, 4, 0.0)
    config = from_tables({"method": "md-icfl", "settings": {"preset": "paper", "k": "3", "epochs": 4}})
    assert config.build_method({}) == paper
    assert 'preset = "paper"' in config.to_toml()
    with pytest.raises(CoterieError, match="There is no preset of md-icfl 'papre'; did you mean 'paper'"):
        MDICFL.preset("papre")


def test_the_papers_setting_runs(digits: OwnPopulation) -> None:
    result = run(MDICFL.preset("paper", k=3, per_class=2, steps=5, epochs=1), digits, small_net, rounds=2)
    assert len(result.clusters or []) == 9


def test_what_is_refused(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="k = 12 clusters need at least as many clients, but there are 9"):
        run(md(k=12), digits, small_net, rounds=1)
    with pytest.raises(CoterieError, match="md-icfl needs classes, and regression has none"):
        run(md(k=2), rows(([1.0], [2]), ([1.0], [6])), one_weight(), rounds=1, loss="mse")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k": -1}, "k must be at least 1, or auto, not -1"),
        ({"per_class": 0}, "per_class must be at least 1, not 0"),
        ({"patience": 0}, "patience must be at least 1, not 0"),
        ({"hold": -1}, "hold must be at least 0, not -1"),
        ({"prior": -0.1}, "prior must be at least 0, not -0.1"),
        ({"margin": 1.0}, "margin must lie in .0, 1., not 1.0"),
        ({"trust": -0.1}, "trust must be at least 0, not -0.1"),
        ({"search_lr": 0.0}, "search_lr must be above 0, not 0.0"),
        ({"generator_batch": 1}, "generator_batch must be at least 2"),
        ({"seeding": "cosine-labels", "privacy": "strong"}, "seeding must not need labels under strong privacy"),
        ({"start": "independent"}, "start must be shared where clusters are seeded"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CoterieError, match=f"md-icfl: {says}"):
        MDICFL(**settings)
