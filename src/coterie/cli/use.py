"""The commands that use a run that is over: `coterie predict` and `coterie export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coterie.runs.trained import TrainedRun

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")]
ClientOption = Annotated[str, typer.Option("--client", help="name of the client whose model is used")]
BuilderOption = Annotated[
    str | None, typer.Option("--model", help="file.py:function that builds the network, of a run begun in Python")
]


def predict(
    folder: RunArgument,
    client: ClientOption,
    data: Annotated[Path, typer.Option("--data", help="new samples: a .csv, .parquet or .npz file, or images")],
    out: Annotated[Path | None, typer.Option("--out", help="CSV file for the predictions (default: print)")] = None,
    model: BuilderOption = None,
) -> None:
    """Predict new samples with the model of one client; a target column among them is ignored."""
    from coterie.core.files import write_whole, writing
    from coterie.runs.predictions import as_csv

    run = _loaded(folder, model)
    text = as_csv(run.predict(client, data), run.schema)
    if out is None:
        typer.echo(text, nl=False)
        return
    with writing(out, then="the same coterie predict"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text.encode())
    typer.echo(f"wrote {len(text.splitlines()) - 1} predictions to {out}")


def export(
    folder: RunArgument,
    client: ClientOption,
    out: Annotated[Path, typer.Option("--out", help="file to write")],
    kind: Annotated[str, typer.Option("--format", help="state_dict, torchscript or onnx")] = "state_dict",
    model: BuilderOption = None,
) -> None:
    """Write the model of one client as a file that runs without coterie; normalisation is inside."""
    from coterie.runs.exported import export as write

    run = _loaded(folder, model)
    write(run.model(client), run.schema, kind, out)
    typer.echo(f"wrote {out}: inputs [n, {', '.join(map(str, run.schema.shape))}] as the clients have them")


def _loaded(folder: Path, model: str | None) -> TrainedRun:
    from coterie.core import user_code
    from coterie.runs.trained import load

    return load(folder, model=None if model is None else user_code.load(model, "model"))


def add_commands(app: typer.Typer) -> None:
    """Add both to the command line."""
    app.command(short_help="Predict new samples with the model of one client")(predict)
    app.command(short_help="Write the model of one client as a file")(export)
