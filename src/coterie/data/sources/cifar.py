"""CIFAR-10's python batches. They are pickles, so they are read by an unpickler that knows only data."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.samples import Samples

from .files import Split, corrupt, find, missing

_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_BATCHES = 5
_ARRAY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")


def read_cifar10(folder: Path, how: str) -> Split:
    """CIFAR-10 [n, 3, 32, 32] from the training batches that are there (up to five) and the test batch."""
    inner = folder / "cifar-10-batches-py"
    folder = inner if inner.is_dir() else folder
    paths = [folder / f"data_batch_{i}" for i in range(1, _BATCHES + 1)]
    batches = [_batch(path, how) for path in paths if path.is_file()]
    if not batches:
        raise missing("data_batch_1", folder, how)
    train = Samples(torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches]))
    return Split(train, _batch(find(folder, ["test_batch"], how), how))


def _batch(path: Path, how: str) -> Samples:
    try:
        body = _DataOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        x, y = np.asarray(body[b"data"]), np.asarray(body[b"labels"])
    except Exception as problem:  # a damaged pickle can fail in any way at all
        raise corrupt(path, str(problem) or type(problem).__name__, how) from problem
    if x.dtype != np.uint8 or x.shape != (len(y), _CHANNELS * _SIDE * _SIDE):
        raise corrupt(path, f"its data are {x.dtype} {x.shape} for {len(y)} labels", how)
    if y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < _CLASSES):
        raise corrupt(path, f"its labels are not all in 0..{_CLASSES - 1}", how)
    images = torch.from_numpy(x.reshape(-1, _CHANNELS, _SIDE, _SIDE).copy())
    return Samples(images, torch.from_numpy(y.astype(np.int64)))


class _DataOnly(pickle.Unpickler):
    """Builds lists, dicts, strings, bytes and numpy arrays; refuses every other name a pickle may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _ARRAY_MODULES and name == "_reconstruct":
            return _empty_array
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in protocol 2
            return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not data")


def _empty_array(kind: type[np.ndarray[Any, Any]], shape: tuple[int, ...], code: bytes) -> Any:
    """An array to be filled by the pickle's next step."""
    return np.ndarray.__new__(kind, shape, code.decode())


def _latin1(text: str | bytes, encoding: str | bytes) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text if isinstance(text, bytes) else text.encode("latin1")
