"""Own data between machines: labels in words, columns, and a normalisation by feature, all agreed by telling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.samples import kind_of, target_scale_of
from coterie.data import from_path
from coterie.data.agreed import Terms, agreed
from coterie.data.folders import from_file
from coterie.deploy.boundary import checked
from coterie.deploy.client import Device
from coterie.deploy.consent import Consent
from coterie.deploy.fitting import unlike
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import RunSpec, to_text
from coterie.runs.config import from_tables
from coterie.runs.spec import agree, common_schema, odd_ones

CONFIG = from_tables({"method": "fedavg", "model": "mlp", "scenario": {"data": "own"}})


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    g = np.random.default_rng(0)
    for name, words in (("a", ["ill", "well"]), ("b", ["dead", "well"]), ("c", ["ill", "well"])):
        rows = "".join(f"{g.normal(50, 20):.4f},{g.normal(2e4, 7):.4f},{words[i % 2]}\n" for i in range(20))
        (tmp_path / f"{name}.csv").write_text(f"age,steps,y\n{rows}")
    return tmp_path


def device(wards: Path, name: str, *refuse: str) -> Device:
    consent = Consent(frozenset(refuse))
    return Device(name, from_file(wards / f"{name}.csv", name), wards / "memory" / name, consent=consent)


def hellos(wards: Path) -> dict[str, Hello]:
    return {name: checked(Hello, to_text(device(wards, name).hello)) for name in "abc"}


def test_all_agree_on_the_words_and_number_them_alike(wards: Path) -> None:
    """Alone, "well" is class 1 of a and of b; of dead, ill, well it is class 2 for both."""
    spec = agree(CONFIG, hellos(wards))
    assert spec.class_names == ("dead", "ill", "well")
    assert spec.classes == 3
    for name in "ab":
        alone = from_file(wards / f"{name}.csv", name)
        together = agreed(alone, spec.terms)
        assert set(together.client(name).train.y.tolist()) == ({1, 2} if name == "a" else {0, 2})
        assert torch.equal(together.client(name).train.y == 2, alone.client(name).train.y == 1)
    schema = common_schema(spec, hellos(wards)["a"])
    assert [column.name for column in schema.columns] == ["age", "steps"]


def test_the_normalisation_is_that_of_the_simulator(wards: Path) -> None:
    spec = agree(CONFIG, hellos(wards))
    simulated = from_path(wards).normalise
    assert len(spec.normalise.mean) == 2
    assert spec.normalise.mean == pytest.approx(simulated.mean, rel=1e-9)
    assert spec.normalise.std == pytest.approx(simulated.std, rel=1e-9)


def test_a_device_may_refuse_to_tell_its_features(wards: Path) -> None:
    """It then tells one mean of all numbers, and the others' features decide."""
    quiet = device(wards, "b", "features").hello
    assert len(quiet.mean) == 1
    spec = agree(CONFIG, {**hellos(wards), "b": quiet})
    assert len(spec.normalise.mean) == 2


def test_other_columns_and_labels_in_numbers_are_odd(wards: Path) -> None:
    (wards / "d.csv").write_text("steps,weight,y\n" + "".join(f"{i},{i},well\n" for i in range(5)))
    (wards / "e.csv").write_text("age,steps,y\n" + "".join(f"{i},{i},{i % 2}\n" for i in range(5)))
    there = {**hellos(wards), **{name: device(wards, name).hello for name in "de"}}
    odd = odd_ones(CONFIG, there)
    assert sorted(odd) == ["d", "e"]
    assert "columns" in odd["d"]
    assert "labels are numbers" in odd["e"]
    words = Terms("binary", 2, ("ill", "well"))
    with pytest.raises(CoterieError, match="labels here are numbers and those of the run are words"):
        agreed(from_file(wards / "e.csv", "e"), words)
    with pytest.raises(CoterieError, match="has the label 'dead', which is none of the 2 classes"):
        agreed(from_file(wards / "b.csv", "b"), words)


def as_simulated(folder: Path, **options: Any) -> RunSpec:
    """What the clients of a folder agree on, once their inputs, targets and scales are those of the simulator."""
    simulated = from_path(folder, **options)
    alone = {name: from_file(folder / f"{name}.csv", name, **options) for name in simulated.ids}
    devices = {name: Device(name, data, folder / "memory") for name, data in alone.items()}
    spec = agree(CONFIG, {name: checked(Hello, to_text(device.hello)) for name, device in devices.items()})
    assert (spec.shape, spec.classes, spec.kind) == (simulated.shape, simulated.classes, kind_of(simulated))
    assert spec.normalise.mean == pytest.approx(simulated.normalise.mean, rel=1e-7, abs=1e-12)
    assert spec.normalise.std == pytest.approx(simulated.normalise.std, rel=1e-7)
    scale = target_scale_of(simulated)
    assert (spec.target_scale is None) == (scale is None)
    if scale is not None:
        assert spec.target_mean == pytest.approx(scale.mean, rel=1e-9)
        assert spec.target_std == pytest.approx(scale.std, rel=1e-9)
    for name, data in alone.items():
        here, there = agreed(data, spec.terms).client(name), simulated.client(name)
        for part, same in ((here.train, there.train), (here.test, there.test)):
            assert torch.allclose(part.x, same.x, rtol=1e-6)
            assert torch.equal(part.y, same.y)
    return spec


def test_columns_of_text_become_the_inputs_of_all_clients_words(tmp_path: Path) -> None:
    """Ann has Rome and Ulm, Bob Bern and Ulm, Cyd other columns first: [Bern, Rome, Ulm] and the age for all."""
    write(tmp_path, "ann", "town,age,y", ["Rome,50,1", "Ulm,60,0", "Rome,70,1", "Ulm,90,0"] * 3)
    write(tmp_path, "bob", "town,age,y", ["Bern,10,0", "Ulm,20,1", "Bern,35,0"] * 4)
    write(tmp_path, "cyd", "age,y,town", ["44,1,Rome", "46,0,Rome"] * 4)
    spec = as_simulated(tmp_path, normalise="standard")
    assert [(c.name, c.words) for c in spec.columns] == [("town", ("Bern", "Rome", "Ulm")), ("age", ())]
    assert common_schema(spec, device(tmp_path, "ann").hello).columns[0].categories == ("Bern", "Rome", "Ulm")
    late = device(tmp_path, "bob").hello
    assert unlike(late, spec) == ""
    assert "columns" in unlike(replace(late, columns=late.columns[:1], shape=(2,), mean=(0.0,), deviation=(0.0,)), spec)
    quiet = device(tmp_path, "bob", "features").hello  # its words are data, which it need not tell
    assert checked(Hello, to_text(quiet)).columns[0].words == ()
    both = agree(CONFIG, {"ann": device(tmp_path, "ann").hello, "bob": quiet})
    assert both.columns[0].words == ("Rome", "Ulm")


def test_missing_numbers_are_the_mean_of_all_clients(tmp_path: Path) -> None:
    write(tmp_path, "ann", "a,b,y", ["1,5,0", ",6,1", "3,,1", "10,9,0"] * 4)
    write(tmp_path, "bob", "a,b,y", ["100,5,0", ",60,1", "300,7,1"] * 5)
    spec = as_simulated(tmp_path, missing="mean", normalise="standard")
    assert all(column.known for column in spec.columns)


def test_whole_numbers_are_labels_of_all_clients_together(tmp_path: Path) -> None:
    """Bob has no class 0: alone, 1 and 2 are names to him. With Cyd's -1 they are names to all."""
    write(tmp_path, "ann", "a,y", ["1,0", "2,1", "3,2"] * 4)
    write(tmp_path, "bob", "a,y", ["1,1", "2,2"] * 5)
    assert as_simulated(tmp_path).class_names == ()
    assert unlike(device(tmp_path, "bob").hello, as_simulated(tmp_path)) == ""
    write(tmp_path, "cyd", "a,y", ["1,-1", "2,2"] * 5)
    assert as_simulated(tmp_path).class_names == ("-1", "0", "1", "2")
    assert "the label '9'" in unlike(replace(device(tmp_path, "bob").hello, names=("1", "9")), as_simulated(tmp_path))


def test_targets_that_are_numbers_have_the_simulators_scale(tmp_path: Path) -> None:
    """Prices around a million, which lie close together."""
    g = np.random.default_rng(2)
    for name in ("ann", "bob", "cyd"):
        x = g.normal(size=15)
        write(tmp_path, name, "a,y", [f"{v:.4f},{1e6 + 0.5 * v + ord(name[0]):.5f}" for v in x])
    spec = as_simulated(tmp_path)
    assert spec.kind == "regression"
    quiet = device(tmp_path, "ann", "labels").hello
    assert quiet.target_mean == ()
    assert agree(CONFIG, {"ann": quiet, "bob": device(tmp_path, "bob").hello}).target_scale is not None
    write(tmp_path, "dan", "a,y", ["1,0", "2,1", "3,1"] * 3)
    odd = odd_ones(CONFIG, {name: device(tmp_path, name).hello for name in ("ann", "bob", "dan")})
    assert odd == {
        "dan": "its targets are those of classification, the run is about regression: if they can be that, join with "
        "--set task=regression"
    }
    two = replace(device(tmp_path, "cyd").hello, classes=2, target_mean=(), target_deviation=())
    assert "2 targets a sample" in odd_ones(CONFIG, {"ann": quiet, "bob": device(tmp_path, "bob").hello, "c": two})["c"]


def write(folder: Path, name: str, head: str, lines: list[str]) -> None:
    (folder / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
