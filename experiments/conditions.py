"""The conditions of the stress matrix: where the papers of the methods never went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GIVEN_K = {"ifca": "k", "fedsem": "k", "fedsoft": "k", "md-icfl": "k", "ladd": "k", "fedcg": "domains"}
"""Methods that are told the number of groups, and the setting that tells them."""
PLAIN_SGD = ("scaffold",)
"""Methods that are defined for SGD without momentum alone."""
PEERS = ("gossip", "pens", "panm")
"""Methods without a server: with partial participation a peer sleeps in the other rounds."""
_GIVEN_WITHOUT_GROUPS = 4
"""What these methods are told where there is one group: their default, for who knows K = 1 needs none of them."""


@dataclass(frozen=True)
class Condition:
    """One column of the matrix: what differs from 40 clients in four groups that all take part in 20 rounds."""

    name: str
    label: str
    rounds: int = 20
    groups: int = 4
    fraction: float = 1.0
    scenario: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, Any] = field(default_factory=dict)

    def tables(self, method: str, kind: Kind) -> dict[str, Any]:
        """The configuration of one run."""
        settings: dict[str, Any] = dict(kind.settings)
        faults = dict(self.faults)
        if self.fraction != 1 and method in PEERS:
            clients = 40
            faults["dropout"] = 1 - (self.fraction if self.fraction < 1 else self.fraction / clients)
        elif self.fraction != 1 and method != "local":
            settings["fraction"] = self.fraction
        if method in PLAIN_SGD:
            settings |= kind.plain
        if method in GIVEN_K:
            settings[GIVEN_K[method]] = self.groups if self.groups > 1 else _GIVEN_WITHOUT_GROUPS
        scenario = {"groups": self.groups, "clients": 40, **kind.scenario, **self.scenario}
        if "group_sizes" in scenario:
            del scenario["groups"], scenario["clients"]
        if method == "fedfomo":
            scenario["validation"] = 0.2
        return {
            "method": method,
            "rounds": self.rounds,
            "evaluate_every": self.rounds,
            "scenario": scenario,
            "settings": settings,
            "faults": faults,
            "engine": {"workers": 1},
        }


@dataclass(frozen=True)
class Kind:
    """A kind of data: a scenario, made small."""

    name: str
    label: str
    scenario: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Settings in place of these for methods that take no momentum."""


KINDS = (
    Kind("digits", "8 x 8 digits, MLP", {"name": "rotated-digits"}),
    Kind("fashion", "Fashion-MNIST, MLP", {"name": "rotated-fashion", "samples": 100}, {"epochs": 2, "batch": 20}),
    Kind(
        "mnist",
        "MNIST, LeNet-5",
        {"name": "rotated-mnist", "samples": 100, "test_samples": 100},
        # with the scenario's Adam nothing learns from skewed labels in 20 rounds; at a rate of 0.05 networks die
        {"optimiser": "sgd", "lr": 0.02, "momentum": 0.9, "batch": 10, "epochs": 2},
        {"lr": 0.1, "momentum": 0.0},
    ),
)

CONDITIONS = (
    Condition("home", "home ground"),
    Condition("half", "half a round", rounds=40, fraction=0.5),
    Condition("fifth", "a fifth a round", rounds=60, fraction=0.2),
    Condition("tenth", "a tenth a round", rounds=100, fraction=0.1),
    Condition("two", "two a round", rounds=150, fraction=2),
    Condition("drift-old", "a fifth drift to old groups", rounds=30, scenario={"drift": "15:0.2"}),
    Condition(
        "drift-new",
        "a fifth drift to a new group",
        rounds=30,
        groups=5,
        scenario={"group_sizes": "10,10,10,10,0", "drift": "15:0.2", "drift_to": "new"},
    ),
    Condition("alpha-10", "labels alpha = 10", scenario={"alpha": 10.0, "partition": "dirichlet-client"}),
    Condition("alpha-3", "labels alpha = 3", scenario={"alpha": 3.0, "partition": "dirichlet-client"}),
    Condition("alpha-0.5", "labels alpha = 0.5", scenario={"alpha": 0.5, "partition": "dirichlet-client"}),
    Condition("shards", "two label shards", scenario={"partition": "shards"}),
    Condition("one", "one group (IID)", groups=1),
    Condition(
        "one-skewed", "one group, alpha = 0.5", groups=1, scenario={"alpha": 0.5, "partition": "dirichlet-client"}
    ),
    Condition("two-groups", "2 groups", groups=2),
    Condition("eight", "8 groups", groups=8),
    Condition("uneven", "groups of 30, 6, 3, 1", scenario={"group_sizes": "30,6,3,1"}),
    Condition("mixed", "a third of another group", scenario={"mixed": 0.33}),
    Condition("few", "20 samples", scenario={"samples": 20}),
    Condition("many", "500 samples", scenario={"samples": 500}),
    Condition("dropout", "half drop out", faults={"dropout": 0.5}),
    Condition("newcomers", "8 newcomers, known groups", rounds=30, faults={"joins": "15:8"}),
    Condition(
        "newcomers-new",
        "8 newcomers, a new group",
        rounds=30,
        groups=5,
        scenario={"group_sizes": "8,8,8,8,8"},
        faults={"joins": "15:8", "joiners": "last"},
    ),
    Condition("swap", "labels swapped", scenario={"shift": "swap"}),
    Condition("cycle", "labels cycled", scenario={"shift": "cycle"}),
    Condition("swap-rotation", "swapped and rotated", scenario={"shift": "swap-rotation"}),
)
"""In the order of the issue; every one is a change of one thing."""
