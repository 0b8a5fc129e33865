"""FedCG: domains found, residuals averaged by domain, teacher and student, collapse, unseen clients."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from experiments.tables import run_table
from PIL import Image
from torch import Tensor, nn

from coterie import Result, run
from coterie.core.errors import CoterieError
from coterie.core.samples import ClientData
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.fedcg import FedCG, Report
from coterie.methods.fedcg.averaging import averaged
from coterie.methods.fedcg.network import export, fedcg
from coterie.methods.oracle import Oracle
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator
from experiments import EXPERIMENTS

from ..data.sources.test_celeba import NAMES, attribute_line
from ..data.sources.test_leaf import write
from ..data.tiny import write_writers
from ..tiny import fingerprint, small_net

ALONE = EngineOptions(workers=1)
QUICK: dict[str, Any] = {"epochs": 1, "batch": 4, "lr": 0.05, "domains": 3, "features": 32, "finetune_epochs": 0}


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 10))


def ran(population: OwnPopulation, rounds: int = 2, options: EngineOptions = ALONE, **settings: Any) -> Result:
    method = FedCG.preset(settings.pop("preset", "robust"), **{**QUICK, **settings})
    return run(method, population, small_cnn, rounds=rounds, seed=1, engine=options)


def beside(population: OwnPopulation, side: Any) -> OwnPopulation:
    """The same samples with metadata beside them: a number for every sample of a client."""
    clients = {
        client: ClientData(
            replace(data.train, extra=side(len(data.train))),
            replace(data.test, extra=side(len(data.test))),
        )
        for client, data in population.clients.items()
    }
    return replace(population, clients=clients)


def test_domains_of_rotated_digits_are_found_and_used(digits: OwnPopulation) -> None:
    result = ran(digits, rounds=3)
    assert result.ari == 1.0
    assert result.state.pooled
    residual = result.state.model["network.0.residual"]
    assert (residual.abs().sum(1) > 0).all()
    assert sum(result.state.samples) == sum(len(d.train) for d in digits.clients.values())
    assert len(result.state.history["evenness"]) == 3


@pytest.mark.parametrize("find", ["features", "classifier", "models", "oracle"])
def test_every_way_to_find_domains_serves_unseen_clients(find: str, digits: OwnPopulation) -> None:
    kept_back = replace(digits, unseen_ids=tuple(digits.ids[:2]))
    for more in ({"soft": True}, {"soft": False, "routing": "pooled"}, {"routing": "image"}):
        result = ran(kept_back, rounds=1, find=find, **more)
        assert result.unseen_accuracy is not None
        assert result.state.model["network.0.scale"].isfinite()


def test_oracle_domains_are_the_groups(digits: OwnPopulation) -> None:
    assert ran(digits, find="oracle").ari == 1.0
    with pytest.raises(CoterieError, match="samples have domain 2, counted from 0; set domains to all there are"):
        ran(digits, find="oracle", domains=2)


def test_metadata_domains_are_those_beside_the_samples(digits: OwnPopulation) -> None:
    numbered = beside(digits, lambda n: torch.arange(n) % 3)
    result = ran(numbered, find="metadata")
    assert result.state.samples == [
        sum(len(range(d, len(data.train), 3)) for data in digits.clients.values()) for d in range(3)
    ]
    with pytest.raises(CoterieError, match="no metadata beside them"):
        ran(digits, find="metadata")


def test_networks_that_do_not_ask_never_see_what_is_beside(digits: OwnPopulation) -> None:
    from ..tiny import made

    numbered = beside(digits, lambda n: torch.zeros(n, dtype=torch.int64))
    plain = run(made("fedavg"), digits, small_net, rounds=1, seed=1)
    same = run(made("fedavg"), numbered, small_net, rounds=1, seed=1, engine=EngineOptions(kernel=False))
    right = run(made("fedavg"), digits, small_net, rounds=1, seed=1, engine=EngineOptions(kernel=False))
    assert fingerprint(same)["state"] == fingerprint(right)["state"]
    assert plain.accuracy == pytest.approx(right.accuracy)


def test_residuals_are_averaged_by_the_samples_of_their_domain() -> None:
    """Clients with (1, 3) and (3, 0) samples of two domains, residuals (1, 2) and (5, 6), previous 9.

    By domain: (1*1 + 3*5)/4 = 4 and (3*2 + 0*6)/3 = 2; by clients: (4*1 + 3*5)/7 and (4*2 + 3*6)/7. Domain 2 has no
    samples and keeps 9.
    """
    names = ["a.residual"]
    residual = torch.tensor([[[1.0], [2.0], [0.0]], [[5.0], [6.0], [0.0]]])
    counts = torch.tensor([[1, 3, 0], [3, 0, 0]])
    replies = Report({"a.residual": residual}, {}, counts, torch.zeros(2), torch.tensor([4.0, 3.0]))
    previous = {"a.residual": torch.full((3, 1), 9.0)}
    by_domain = averaged(FedCG(domains=3), replies, previous, names)["a.residual"]
    by_client = averaged(FedCG(domains=3, averaging="clients"), replies, previous, names)["a.residual"]
    assert by_domain.flatten().tolist() == pytest.approx([4.0, 2.0, 9.0])
    assert by_client.flatten().tolist() == pytest.approx([19 / 7, 26 / 7, 0.0])
    # domain 1 borrows half of domain 2: half of its three samples trained V[1], the other half V[2], of client 0 alone
    joined = previous | {"adjacency": torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])}
    by_reach = averaged(FedCG(domains=3, averaging="reach"), replies, joined, names)["a.residual"]
    assert by_reach.flatten().tolist() == pytest.approx([4.0, 2.0, 0.0])
    assert averaged(FedCG(domains=3), replies, joined, names)["a.residual"].equal(by_domain)
    assert averaged(FedCG(domains=3, averaging="reach"), replies, previous, names)["a.residual"].equal(by_domain)


@pytest.mark.parametrize("kernel", [True, False])
def test_domain_specific_models_are_oracles(kernel: bool, digits: OwnPopulation) -> None:
    """V alone on all layers, with the true domains and A = I, is one model for each group: the Oracle, to rounding.

    With the other reading (`averaging = "clients"`) each is mixed with copies that nobody has trained.
    """
    options = EngineOptions(workers=1, kernel=kernel)
    training: dict[str, Any] = {"epochs": 2, "batch": 4, "lr": 0.05, "fraction": 5, "finetune_epochs": 0}
    oracle = run(Oracle(**training), digits, small_cnn, rounds=4, seed=1, engine=options)
    alone = {"find": "oracle", "domains": 3, "graph": "eye", "w": "none", "sigma": "none", "layers": "all"}

    def gap(**settings: Any) -> float:
        method = FedCG.preset("paper", **training, **alone, agnostic=False, **settings)
        found = run(method, digits, small_cnn, rounds=4, seed=1, engine=options).state.model
        gaps = []
        for layer in ("0", "3"):
            weight, bias = (oracle.state.models[f"{layer}.{part}"].flatten(1) for part in ("weight", "bias"))
            gaps.append((found[f"network.{layer}.residual"] - torch.cat([weight, bias], 1)).abs().max())
        return float(max(gaps))

    assert gap() < 1e-5
    assert gap(averaging="clients") > 1e-2


class Awkward(nn.Module):
    """A network of the user's, with parameters that FedCG's layers have, too, and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.last = nn.Linear(8, 10)
        self.scale = nn.Parameter(torch.ones(8))
        self.residual = nn.Parameter(torch.zeros(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.again(torch.relu(self.shared(torch.relu(self.first(x.flatten(1))))))
        output: Tensor = self.last(torch.relu(self.scale * hidden + self.residual.sum(0)))
        return output


@pytest.mark.parametrize("settings", [{}, {"preset": "paper", "find": "features"}, {"averaging": "clients"}])
@pytest.mark.parametrize("layers", ["last", "shared", "all"])
def test_names_of_a_users_parameters_mean_nothing(layers: str, settings: Any, digits: OwnPopulation) -> None:
    given = dict(settings)
    method = FedCG.preset(given.pop("preset", "robust"), **{**QUICK, **given, "layers": layers})
    result = run(method, digits, Awkward, rounds=2, seed=1, engine=ALONE)
    model = result.state.model
    assert model["network.scale"].shape == (8,)
    assert model["network.residual"].shape == (3, 8)
    assert (model["network.residual"] != 0).any(), "it is trained as any other parameter"
    if layers == "shared":
        assert torch.equal(model["network.shared.residual"], model["network.again.residual"])
        weights = result.state.history["lambda"][-1]
        assert weights == pytest.approx(float(model["network.shared.scale"]))


@pytest.mark.parametrize("sigma", ["relu", "on_activation"])
def test_residuals_that_could_never_leave_zero_are_refused(sigma: Literal["relu", "on_activation"]) -> None:
    with pytest.raises(CoterieError, match=f"start must be random with sigma = {sigma}"):
        FedCG(sigma=sigma)
    assert FedCG(sigma=sigma, start="random").sigma == sigma


def test_the_student_becomes_the_teacher_every_t_rounds(digits: OwnPopulation) -> None:
    early = ran(digits, rounds=1, preset="paper", teacher_every=2, classifier_lr=0.1)
    late = ran(digits, rounds=2, preset="paper", teacher_every=2, classifier_lr=0.1)
    assert not same(early.state.teacher, early.state.student)
    assert same(late.state.teacher, late.state.student)
    assert not same(early.state.student, late.state.student)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_the_papers_graph_is_measured_after_every_round(digits: OwnPopulation) -> None:
    adjacency = ran(digits, rounds=2, preset="paper").state.model["adjacency"]
    assert torch.allclose(adjacency.sum(1), torch.ones(3))
    assert torch.allclose(adjacency.diagonal(), torch.full((3,), 0.5))
    assert "adjacency" not in ran(digits, rounds=1).state.model


@pytest.mark.parametrize(
    "settings",
    [
        {"graph": "uniform", "w": "full", "sigma": "relu", "start": "random"},
        {"graph": "hamming", "w": "none", "agnostic": False, "layers": "all"},
        {"graph": "random", "w": "bottleneck", "sigma": "on_activation", "start": "random", "layers": "all"},
        {"graph": "distance", "graph_start": "random", "few": 5.0, "sharpness": 3.0},
        {"domains": 1, "graph": "distance", "w": "per_filter"},
        {"graph": "distance", "w": "low_rank", "rank": 5, "sigma": "relu", "start": "random"},
    ],
)
def test_every_ablation_is_a_setting(settings: dict[str, Any], digits: OwnPopulation) -> None:
    result = ran(digits, rounds=1, **settings)
    assert all(tensor.isfinite().all() for tensor in result.state.model.values())


@pytest.mark.parametrize(
    "settings", [{}, {"preset": "paper"}, {"preset": "paper", "balance": True}, {"find": "models", "alone_epochs": 2}]
)
def test_lanes_and_workers_change_nothing(settings: dict[str, Any], digits: OwnPopulation) -> None:
    one = ran(digits, options=EngineOptions(workers=1, lanes=1), **settings)
    all_at_once = ran(digits, options=EngineOptions(workers=2, lanes=9), **settings)
    assert fingerprint(one) == fingerprint(all_at_once)


@pytest.mark.parametrize("find", ["features", "models", "classifier"])
def test_a_start_without_replies_is_made_up_for(find: Any, digits: OwnPopulation) -> None:
    method = FedCG.preset("robust", **QUICK, find=find)
    task = method.task(Task.of(small_cnn, digits))
    fed = Simulator(method, task, digits, seed=1, options=ALONE, faults=Faults(dropout=1.0))
    lost, _ = method.step(method.init(fed), fed)
    assert lost.history == {}
    assert method.panels(lost, [], None) == []
    fed.close()
    late = run(method, digits, small_cnn, rounds=4, seed=1, engine=ALONE, faults=Faults(dropout=0.7))
    assert late.failures > 0
    assert "evenness" in late.state.history


def test_wrapping_keeps_a_users_own_weights(digits: OwnPopulation) -> None:
    ready = small_cnn()
    task = FedCG(**QUICK).task(Task.of(ready, digits))
    first: Any = ready.get_submodule("0")
    assert torch.equal(task.init(0)["network.0.weight"], first.weight.detach())
    assert "is not a plain chain" in getattr(task.compiled, "reason", "")


def test_a_saved_network_can_be_exported(digits: OwnPopulation) -> None:
    state = ran(digits, rounds=1).models["network"]
    net = fedcg(small_cnn(), domains=3)
    net.load_state_dict(state)
    folded = export(net)
    x, domains = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 1])
    assert torch.allclose(net.eval()(x, domains), folded(x, domains), atol=1e-6)


def test_panels_show_collapse_lambda_and_adjacency(digits: OwnPopulation) -> None:
    method = FedCG.preset("paper", **QUICK)
    result = run(method, digits, small_cnn, rounds=2, seed=1, engine=ALONE)
    titles = [panel.title for panel in method.panels(result.state, result.client_ids, None)]
    assert len(titles) == 4
    assert "adjacency of the domains" in titles


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("domains", -1), ("beta", 0.0), ("beta", 1.5), ("sharpness", 0.0), ("few", -1.0), ("bottleneck", 0),
        ("rank", 0), ("w_limit", 0.0), ("alone_epochs", 0),
        ("features", 0), ("ridge", 0.0), ("teacher_every", 0), ("classifier_lr", 0.0),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(CoterieError, match=f"fedcg: {key} must"):
        FedCG.preset("robust", **{key: value})


def table_of(name: str) -> dict[str, Any]:
    """A table of papers/fedcg.toml, cut down to one round, without fine-tuning."""
    whole: Any = EXPERIMENTS.load()[name].run
    table = copy.deepcopy(dict(whole.args[0]))
    table["base"] |= {"rounds": 1, "engine": {"workers": 1}}
    table["base"]["settings"]["finetune_epochs"] = 0
    return table


def test_the_papers_femnist_protocol_runs_on_a_leaf_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_writers(tmp_path, "femnist", users=3, classes=62)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    table = table_of("fedcg-femnist")
    assert table["base"]["model"] == "femnist-port"
    table["row"] = [row for row in table["row"] if row["label"].startswith("FedCG paper")]
    text = run_table(table, tmp_path / "out", [0], lambda _: None)
    assert text.count("83.41") == 2
    for row in ("FedCG-paper", "FedCG-paper--W-of-rank-16"):
        result = json.loads((tmp_path / "out" / row / "seed0" / "result.json").read_text())
        assert result["unseen_accuracy"] is not None


def test_the_papers_celeba_protocol_runs_on_a_leaf_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "celeba"
    write(folder, "train", {"11": (["0.jpg", "1.jpg", "2.jpg"], [0, 1, 0]), "12": (["3.jpg", "4.jpg"], [1, 0])})
    write(folder, "test", {"13": (["5.jpg"], [1])})
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for k in range(6):
        pixels = np.random.default_rng(k).integers(0, 255, (218, 178, 3), np.uint8)
        Image.fromarray(pixels).save(images / f"{k}.jpg")
    lines = ["6", " ".join(NAMES), *(attribute_line(f"{k}.jpg", 5 * k) for k in range(6))]
    (folder / "data" / "raw" / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    for name, label in (
        ("fedcg-celeba", "last, eye, Clf, D = 4, soft"),
        ("fedcg-celeba-metadata", "FedCG, H, W, ReLU"),
    ):
        table = table_of(name)
        table["row"] = [row for row in table["row"] if row["label"] == label]
        assert len(table["row"]) == 1
        text = run_table(table, tmp_path / name, [0], lambda _: None)
        assert str(table["row"][0]["paper"]["unseen_sample_accuracy"]) in text
