"""The compiled library: found, checked against this processor, and called through plain C structures."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch

from coterie.core.errors import CoterieError

_HERE = Path(__file__).resolve().parent
VARIABLE = "COTERIE_KERNEL"
DTYPES = (torch.float32, torch.float64)
_STATUS = {
    1: "There is not enough memory for this network and batch; use a smaller batch.",
    2: "The kernel does not know this network; use plan() to translate it.",
    3: "A sample number in order is outside the data; order must hold numbers from 0 to the number of samples - 1.",
    4: "A label is outside the classes of the network; labels must be from 0 to the number of outputs - 1.",
    5: "A domain is outside those of the network; domains must be from 0 to their number - 1.",
    6: "An input names a row that an embedding does not have; such inputs must be from 0 to its number of rows - 1.",
}


class LayerRecord(Structure):
    """One layer (network.hpp)."""

    _fields_: ClassVar = [
        *[
            (name, c_int64)
            for name in (
                *("kind", "outputs", "kernel_height", "kernel_width", "pad_height", "pad_width"),
                *("weight_offset", "bias_offset", "domains", "residual_offset", "scale_offset"),
                *("source", "other", "stride_height", "stride_width", "out_height", "out_width"),
                *("groups", "mean_offset", "variance_offset", "first_column", "columns", "rows"),
            )
        ],
        *[(name, c_double) for name in ("rate", "eps", "momentum")],
    ]


class NetworkCall(Structure):
    """A network (abi.hpp)."""

    _fields_: ClassVar = [
        ("layers", POINTER(LayerRecord)),
        *[(name, c_int64) for name in ("layer_count", "channels", "height", "width", "loss")],
        ("mix", c_void_p),
    ]


class DataCall(Structure):
    """Samples and what they should give (abi.hpp)."""

    _fields_: ClassVar = [
        ("values", c_void_p),
        ("bytes", c_void_p),
        ("table", c_void_p),
        ("table_channels", c_int64),
        ("labels", c_void_p),
        ("target_values", c_void_p),
        ("samples", c_int64),
        ("domains", c_void_p),
    ]


class TrainCall(Structure):
    """Local training of one client (abi.hpp)."""

    _fields_: ClassVar = [
        *[("network", NetworkCall), ("data", DataCall)],
        *[(name, c_void_p) for name in ("weights", "anchor", "correction", "trained", "order", "masks")],
        *[(name, c_int64) for name in ("epochs", "per_epoch", "batch", "block_bytes", "smallest", "rule")],
        *[(name, c_double) for name in ("lr", "momentum", "weight_decay", "mu", "beta1", "beta2", "eps", "mean_loss")],
    ]


class EvaluateCall(Structure):
    """Scores and outputs of many models (abi.hpp)."""

    _fields_: ClassVar = [
        *[("network", NetworkCall), ("data", DataCall), ("weights", c_void_p)],
        *[(name, c_int64) for name in ("models", "parameters", "block_bytes")],
        *[(name, c_void_p) for name in ("mean_losses", "accuracies", "outputs")],
    ]


class GradientCall(Structure):
    """Gradients of the inputs (abi.hpp)."""

    _fields_: ClassVar = [
        *[("network", NetworkCall), ("data", DataCall), ("weights", c_void_p)],
        ("block_bytes", c_int64),
        ("gradient", c_void_p),
        ("loss", c_double),
    ]


class MeansCall(Structure):
    """Means of some models (abi.hpp)."""

    _fields_: ClassVar = [
        ("rows", c_void_p),
        *[(name, c_int64) for name in ("stride", "width")],
        *[(name, c_void_p) for name in ("members", "ends")],
        *[(name, c_int64) for name in ("means", "first_column", "last_column")],
        ("out", c_void_p),
    ]


class ProductsCall(Structure):
    """Products of the ways models have gone (abi.hpp)."""

    _fields_: ClassVar = [
        ("ends", c_void_p),
        ("end_stride", c_int64),
        ("begins", POINTER(c_void_p)),
        ("begin_strides", POINTER(c_int64)),
        ("kinds", c_int64),
        ("rows", c_void_p),
        ("row_count", c_int64),
        *[(name, c_void_p) for name in ("partners", "pair_ends")],
        *[(name, c_int64) for name in ("pairs", "first_column", "last_column")],
        ("products", c_void_p),
    ]


_CALLS: dict[str, type[Structure]] = {
    "train": TrainCall,
    "evaluate": EvaluateCall,
    "gradient": GradientCall,
    "means": MeansCall,
    "products": ProductsCall,
}


class Library:
    """The entry points of one compiled variant."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._functions = {}
        handle = ctypes.CDLL(str(file))
        for name, call in _CALLS.items():
            for dtype in DTYPES:
                function = handle[f"coterie_{name}_{str(dtype).removeprefix('torch.')}"]
                function.argtypes = [POINTER(call)]
                function.restype = c_int32
                self._functions[name, dtype] = function

    def call(self, name: str, dtype: torch.dtype, structure: Structure) -> None:
        """Run one call without the GIL; where it is refused, the reason is one sentence."""
        status: int = self._functions[name, dtype](ctypes.byref(structure))
        if status:
            raise CoterieError(_STATUS[status])


def load(folder: Path = _HERE, wanted: str = "") -> Library | str:
    """The best variant in `folder` that runs on this processor, or the wanted one; or the reason why there is none."""
    probe = folder / "_cpu.so"
    if not probe.exists():
        return "the kernel is not compiled (no C++ compiler at install?); run python -m coterie.kernel.build"
    try:
        level_of = ctypes.CDLL(str(probe)).coterie_cpu_level
        level_of.restype = c_int32
        names = {0: (), 1: ("generic",), 3: ("v3",), 4: ("v4", "v3")}[level_of()]
        if not names:
            return "this processor lacks AVX2 or FMA"
        if wanted and wanted not in names:
            raise CoterieError(
                f"{VARIABLE} is {wanted!r}, which this processor cannot run; choose {' or '.join(names)}, or unset it."
            )
        names = (wanted,) if wanted else names
        for name in names:
            file = folder / f"_kernel_{name}.so"
            if file.exists():
                return Library(file)
    except OSError as error:
        return f"the compiled kernel does not load ({error})"
    except AttributeError:
        return "the compiled kernel is older than this package; run python -m coterie.kernel.build"
    return f"the kernel is not compiled for this processor ({names[0]}); run python -m coterie.kernel.build"


@cache
def installed() -> Library | str:
    """The library of this installation, loaded once, in the variant that the environment asks for."""
    return load(wanted=os.environ.get(VARIABLE, ""))


def array_of(layers: list[LayerRecord]) -> ctypes.Array[LayerRecord]:
    """Layers as a C array."""
    return (LayerRecord * len(layers))(*layers)
