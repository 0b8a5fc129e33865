"""What is checked in a user's own arrays before they become clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.samples import ClientId, Normalise, Samples

Layout = Literal["images", "series"]
"""What inputs of three axes are: images [n, height, width], or series [n, steps, features] that stay as they are."""
_CHANNELS = (1, 3)
_MOST_GAPS = 10
_FEW_CLASSES = 100
_LEVELS = 255


def checked_samples(client: ClientId, x: Any, y: Any, layout: Layout | None = None) -> Samples:
    """One client's arrays as samples, or an error that names the client."""
    inputs, labels = _tensor(client, "inputs", x), _tensor(client, "labels", y)
    if inputs.dim() not in (2, 3, 4):
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)}; give images [n, channels, height, width], "
            "series [n, steps, features] or rows [n, features]."
        )
    if len(inputs) != (len(labels) if labels.dim() else 0) or labels.dim() != 1:
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}; "
            "give one label for each input."
        )
    if not len(inputs):
        raise CoterieError(f"Client {client} has no samples; leave it out or give it some.")
    if not inputs.numel():
        raise CoterieError(
            f"Client {client} has inputs of shape {tuple(inputs.shape)}, which hold no numbers; give each some."
        )
    if labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise CoterieError(f"The labels of client {client} are {_dtype(labels)}; give integers from 0 up.")
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise CoterieError(f"Client {client} has the label {int(labels.min())}; give integers from 0 up.")
    if inputs.dtype != torch.uint8 and not inputs.dtype.is_floating_point:
        raise CoterieError(f"The inputs of client {client} are {_dtype(inputs)}; give uint8 or float.")
    if inputs.dtype.is_floating_point and not bool(torch.isfinite(inputs).all()):
        raise CoterieError(f"The inputs of client {client} hold NaN or infinity; remove those samples.")
    return Samples(_channels_first(client, inputs, layout), labels)


def checked_classes(labels: Sequence[Tensor], classes: int | None) -> int:
    """The number of classes: as given, or one more than the highest label where they are numbered from 0."""
    highest = max(int(part.max()) for part in labels if len(part))
    if classes is None:
        present = torch.cat([part.unique() for part in labels]).unique()
        lowest, number = int(present[0]), len(present)
        if lowest > 0:
            raise CoterieError(
                f"The labels are {lowest} to {highest} and none is 0; number the classes from 0, such as y - {lowest}, "
                f"or say classes={highest + 1} in Python if class 0 is only missing."
            )
        if highest >= max(_FEW_CLASSES, _MOST_GAPS * number):
            raise CoterieError(
                f"There is a label {highest} but only {number} different ones; number the classes 0 to {number - 1}, "
                f"or say classes={highest + 1} in Python if the others are only missing."
            )
        return highest + 1
    if highest >= classes:
        raise CoterieError(f"There is a label {highest} and only {classes} classes; give {highest + 1} or more.")
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


def measured(inputs: Sequence[Tensor]) -> Normalise:
    """How inputs become those of a model: floats as they are; bytes by their mean and deviation per channel."""
    if inputs[0].dtype != torch.uint8:
        return Normalise()
    channels = inputs[0].shape[1] if inputs[0].dim() == 4 else 1
    count, total, squares = 0, np.zeros(channels), np.zeros(channels)
    for x in inputs:
        flat = x.transpose(0, 1).reshape(channels, -1) if x.dim() == 4 else x.reshape(1, -1)
        levels = np.stack([np.bincount(row, minlength=_LEVELS + 1) for row in flat.numpy()])
        values = np.arange(_LEVELS + 1) / _LEVELS
        count += flat.shape[1]
        total += levels @ values
        squares += levels @ values**2
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.where(deviation > 0, deviation, 1.0)  # a constant channel stays as it is
    return Normalise(tuple(mean.tolist()), tuple(std.tolist()), 1 / _LEVELS)


def _tensor(client: ClientId, what: str, value: Any) -> Tensor:
    try:
        return (
            value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements=["C", "W"]))
        )
    except UNREADABLE as problem:
        raise CoterieError(
            f"The {what} of client {client} are not an array of numbers ({problem}); give a numpy array or a tensor."
        ) from problem


def _channels_first(client: ClientId, x: Tensor, layout: Layout | None) -> Tensor:
    """[n, channels, height, width] from images without a channel axis or with it at the end; series as they are."""
    if layout == "series":
        if x.dim() != 3:
            raise CoterieError(
                f"Client {client} has inputs of shape {tuple(x.shape)}; series are [n, steps, features]."
            )
        return x
    if x.dim() == 3:
        if layout is None and x.dtype != torch.uint8:
            raise CoterieError(
                f"Client {client} has inputs of shape {tuple(x.shape)}, which may be series or images; say "
                'layout="series" for [n, steps, features] or layout="images" for [n, height, width], in Python or as '
                "an entry of the .npz files, or --set scenario.layout=series on the command line."
            )
        return x.unsqueeze(1)
    if x.dim() == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
