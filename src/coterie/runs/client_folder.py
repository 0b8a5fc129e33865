"""What a client of a served run has of it afterwards: a folder on its own machine, with its model and how it does.

It is the client's alone: the server never had a model that a client has made its own. `coterie predict` and
`coterie.load` take the folder as that of any other run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coterie.core.files import private_files
from coterie.core.settings import to_toml
from coterie.data.scaling import said
from coterie.data.schema import SCHEMA_FILE, schema_of
from coterie.deploy.client import AtEnd
from coterie.methods.base import RoundMethod
from coterie.methods.counted import Counted
from coterie.runs.folder import KIND_FILE, RunFolder, RunKind
from coterie.runs.records import CONFIG_FILE, RESULT_FILE
from coterie.runs.result import Result
from coterie.runs.standing import Standing


def keeping(root: Path) -> Callable[[AtEnd], None]:
    """A function that writes what a client has at the end of a run into its own folder; a later run replaces it."""

    def keep(end: AtEnd) -> None:
        with private_files():
            write(end)

    def write(end: AtEnd) -> None:
        method, spec = end.setting.method, end.spec
        if not isinstance(method, RoundMethod) or type(method).ready is not RoundMethod.ready:
            return  # its network needs what the server knows
        folder = RunFolder(root, RunKind.CLIENT)
        folder.write(KIND_FILE, f"{RunKind.CLIENT}\n".encode())
        plain = {name: getattr(spec, name) for name in ("method", "seed", "model", "dtype", "task", "loss", "metric")}
        found = {method.counts: method.number} if isinstance(method, Counted) else {}  # it may have been left open
        tables = {"scenario": {"data": spec.run}, "settings": json.loads(spec.settings) | found}
        folder.write(CONFIG_FILE, to_toml({**plain, "task": spec.kind, "rounds": end.round + 1, **tables}).encode())
        folder.restart()
        schema = replace(
            schema_of(end.setting.population),
            shape=spec.shape,
            classes=spec.classes,
            task=spec.kind,
            normalise=spec.normalise,
            class_names=spec.class_names,
        )
        folder.write(SCHEMA_FILE, schema.to_json().encode())
        folder.write_models({f"client-{end.name}": end.model}, end.setting.task)
        folder.write(RESULT_FILE, _result(end, method).to_json().encode())

    return keep


def _result(end: AtEnd, method: RoundMethod[object]) -> Result:
    """How this client alone stands."""
    cluster = int(end.examined.cluster[0])
    return Result(
        method=method.name,
        scenario=end.spec.run,
        seed=end.spec.seed,
        rounds=end.round + 1,
        clients=1,
        **Standing.of(end.setting.task, end.examined).result(None),
        clusters=[cluster] if cluster >= 0 else None,
        n_clusters=None,
        ari=None,
        bytes_down=0,
        bytes_up=0,
        bytes_evaluation=0,
        seconds=0.0,
        failures=0,
        client_ids=[end.name],
        truth=None,
        engine=f"client {end.name}",
        inputs=said(end.spec.normalise, end.spec.shape),
        title=method.training.title,
    )
