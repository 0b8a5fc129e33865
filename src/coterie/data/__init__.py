"""Data: named scenarios, the user's own data, and what every client of a population looks like."""

from coterie.core.samples import ClientData, ClientId, Normalise, Population, Samples

from .adapters import from_datasets, from_frames, from_table
from .build import build
from .datasets import data_root
from .describe import Spread, Summary, describe
from .drift import Drift
from .folders import from_path
from .own import OwnPopulation, from_arrays
from .population import LazyPopulation, unseen_ids
from .scenarios import PARTITIONS, SCENARIOS, Scenario

__all__ = [
    "PARTITIONS",
    "SCENARIOS",
    "ClientData",
    "ClientId",
    "Drift",
    "LazyPopulation",
    "Normalise",
    "OwnPopulation",
    "Population",
    "Samples",
    "Scenario",
    "Spread",
    "Summary",
    "build",
    "data_root",
    "describe",
    "from_arrays",
    "from_datasets",
    "from_frames",
    "from_path",
    "from_table",
    "unseen_ids",
]
