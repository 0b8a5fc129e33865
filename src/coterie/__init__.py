"""Clustered and personalised federated learning: find the groups among clients, give each the model that fits.

import coterie

clients = coterie.from_arrays({"ward-3": (x, y), "ward-7": (x2, y2), ...})
result = coterie.run(coterie.method("ifca", k=2), clients, model=build_my_network, rounds=20)
result.accuracy, result.clusters, result.models
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.core.aggregate import combined, combined_one
    from coterie.core.cohort import Cohort
    from coterie.core.errors import CoterieError
    from coterie.core.evaluation import evaluate, losses
    from coterie.core.federation import (
        Failure,
        Federation,
        Nothing,
        Replies,
        on_client,
    )
    from coterie.core.metrics import Metric
    from coterie.core.optimiser import Optimiser
    from coterie.core.samples import ClientId
    from coterie.core.states import (
        Stack,
        State,
        axpy,
        cosine,
        flat,
        group_means,
        mean,
        minus,
        mix,
        row,
        spread,
        stack,
        take,
    )
    from coterie.core.task import Task
    from coterie.core.training import local_sgd
    from coterie.data import (
        Drift,
        Population,
        build,
        from_arrays,
        from_datasets,
        from_frames,
        from_path,
        from_table,
    )
    from coterie.methods import METHODS, Method, method
    from coterie.methods.base import Log, Models, ServerMethod, Trained
    from coterie.methods.clustered import ClusterMethod, Clusters
    from coterie.methods.fedavg import FedAvg, Global
    from coterie.methods.p2p.base import Inbox, PeerMethod, PeerView, Request
    from coterie.methods.p2p.gossip import Gossip, Partners
    from coterie.methods.served import Assessment, Use, use
    from coterie.models import build_model
    from coterie.report.advice import advise
    from coterie.report.compare import Comparison, compare
    from coterie.report.run import run
    from coterie.runs.advice import Advice
    from coterie.runs.newcomer import Newcomer
    from coterie.runs.result import Result
    from coterie.runs.saved import load_model
    from coterie.runs.trained import TrainedRun, load
    from coterie.simulation.engine_options import EngineOptions
    from coterie.simulation.faults import Faults

__version__ = "0.2.0"
__all__ = [
    "METHODS",
    "Advice",
    "Assessment",
    "ClientId",
    "ClusterMethod",
    "Clusters",
    "Cohort",
    "Comparison",
    "CoterieError",
    "Drift",
    "EngineOptions",
    "Failure",
    "Faults",
    "FedAvg",
    "Federation",
    "Global",
    "Gossip",
    "Inbox",
    "Log",
    "Method",
    "Metric",
    "Models",
    "Newcomer",
    "Nothing",
    "Optimiser",
    "Partners",
    "PeerMethod",
    "PeerView",
    "Population",
    "Replies",
    "Request",
    "Result",
    "ServerMethod",
    "Stack",
    "State",
    "Task",
    "Trained",
    "TrainedRun",
    "Use",
    "advise",
    "axpy",
    "build",
    "build_model",
    "combined",
    "combined_one",
    "compare",
    "cosine",
    "evaluate",
    "flat",
    "from_arrays",
    "from_datasets",
    "from_frames",
    "from_path",
    "from_table",
    "group_means",
    "load",
    "load_model",
    "local_sgd",
    "losses",
    "mean",
    "method",
    "minus",
    "mix",
    "on_client",
    "row",
    "run",
    "spread",
    "stack",
    "take",
    "use",
]

_HOMES = {
    "coterie.data": (
        "Drift",
        "Population",
        "build",
        "from_arrays",
        "from_datasets",
        "from_frames",
        "from_path",
        "from_table",
    ),
    "coterie.simulation.faults": ("Faults",),
    "coterie.simulation.engine_options": ("EngineOptions",),
    "coterie.core.errors": ("CoterieError",),
    "coterie.methods": ("METHODS", "Method", "method"),
    "coterie.methods.base": ("Log", "Models", "ServerMethod", "Trained"),
    "coterie.methods.clustered": ("ClusterMethod", "Clusters"),
    "coterie.methods.fedavg": ("FedAvg", "Global"),
    "coterie.methods.p2p.gossip": ("Gossip", "Partners"),
    "coterie.methods.p2p.base": ("Inbox", "PeerMethod", "PeerView", "Request"),
    "coterie.methods.served": ("Assessment", "Use", "use"),
    "coterie.core.aggregate": ("combined", "combined_one"),
    "coterie.core.samples": ("ClientId",),
    "coterie.core.metrics": ("Metric",),
    "coterie.core.cohort": ("Cohort",),
    "coterie.core.evaluation": ("evaluate", "losses"),
    "coterie.core.optimiser": ("Optimiser",),
    "coterie.core.training": ("local_sgd",),
    "coterie.core.federation": ("Failure", "Federation", "Nothing", "Replies", "on_client"),
    "coterie.core.states": (
        *("Stack", "State", "axpy", "cosine", "flat", "group_means", "mean", "minus", "mix", "row", "spread", "stack"),
        "take",
    ),
    "coterie.core.task": ("Task",),
    "coterie.models": ("build_model",),
    "coterie.report.compare": ("Comparison", "compare"),
    "coterie.report.advice": ("advise",),
    "coterie.report.run": ("run",),
    "coterie.runs.advice": ("Advice",),
    "coterie.runs.result": ("Result",),
    "coterie.runs.saved": ("load_model",),
    "coterie.runs.newcomer": ("Newcomer",),
    "coterie.runs.trained": ("TrainedRun", "load"),
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
