"""Saved models: the weights, and in the same file how raw inputs and outputs become those of the network."""

from __future__ import annotations

import copy
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import wire
from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.samples import Normalise
from coterie.core.states import State
from coterie.core.targets import TargetScale

_KEY = "normalise"
_SCALE_KEY = "target_scale"


class ReadyModel(nn.Module):
    """A trained network that takes inputs as the clients have them: it normalises them first.

    Its answers are the network's; where these are numbers on a common scale, they are in the clients' units.
    """

    def __init__(self, network: nn.Module, normalise: Normalise, target_scale: TargetScale | None = None) -> None:
        super().__init__()
        self.network, self.normalise, self.target_scale = network, normalise, target_scale

    def forward(self, x: Tensor) -> Tensor:
        """Raw inputs -> the network's answer."""
        kind = next(self.network.parameters()).dtype
        answer: Tensor = self.network(self.normalise(x, kind))
        return answer if self.target_scale is None else self.target_scale.restored(answer)


def encode_model(state: State, normalise: Normalise, target_scale: TargetScale | None = None) -> bytes:
    """The bytes of a saved model: a plain safetensors file with the normalisation and the scale in its metadata."""
    data = wire.encode(state)
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"][_KEY] = json.dumps(wire.pack(normalise)[0])
    if target_scale is not None:
        header["__metadata__"][_SCALE_KEY] = json.dumps(wire.pack(target_scale)[0])
    # written here and not by safetensors, which keeps metadata in an order that changes from call to call
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def load_model(path: Path | str, model: nn.Module | Callable[[], nn.Module]) -> ReadyModel:
    """A model of a run's folder `models`, ready for raw inputs; `model` builds its network, or is one.

    An older file does not say how inputs are normalised: it is read with a warning, and its network must be given
    inputs that are normalised already.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        state: State = wire.decode(data, State)
    except OSError as error:
        reason = error.strerror or error
        raise CoterieError(f"Cannot read the model {file}: {reason}; name a file of a run's folder models.") from None
    except wire.WireError as error:
        raise CoterieError(f"{file} is not a model that coterie saved: {error}") from error
    network = filled(model, state, str(file))
    metadata = _metadata_of(data)
    return ReadyModel(network, _normalise_of(file, metadata), _scale_of(file, metadata)).eval()


def filled(model: nn.Module | Callable[[], nn.Module], state: State, whose: str) -> nn.Module:
    """The network with a model's weights in it; `whose` says in messages where they are from."""
    network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(network, nn.Module):
        raise CoterieError(f"The model must be a torch.nn.Module, or a function that builds one, not {network!r}.")
    own = network.state_dict()
    differing = sorted(n for n in own.keys() | state.keys() if _form(own.get(n)) != _form(state.get(n)))
    if differing:
        raise CoterieError(
            f"{whose} is of another network: they differ in {', '.join(differing[:3])}"
            f"{', ...' if len(differing) > 3 else ''}; give the function that built the model of that run."
        )
    kind = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    network.to(kind).load_state_dict(state)
    return network


def _metadata_of(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", data)
    metadata: dict[str, Any] = json.loads(data[8 : 8 + length])["__metadata__"]  # `decode` has found it there
    return metadata


def _normalise_of(file: Path, metadata: dict[str, Any]) -> Normalise:
    if _KEY not in metadata:
        warnings.warn(f"{file} does not say how its inputs are normalised; normalise them yourself.", stacklevel=3)
        return Normalise()
    try:
        # older files do not say which axis has the means
        found: Normalise = wire.unpack(Normalise, {"last": False, **json.loads(metadata[_KEY])}, {})
        if not (len(found.mean) == len(found.std) > 0):
            raise wire.WireError("It has not as many means as deviations.")
        return found
    except (wire.WireError, *UNREADABLE) as error:
        raise CoterieError(f"{file} does not say properly how its inputs are normalised; save it again.") from error


def _scale_of(file: Path, metadata: dict[str, Any]) -> TargetScale | None:
    if _SCALE_KEY not in metadata:
        return None
    try:
        found: TargetScale = wire.unpack(TargetScale, json.loads(metadata[_SCALE_KEY]), {})
        if not (len(found.mean) == len(found.std) > 0):
            raise wire.WireError("It has not as many means as deviations.")
        return found
    except (wire.WireError, *UNREADABLE) as error:
        raise CoterieError(f"{file} does not say properly what its outputs mean; save it again.") from error


def _form(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
