"""`coterie reproduce NAME`: the experiments behind docs/results, so that anyone can make a table again.

A table is data: `papers/*.toml` holds its rows (a configuration and the paper's number each). What is more than a table
of runs (a figure, a measurement) is a function in this package, registered with `@experiment`.
"""

from experiments.registry import EXPERIMENTS, Experiment, experiment
from experiments.tables import run_table

__all__ = ["EXPERIMENTS", "Experiment", "experiment", "run_table"]
