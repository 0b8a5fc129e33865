"""The command line: `coterie --help` lists its commands."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie import __version__
from coterie.cli import attack as cli_attack
from coterie.cli import deploy as cli_deploy
from coterie.cli import help as cli_help
from coterie.cli import services as cli_services
from coterie.cli import use as cli_use
from coterie.cli.options import CommandOptions, DataOptions, OutOption, RoundsOption, by_name, with_options
from coterie.cli.options import folder as given_folder
from coterie.core import interrupts
from coterie.core.errors import CoterieError, Interrupted
from coterie.core.terminal import harmless

# Only what is light: a command imports what it needs when it is called, so that `coterie --help` need not wait for
# torch, and Ctrl-C during that wait is handled by `main`.

app = typer.Typer(
    cls=cli_help.Commands,
    help="Clustered and personalised federated learning: find the groups hidden among clients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli_help.patch_typer()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("list", short_help="Show methods, scenarios, models, or a method's settings")
def list_(
    what: Annotated[str | None, typer.Argument(help="methods, scenarios, models, faults, or a method's name")] = None,
) -> None:
    """What there is: methods, scenarios, models; or the settings of one method, or of simulated faults."""
    from coterie.cli import listing

    for table in listing.tables(what):
        Console().print(table)


@app.command(short_help="Run one method and write its folder")
@with_options(CommandOptions)
def run(
    method: Annotated[str | None, typer.Argument(help="a name of `coterie list methods`")] = None,
    *,
    options: CommandOptions,
    rounds: RoundsOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="seed of everything random")] = None,
    out: OutOption = None,
) -> None:
    """Run one method and write its folder: metrics, models, checkpoint, report."""
    from coterie.cli import runs as cli_runs
    from coterie.runs.config import from_tables
    from coterie.runs.experiment import execute

    settings = from_tables(options.tables(method, rounds=rounds, seed=seed))
    folder = out or Path("runs") / f"{settings.label}-{cli_runs.subject(settings)}-seed{settings.seed}"
    with cli_runs.watched(settings, folder, settings.track) as view:
        execute(settings, folder, view=view)


@app.command(short_help="Continue an interrupted or finished run")
def resume(
    folder: Annotated[Path, typer.Argument(help="folder of an interrupted run, or with --rounds of a finished one")],
    rounds: Annotated[int | None, typer.Option("--rounds", help="go on to this many rounds in all")] = None,
) -> None:
    """Go on with an interrupted run, or beyond the end of a finished one, as if it had never stopped."""
    from dataclasses import replace

    from coterie.cli import runs as cli_runs
    from coterie.runs.experiment import config_of
    from coterie.runs.experiment import resume as go_on

    config = config_of(folder)
    if rounds is not None:
        config = replace(config, rounds=rounds)  # what the live table counts to
    with cli_runs.watched(config, folder, config.track) as view:
        go_on(folder, rounds=rounds, view=view)


@app.command(short_help="Run several methods and seeds, and compare them")
@with_options(CommandOptions)
def compare(
    methods: Annotated[list[str], typer.Argument(help="two or more names of `coterie list methods`")],
    *,
    options: CommandOptions,
    rounds: RoundsOption = None,
    seeds: Annotated[str, typer.Option("--seeds", help="seeds, such as 0,1,2")] = "0",
    target: Annotated[
        float | None, typer.Option("--target", help="accuracy to reach: reports bytes and rounds")
    ] = None,
    out: OutOption = None,
) -> None:
    """Run several methods (and seeds) side by side: one table, one report.

    The same command goes on with a comparison that was interrupted. Without --scenario or --data it is about
    rotated-digits.
    """
    from coterie.cli import runs as cli_runs
    from coterie.runs.config import from_tables

    numbers = cli_runs.numbers(seeds)
    given = options.assignments or []
    configs = [
        from_tables(options.tables(method, cli_runs.fitting(method, methods, given), rounds=rounds))
        for method in dict.fromkeys(methods)
    ]
    folder = out or Path("runs") / f"compare-{cli_runs.subject(configs[0])}"
    cli_runs.compare(configs, numbers, folder, target)


@app.command(short_help="Find out whether there are groups, and what to run")
@with_options(CommandOptions)
def advise(
    *,
    options: CommandOptions,
    seed: Annotated[int | None, typer.Option("--seed", help="seed of everything random")] = None,
    out: OutOption = None,
) -> None:
    """Say whether there are groups among the clients, who gains by what, and which command to run."""
    from coterie.cli.advise import advise_on

    advise_on(options.tables("auto", seed=seed), out)


@app.command(short_help="Write the report of a run or a comparison again")
def report(folder: Annotated[Path, typer.Argument(help="folder of a finished run or comparison")]) -> None:
    """Write the report of a run or a comparison again."""
    from coterie.report.html import write_compare_report, write_run_report

    write = write_compare_report if (folder / "compare.json").is_file() else write_run_report
    Console().print(f"wrote {write(folder)}", markup=False, highlight=False, soft_wrap=True)


@app.command(short_help="Describe the clients and data of a scenario, or yours")
@with_options(DataOptions)
def data(
    scenario: Annotated[str | None, typer.Argument(help="a scenario's name; without it, which data are there")] = None,
    *,
    options: DataOptions,
    seed: Annotated[int, typer.Option("--seed", help="seed of the partition")] = 0,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="scenario.key=value, such as scenario.missing=mean")
    ] = None,
) -> None:
    """Describe a scenario's (or your own) data: clients, groups, sizes, labels."""
    from coterie.cli import listing
    from coterie.cli.runs import reading_of
    from coterie.runs.experiment import population_of
    from coterie.runs.options import check_seed

    own = options.data
    if scenario is not None and own is not None:
        raise CoterieError("--data are your own data and a name is that of a scenario; give one of the two.")
    check_seed(seed)
    if scenario is None and own is None:
        Console().print(listing.scenarios(options.root))
        return
    said = by_name(options)
    said["name"] = said.pop("scenario")
    chosen, task = reading_of(assignments, **said)
    for table in listing.population(population_of(chosen, seed, task), scenario or str(own)):
        Console().print(table)


@app.command(short_help="Compare all methods on 40 clients, without download")
def demo(
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=given_folder, metavar="PATH", help="its folder (default: runs/demo, replaced)"),
    ] = None,
) -> None:
    """Every method on 40 clients in 4 hidden groups, in a minute, without any download."""
    from coterie.cli import runs as cli_runs
    from coterie.methods import METHODS
    from coterie.runs.config import from_tables

    folder = out or Path("runs") / "demo"
    if out is None and (folder / "compare.json").is_file():
        shutil.rmtree(folder)  # never one that the user named
    scenario = {"name": "rotated-digits"}
    configs = [
        from_tables({"method": name, "scenario": {**scenario, "validation": 0.2 if kind.needs_validation else 0.0}})
        for name, kind in METHODS.items()
    ]
    cli_runs.compare(configs, [0], folder, target=0.9)


# after the commands above: the help page lists them in this order, what is needed first at the top
cli_use.add_commands(app)
cli_deploy.add_commands(app)
app.command(short_help="Save an autoencoder for `embedding`")(cli_attack.encoder)
app.add_typer(cli_attack.attack_app, name="attack")


def main() -> None:
    """The entry point."""
    try:
        guarded(app)
    except SystemExit as end:
        cli_services.leave(end)
        raise


def guarded(command: Callable[[], object]) -> None:
    """Run a command: bad input is one sentence on stderr and exit code 2, Ctrl-C one line."""
    interrupts.listen()
    try:
        command()
    except Interrupted as stop:
        say(harmless(str(stop)))
        sys.exit(cli_services.code_when_stopped())
    except CoterieError as error:
        say(harmless(f"coterie: {error}"))
        sys.exit(2)
    except KeyboardInterrupt:
        say("coterie: stopped.")
        sys.exit(cli_services.code_when_stopped())
    except BrokenPipeError:
        os._exit(1)


def say(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text)
