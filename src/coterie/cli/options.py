"""The options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from coterie.core.errors import CoterieError


def folder(text: str) -> Path:
    """A path that the user has really given."""
    if not text.strip():
        raise CoterieError("--out is empty; name a folder, or do without --out.")
    return Path(text)


ScenarioOption = Annotated[
    str | None,
    typer.Option("--scenario", help="a scenario's name (default: rotated-digits); see `coterie list scenarios`"),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="your own data: a folder of .npz, .csv or .parquet files or of images, or one table"),
]
ClientColumnOption = Annotated[
    str | None, typer.Option("--client-column", help="of one table: the column that names the clients")
]
TargetOption = Annotated[
    str | None, typer.Option("--target-column", help="of tables: the column to predict (default: target, label or y)")
]
RootOption = Annotated[
    Path | None, typer.Option("--root", help="where the datasets are (default: $COTERIE_DATA, .data)")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="a name of `coterie list models`, or file.py:function")
]
LossOption = Annotated[
    str | None, typer.Option("--loss", help="what is minimised: a name, or file.py:function (default: by the task)")
]
MetricOption = Annotated[
    str | None, typer.Option("--metric", help="what counts: f1, mae, ... or file.py:function (default: by the task)")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="number of rounds")]
ClientsOption = Annotated[int | None, typer.Option("--clients", help="number of clients")]
SamplesOption = Annotated[int | None, typer.Option("--samples", help="training samples per client")]
GroupsOption = Annotated[int | None, typer.Option("--groups", help="number of hidden groups")]
AlphaOption = Annotated[float | None, typer.Option("--alpha", help="label skew (Dirichlet); small is uneven")]
ImageOption = Annotated[int | None, typer.Option("--image-size", help="pixels to resize images to")]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="worker processes or threads (default: cores)")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="key=value of the method (see `coterie list METHOD`), faults.key=value, METHOD.key=value"
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="a TOML file; other options override it")]
OutOption = Annotated[
    Path | None, typer.Option("--out", parser=folder, metavar="PATH", help="folder of the run (default: runs/...)")
]


@dataclass(frozen=True)
class DataOptions:
    """Whose data: a scenario by its name, with what shapes it, or the user's own."""

    scenario: ScenarioOption = None
    data: DataOption = None
    client_column: ClientColumnOption = None
    target_column: TargetOption = None
    root: RootOption = None
    clients: ClientsOption = None
    samples: SamplesOption = None
    groups: GroupsOption = None
    alpha: AlphaOption = None
    image_size: ImageOption = None


@dataclass(frozen=True)
class CommandOptions(DataOptions):
    """What run, compare and advise are told in the same words: whose data, what is learnt, and how."""

    model: ModelOption = None
    loss: LossOption = None
    metric: MetricOption = None
    workers: WorkersOption = None
    assignments: SetOption = None
    config: ConfigOption = None

    def tables(self, method: str | None, assignments: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
        """The tables of a run with them; `assignments` go in the place of those that were given."""
        from coterie.cli.runs import tables_of

        options = by_name(self)
        config, given = options.pop("config"), options.pop("assignments")
        return tables_of(config, method, given if assignments is None else assignments, **options, **more)


def by_name(options: DataOptions) -> dict[str, Any]:
    """Every option and what it was given."""
    return {each.name: getattr(options, each.name) for each in fields(options)}


def with_options(kind: type[DataOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command whose parameter `options` is of that kind: typer sees an option for each of its fields instead.

    A field that the command has as a parameter of its own is taken from that one.
    """

    def with_them(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        hints = get_type_hints(kind, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(name, keyword, default=None, annotation=hint)
            for name, hint in hints.items()
            if name not in own
        ]
        before = [each for each in own.values() if each.kind is not keyword]
        after = [each for each in own.values() if each.kind is keyword and each.name != "options"]

        @wraps(command)
        def called(*arguments: Any, **given: Any) -> None:
            options = kind(**{name: given[name] for name in hints})
            command(*arguments, options=options, **{name: given[name] for name in given if name in own})

        parameters = [*before, *shared, *after]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return with_them
