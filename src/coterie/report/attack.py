"""The reconstruction attack (section VI-B): what the decoder makes of the embeddings that clients send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.panels import Panel, Table, image_grid, load_panels, save_panels
from coterie.core.rng import rng
from coterie.core.samples import Population, Samples
from coterie.methods.embedding.autoencoder import Encoder
from coterie.methods.embedding.bits import binarise, flip
from coterie.methods.embedding.messages import EmbeddedClusters
from coterie.methods.embedding.method import Embedding
from coterie.methods.embedding.privacy import check_flip, epsilon_per_bit
from coterie.report.html import write_run_report

LEVELS = (0.0, 0.05, 0.10, 0.15, 0.20)
"""Flip probabilities of the paper's Table II."""
_PAPER = (0.0175, 0.7039, 0.8040, 0.9075, 0.9811, 1.0765)
"""Its numbers, for no quantisation and for these levels: sums over 8 CIFAR images of their mean squared errors."""
_PAPER_IMAGES = 8
_SHOWN_SIZE = 64
"""Pixels to which small images are enlarged in a picture."""


@dataclass(frozen=True)
class Reconstruction:
    """Originals and what was made of them. Rows of `images`: originals, without quantisation, then by level."""

    levels: tuple[float, ...]
    images: Tensor
    errors: tuple[float, ...]
    """Mean squared error without quantisation, then at every level."""
    mean_image: float
    """The error of always guessing the mean image: an attack above it learns nothing about the single image."""
    learnt: tuple[float, ...] = ()
    """The same as `errors` for an attacker who learns to undo the bits from images of its own; empty if it has none."""

    def table(self, *, paper: bool = False) -> Table:
        """The errors, per image; with `paper` beside the published sums over 8 images, divided by 8."""
        names = ["no quantisation", *(f"{level:.0%} flipped" for level in self.levels)]
        published = dict(zip(("no quantisation", *(f"{level:.0%} flipped" for level in LEVELS)), _PAPER, strict=True))
        columns = ["what the server sees", "mean squared error", "epsilon per bit"]
        learnt = self.learnt or (None,) * len(self.errors)
        rows: list[list[str | float | None]] = []
        for name, level, error, better in zip(names, (None, *self.levels), self.errors, learnt, strict=True):
            strength = None if not level else round(epsilon_per_bit(level), 2)
            rows.append([name, round(error, 4), strength, None if better is None else round(better, 4)])
            if paper:
                rows[-1].append(round(published[name] / _PAPER_IMAGES, 4) if name in published else None)
        chance = round(self.mean_image, 4)
        rows.append(["nothing (the mean image)", chance, 0.0, chance, *([None] if paper else [])])
        columns += ["attacker who has learnt from images", *(["paper"] if paper else [])]
        return Table("Reconstruction from one sample's embedding", columns, rows)

    def panels(self) -> list[Panel]:
        """The picture of originals and reconstructions, and the table of errors."""
        rows = ["original", "no quantisation", *(f"{level:.0%} flipped" for level in self.levels)]
        return [self.table(), image_grid("Originals and what the decoder makes of their embeddings", self.images, rows)]


def reconstruct(
    autoencoder: Encoder,
    samples: Samples,
    *,
    levels: Sequence[float] = LEVELS,
    known: Samples | None = None,
    shown: int = 8,
    seed: int = 0,
) -> Reconstruction:
    """Attack the worst case: a class with a single sample, whose embedding is then that sample's own code.

    The server knows the decoder and, which makes the attack stronger than what it really sees, the least and greatest
    number of each code: bits are decoded as these two numbers. With `known` images, which need not be the clients', a
    second attacker fits a linear map from flipped bits to images, which is better than the decoder.
    """
    if not len(samples):
        raise CoterieError("There is no image to attack; choose a client that has some.")
    for level in levels:
        check_flip(level)
    codes = autoencoder.codes(samples).float()
    originals = samples.x.float() * autoencoder.scale
    low, high = codes.min(1, keepdim=True).values, codes.max(1, keepdim=True).values
    sent = [_sent(codes, level, seed, "attacked") for level in levels]
    rebuilt = [autoencoder.decode(codes), *(autoencoder.decode(torch.where(bits > 0, high, low)) for bits in sent)]
    errors = [float(((image - originals) ** 2).mean()) for image in rebuilt]
    chance = float(((originals.mean(0, keepdim=True) - originals) ** 2).mean())
    learnt: list[float] = []
    if known is not None and len(known):
        own, target = autoencoder.codes(known).float(), known.x.float() * autoencoder.scale
        seen = [
            (own, codes),
            *((_sent(own, level, seed, "known"), bits) for level, bits in zip(levels, sent, strict=True)),
        ]
        learnt = [_undone(features, target, attacked, originals) for features, attacked in seen]
    images = torch.stack([part[:shown] for part in (originals, *rebuilt)])
    return Reconstruction(tuple(levels), images, tuple(errors), chance, tuple(learnt))


def _sent(codes: Tensor, level: float, seed: int, whose: str) -> Tensor:
    """The bits of codes as clients send them, [n, code]."""
    bits = [flip(binarise(code[None]), level, rng(seed, whose, f"{level:g}", i)) for i, code in enumerate(codes)]
    return torch.from_numpy(np.stack(bits)).float()


def _undone(known: Tensor, images: Tensor, attacked: Tensor, originals: Tensor) -> float:
    """The error of a ridge regression from what is sent to images, fitted on the known ones."""
    mean, target = known.mean(0), images.flatten(1)
    x = (known - mean).double()
    penalty = x.square().mean() * len(x) ** 0.5
    weights = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]), x.T @ (target - target.mean(0)).double())
    guess = target.mean(0) + (attacked - mean).double() @ weights
    return float(((guess - originals.flatten(1)) ** 2).mean())


def known_images(population: Population, ids: Sequence[str], most: int = 2000) -> Samples:
    """Images of other clients, in place of the public ones that an attacker may have."""
    parts: list[Samples] = []
    for client in ids:
        if sum(map(len, parts)) >= most:
            break
        parts.append(population.client(client).train)
    return Samples(torch.cat([p.x for p in parts])[:most], torch.cat([p.y for p in parts])[:most])


def autoencoder_of_run(folder: Path) -> Encoder:
    """The autoencoder that an `embedding` run used, from its checkpoint."""
    latest = folder / "checkpoint" / "latest.json"
    try:
        progress = json.loads(latest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CoterieError(f"{folder} is not the folder of a run: it has no readable checkpoint ({error}).") from error
    if progress.get("method") != Embedding.name:
        raise CoterieError(
            f"{folder} is a run of {progress.get('method')}, which has no autoencoder; take one of embedding."
        )
    data = (latest.parent / str(progress["state"])).read_bytes()
    return wire.decode(data, EmbeddedClusters, header_limit=wire.OWN_HEADER_LIMIT).autoencoder


def add_to_report(folder: Path, panels: Sequence[Panel]) -> Path:
    """Put panels into the report of a finished run, in place of earlier ones with the same titles."""
    file = folder / "panels.json"
    titles = {panel.title for panel in panels}
    kept = [panel for panel in load_panels(file) if panel.title not in titles] if file.is_file() else []
    save_panels(file, [*kept, *panels])
    return write_run_report(folder)


def picture(images: Tensor, path: Path, *, zoom: int = 0) -> Path:
    """Rows of images in [0, 1], [rows, columns, channels, height, width], as one PNG; small ones enlarged."""
    rows, columns, channels, height, width = images.shape
    sheet = images.clamp(0, 1).permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    pixels = (sheet * 255).round().to(torch.uint8).numpy()
    made = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    zoom = zoom or max(1, _SHOWN_SIZE // height)
    made.resize((made.width * zoom, made.height * zoom), Image.Resampling.NEAREST).save(path)
    return path
