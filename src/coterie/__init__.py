"""Clustered and personalised federated learning: find the groups among clients, give each the model that fits.

import coterie

clients = coterie.from_arrays({"ward-3": (x, y), "ward-7": (x2, y2), ...})
result = coterie.run(coterie.method("ifca", k=2), clients, model=build_my_network, rounds=20)
result.accuracy, result.clusters, result.models
"""

from __future__ import annotations

from typing import Any

from coterie.data import Drift, Population, build, from_arrays, from_datasets, from_path
from coterie.engine.faults import Faults
from coterie.engine.simulate import EngineOptions
from coterie.errors import CoterieError
from coterie.methods import METHODS, method_named
from coterie.methods.base import ServerMethod
from coterie.models import build_model
from coterie.run import Result, run
from coterie.saved import load_model
from coterie.settings import from_settings

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


def method(name: str, **settings: Any) -> ServerMethod[Any]:
    """A method by its name, with its settings: `method("ifca", k=3, lr=0.05)`, `method("fedcg", preset="paper")`."""
    kind = method_named(name)
    return from_settings(kind, kind.expand(settings), name)
