"""Clustered and personalised federated learning: find the groups among clients, give each the model that fits.

import coterie

clients = coterie.from_arrays({"ward-3": (x, y), "ward-7": (x2, y2), ...})
result = coterie.run(coterie.method("ifca", k=2), clients, model=build_my_network, rounds=20)
result.accuracy, result.clusters, result.models
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.data import Drift, Population, build, from_arrays, from_datasets, from_path
    from coterie.engine.faults import Faults
    from coterie.engine.simulate import EngineOptions
    from coterie.errors import CoterieError
    from coterie.methods import METHODS, method
    from coterie.models import build_model
    from coterie.run import Result, run
    from coterie.saved import load_model

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "CoterieError",
    "Drift",
    "EngineOptions",
    "Faults",
    "Population",
    "Result",
    "build",
    "build_model",
    "from_arrays",
    "from_datasets",
    "from_path",
    "load_model",
    "method",
    "run",
]

_HOMES = {
    "coterie.data": ("Drift", "Population", "build", "from_arrays", "from_datasets", "from_path"),
    "coterie.engine.faults": ("Faults",),
    "coterie.engine.simulate": ("EngineOptions",),
    "coterie.errors": ("CoterieError",),
    "coterie.methods": ("METHODS", "method"),
    "coterie.models": ("build_model",),
    "coterie.run": ("Result", "run"),
    "coterie.saved": ("load_model",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: the command line begins without torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package, in which `run` stays the function: importing the module coterie.run would put that in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
