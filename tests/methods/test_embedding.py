"""Embedding clustering: clusters, bytes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from coterie import run
from coterie.core import wire
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Replies
from coterie.core.rng import torch_rng
from coterie.core.samples import (
    ClientData,
    Normalise,
    Samples,
)
from coterie.core.states import count, row
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.data.population import LazyPopulation
from coterie.methods.embedding.autoencoder import Encoder
from coterie.methods.embedding.bits import in_blocks, unpack_bits
from coterie.methods.embedding.messages import Embedded
from coterie.methods.embedding.method import Embedding
from coterie.simulation.simulator import EngineOptions, Simulator

from .embedded import QUICK, ari, federation, net


def test_the_default_finds_the_rotations_from_nothing() -> None:
    for seed in (0, 1):
        population = build("rotated-digits", seed=seed)
        method = Embedding()
        state = method.init(federation(method, population, seed=seed))
        assert ari(population, state) > 0.9
        assert count(state.models) == 4


def test_one_group_stays_one(file: str) -> None:
    population = build("rotated-digits", seed=0, groups=1)
    method = Embedding(encoder=file)
    assert count(method.init(federation(method, population)).models) == 1


def test_half_of_noise_is_one_group(rotated: LazyPopulation, file: str) -> None:
    method = Embedding(encoder=file, flip=0.5)
    assert count(method.init(federation(method, rotated)).models) == 1


def test_public_and_hybrid_training(rotated: LazyPopulation, file: str, autoencoder: Encoder) -> None:
    public = Embedding(pretraining="public", public="digits", public_epochs=2)
    state = public.init(federation(public, rotated))
    assert not torch.equal(
        *(each.state["encoder.1.weight"] for each in (state.autoencoder, public.fresh(Task.of(net, rotated), 0)))
    )
    hybrid = Embedding(pretraining="hybrid", encoder=file, encoder_rounds=1)
    tuned = hybrid.init(federation(hybrid, rotated)).autoencoder
    assert not torch.equal(tuned.state["encoder.1.weight"], autoencoder.state["encoder.1.weight"])
    loaded = Embedding(encoder=file)
    assert wire.encode(loaded.init(federation(loaded, rotated)).autoencoder) == wire.encode(autoencoder)


def test_a_federated_autoencoder_costs_its_models_and_a_loaded_one_costs_its_half(
    rotated: LazyPopulation, file: str, autoencoder: Encoder
) -> None:
    """Down: half the autoencoder to each of 40 clients. Up: 25 bytes of bits and the header of a message.

    With the default rule a client also says which of ten classes it holds: 27 bytes of bits.
    """
    both = Embedding(encoder=file)
    fed = federation(both, rotated)
    both.init(fed)
    assert fed.ledger.up["train"] == 40 * wire.encoded_size(Embedded(torch.zeros(27, dtype=torch.uint8)))
    assert fed.ledger.down["train"] == 40 * wire.encoded_size(autoencoder.half)
    method = Embedding(encoder=file, rule="halves")
    fed = federation(method, rotated)
    method.init(fed)
    assert fed.ledger.down["train"] == 40 * wire.encoded_size(autoencoder.half)
    reply = Embedded(torch.zeros(25, dtype=torch.uint8))
    assert fed.ledger.up["train"] == 40 * wire.encoded_size(reply)
    assert sum(part.numel() for part in wire.pack(reply)[1].values()) == 25
    assert wire.encoded_size(reply) < 200


def test_bits_are_those_of_the_formula(rotated: LazyPopulation, autoencoder: Encoder) -> None:
    """Without flips: mean codes by class, stretched to [0, 1] class by class, rounded."""
    method = Embedding(flip=0.0)
    data = rotated.client("00")
    cohort = Cohort(("00",), Task.of(net, rotated), (data,))
    sent = unpack_bits(method.embed(cohort, autoencoder.half).bits, 200)[0].reshape(10, 20)
    codes = autoencoder.codes(data.train)
    for label in data.train.y.unique().tolist():
        mean = codes[data.train.y == label].mean(0)
        expected = ((mean - mean.min()) / (mean.max() - mean.min())).round()
        assert sent[label].tolist() == expected.tolist()


def test_asked_again_a_client_answers_the_same_unless_its_secret_changes(
    rotated: LazyPopulation, autoencoder: Encoder
) -> None:
    method, task = Embedding(flip=0.3), Task.of(net, rotated)
    ids = rotated.ids[:2]
    data = tuple(rotated.client(client) for client in ids)
    first, later = (method.embed(Cohort(ids, task, data, round=at), autoencoder.half).bits for at in (0, 7))
    assert torch.equal(first, later)
    device = Cohort(ids, task, data, secret="only this device knows")
    assert not torch.equal(first, method.embed(device, autoencoder.half).bits)


def test_each_client_may_have_its_own_flip_probability(rotated: LazyPopulation, autoencoder: Encoder) -> None:
    ids, task = rotated.ids[:3], Task.of(net, rotated)
    cohort = Cohort(ids, task, tuple(rotated.client(client) for client in ids))
    clear, mixed = (
        unpack_bits(method.embed(cohort, autoencoder.half).bits, 200)
        for method in (Embedding(flip=0.0), Embedding(flip=0.1, flips=(("01", 0.0), ("02", 0.5))))
    )
    changed = (clear != mixed).mean(1)
    assert changed[1] == 0.0
    assert 0.02 < changed[0] < 0.2
    assert 0.35 < changed[2] < 0.65


def test_flips_can_be_set_from_text() -> None:
    from coterie.core.settings import from_settings

    assert from_settings(Embedding, {"flips": "07:0.2,12:0"}, "embedding").flips == (("07", 0.2), ("12", 0.0))


def test_training_averages_inside_clusters_and_shares_the_base(rotated: LazyPopulation, file: str) -> None:
    apart = run(Embedding(encoder=file, **QUICK), rotated, net, rounds=2)
    shared = run(Embedding(encoder=file, shared=2, **QUICK), rotated, net, rounds=2)
    names = list(apart.models["cluster-0"])
    for name in names[:2]:
        assert torch.equal(shared.models["cluster-0"][name], shared.models["cluster-1"][name])
    for name in names[2:]:
        assert not torch.equal(shared.models["cluster-0"][name], shared.models["cluster-1"][name])
    assert not torch.equal(apart.models["cluster-0"][names[0]], apart.models["cluster-1"][names[0]])


def test_all_clusters_start_from_the_common_model(rotated: LazyPopulation, file: str) -> None:
    method = Embedding(encoder=file)
    fed = federation(method, rotated)
    state = method.init(fed)
    for name, part in fed.task.init(0).items():
        assert torch.equal(row(state.models, 3)[name], part)


def test_numbers_are_blocks_by_the_clients_own_quantiles() -> None:
    """Of the targets 5, 1, 1, 9, 3, 7 there are m = 3, 0, 0, 5, 2, 4 smaller ones: block floor(m * 3 / 6).

    The units do not count, and equal targets share a block.
    """
    codes, y = torch.arange(6.0)[:, None], torch.tensor([5.0, 1.0, 1.0, 9.0, 3.0, 7.0])
    assert in_blocks(codes, y, "regression", 3)[1].tolist() == [1, 0, 0, 2, 1, 2]
    assert in_blocks(codes, 1e6 + 1e3 * y.double(), "regression", 3)[1].tolist() == [1, 0, 0, 2, 1, 2]
    assert in_blocks(codes, y, "regression", 1)[1].tolist() == [0] * 6
    assert in_blocks(codes, torch.tensor([2, 0, 1, 0, 2, 1]), "classification", 3)[1].tolist() == [2, 0, 1, 0, 2, 1]
    both, labels = in_blocks(codes[:2], torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), "multilabel", 3)
    assert (both.flatten().tolist(), labels.tolist()) == ([0.0, 0.0, 1.0], [0, 1, 2])


def turned(outputs: int) -> OwnPopulation:
    """Twelve clients with numbers (or labels) that follow the place of a bright bar; half see it on its side."""
    g = torch_rng(3, "bars")
    clients = {}
    for index in range(12):
        place = torch.arange(64) % 8
        images = 0.1 * torch.rand(64, 1, 8, 8, generator=g)
        images[torch.arange(64), 0, place] += 1
        images = images if index < 6 else images.transpose(2, 3)
        noise = 0.01 * torch.rand(64, generator=g)
        y = place + noise if outputs == 1 else (place[:, None] > torch.tensor([2, 4])).float()
        part = Samples(images.contiguous(), y)
        clients[f"{index:02}"] = ClientData(part, part)
    kind: Any = "regression" if outputs == 1 else "multilabel"
    return OwnPopulation(clients, (1, 8, 8), outputs, Normalise(), kind=kind)


@pytest.mark.parametrize("outputs", [1, 2])
def test_groups_are_found_where_targets_are_no_classes(outputs: int) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    method = Embedding(encoder_rounds=10, flip=0.0, lr=0.01, epochs=1)
    result = run(method, turned(outputs), network, rounds=1, engine=EngineOptions(workers=1))
    assert result.clusters == [0] * 6 + [1] * 6
    one = run(replace(method, blocks=1), turned(outputs), network, rounds=1, engine=EngineOptions(workers=1))
    assert len(one.clusters or []) == 12, "one block sees less, and serves all the same"


@pytest.mark.parametrize(("rule", "length"), [("halves", 25), ("either", 27)])
def test_bad_embeddings_are_refused_by_name(rule: Any, length: int, rotated: LazyPopulation, file: str) -> None:
    class Cheat(Simulator):
        """Client 03 sends bytes of another length in the first round and set bits beyond the end later."""

        def ask(self, function, ids, **message):  # type: ignore[no-untyped-def]
            replies = super().ask(function, ids, **message)
            if function.__name__ not in ("embed", "embed_known"):
                return replies
            return Replies(replies.ids, Embedded(torch.zeros(len(replies.ids), 24, dtype=torch.uint8)), {})

    method = Embedding(encoder=file, rule=rule)
    fed = Cheat(method, Task.of(net, rotated), rotated, seed=0, options=EngineOptions(workers=1))
    assert method.init(fed).cluster == {}
    assert [client for _, client, _ in fed.failures][:40] == sorted(rotated.ids)
    assert fed.failures[3][2].kind == "refused"
    assert f"shape (24,) instead of ({length},)" in fed.failures[3][2].reason


def test_one_client_and_equal_clients(rotated: LazyPopulation, file: str) -> None:
    data = rotated.client("00")
    for names in (["a"], ["a", "b", "c"]):
        same = OwnPopulation(dict.fromkeys(names, data), rotated.shape, 10, rotated.normalise, {})
        result = run(Embedding(encoder=file, flip=0.0, epochs=1), same, net, rounds=1)
        assert result.clusters == [0] * len(names)


def test_the_report_shows_the_tree_and_what_the_server_can_draw(
    rotated: LazyPopulation, file: str, tmp_path: Path
) -> None:
    run(Embedding(encoder=file, **QUICK), rotated, net, rounds=1, out=tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("Ward tree", "can draw", "epsilon", "Share of bits"):
        assert words in page


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"flip": 0.6}, "flip is 0.6"),
        ({"flips": (("07", -1.0),)}, "client 07 is -1.0"),
        ({"pretraining": "public"}, "needs a public set"),
        ({"reembed": -1}, "reembed must be at least 0"),
        ({"encoder_lr": 0.0}, "encoder_lr must be above 0"),
        ({"encoder_steps": 0}, "encoder_steps must be at least 1"),
        ({"encoder_scale": -1.0}, "encoder_scale must be at least 0"),
    ],
)
def test_bad_settings(settings: dict[str, object], words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        Embedding(**settings)  # type: ignore[arg-type]
