"""`coterie advise`: what to run on these data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.cli import runs as cli_runs
from coterie.report.advice import print_advice, write_advice
from coterie.runs.advice import advise
from coterie.runs.config import from_tables
from coterie.runs.experiment import builder_of, defaults_of, population_of


def advise_on(tables: Mapping[str, Any], out: Path | None) -> None:
    """Try what must be compared on a scenario's or the user's own data, print the advice and write it to a folder."""
    config = from_tables(tables)
    folder = out or Path("runs") / f"advice-{cli_runs.subject(config)}"
    population = population_of(config.scenario, config.seed, config.task)
    chosen = {key: value for key, value in defaults_of(config).items() if key != "lr"}  # it is the optimiser's
    with cli_runs.the_same_command_goes_on():
        advice = advise(
            population,
            builder_of(config, population),
            training={**chosen, **config.settings},
            options=config,
            engine=config.engine,
            note=lambda text: Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True),
            command=_command,
        )
    print_advice(advice)
    page = write_advice(advice, folder)
    Console().print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)


def _command(method: str, settings: Mapping[str, Any]) -> str:
    """The command line that runs this method on the same data: that of the advice, with another verb."""
    given = sys.argv[2:]
    if "--out" in given:
        at = given.index("--out")
        given = given[:at] + given[at + 2 :]
    assigned = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    own = [part for part in given if not part.startswith("--out=")]
    return shlex.join(["coterie", "run", method, *own, *assigned])
