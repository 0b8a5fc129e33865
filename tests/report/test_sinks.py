"""The adapters against tiny stand-ins for the packages, and what is said when a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coterie.core.errors import CoterieError
from coterie.report.sinks import SINKS, open_sink

CONFIG = {"method": "ifca", "optimiser": {"lr": 0.1}}
ROW = {"round": 3, "accuracy": 0.5, "ari": "", "loss": None, "n_clusters": 4}
RESULT = {"method": "ifca", "rounds": 3, "accuracy": 0.9, "ari": None, "clusters": [0, 1]}

Calls = list[tuple[Any, ...]]


class Recorder:
    """Writes down every method called on it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._calls.append((name, *args, kwargs) if kwargs else (name, *args))


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def _follow(name: str, folder: Path) -> None:
    sink = open_sink(name, folder)
    sink.start(CONFIG)
    sink.round(ROW)
    sink.end(RESULT)


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: Calls = []

    def writer(folder: str) -> Recorder:
        calls.append(("open", folder))
        return Recorder(calls)

    _module(monkeypatch, "tensorboard")
    _module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=writer)
    _follow("tensorboard", tmp_path)
    assert calls == [
        ("open", str(tmp_path.parent / "tensorboard" / tmp_path.name)),
        ("add_text", "config", "    method = ifca\n    optimiser.lr = 0.1"),
        ("add_scalar", "accuracy", 0.5, 3),
        ("add_scalar", "n_clusters", 4.0, 3),
        ("add_scalar", "result/rounds", 3.0, 3),
        ("add_scalar", "result/accuracy", 0.9, 3),
        ("close",),
    ]


def test_mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: Calls = []
    recorder = Recorder(calls)
    names = ("set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    _module(monkeypatch, "mlflow", **{name: getattr(recorder, name) for name in names})
    _follow("mlflow", tmp_path / "run-7")
    assert calls == [
        ("set_experiment", "coterie"),
        ("start_run", {"run_name": "run-7"}),
        ("log_params", {"method": "ifca", "optimiser.lr": 0.1}),
        ("log_metrics", {"accuracy": 0.5, "n_clusters": 4.0}, {"step": 3}),
        ("log_metrics", {"result_rounds": 3.0, "result_accuracy": 0.9}),
        ("end_run",),
    ]


def test_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: Calls = []
    recorder = Recorder(calls)
    summary: dict[str, float] = {}
    run = SimpleNamespace(log=recorder.log, finish=recorder.finish, summary=summary)

    def init(**kwargs: Any) -> SimpleNamespace:
        calls.append(("init", kwargs))
        return run

    _module(monkeypatch, "wandb", init=init)
    _follow("wandb", tmp_path / "run-7")
    folder = str(tmp_path / "run-7")
    config = {"method": "ifca", "optimiser.lr": 0.1}
    assert calls == [
        ("init", {"project": "coterie", "name": "run-7", "dir": folder, "config": config}),
        ("log", {"accuracy": 0.5, "n_clusters": 4.0}, {"step": 3}),
        ("finish",),
    ]
    assert summary == {"rounds": 3.0, "accuracy": 0.9}


@pytest.mark.parametrize("name", SINKS)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # None in sys.modules makes the import fail whether or not the package is installed
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CoterieError, match=rf"pip install 'coterie\[{name}\]'\."):
        open_sink(name, tmp_path)


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="did you mean 'mlflow'"):
        open_sink("mlfow", tmp_path)
