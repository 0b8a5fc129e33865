"""How the autoencoder is pre-trained: on a public set, by FedAvg over the clients' data, or (ours) by both in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.aggregate import combined_one
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, unknown
from coterie.core.federation import Federation, draw_clients
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData, Samples
from coterie.core.states import row, spread
from coterie.core.training import local_sgd
from coterie.data.datasets import DATASETS, data_root, load
from coterie.data.sources.images import read_images
from coterie.methods.embedding.autoencoder import Encoder, load_encoder
from coterie.methods.embedding.messages import Compression

if TYPE_CHECKING:
    from coterie.methods.embedding.method import Embedding


def pretrained(method: Embedding, fed: Federation) -> Encoder:
    """The autoencoder that clients will embed with: from a file, or trained as `pretraining` says."""
    shape = tuple(fed.task.shape)
    if method.encoder:
        autoencoder = load_encoder(method.encoder, shape)
        return train_federated(method, autoencoder, fed) if method.pretraining == "hybrid" else autoencoder
    autoencoder = method.fresh(fed.task, fed.seed)
    if method.pretraining != "federated":
        autoencoder = train_on_public(
            autoencoder,
            read_public(method.public, shape, method.public_root or None),
            epochs=method.public_epochs,
            lr=method.encoder_lr,
            batch=method.encoder_batch,
            seed=fed.seed,
        )
    return train_federated(method, autoencoder, fed) if method.pretraining != "public" else autoencoder


def train_federated(method: Embedding, autoencoder: Encoder, fed: Federation) -> Encoder:
    """FedAvg of the autoencoder over the clients' own data."""
    for turn in range(method.encoder_rounds):
        drawn = draw_clients(fed.ids, method.encoder_fraction, fed.rng("compressing clients", turn))
        value = fed.ask(method.compress, drawn, same=Compression(autoencoder, turn)).value
        if value is not None:
            trained = combined_one(method.aggregate, value.autoencoder.models, value.size, autoencoder.state)
            autoencoder = replace(autoencoder, state=trained)
    return autoencoder


def train_on_public(
    encoder: Encoder, samples: Samples, *, epochs: int = 20, lr: float = 1e-3, batch: int = 32, seed: int = 0
) -> Encoder:
    """Centralised pre-training: a public set is a single client."""
    if tuple(samples.x.shape[1:]) != encoder.shape:
        raise CoterieError(
            f"The public images have shape {tuple(samples.x.shape[1:])} and the clients' {encoder.shape}; "
            "resize them, or choose another public set."
        )
    task = encoder.task()
    public = Cohort(("public",), task, (ClientData(samples, samples),), seed=seed)
    trained = local_sgd(public, spread(encoder.state, 1), Optimiser(epochs, batch, lr, kind="adam"))
    return replace(encoder, state={name: part.clone() for name, part in row(trained, 0).items()})


def read_public(source: str, shape: tuple[int, ...], root: str | None = None) -> Samples:
    """A public set at the clients' image size: a dataset's name, or a folder of images in folders by class."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise CoterieError(
            f"Public sets are square images and the clients' inputs are {tuple(shape)}; train federated."
        )
    grey = shape[0] == 1
    if source in DATASETS:
        return load(source, data_root(root), 0, image_size=shape[1], grey=grey).train
    if Path(source).is_dir():
        return read_images(Path(source), "put images there", domains=False, size=shape[1], grey=grey).samples
    raise unknown("public set (nor folder)", source, DATASETS)
