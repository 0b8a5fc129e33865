"""The reconstruction attack, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.samples import Samples
from coterie.data import build
from coterie.data.sources.digits import LEVELS as GREYS
from coterie.methods.embedding.autoencoder import Encoder, fresh_encoder, load_encoder
from coterie.methods.embedding.method import Embedding
from coterie.methods.embedding.pretraining import read_public, train_on_public
from coterie.methods.fedavg import FedAvg
from coterie.models import build_model
from coterie.report.attack import (
    LEVELS,
    Reconstruction,
    add_to_report,
    autoencoder_of_run,
    picture,
    reconstruct,
)
from tests.conftest import Command


@pytest.fixture(scope="module")
def public() -> Samples:
    return read_public("digits", (1, 8, 8))


@pytest.fixture(scope="module")
def autoencoder(public: Samples) -> Encoder:
    return train_on_public(fresh_encoder((1, 8, 8), 1 / GREYS), public, epochs=20, lr=5e-3)


@pytest.fixture(scope="module")
def attacked(autoencoder: Encoder, public: Samples) -> Reconstruction:
    return reconstruct(autoencoder, Samples(public.x[:64], public.y[:64]))


@pytest.fixture(scope="module")
def folder(autoencoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of embedding, made as the command line makes it."""
    from coterie.runs.config import from_tables
    from coterie.runs.experiment import execute

    where = tmp_path_factory.mktemp("attacked")
    file = autoencoder.save(where / "encoder.safetensors")
    settings = {"encoder": str(file), "epochs": 1, "fraction": 0.1}
    execute(from_tables({"method": "embedding", "rounds": 1, "settings": settings}), where / "run")
    return where / "run"


def test_errors_grow_from_codes_to_bits_to_flipped_bits(attacked: Reconstruction) -> None:
    plain, *flipped = attacked.errors
    assert plain < attacked.mean_image / 2, "the decoder rebuilds images from their codes"
    assert plain < flipped[0] < flipped[2] < flipped[4]
    assert attacked.images.shape == (2 + len(LEVELS), 8, 1, 8, 8)


def test_without_flips_the_error_is_that_of_the_two_level_code(autoencoder: Encoder, public: Samples) -> None:
    """Bits decode as the least and the greatest number of the code."""
    one = Samples(public.x[:1], public.y[:1])
    code = autoencoder.codes(one)
    middle = (code.min() + code.max()) / 2
    expected = autoencoder.decode(torch.where(code > middle, code.max(), code.min()))
    found = reconstruct(autoencoder, one, levels=(0.0,), shown=1)
    assert torch.allclose(found.images[2, 0], expected[0], atol=1e-6)
    assert found.errors[1] == pytest.approx(float(((expected - one.x / GREYS) ** 2).mean()), rel=1e-5)


def test_the_table_sets_the_papers_mean_beside_ours(attacked: Reconstruction) -> None:
    """Table II is a sum over 8 images: 0.0175 / 8 = 0.0022."""
    rows = attacked.table(paper=True).rows
    assert rows[0][-1] == 0.0022
    assert rows[1][-1] == 0.088
    assert [row[0] for row in rows][1:3] == ["0% flipped", "5% flipped"]
    assert rows[3][2] == pytest.approx(2.2)
    assert len(attacked.table().columns) == 4


def test_an_attacker_who_has_learnt_from_images_does_better(autoencoder: Encoder, public: Samples) -> None:
    some, known = (Samples(public.x[part], public.y[part]) for part in (slice(64), slice(64, 900)))
    found = reconstruct(autoencoder, some, known=known, levels=(0.0, 0.2, 0.5))
    for plain, learnt in zip(found.errors[1:], found.learnt[1:], strict=True):
        assert learnt < plain
    assert found.learnt[1] < found.learnt[2] < found.mean_image, "a fifth of the bits flipped is no protection"
    assert found.learnt[3] == pytest.approx(found.mean_image, rel=0.1), "half of the bits flipped is"


def test_the_same_seed_flips_the_same_bits(autoencoder: Encoder, public: Samples) -> None:
    some = Samples(public.x[:5], public.y[:5])
    first, again, other = (reconstruct(autoencoder, some, seed=seed).errors for seed in (1, 1, 2))
    assert first == again
    assert first[1] == other[1]
    assert first[2:] != other[2:]


def test_refusals(autoencoder: Encoder, public: Samples, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="no image to attack"):
        reconstruct(autoencoder, Samples(public.x[:0], public.y[:0]))
    with pytest.raises(CoterieError, match="must lie in"):
        reconstruct(autoencoder, public, levels=(0.9,))
    with pytest.raises(CoterieError, match="not the folder of a run"):
        autoencoder_of_run(tmp_path)
    population = build("rotated-digits", seed=0, clients=4)
    run(FedAvg(epochs=1), population, lambda: build_model("digits-mlp", (1, 8, 8), 10), rounds=1, out=tmp_path / "r")
    with pytest.raises(CoterieError, match="a run of fedavg"):
        autoencoder_of_run(tmp_path / "r")


def test_pictures(attacked: Reconstruction, tmp_path: Path) -> None:
    with Image.open(picture(attacked.images, tmp_path / "grey.png")) as made:
        assert made.size == (8 * 64, 7 * 64)
    with Image.open(picture(attacked.images.expand(-1, -1, 3, -1, -1), tmp_path / "rgb.png", zoom=1)) as made:
        assert made.mode == "RGB"


def test_a_run_can_be_attacked_and_its_report_shows_it(coterie: Command, folder: Path) -> None:
    for _ in range(2):
        said = coterie("attack", "reconstruction", folder, "--images", 20)
        assert said.code == 0, said.err
    assert "no quantisation" in said.out
    assert (folder / "attack" / "reconstruction.png").is_file()
    titles = [panel["title"] for panel in json.loads((folder / "panels.json").read_text())]
    assert titles.count("Reconstruction from one sample's embedding") == 1, "attacked twice, shown once"
    assert "Ward tree" in " ".join(titles)
    assert "what the decoder makes of" in (folder / "report.html").read_text()


def test_panels_can_be_added_to_a_run_without_any(attacked: Reconstruction, folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "panels.json").unlink()
    assert "flipped" in add_to_report(copy, attacked.panels()).read_text()


def test_an_encoder_can_be_taken_from_a_run_and_attacked(coterie: Command, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "encoder.safetensors"
    assert coterie("encoder", file, "--run", folder).code == 0
    assert load_encoder(file, (1, 8, 8)).architecture == "autoencoder-fc"
    said = coterie(
        "attack", "reconstruction", "--encoder", file, "--scenario", "rotated-digits", "--levels", "0,0.5",
        "--images", 5, "--client", "07", "--out", tmp_path / "out",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "50% flipped" in said.out
    assert (tmp_path / "out" / "reconstruction.png").is_file()


def test_an_encoder_can_be_trained_on_a_public_set(coterie: Command, tmp_path: Path) -> None:
    file = tmp_path / "public.safetensors"
    said = coterie("encoder", file, "--public", "digits", "--scenario", "rotated-digits", "--epochs", 1)
    assert said.code == 0, said.err
    method = Embedding(encoder=str(file))
    assert method.encoder == str(file)
    assert load_encoder(file, (1, 8, 8)).scale == 1 / GREYS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attack", "reconstruction"], "Name the folder of an embedding run"),
        (["attack", "reconstruction", "nowhere"], "not the folder of a run"),
        (["attack", "reconstruction", "nowhere", "--encoder", "x"], "Name the folder of an embedding run"),
        (["attack", "reconstruction", "--encoder", "x"], "needs a --scenario"),
        (["attack", "reconstruction", "--encoder", "x", "--scenario", "rotated-digits"], "cannot be read"),
        (["attack", "reconstruction", "nowhere", "--images", "0"], "at least 1"),
        (["encoder", "file"], "--run FOLDER or --public NAME"),
        (["encoder", "file", "--public", "nothing", "--scenario", "rotated-digits"], "public set"),
    ],
)
def test_bad_commands_say_what_to_do(coterie: Command, arguments: list[str], words: str) -> None:
    said = coterie(*arguments)
    assert said.code == 2
    assert words in said.err


def test_bad_levels(coterie: Command, folder: Path) -> None:
    said = coterie("attack", "reconstruction", folder, "--levels", "much")
    assert said.code == 2
    assert "numbers joined by commas" in said.err
