"""`python -m experiments [NAME]`: make a table or figure of docs/results again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli import listing
from coterie.cli import runs as cli_runs
from coterie.cli.main import guarded, say
from coterie.cli.options import OutOption
from coterie.core.errors import unknown
from experiments import EXPERIMENTS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="a name of this list; without it, the list")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="other seeds than the table's own, such as 0,1")] = None,
    out: OutOption = None,
) -> None:
    """Make a table or figure of docs/results again; it goes on where an earlier call stopped."""
    known = EXPERIMENTS.load()
    if name is None:
        rows: list[listing.Row] = [
            (each.name, each.summary, {"seeds": ",".join(map(str, each.seeds)), "minutes": f"{each.minutes:g}"})
            for each in known.values()
        ]
        Console().print(listing.summaries("experiments (minutes on two cores)", "what it shows", rows))
        return
    if name not in known:
        raise unknown("experiment", name, known)
    folder = out or Path("runs") / "experiments" / name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = known[name].seeds if seeds is None else cli_runs.numbers(seeds)
    with cli_runs.the_same_command_goes_on():
        text = known[name].run(folder, chosen, say)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    guarded(app)
