"""What a reply must look like: the task and the question decide, not the client that answers first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.core import wire
from coterie.data.own import OwnPopulation
from coterie.deploy.flower.client import poll_pause

from ..tiny import made
from .wiring import Here, devices, federation, poisoned


def omitting(data: bytes, name: str) -> bytes:
    """A reply without one of its tensors, well-formed all the same."""
    import safetensors.torch

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = {key: tensor for key, tensor in safetensors.torch.load(data).items() if key != name}
    skeleton = json.loads(header["__metadata__"]["coterie"])
    del skeleton["model"][name.removeprefix("model/")]
    return safetensors.torch.save(tensors, metadata={"coterie": json.dumps(skeleton)})


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ifca", "fedcg"])
def test_the_task_decides_the_form_of_a_reply_not_the_first_client(
    method: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """Two clients, the first without one tensor: the honest one was refused, and the server died."""
    first, second = digits.ids[:2]

    def tamper(client: str, data: bytes) -> bytes:
        names = [name for name in wire.layout_of(data) if name.startswith("model/")]
        return omitting(data, names[0]) if client == first and names else data

    clients = Here({name: device for name, device in devices(digits, tmp_path).items() if name in (first, second)})
    learnt = replace(made(method), k=2) if method == "ifca" else made(method)
    fed = federation(learnt, digits, clients)
    state = learnt.init(fed)
    clients.tamper = tamper
    learnt.step(state, fed)
    assert {client for _, client, _ in fed.failures} == {first}
    assert "has not the tensors that it should have" in fed.failures[0][2].reason


def test_a_cluster_that_does_not_exist_is_refused(digits: OwnPopulation, tmp_path: Path) -> None:
    """Its number was an index into the server's models: one client could end the run with an IndexError."""
    odd = digits.ids[0]

    def tamper(client: str, data: bytes) -> bytes:
        return poisoned(data, lambda name, t: t + 10**6 if name == "cluster" else t) if client == odd else data

    learnt = made("ifca")
    fed = federation(learnt, digits, Here(devices(digits, tmp_path), tamper))
    learnt.step(learnt.init(fed), fed)
    assert {client for _, client, _ in fed.failures} == {odd}


def test_who_breaks_the_rules_twice_is_not_asked_for_a_while_and_everybody_is_told(
    digits: OwnPopulation, tmp_path: Path
) -> None:
    odd, asked, heard = digits.ids[0], list[int](), list[str]()

    def tamper(client: str, data: bytes) -> bytes:
        if client == odd:
            asked.append(fed.round)
        return data[:-9] if client == odd else data

    clients = Here(devices(digits, tmp_path), tamper)
    learnt = made("fedavg")
    fed = federation(learnt, digits, clients, note=heard.append)
    state = learnt.init(fed)
    for number in range(16):
        fed.begin(number)
        state, _ = learnt.step(state, fed)
        fed.commit()
    assert asked == [0, 1, 6, 15]  # twice; after a break of 4 rounds; after one of 8
    assert f"{odd} is not asked for 4 rounds, after 2 replies against the rules" in heard
    assert clients.told[0][0] == odd
    assert "you are not asked for 4 rounds" in clients.told[0][1]


def test_clients_ask_less_often_the_longer_nothing_comes() -> None:
    assert [poll_pause(idle) for idle in (0.0, 0.5, 2.0, 5.0, 10.0, 3600.0)] == [0.1, 0.1, 0.2, 0.5, 1.0, 1.0]
