"""The server's part: one run of coterie over Flower's grid."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.report.observers import ReportWriter
from coterie.runs.config import from_tables, read_tables
from coterie.runs.serve import ServeOptions, run_on_grid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration that the run config names; the folder is `out`, or one in runs/."""
    given = context.run_config
    path = Path(str(given["config"]))
    options = ServeOptions(
        clients=int(given["clients"]), seconds=float(given["seconds"]), patience=float(given["patience"])
    )
    settings = from_tables(read_tables(path))
    out = Path(str(given["out"] or f"runs/{settings.method}-flower-seed{settings.seed}"))
    run_on_grid(settings, grid, options, out, ReportWriter())
