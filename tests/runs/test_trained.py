"""A run that is over is used: every client's own model, predictions in the user's words, newcomers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core.errors import CoterieError
from coterie.core.states import row
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.clustered import KnowsMembers
from coterie.methods.p2p.base import PeerMethod
from coterie.runs.trained import TrainedRun

from ..tiny import batchnorm_net, made, six_digits, small_net

SERVES = [
    n for n, kind in METHODS.items() if not issubclass(kind, PeerMethod) and n not in ("local", "fedfomo", "oracle")
]


def used(method: Any, population: OwnPopulation, out: Path, model: Any = small_net, **options: Any) -> TrainedRun:
    coterie.run(method, population, model, rounds=2, seed=7, out=out, **options)
    return coterie.load(out, model=model)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_client_is_served_as_it_was_evaluated(name: str, tmp_path: Path) -> None:
    """The model of each client answers right as often as the evaluation at the end of the run says."""
    digits = six_digits()
    run = used(made(name, epochs=1), digits, tmp_path / "run")
    for client, accuracy in zip(run.clients, run.result.per_client_accuracy, strict=True):
        test = digits.client(client).test
        right = run.predict(client, test.x) == test.y.numpy()
        assert right.mean() == pytest.approx(accuracy), client
    groups = run.result.clusters
    assert run.groups == ({} if groups is None else dict(zip(run.clients, groups, strict=True)))
    assert [line["round"] for line in run.history] == [1, 2]


@pytest.mark.parametrize("name", [n for n, kind in METHODS.items() if issubclass(kind, KnowsMembers)])
def test_clients_that_never_came_are_served_as_they_were_evaluated(name: str, tmp_path: Path) -> None:
    """Two of six come in each of two rounds, so that some never do."""
    digits = six_digits()
    run = used(made(name, epochs=1, fraction=2), digits, tmp_path / "run")
    for client, accuracy in zip(run.clients, run.result.per_client_accuracy, strict=True):
        test = digits.client(client).test
        assert (run.predict(client, test.x) == test.y.numpy()).mean() == pytest.approx(accuracy), client


@pytest.mark.parametrize("name", ["fedbn", "fedcg", "apfl"])
def test_statistics_of_batchnorm_are_the_clients(name: str, digits: OwnPopulation, tmp_path: Path) -> None:
    run = used(made(name), digits, tmp_path / "run", batchnorm_net)
    for client, accuracy in zip(run.clients, run.result.per_client_accuracy, strict=True):
        test = digits.client(client).test
        assert (run.predict(client, test.x) == test.y.numpy()).mean() == pytest.approx(accuracy), client


@pytest.mark.parametrize("k", [4, "auto"])
def test_a_newcomer_finds_its_group_while_md_icfl_holds_its_clusters(k: Any, tmp_path: Path) -> None:
    """Seeded clusters stand and have models of their own, though the method does not compare clients by them yet."""
    whole = coterie.build("rotated-digits", seed=3, clients=20, groups=4, samples=60, test_samples=20)
    new = {whole.group(client): whole.client(client) for client in whole.ids[:8]}
    data = {f"c{client}": whole.client(client) for client in whole.ids[8:]}
    truth = {f"c{client}": whole.group(client) or 0 for client in whole.ids[8:]}
    population = OwnPopulation(data, whole.shape, whole.classes, whole.normalise, truth)
    method = coterie.method("md-icfl", k=k, lr=0.1, per_class=2, steps=10)
    result = coterie.run(method, population, small_net, rounds=5, seed=1, out=tmp_path / "run")
    own = result.state.own if k == "auto" else result.state
    assert own.held > 5
    run = coterie.load(tmp_path / "run", model=small_net)
    assert len(new) == len(set(run.groups.values())) == 4
    for group, samples in new.items():
        found = run.admit(samples.train.x, samples.train.y)
        assert {found.group} == {run.groups[client] for client in run.clients if truth[client] == group}
        assert repr(found) == f"<newcomer with the model of group {found.group}>"


def test_a_newcomer_is_told_that_no_groups_were_found(digits: OwnPopulation, tmp_path: Path) -> None:
    run = used(made("md-icfl", patience=9), digits, tmp_path / "run")
    data = digits.client("c4").train
    found = run.admit(data.x, data.y)
    assert found.group == 0
    assert repr(found) == "<newcomer with one model for all, since the run has not found several groups>"


@pytest.mark.parametrize("name", SERVES)
def test_a_newcomer_with_a_clients_data_is_served_as_that_client(name: str, tmp_path: Path) -> None:
    """It has the same data under another name: it comes into the same group and its model is a whole one."""
    digits = six_digits()
    run = used(made(name, epochs=1), digits, tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    data = digits.client("c4").train
    new = run.admit(data.x, data.y)
    if name in ("ifca", "fedcg"):  # whose clients choose by their data, in every round
        assert new.group == run.groups["c4"]
    assert (new.group is None) == (run.result.clusters is None)
    own = name in ("fedper", "fedrep")  # their newcomers fit a part of the model
    assert ("a model of its own" in repr(new)) == own
    assert ("one model for all" in repr(new)) == (len(set(run.groups.values())) <= 1 and not own)
    assert new.predict(digits.client("c4").test.x).shape == (len(digits.client("c4").test),)
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_what_a_user_prints_is_a_line(digits: OwnPopulation, tmp_path: Path) -> None:
    """In a notebook a name alone on a line is printed: populations, clients' data, runs and newcomers are short."""
    run = used(made("ifca"), digits, tmp_path / "run")
    data = digits.client("c4").train
    shown = [repr(each) for each in (digits, digits.client("c4"), run, run.admit(data.x, data.y))]
    shown.append(repr(coterie.build("rotated-digits", seed=0)))
    assert all(len(text) < 250 and "\n" not in text for text in shown), shown
    assert shown[0] == "<9 clients with inputs of shape (1, 8, 8), 10 classes>"
    assert shown[4] == "<40 clients of rotated-digits, 10 classes>"


def test_a_newcomer_of_fedper_fits_a_head(digits: OwnPopulation, tmp_path: Path) -> None:
    """The base is the common one, the head is neither the initial one nor that of any client."""
    run = used(made("fedper"), digits, tmp_path / "run")
    data = digits.client("c4").train
    base, other = run.admit(data.x, data.y).model.state_dict(), run.model("c4").state_dict()
    assert torch.equal(base["network.1.weight"], other["network.1.weight"])
    assert not torch.equal(base["network.3.weight"], other["network.3.weight"])


@pytest.mark.parametrize("name", ["local", "gossip"])
def test_a_method_without_a_model_for_newcomers_says_so(name: str, digits: OwnPopulation, tmp_path: Path) -> None:
    run = used(made(name), digits, tmp_path / "run")
    data = digits.client("c4").train
    with pytest.raises(CoterieError, match=f"{name} has no model for a client that did not take part; admit it to"):
        run.admit(data.x, data.y)


def words(sign: float) -> tuple[Any, Any]:
    """Rows whose label, a word, follows from their first number."""
    x = np.random.default_rng(3).normal(size=(60, 3)).astype(np.float32)
    return x, np.where(sign * x[:, 0] > 0, "rain", "sun")


def test_answers_are_in_the_users_words(tmp_path: Path) -> None:
    population = coterie.from_arrays({f"c{i}": words(1.0 if i < 2 else -1.0) for i in range(4)})
    run = used(coterie.method("ifca", k=2, lr=0.5, epochs=20), population, tmp_path / "run", lambda: nn.Linear(3, 2))
    assert set(run.predict("c0", words(1.0)[0])) == {"rain", "sun"}
    new = run.admit(*words(-1.0))
    assert new.group == run.groups["c3"] != run.groups["c0"]
    x, y = words(-1.0)
    assert (new.predict(x) == y).mean() > 0.9
    assert (run.predict("c0", torch.from_numpy(x)) == y).mean() < 0.1
    with pytest.raises(CoterieError, match="has the label 'snow', which is none of the 2 classes"):
        run.admit(x, np.where(y == "sun", "snow", y))


def test_numbers_are_in_the_users_units(tmp_path: Path) -> None:
    """y = 1000 x + 50000: the network learns them on a common scale, and predictions are back in thousands."""
    x = np.random.default_rng(0).normal(size=(80, 1)).astype(np.float32)
    population = coterie.from_arrays({"a": (x, 1000.0 * x[:, 0] + 50000), "b": (x + 1, 1000.0 * (x[:, 0] + 1) + 50000)})
    method = coterie.method("fedavg", lr=0.1, epochs=10, aggregate="mean")
    run = used(method, population, tmp_path / "run", lambda: nn.Linear(1, 1))
    said = run.predict("a", np.array([[0.0], [1.0]], np.float32))
    assert said.shape == (2,)
    assert said == pytest.approx([50000, 51000], abs=100)
    assert run.admit(x, 1000.0 * x[:, 0] + 50000).predict(np.array([[1.0]], np.float32)) == pytest.approx(
        51000, abs=100
    )


def test_two_classes_with_one_output_and_several_labels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    one = coterie.from_arrays({"a": (x, (x[:, 0] > 0).astype(int)), "b": (x, (x[:, 0] > 0).astype(int))})
    run = used(coterie.method("fedavg", lr=1.0, epochs=20), one, tmp_path / "one", lambda: nn.Linear(2, 1))
    assert (run.predict("a", x) == (x[:, 0] > 0)).mean() > 0.9
    both = (x > 0).astype(np.float32)
    several = coterie.from_arrays({"a": (x, both), "b": (x, both)})
    run = used(coterie.method("fedavg", lr=1.0, epochs=20), several, tmp_path / "two", lambda: nn.Linear(2, 2))
    assert (run.predict("a", x) == both).mean() > 0.9


def test_a_model_is_a_module_that_normalises(digits: OwnPopulation, tmp_path: Path) -> None:
    """By hand: the network's weights on (x * scale - mean) / std give the same answer."""
    run = used(made("fedavg"), digits, tmp_path / "run")
    model, x = run.model("c1"), digits.client("c1").test.x
    normalise = digits.normalise
    ready = (x.float() * normalise.scale - normalise.mean[0]) / normalise.std[0]
    network = small_net()
    network.load_state_dict({name.removeprefix("network."): t for name, t in model.state_dict().items()})
    answer: Tensor = network(ready)
    assert isinstance(model, nn.Module)
    assert not model.training
    assert torch.allclose(model(x), answer, atol=1e-5)


@pytest.mark.parametrize("method", [made("ditto"), made("fedavg", personalise="finetune"), made("local")])
def test_a_model_that_is_on_a_device_alone_is_not_replaced_by_another(
    method: Any, digits: OwnPopulation, tmp_path: Path
) -> None:
    """What a server keeps of such a run: the common model, but none that a client uses."""
    run = used(method, digits, tmp_path / "run")
    for file in (run.path / "models").glob("client-*"):
        file.unlink()
    (run.path / "kind.txt").write_text("served run\n")
    with pytest.raises(CoterieError, match="is on its own device and not in"):
        coterie.load(run.path, model=small_net).model("c1")


def test_more_clients_than_were_evaluated(digits: OwnPopulation, tmp_path: Path) -> None:
    """Three of nine are evaluated; the others' groups are those that the server knows."""
    run = used(made("fedsem"), digits, tmp_path / "run", evaluate_clients=3)
    assert len(run.clients) == 3
    assert sorted(run.groups) == sorted(digits.ids)
    for client in digits.ids:
        state = run._state
        assert torch.equal(run.model(client).network[1].weight, row(state.models, run.groups[client])["1.weight"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("client", "x", "said"),
    [
        ("c44", np.zeros((1, 1, 8, 8)), r"There is no client 'c44'; did you mean 'c4'\? Known: c0, c1"),
        ("c1", np.zeros((1, 1, 8, 9)), r"have shape \(1, 1, 8, 9\) and this run's are \[n, 1, 8, 8\]; give such ones."),
        ("c1", np.zeros((0, 1, 8, 8)), r"inputs of shape \(0, 1, 8, 8\); give a row for each sample."),
        ("c1", "no.csv", "There is no file no.csv; give a .csv, .parquet or .npz file"),
        ("c1", np.full((1, 1, 8, 8), np.nan), "hold NaN or infinity"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(
    client: str, x: Any, said: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    run = used(made("fedavg"), digits, tmp_path / "run")
    with pytest.raises(CoterieError, match=said):
        run.predict(client, x)


def test_folders_that_cannot_be_loaded(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="There is no folder"):
        coterie.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CoterieError, match="is neither a run nor a comparison"):
        coterie.load(tmp_path / "empty")
    run = used(made("fedavg"), digits, tmp_path / "run")
    with pytest.raises(CoterieError, match="was given in Python; pass the function that builds it"):
        coterie.load(run.path).model("c1")
    with pytest.raises(CoterieError, match="is of another network: they differ in"):
        coterie.load(run.path, model=batchnorm_net).model("c1")
    with pytest.raises(CoterieError, match="c1 took part in the run"):
        run.admit(np.zeros((1, 1, 8, 8)), [1], name="c1")
    (run.path / "schema.json").unlink()
    with pytest.raises(CoterieError, match="name the folder of a run of this version of coterie"):
        coterie.load(run.path, model=small_net).predict("c1", np.zeros((1, 1, 8, 8)))
    (run.path / "result.json").unlink()
    with pytest.raises(CoterieError, match="is not finished; go on with it: coterie resume"):
        coterie.load(run.path)


def test_a_run_prints_itself(digits: OwnPopulation, tmp_path: Path) -> None:
    run = used(made("ifca"), digits, tmp_path / "run")
    text = str(run.result)
    assert text.startswith("ifca on own data, seed 7, 2 rounds: 9 clients, ")
    assert repr(run) == f"<run in {run.path}: {text}>"
    page = run._repr_html_()
    assert page.count("<tr>") == 10
    assert "<td>c3</td>" in page
    assert json.loads((run.path / "result.json").read_text())["accuracy"] == run.result.accuracy
