"""The autoencoder behind embeddings: how it is made, saved, shipped, loaded and used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.core import wire
from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import Normalise, Samples
from coterie.core.states import State
from coterie.core.task import Task
from coterie.models import MODELS, AutoEncoder, build_model

ARCHITECTURES = tuple(name for name in MODELS if name.startswith("autoencoder"))
_BATCH = 512
_HALF = "encoder."


@dataclass(frozen=True)
class Encoder:
    """A trained autoencoder, or its encoding half alone: what is saved to a file and what clients are sent.

    `scale` is what raw inputs are multiplied with, so that they lie in [0, 1].
    """

    architecture: str
    shape: tuple[int, ...]
    scale: float
    state: State

    @property
    def half(self) -> Encoder:
        """Without the decoder, as clients get it to embed their data."""
        return replace(self, state={name: part for name, part in self.state.items() if name.startswith(_HALF)})

    def task(self, like: Task | None = None) -> Task:
        """The task of training it, computed as `like` is (precision, kernel)."""
        dtype, kernel = (like.dtype, like.use_kernel) if like is not None else (torch.float32, True)
        return _task(self.architecture, self.shape, self.scale, dtype, kernel)

    @property
    def code(self) -> int:
        """How many numbers the code of one input has."""
        return _code(self.architecture, self.shape)

    def codes(self, samples: Samples, like: Task | None = None) -> Tensor:
        """The codes of samples, [n, code], with the network in evaluation mode (BatchNorm as it was trained)."""
        task = self.task(like)
        network = _loaded(task, self.state)
        with torch.inference_mode():
            parts = [network.encoder(task.inputs(x)).flatten(1) for x in samples.x.split(_BATCH)]
            return torch.cat(parts) if parts else torch.zeros(0, self.code, dtype=task.dtype)

    def decode(self, codes: Tensor) -> Tensor:
        """Images from codes [n, code], as the one who holds the decoder can make them."""
        if not any(name not in self.half.state for name in self.state):
            raise CoterieError("This encoder has no decoder; take the file of the whole autoencoder.")
        network = _loaded(self.task(), self.state)
        with torch.inference_mode():
            rebuilt: Tensor = network.decoder(codes.reshape(-1, *_code_shape(self.architecture, self.shape)))
        return rebuilt.reshape(-1, *self.shape)

    def save(self, path: Path | str) -> Path:
        """Write it to a file (safetensors)."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wire.encode(self))
        except OSError as error:
            raise CoterieError(f"The encoder cannot be written to {target}: {error.strerror}.") from error
        return target


def load_encoder(path: Path | str, shape: tuple[int, ...]) -> Encoder:
    """Read what `Encoder.save` wrote, for inputs of this shape."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CoterieError(f"The encoder {path} cannot be read: {error.strerror}.") from error
    encoder = wire.decode(data, Encoder)
    if encoder.architecture not in ARCHITECTURES:
        raise unknown("autoencoder", encoder.architecture, ARCHITECTURES)
    if tuple(encoder.shape) != tuple(shape):
        raise CoterieError(
            f"The encoder {path} is for inputs of shape {tuple(encoder.shape)} and the data have {tuple(shape)}; "
            "train one for that shape."
        )
    wanted = encoder.task().template
    if {name: tuple(part.shape) for name, part in encoder.state.items()} != {
        name: tuple(part.shape) for name, part in wanted.items()
    }:
        raise CoterieError(f"The weights in {path} are not those of {encoder.architecture}; save the encoder again.")
    return encoder


def fresh_encoder(
    shape: tuple[int, ...], scale: float, *, architecture: str = "", seed: int = 0, like: Task | None = None
) -> Encoder:
    """An untrained autoencoder for inputs of this shape; without a name, the paper's choice for such inputs."""
    name = architecture or default_architecture(shape)
    if name not in ARCHITECTURES:
        raise unknown("autoencoder", name, ARCHITECTURES)
    encoder = Encoder(name, tuple(shape), scale, {})
    return replace(encoder, state=encoder.task(like).init(seed))


def default_architecture(shape: tuple[int, ...]) -> str:
    """Convolutional for colour images whose sides are multiples of 8, else fully connected."""
    colour = len(shape) == 3 and shape[0] == 3 and all(side % 8 == 0 for side in shape[1:])
    return "autoencoder-conv" if colour else "autoencoder-fc"


@lru_cache(maxsize=16)
def _task(architecture: str, shape: tuple[int, ...], scale: float, dtype: torch.dtype, use_kernel: bool) -> Task:
    """One task for all clients, so that its scratch networks and its kernel plan are made once."""
    return Task(
        lambda: _flat(build_model(architecture, shape, 2)),
        shape,
        2,
        Normalise(scale=scale),
        "reconstruction",
        dtype,
        use_kernel,
    )


def _flat(network: nn.Module) -> AutoEncoder:
    """The last layer's reshaping is left to the loss: the kernel trains what is flat."""
    assert isinstance(network, AutoEncoder)
    layers = [layer for layer in network.decoder if not isinstance(layer, nn.Unflatten)]
    return AutoEncoder(network.encoder, nn.Sequential(*layers))


def _loaded(task: Task, state: State) -> AutoEncoder:
    network = task.module
    assert isinstance(network, AutoEncoder)
    network.load_state_dict(state, strict=False)
    return network.eval()


@lru_cache(maxsize=64)
def _code_shape(architecture: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.random.fork_rng(devices=[]):
        network = _flat(build_model(architecture, shape, 2)).eval()
    with torch.inference_mode():
        return tuple(network.encoder(torch.zeros(1, *shape)).shape[1:])


def _code(architecture: str, shape: tuple[int, ...]) -> int:
    return int(torch.Size(_code_shape(architecture, shape)).numel())
