"""Autoencoders: their lengths, their training, their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coterie import kernel
from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.samples import Samples
from coterie.core.wire import WireError
from coterie.data.sources.digits import LEVELS, read_digits
from coterie.kernel.bridge import KernelTask
from coterie.methods.embedding.autoencoder import Encoder, default_architecture, fresh_encoder, load_encoder
from coterie.methods.embedding.pretraining import read_public, train_on_public


@pytest.mark.parametrize(
    ("shape", "classes", "length"),
    [((1, 28, 28), 10, 200), ((1, 28, 28), 62, 1240), ((3, 32, 32), 10, 7680), ((3, 64, 64), 7, 21504)],
)
def test_lengths_of_embeddings(shape: tuple[int, ...], classes: int, length: int) -> None:
    assert fresh_encoder(shape, 1 / 255).code * classes == length


def test_the_papers_choice_by_input() -> None:
    assert default_architecture((3, 32, 32)) == "autoencoder-conv"
    for shape in ((1, 28, 28), (3, 30, 30), (17,)):
        assert default_architecture(shape) == "autoencoder-fc"


@pytest.fixture(scope="module")
def public() -> Samples:
    """The embedded digits as a public set."""
    found = read_digits()
    return Samples(found.x[:400], found.y[:400])


@pytest.fixture(scope="module")
def trained(public: Samples) -> Encoder:
    return train_on_public(fresh_encoder((1, 8, 8), 1 / LEVELS), public, epochs=15, lr=5e-3)


def test_training_on_public_data_rebuilds_images(trained: Encoder, public: Samples) -> None:
    images = public.x / LEVELS
    before, after = (
        float(((each.decode(each.codes(public)) - images) ** 2).mean())
        for each in (fresh_encoder((1, 8, 8), 1 / LEVELS), trained)
    )
    assert after < before / 3


@pytest.mark.skipif(kernel.why_not() is not None, reason="no compiled kernel here")
def test_the_fully_connected_one_is_trained_by_the_kernel(trained: Encoder) -> None:
    assert isinstance(trained.task().compiled, KernelTask)


def test_encoding_does_not_change_batch_normalisation() -> None:
    encoder = fresh_encoder((3, 8, 8), 1.0)
    samples = Samples(
        torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(6, dtype=torch.int64)
    )
    together = encoder.codes(samples)
    alone = torch.cat([encoder.codes(samples.take(torch.tensor([i]))) for i in range(6)])
    assert torch.allclose(together, alone, atol=1e-6), "a sample's code must not depend on its batch"
    assert torch.equal(encoder.codes(samples), together)


def test_files_come_back_and_the_half_has_no_decoder(trained: Encoder, public: Samples, tmp_path: Path) -> None:
    path = trained.save(tmp_path / "deep" / "encoder.safetensors")
    again = load_encoder(path, (1, 8, 8))
    assert torch.equal(again.codes(public), trained.codes(public))
    assert again.scale == trained.scale
    assert {name.partition(".")[0] for name in trained.half.state} == {"encoder"}
    assert torch.equal(trained.half.codes(public), trained.codes(public))
    with pytest.raises(CoterieError, match="has no decoder"):
        trained.half.decode(torch.zeros(1, 20))


def test_bad_files_are_refused(trained: Encoder, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="cannot be read"):
        load_encoder(tmp_path / "none", (1, 8, 8))
    path = trained.save(tmp_path / "encoder")
    with pytest.raises(CoterieError, match=r"shape \(1, 8, 8\) and the data have \(1, 28, 28\)"):
        load_encoder(path, (1, 28, 28))
    with pytest.raises(CoterieError, match="not those of autoencoder-fc"):
        load_encoder(trained.half.save(tmp_path / "half"), (1, 8, 8))
    with pytest.raises(CoterieError, match="no autoencoder 'other'"):
        load_encoder(replace(trained, architecture="other").save(tmp_path / "other"), (1, 8, 8))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WireError):
        load_encoder(path, (1, 8, 8))
    with pytest.raises(CoterieError, match="cannot be written"):
        trained.save(path / "below")


def test_the_message_to_clients_is_half_the_file(trained: Encoder) -> None:
    assert wire.encoded_size(trained.half) < 0.55 * wire.encoded_size(trained)


def test_public_sets_by_name_and_by_folder(trained: Encoder, tmp_path: Path) -> None:
    digits = read_public("digits", (1, 8, 8))
    assert tuple(digits.x.shape[1:]) == (1, 8, 8)
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((20, 20, 3), 7, np.uint8)).save(tmp_path / "a" / "one.png")
    assert tuple(read_public(str(tmp_path), (1, 8, 8)).x.shape) == (1, 1, 8, 8)
    with pytest.raises(CoterieError, match="did you mean 'fashion-mnist'"):
        read_public("fashon-mnist", (1, 8, 8))
    with pytest.raises(CoterieError, match="square images"):
        read_public("digits", (12,))
    with pytest.raises(CoterieError, match="public images have shape"):
        train_on_public(trained, Samples(torch.zeros(1, 3, 8, 8), torch.zeros(1)))
    with pytest.raises(CoterieError, match="no autoencoder"):
        fresh_encoder((1, 8, 8), 1.0, architecture="mlp")
