"""A client's model as a file that runs without coterie: a state dict, TorchScript, or ONNX; normalisation inside."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError, installing, unknown
from coterie.core.files import write_whole, writing
from coterie.data.schema import Schema
from coterie.runs.saved import ReadyModel

Format = Literal["state_dict", "torchscript", "onnx"]
_TRIED = (2, 5)
"""So many samples are in the batches that an exported model is tried with."""
_TOLERANCE = 1e-4


class PlainModel(nn.Module):
    """The same as a `ReadyModel`, in torch's own operations alone: network(x * factor + shift) * scale + mean."""

    def __init__(self, ready: ReadyModel, dimensions: int, tokens: bool) -> None:
        super().__init__()
        self.network, self._tokens = ready.network, tokens
        self._kind = next(ready.network.parameters()).dtype
        if not tokens:
            shape = (1, -1) + (1,) * max(dimensions - 2, 0)
            mean, std = (
                torch.tensor(values, dtype=torch.float64).view(shape)
                for values in (ready.normalise.mean, ready.normalise.std)
            )
            self.register_buffer("factor", (ready.normalise.scale / std).to(self._kind))
            self.register_buffer("shift", (-mean / std).to(self._kind))
        self._scaled = ready.target_scale is not None
        if ready.target_scale is not None:
            self.register_buffer("scale", torch.tensor(ready.target_scale.std, dtype=self._kind))
            self.register_buffer("mean", torch.tensor(ready.target_scale.mean, dtype=self._kind))

    def forward(self, x: Tensor) -> Tensor:
        """Raw inputs -> the network's answer, numbers in the clients' units."""
        if not self._tokens:
            x = x.to(self._kind) * self.get_buffer("factor") + self.get_buffer("shift")
        answer: Tensor = self.network(x)
        return answer * self.get_buffer("scale") + self.get_buffer("mean") if self._scaled else answer


def export(ready: ReadyModel, schema: Schema, kind: str, out: Path) -> None:
    """Write a client's model; what is written answers as the model does, or nothing is written."""
    if kind not in get_args(Format):
        raise unknown("format", kind, get_args(Format))
    tokens = schema.dtype == "int64"
    plain = PlainModel(ready, 1 + len(schema.shape), tokens).eval().requires_grad_(False)
    batches = [_inputs(schema, size) for size in _TRIED]
    if kind == "state_dict":
        buffer = io.BytesIO()
        torch.save(plain.state_dict(), buffer)
        data = buffer.getvalue()
    else:
        recorded = _torchscript if kind == "torchscript" else _onnx
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # torch's own, about recording and about its next exporter
            plain(batches[0])  # what a network makes once, at its first call, is not to be recorded
            data = recorded(plain, batches)
    with writing(out, then="the same coterie export"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, data)


def _inputs(schema: Schema, size: int) -> Tensor:
    """Made-up inputs of the run's form; tokens are 0 and 1, which every vocabulary has."""
    generator = torch.Generator().manual_seed(size)
    if schema.dtype == "int64":
        return torch.randint(0, 2, (size, *schema.shape), generator=generator)
    if schema.dtype == "uint8":
        return torch.randint(0, 256, (size, *schema.shape), generator=generator).to(torch.float32)
    return torch.randn(size, *schema.shape, generator=generator)


def _torchscript(model: nn.Module, batches: list[Tensor]) -> bytes:
    try:
        traced = torch.jit.trace(model, (batches[0],), check_trace=False)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
    except Exception as error:  # the user's network can fail in any way
        raise _cannot(error) from error
    _compare(model, batches, lambda x: traced(x))
    return buffer.getvalue()


def _onnx(model: nn.Module, batches: list[Tensor]) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ModuleNotFoundError:
        raise CoterieError(f"ONNX needs onnx and onnxruntime: {installing('onnx')}.") from None
    try:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            _record_onnx(model, batches[0], file)
            data = file.read_bytes()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # the user's network can fail in any way
        raise _cannot(error) from error
    _compare(model, batches, lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0]))
    return data


def _record_onnx(model: nn.Module, batch: Tensor, file: Path) -> None:
    torch.onnx.export(
        model,
        (batch,),
        file,
        dynamo=False,  # 1 s instead of 18, and it needs no more packages
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "samples"}, "y": {0: "samples"}},
    )


def _compare(model: nn.Module, batches: list[Tensor], recorded: Any) -> None:
    """Refuse a recording that answers otherwise than the model, also for another number of samples."""
    for batch in batches:
        wanted = model(batch)
        try:
            found = recorded(batch)
        except Exception as error:
            raise _cannot(error) from error
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise CoterieError(
                "The exported model would answer otherwise than this one, for its forward depends on what is in a "
                "batch or on how many samples there are; export it as state_dict."
            )


def _cannot(error: Exception) -> CoterieError:
    said = str(error).strip().splitlines()
    return CoterieError(
        f"This network cannot be recorded ({type(error).__name__}: {said[0][:200] if said else ''}); export it as "
        "state_dict."
    )
