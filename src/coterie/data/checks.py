"""What is checked in a user's own arrays before they become clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.samples import ClientId, Samples

from .schema import Layout

_CHANNELS = (1, 3)
_MOST_GAPS = 10
_FEW_CLASSES = 100


def checked_samples(client: ClientId, x: Any, y: Any, layout: Layout | None = None) -> Samples:
    """One client's arrays as samples, or an error that names the client; which kind the targets are is not asked."""
    inputs, labels = as_tensor(client, "inputs", x), as_tensor(client, "labels", y)
    if inputs.dim() not in (2, 3, 4):
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)}; give images [n, channels, height, width], "
            "series [n, steps, features] or rows [n, features]."
        )
    if len(inputs) != (len(labels) if labels.dim() else 0) or labels.dim() not in (1, 2) or 0 in labels.shape[1:]:
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}; "
            "give one label, or one row of targets, for each input."
        )
    if not len(inputs):
        raise CoterieError(f"Client {client} has no samples; leave it out or give it some.")
    if not inputs.numel():
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)}, which hold no numbers; give each some."
        )
    if labels.dtype.is_complex:
        raise CoterieError(f"The targets of client {client} are {_dtype(labels)}; give integers or floats.")
    if labels.dtype.is_floating_point and not bool(torch.isfinite(labels).all()):
        raise CoterieError(f"The targets of client {client} hold NaN or infinity; remove those samples.")
    return Samples(checked_inputs(client, inputs, layout), labels)


def checked_inputs(client: ClientId, x: Tensor, layout: Layout | None) -> Tensor:
    """Inputs of a type that a model takes, laid out as models take them."""
    if x.dtype.is_complex:
        raise CoterieError(f"The inputs of client {client} are {_dtype(x)}; give uint8 or float.")
    if x.dtype.is_floating_point:
        if layout == "tokens":
            raise CoterieError(f"The inputs of client {client} are {_dtype(x)}; tokens are whole numbers.")
        if not bool(torch.isfinite(x).all()):
            raise CoterieError(f"The inputs of client {client} hold NaN or infinity; remove those samples.")
    elif layout == "tokens":
        x = x.to(torch.int64)
        if int(x.min()) < 0:
            raise CoterieError(f"Client {client} has the token {int(x.min())}; number tokens from 0 up.")
    elif x.dtype != torch.uint8:
        if layout is None:
            raise CoterieError(
                f"The inputs of client {client} are {_dtype(x)}, which may be token ids or numbers to compute with; "
                'say layout="tokens" for an embedding, or layout="rows", in Python or as an entry of the .npz files, '
                "or --set scenario.layout=tokens on the command line."
            )
        x = x.to(torch.float32)
    return _laid_out(client, x, layout)


def checked_classes(labels: Sequence[Tensor], classes: int | None) -> int:
    """The number of classes: as given, or one more than the highest label where they are numbered from 0."""
    highest = max(int(part.max()) for part in labels if len(part))
    if classes is None:
        present = torch.cat([part.unique() for part in labels]).unique()
        lowest, number = int(present[0]), len(present)
        said = f"classes={highest + 1} (on the command line --set scenario.classes={highest + 1})"
        if lowest > 0:
            raise CoterieError(
                f"The labels are {lowest} to {highest} and none is 0; number the classes from 0, such as y - {lowest}, "
                f"or say {said} if class 0 is only missing, or task=regression if these are "
                "numbers to predict."
            )
        if highest >= max(_FEW_CLASSES, _MOST_GAPS * number):
            raise CoterieError(
                f"There is a label {highest} but only {number} different ones; number the classes 0 to {number - 1}, "
                f"or say {said} if the others are only missing, or task=regression if these "
                "are numbers to predict."
            )
        return highest + 1
    if highest >= classes:
        raise CoterieError(
            f"There is a label {highest} and only {classes} classes; give {highest + 1} or more, or correct the label."
        )
    return classes


def checked_groups(groups: Mapping[ClientId, int | str] | None, clients: Sequence[ClientId]) -> dict[ClientId, int]:
    """Group numbers by client; names are numbered in their own order."""
    if groups is None:
        return {}
    without = [client for client in clients if client not in groups]
    if without:
        raise CoterieError(f"Client {without[0]} has no group; give every client one, or none at all.")
    values = {groups[client] for client in clients}
    if all(isinstance(value, (int, np.integer)) for value in values):
        return {client: int(groups[client]) for client in clients}
    number = {name: i for i, name in enumerate(sorted({str(value) for value in values}))}
    return {client: number[str(groups[client])] for client in clients}


def as_tensor(client: ClientId, what: str, value: Any) -> Tensor:
    """An array of the user's as a tensor, or an error that says which array of which client is not one."""
    try:
        return (
            value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements=["C", "W"]))
        )
    except UNREADABLE as problem:
        raise CoterieError(
            f"The {what} of client {client} are not an array of numbers ({problem}); give a numpy array or a tensor."
        ) from problem


_AXES: dict[Layout, tuple[tuple[int, ...], str]] = {
    "rows": ((2,), "rows are [n, features]"),
    "tokens": ((2,), "tokens are [n, length]"),
    "series": ((3,), "series are [n, steps, features]"),
    "images": ((3, 4), "images are [n, channels, height, width] or [n, height, width]"),
    "images-last": ((4,), "images-last are [n, height, width, channels]"),
}


def _laid_out(client: ClientId, x: Tensor, layout: Layout | None) -> Tensor:
    """Inputs as models take them: images as [n, channels, height, width], all others as they are."""
    if layout is not None:
        axes, what = _AXES[layout]
        if x.dim() not in axes:
            raise CoterieError(f"Client {client} has inputs of shape {tuple(x.shape)}; {what}.")
        if layout == "images-last":
            return x.permute(0, 3, 1, 2).contiguous()
        return x.unsqueeze(1) if layout == "images" and x.dim() == 3 else x
    if x.dim() == 3 and x.dtype != torch.uint8:
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(x.shape)}, which may be series or images; say "
            'layout="series" for [n, steps, features] or layout="images" for [n, height, width], in Python or as '
            "an entry of the .npz files, or --set scenario.layout=series on the command line."
        )
    if x.dim() == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(x.shape)}, whose channels may be the first axis or the last; "
            'say layout="images-last" for [n, height, width, channels] or layout="images" for [n, channels, height, '
            "width], in Python or as an entry of the .npz files, or --set scenario.layout=images-last."
        )
    return x.unsqueeze(1) if x.dim() == 3 else x


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
