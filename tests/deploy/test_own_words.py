"""Own data between machines: labels in words, columns, and a normalisation by feature, all agreed by telling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import from_path
from coterie.data.folders import from_file
from coterie.data.own import agreed_labels
from coterie.deploy.boundary import checked
from coterie.deploy.client import Device
from coterie.deploy.consent import Consent
from coterie.deploy.protocol import Hello, to_text
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
        together = agreed_labels(alone, spec.class_names)
        assert set(together.client(name).train.y.tolist()) == ({1, 2} if name == "a" else {0, 2})
        assert torch.equal(together.client(name).train.y == 2, alone.client(name).train.y == 1)
    schema = common_schema(spec, hellos(wards)["a"])
    assert [column.name for column in schema.columns] == ["age", "steps"]


def test_the_normalisation_is_that_of_the_simulator(wards: Path) -> None:
    spec = agree(CONFIG, hellos(wards))
    simulated = from_path(wards).normalise
    assert len(spec.normalise.mean) == 2
    assert spec.normalise.mean == pytest.approx(simulated.mean, rel=1e-9)
    assert spec.normalise.std == pytest.approx(simulated.std, rel=1e-4)


def test_a_device_may_refuse_to_tell_its_features(wards: Path) -> None:
    """It then tells one mean of all numbers, and the others' features decide."""
    quiet = device(wards, "b", "features").hello
    assert len(quiet.mean) == 1
    spec = agree(CONFIG, {**hellos(wards), "b": quiet})
    assert len(spec.normalise.mean) == 2


def test_other_columns_and_labels_in_numbers_are_odd(wards: Path) -> None:
    (wards / "d.csv").write_text("steps,age,y\n" + "".join(f"{i},{i},well\n" for i in range(5)))
    (wards / "e.csv").write_text("age,steps,y\n" + "".join(f"{i},{i},{i % 2}\n" for i in range(5)))
    there = {**hellos(wards), **{name: device(wards, name).hello for name in "de"}}
    odd = odd_ones(CONFIG, there)
    assert sorted(odd) == ["d", "e"]
    assert "columns" in odd["d"]
    assert "labels are numbers" in odd["e"]
    with pytest.raises(CoterieError, match="labels here are numbers and those of the run are words"):
        agreed_labels(from_file(wards / "e.csv", "e"), ("ill", "well"))
    with pytest.raises(CoterieError, match="has the label 'dead', which is none of the 2 classes"):
        agreed_labels(from_file(wards / "b.csv", "b"), ("ill", "well"))
