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

from coterie import wire
from coterie.clustering.autoencoder import Encoder
from coterie.clustering.embed import binarise, flip
from coterie.clustering.privacy import check_flip, epsilon_per_bit
from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.methods.embedding import Embedding, Groups
from coterie.report.html import write_run_report
from coterie.report.panels import Panel, Table, image_grid, load_panels, save_panels
from coterie.rng import rng

LEVELS = (0.0, 0.05, 0.10, 0.15, 0.20)
"""Flip probabilities of the paper's Table II."""
_PAPER = (0.0175, 0.7039, 0.8040, 0.9075, 0.9811, 1.0765)
"""Its numbers, for no quantisation and for these levels: sums over 8 CIFAR images of their mean squared errors."""
_PAPER_IMAGES = 8


@dataclass(frozen=True)
class Reconstruction:
    """Originals and what was made of them. Rows of `images`: originals, without quantisation, then by level."""

    levels: tuple[float, ...]
    images: Tensor
    errors: tuple[float, ...]
    """Mean squared error without quantisation, then at every level."""
    mean_image: float
    """The error of always guessing the mean image: an attack above it learns nothing about the single image."""

    def table(self, *, paper: bool = False) -> Table:
        """The errors, per image; with `paper` beside the published sums over 8 images, divided by 8."""
        names = ["no quantisation", *(f"{level:.0%} flipped" for level in self.levels)]
        published = dict(zip(("no quantisation", *(f"{level:.0%} flipped" for level in LEVELS)), _PAPER, strict=True))
        columns = ["what the server sees", "mean squared error", "epsilon per bit"]
        rows: list[list[str | float | None]] = []
        for name, level, error in zip(names, (None, *self.levels), self.errors, strict=True):
            strength = None if not level else round(epsilon_per_bit(level), 2)
            rows.append([name, round(error, 4), strength])
            if paper:
                rows[-1].append(round(published[name] / _PAPER_IMAGES, 4) if name in published else None)
        rows.append(["nothing (the mean image)", round(self.mean_image, 4), 0.0, *([None] if paper else [])])
        return Table("Reconstruction from one sample's embedding", columns + ["paper"] * paper, rows)

    def panels(self) -> list[Panel]:
        """The picture of originals and reconstructions, and the table of errors."""
        rows = ["original", "no quantisation", *(f"{level:.0%} flipped" for level in self.levels)]
        return [self.table(), image_grid("Originals and what the decoder makes of their embeddings", self.images, rows)]


def reconstruct(
    autoencoder: Encoder, samples: Samples, *, levels: Sequence[float] = LEVELS, shown: int = 8, seed: int = 0
) -> Reconstruction:
    """Attack the worst case: a class with a single sample, whose embedding is then that sample's own code.

    The server knows the decoder and, which makes the attack stronger than what it really sees, the least and greatest
    number of each code: bits are decoded as these two numbers.
    """
    if not len(samples):
        raise CoterieError("There is no image to attack; choose a client that has some.")
    for level in levels:
        check_flip(level)
    codes = autoencoder.codes(samples).float()
    originals = samples.x.float() * autoencoder.scale
    low, high = codes.min(1, keepdim=True).values, codes.max(1, keepdim=True).values
    bits = torch.from_numpy(np.stack([binarise(code[None]) for code in codes]))
    rebuilt = [autoencoder.decode(codes)]
    for level in levels:
        sent = np.stack([flip(own, level, rng(seed, "attack", f"{level:g}", i)) for i, own in enumerate(bits.numpy())])
        rebuilt.append(autoencoder.decode(torch.where(torch.from_numpy(sent) > 0, high, low)))
    errors = [float(((image - originals) ** 2).mean()) for image in rebuilt]
    chance = float(((originals.mean(0, keepdim=True) - originals) ** 2).mean())
    images = torch.stack([part[:shown] for part in (originals, *rebuilt)])
    return Reconstruction(tuple(levels), images, tuple(errors), chance)


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
    return wire.decode((latest.parent / str(progress["state"])).read_bytes(), Groups).autoencoder


def add_to_report(folder: Path, panels: Sequence[Panel]) -> Path:
    """Put panels into the report of a finished run, in place of earlier ones with the same titles."""
    file = folder / "panels.json"
    titles = {panel.title for panel in panels}
    kept = [panel for panel in load_panels(file) if panel.title not in titles] if file.is_file() else []
    save_panels(file, [*kept, *panels])
    return write_run_report(folder)


def picture(images: Tensor, path: Path, *, zoom: int = 2) -> Path:
    """Rows of images in [0, 1], [rows, columns, channels, height, width], as one PNG."""
    rows, columns, channels, height, width = images.shape
    sheet = images.clamp(0, 1).permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    pixels = (sheet * 255).round().to(torch.uint8).numpy()
    made = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    made.resize((made.width * zoom, made.height * zoom), Image.Resampling.NEAREST).save(path)
    return path
