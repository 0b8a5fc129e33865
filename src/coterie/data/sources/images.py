"""Folders of images: <class>/<image>, or <domain>/<class>/<image>."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.core.samples import Samples

from .files import corrupt, missing

_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})


@dataclass(frozen=True)
class ImageFolder:
    """What a folder of images held; `domain` is the number of each sample's domain (0 without that level)."""

    samples: Samples
    domain: torch.Tensor
    classes: tuple[str, ...]
    domains: tuple[str, ...]


def read_images(folder: Path, how: str, *, domains: bool, size: int | None = None, grey: bool = False) -> ImageFolder:
    """All images of a folder. Classes and domains are numbered in the order of their names.

    Without a size all images must have one size already.
    """
    if not folder.is_dir():
        raise missing("image folder", folder, how)
    tops = _folders(folder) if domains else [folder]
    found = [(path, d, path.parent.name) for d, top in enumerate(tops) for path in _images(top)]
    if not found:
        level = "<domain>/<class>/<image>" if domains else "<class>/<image>"
        raise missing(f"image laid out as {level}", folder, how)
    classes = sorted({name for _, _, name in found})
    number = {name: i for i, name in enumerate(classes)}
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # decoding releases the interpreter lock
        arrays = list(threads.map(lambda item: decode(item[0], how, size=size, grey=grey), found))
    for (path, _, _), array in zip(found, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise CoterieError(
                f"{path} is {array.shape[1]} x {array.shape[2]} pixels and {found[0][0].name} is "
                f"{arrays[0].shape[1]} x {arrays[0].shape[2]}; give one image size for all."
            )
    samples = Samples(torch.from_numpy(np.stack(arrays)), torch.tensor([number[name] for _, _, name in found]))
    domain = torch.tensor([d for _, d, _ in found])
    return ImageFolder(samples, domain, tuple(classes), tuple(top.name for top in tops))


def decode(path: Path, how: str, *, size: int | None, grey: bool) -> npt.NDArray[np.uint8]:
    """One image as uint8 [channels, height, width]."""
    try:
        with Image.open(path) as image:
            pixels = image.convert("L" if grey else "RGB")
            if size is not None and pixels.size != (size, size):
                pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
            array = np.array(pixels, np.uint8)
    except FileNotFoundError as problem:
        raise missing(path.name, path.parent, how) from problem
    except Exception as problem:  # Pillow has many ways to say "damaged", and libraries below it have more
        raise corrupt(path, str(problem) or type(problem).__name__, how) from problem
    return array[None] if grey else np.ascontiguousarray(array.transpose(2, 0, 1))


def has_domain_level(folder: Path) -> bool:
    """Whether the images lie two levels down (<domain>/<class>/) rather than one."""
    return any(_images(inner) for inner in _folders(folder))


def images_in(folder: Path) -> list[Path]:
    """The images of one client, in the order of their names: those of the folder, or of the folders inside it."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS) or _images(folder)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    """The images one level down, in the order of their names."""
    inside = (path for inner in _folders(folder) for path in sorted(inner.iterdir()))
    return [path for path in inside if path.suffix.lower() in _ENDINGS]
