"""A device's own rules: what it refuses, how it flips, and a secret that averages of many runs do not wear down."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import TELLS, on_client
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.deploy.client import Device
from coterie.deploy.consent import SECRET_VARIABLE, Consent, own_secret, refused_words
from coterie.methods import METHODS
from coterie.methods.base import Models
from coterie.methods.embedding.autoencoder import fresh_encoder
from coterie.methods.embedding.bits import unpack_bits
from coterie.methods.embedding.method import Embedding
from coterie.methods.fedavg import FedAvg

from ..conftest import Command
from ..tiny import driven, made, small_net, tiny_digits
from .wiring import Here, devices, federation, poisoned


@pytest.fixture
def digits() -> OwnPopulation:
    return tiny_digits()


def bits(
    population: OwnPopulation, seed: int, secret: str | None, flip: float = 0.3, least: float = 0.0
) -> torch.Tensor:
    task = Task.of(small_net, population)
    encoder = fresh_encoder(tuple(task.shape), task.normalise.scale, architecture="", seed=0, like=task)
    cohort = Cohort(("c0",), task, (population.client("c0"),), seed=seed, secret=secret, least_flip=least)
    packed = Embedding(flip=flip).embed(cohort, encoder.half).bits
    return torch.from_numpy(unpack_bits(packed, encoder.code * task.classes)[0])


def test_nine_runs_tell_no_more_than_one(digits: OwnPopulation) -> None:
    """With a secret the coins are the device's: nine seeds give one and the same answer, so their mean is that answer.

    Without one (the simulator) each seed draws its own coins, and the majority of nine undoes nearly all flips: a bit
    is wrong if five or more of nine coins are, 10 % at P = 0.3 and 30 % in a single run.
    """
    plain = bits(digits, 0, None, flip=0.0).double()
    kept = torch.stack([bits(digits, seed, "s3cret") for seed in range(9)]).double()
    assert bool((kept == kept[0]).all())
    present = torch.from_numpy(np.repeat(np.isin(range(10), digits.client("c0").train.y), len(plain) // 10))
    assert 0.2 < float((kept.mean(0).round() != plain)[present].double().mean()) < 0.4
    drawn = torch.stack([bits(digits, seed, None) for seed in range(9)]).double()
    assert float((drawn.mean(0).round() != plain)[present].double().mean()) < 0.16
    assert not torch.equal(kept[0], bits(digits, 0, "another").double())


def test_a_device_flips_at_least_as_often_as_it_says(digits: OwnPopulation) -> None:
    assert torch.equal(bits(digits, 0, "s", flip=0.1, least=0.4), bits(digits, 0, "s", flip=0.4))
    assert torch.equal(bits(digits, 0, "s", flip=0.4, least=0.1), bits(digits, 0, "s", flip=0.4))


def test_the_secret_is_made_once_and_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    first = own_secret(tmp_path / "device")
    assert len(first) == 64
    assert own_secret(tmp_path / "device") == first
    assert own_secret(tmp_path / "other") != first
    assert stat.S_IMODE(os.stat(tmp_path / "device" / "secret").st_mode) == 0o600
    monkeypatch.setenv(SECRET_VARIABLE, "from outside")
    assert own_secret(tmp_path / "device") == "from outside"


def test_what_is_refused_is_not_told(tmp_path: Path) -> None:
    consent = Consent(refused_words("labels, features"))
    method = made("md-icfl")
    with pytest.raises(CoterieError, match="refuses to tell labels, and introduce asks for it"):
        consent.check(method.introduce, tmp_path)
    with pytest.raises(CoterieError, match="refuses to tell features, and describe asks for it"):
        consent.check(made("fedcg").describe, tmp_path)
    consent.check(made("fedavg").train, tmp_path)
    with pytest.raises(CoterieError, match="label"):
        Consent(refused_words("label"))


def test_questions_about_labels_are_counted_for_life(tmp_path: Path) -> None:
    identify = made("md-icfl").identify
    for _ in range(3):
        Consent(most_questions=3).check(identify, tmp_path)
    with pytest.raises(CoterieError, match="answered 3 questions about its labels and answers no more"):
        Consent(most_questions=3).check(identify, tmp_path)
    Consent(most_questions=3).check(made("fedavg").train, tmp_path)


def test_every_client_function_says_what_it_tells() -> None:
    silent = {"begin", "train", "fit_part"}  # a fresh node; training without communication
    for name in METHODS:
        kind = type(driven(name))
        for attribute in dir(kind):
            function = getattr(kind, attribute)
            if not getattr(function, "on_client", False):
                continue
            assert set(function.tells) <= TELLS.keys()
            assert function.tells or attribute in silent, f"{name}.{attribute}"
            assert set(function.tells) != TELLS.keys(), f"{name}.{attribute} does not say what it tells"


def test_a_function_that_does_not_say_tells_everything(tmp_path: Path) -> None:
    @on_client
    def ask() -> None: ...

    with pytest.raises(CoterieError, match="refuses to tell styles"):
        Consent(frozenset({"styles"})).check(ask, tmp_path)


def test_a_refused_question_is_one_failure_and_the_run_goes_on(digits: OwnPopulation, tmp_path: Path) -> None:
    clients = devices(digits, tmp_path)
    clients["c0"] = Device("c0", digits, tmp_path / "c0", consent=Consent(frozenset({"styles"})))
    method = made("ladd", k=3)
    fed = federation(method, digits, Here(clients))
    state = method.init(fed)
    assert [(client, failure.reason) for _, client, failure in fed.failures] == [
        ("c0", "This device refuses to tell styles, and describe asks for it.")
    ]
    assert sorted(state.cluster) == sorted(set(digits.ids) - {"c0"})


def test_a_device_that_does_not_tell_its_labels_still_learns_with_auto(digits: OwnPopulation, tmp_path: Path) -> None:
    """Its looks are refused, each time: it is asked to train without them, and is in no look."""
    clients = {name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:4]}
    clients["c0"] = Device("c0", digits, tmp_path / "c0", consent=Consent(frozenset({"labels"})))
    method = made("auto")
    fed = federation(method, digits, Here(clients))
    state = method.init(fed)
    for number in range(3):
        fed.begin(number)
        state, _ = method.step(state, fed)
    assert {client: known.visits for client, known in state.known.items()} == dict.fromkeys(sorted(clients), 3)
    assert "c0" not in state.looks
    assert "c1" in state.looks
    assert {failure.kind for _, _, failure in fed.failures} == {"withheld"}


def test_a_device_that_fails_otherwise_is_not_asked_again_by_auto(digits: OwnPopulation, tmp_path: Path) -> None:
    """Only what is withheld can be had by another question; one whose device broke would have to break twice."""
    clients = {name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:4]}
    asked: list[str] = []

    def broken(client: str, data: bytes) -> bytes:
        asked.append(client)
        if client == "c0":
            raise CoterieError("out of memory")
        return data

    method = made("auto")
    fed = federation(method, digits, Here(clients, broken))
    fed.begin(0)
    method.step(method.init(fed), fed)
    assert asked.count("c0") == 1
    assert [failure.kind for _, _, failure in fed.failures] == ["crashed"]


def test_a_device_that_does_not_tell_its_labels_is_clustered_nevertheless(
    digits: OwnPopulation, tmp_path: Path
) -> None:
    """The default rule asks which classes a client holds; one that refuses is asked again, without them."""
    there = devices(digits, tmp_path)
    there["c3"] = Device("c3", digits, tmp_path / "c3", consent=Consent(frozenset({"labels"})))
    method = made("embedding")
    fed = federation(method, digits, Here(there))
    state = method.init(fed)
    assert sorted(state.cluster) == sorted(digits.ids)
    refused = [failure.reason for _, client, failure in fed.failures if client == "c3"]
    assert len(refused) == 1
    assert "refuses to tell labels, and embed_known asks for it" in refused[0]


@pytest.mark.parametrize("claim", [1e9, -1.0])
def test_a_real_client_weighs_what_its_hello_said(claim: float, digits: OwnPopulation, tmp_path: Path) -> None:
    def tamper(client: str, data: bytes) -> bytes:
        changed = poisoned(data, lambda name, tensor: torch.full_like(tensor, claim) if name == "size" else tensor)
        return changed if client == "c3" else data

    method = made("fedavg")
    fed = federation(method, digits, Here(devices(digits, tmp_path), tamper))
    method.step(method.init(fed), fed)
    said = len(digits.client("c3").train)
    assert [(client, failure.reason) for _, client, failure in fed.failures] == [
        ("c3", f"it claims {claim:g} samples and said {said} when it joined")
    ]


@pytest.mark.parametrize("refused", ["", "scores"])
def test_a_device_that_tells_no_scores_tells_no_training_loss(
    refused: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    name = digits.ids[0]
    device = Device(name, digits, tmp_path, consent=Consent(refused_words(refused)))
    method: FedAvg = made("fedavg")
    fed = federation(method, digits, Here({name: device}))
    replies = fed.ask(method.train, [name], same=Models(method.init(fed).model))
    assert replies.ids == (name,)
    assert set(replies.losses) == (set() if refused else {name})


@pytest.mark.parametrize(("refused", "told"), [("labels", True), ("labels,scores", False), ("features", False)])
def test_who_refuses_labels_is_told_that_scores_tell_them_too(refused: str, told: bool, coterie: Command) -> None:
    said = coterie("join", "--server", "nowhere", "--data", "x.csv", "--name", "a", "--refuse", refused)
    assert ("--refuse labels,scores" in said.out + said.err) is told
    assert said.code == 2
