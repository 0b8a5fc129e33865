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
from coterie.methods import METHODS, Method, method_named
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


def method(name: str, **settings: Any) -> Method:
    """A method by its name, with its settings: `method("ifca", k=3, lr=0.05)`, `method("fedcg", preset="paper")`.

    A preset may say other things on some scenarios; `scenario="multi-source-digits"` names the one that is meant.
    """
    scenario = str(settings.pop("scenario", ""))
    kind = method_named(name)
    return from_settings(kind, kind.expand(settings, scenario), name)
