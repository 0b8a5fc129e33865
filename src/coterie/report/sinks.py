"""Adapters to other people's trackers. Each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from coterie.core.errors import CoterieError, installing, unknown

Values = Mapping[str, Any]


class Sink(Protocol):
    """Something that follows a run."""

    def start(self, config: Values) -> None:
        """The run begins with this configuration."""

    def round(self, row: Values) -> None:
        """A round is over; the row has the columns of metrics.csv."""

    def end(self, result: Values) -> None:
        """The run is over; the result is that of result.json."""


class TensorBoardSink:
    """Event files beside the run's folder, so that `tensorboard --logdir runs/tensorboard` shows all runs together."""

    def __init__(self, folder: Path) -> None:
        _need("tensorboard", "tensorboard")
        self._writer = _need("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(folder.parent / "tensorboard" / folder.name)
        )

    def start(self, config: Values) -> None:
        """Keep the configuration as text."""
        lines = [f"    {name} = {value}" for name, value in _flat(config)]
        self._writer.add_text("config", "\n".join(lines))

    def round(self, row: Values) -> None:
        """One point for each number."""
        for name, value in _numbers(row):
            self._writer.add_scalar(name, value, int(row["round"]))

    def end(self, result: Values) -> None:
        """The result's numbers, and close the file."""
        for name, value in _numbers(result):
            self._writer.add_scalar(f"result/{name}", value, int(result.get("rounds") or 0))
        self._writer.close()


class MLflowSink:
    """A run of the MLflow experiment `coterie`, wherever the user's MLflow settings put it."""

    def __init__(self, folder: Path) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._name = folder.name

    def start(self, config: Values) -> None:
        """Open the run and keep the configuration as parameters."""
        self._mlflow.set_experiment("coterie")
        self._mlflow.start_run(run_name=self._name)
        self._mlflow.log_params(dict(_flat(config)))

    def round(self, row: Values) -> None:
        """One step of metrics."""
        self._mlflow.log_metrics(dict(_numbers(row)), step=int(row["round"]))

    def end(self, result: Values) -> None:
        """The result's numbers, and close the run."""
        self._mlflow.log_metrics({f"result_{name}": value for name, value in _numbers(result)})
        self._mlflow.end_run()


class WandbSink:
    """A run of the Weights & Biases project `coterie`, under the user's own settings."""

    def __init__(self, folder: Path) -> None:
        self._wandb = _need("wandb", "wandb")
        self._folder = folder
        self._run: Any = None

    def start(self, config: Values) -> None:
        """Open the run with its configuration."""
        self._run = self._wandb.init(
            project="coterie", name=self._folder.name, dir=str(self._folder), config=dict(_flat(config))
        )

    def round(self, row: Values) -> None:
        """One step of metrics."""
        self._run.log(dict(_numbers(row)), step=int(row["round"]))

    def end(self, result: Values) -> None:
        """The result's numbers as the summary, and close the run."""
        self._run.summary.update(dict(_numbers(result)))
        self._run.finish()


SINKS: dict[str, type[TensorBoardSink] | type[MLflowSink] | type[WandbSink]] = {
    "tensorboard": TensorBoardSink,
    "mlflow": MLflowSink,
    "wandb": WandbSink,
}


def open_sink(name: str, folder: Path) -> Sink:
    """The adapter of this name for a run in this folder."""
    if name not in SINKS:
        raise unknown("tracker", name, SINKS)
    return SINKS[name](folder)


def _need(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise CoterieError(
            f"Tracking with {extra} needs the package {extra!r}, which is not installed; "
            f"install it with: {installing(extra)}."
        ) from error


def _flat(config: Values, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested tables as dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _numbers(row: Values) -> Iterator[tuple[str, float]]:
    """The numbers of a row, without the round itself and without empty cells."""
    for name, value in row.items():
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
