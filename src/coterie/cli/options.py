"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
ConfigOption = Annotated[Path | None, typer.Option("--config", help="a TOML file; the other options go before it")]
OutOption = Annotated[
    Path | None, typer.Option("--out", parser=folder, metavar="PATH", help="folder of the run (default: runs/...)")
]
