"""A population and an autoencoder that several tests of embeddings share."""

from __future__ import annotations

import pytest

from coterie.data import build
from coterie.data.population import LazyPopulation
from coterie.data.sources.digits import LEVELS
from coterie.methods.embedding.autoencoder import Encoder, fresh_encoder
from coterie.methods.embedding.pretraining import read_public, train_on_public


@pytest.fixture(scope="session")
def rotated() -> LazyPopulation:
    return build("rotated-digits", seed=0)


@pytest.fixture(scope="session")
def autoencoder() -> Encoder:
    """Trained on the embedded digits as they are, unrotated: a public set."""
    blank = fresh_encoder((1, 8, 8), 1 / LEVELS)
    return train_on_public(blank, read_public("digits", (1, 8, 8)), epochs=20, lr=5e-3)


@pytest.fixture(scope="session")
def file(autoencoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(autoencoder.save(tmp_path_factory.mktemp("encoder") / "digits.safetensors"))
