"""The tables of `coterie list` and `coterie data`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import Population
from coterie.data import SCENARIOS, Spread, Summary, data_root, describe
from coterie.data.scaling import said
from coterie.data.schema import Schema, schema_of
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.simulation.faults import Faults

if TYPE_CHECKING:
    pass

_KINDS = ("methods", "scenarios", "models")
_FAULTS = "faults"
_ROOMY = 120
Row = tuple[str, str, Mapping[str, object]]


def tables(what: str | None) -> list[Table]:
    """What `coterie list [what]` shows."""
    if what in METHODS:
        return [settings(what)]
    if what == _FAULTS:
        return [faults()]
    if what in SCENARIOS:
        raise CoterieError(f"{what} is a scenario; see `coterie data {what}`.")
    if what is not None and what not in _KINDS:
        raise unknown("list", what, [*_KINDS, _FAULTS, *METHODS])
    made = {"methods": methods, "scenarios": scenarios, "models": models}
    return [made[kind]() for kind in _KINDS if what in (None, kind)]


def methods() -> Table:
    """Every method with its paper."""
    table = _table("methods", "name", "what it does", "paper")
    for name, kind in METHODS.items():
        table.add_row(name, kind.summary, kind.paper)
    return table


def settings(method: str) -> Table:
    """Every setting of a method, and when to use it."""
    kind = METHODS[method]
    table = _table(f"{method}: {kind.summary}", "setting", "default", "meaning")
    table.caption = f"Use it when {kind.use_when}. Not when {kind.avoid_when}."
    table.caption_justify = "left"
    _add_fields(table, kind)
    for name, chosen in kind.presets.items():
        table.add_row(f"preset={name}", "", _assigned(chosen))
        for scenario, there in kind.scenario_presets.get(name, {}).items():
            table.add_row("", "", f"on {scenario}: {_assigned(there)}")
    return table


def _assigned(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "the defaults"


def faults() -> Table:
    """Every fault that the simulator can make."""
    table = _table("faults of the simulator: --set faults.dropout=0.1", "setting", "default", "meaning")
    _add_fields(table, Faults, "faults.")
    return table


def _add_fields(table: Table, kind: Any, prefix: str = "") -> None:
    for field in dataclasses.fields(kind):
        default = field.metadata.get("shown") or ("none" if field.default == () else str(field.default))
        table.add_row(f"{prefix}{field.name}", default, str(field.metadata.get("help", "")))


def scenarios(root: Path | None = None) -> Table:
    """Every scenario, and whether its files are there."""
    where = data_root(root)
    rows: list[Row] = []
    for scenario in SCENARIOS.values():
        missing = [folder for folder in scenario.folders if not (where / folder).is_dir()]
        here = f"missing: {', '.join(missing)}" if missing else "there" if scenario.folders else "embedded"
        facts = {"clients": scenario.clients, "groups": scenario.groups, "model": scenario.model, "files": here}
        rows.append((scenario.name, scenario.summary, facts))
    return summaries(f"scenarios (data in {where})", "what it is", rows)


def models() -> Table:
    """Every model with its size."""
    table = _table("models", "name", "what it is", "input", "parameters")
    for spec in MODELS.values():
        table.add_row(spec.name, spec.summary, " x ".join(map(str, spec.shape)), f"{spec.parameters:,}")
    return table


def population(clients: Population, name: str) -> list[Table]:
    """What `coterie data SCENARIO` shows."""
    summary, schema = describe(clients), schema_of(clients)
    groups = "not known" if summary.groups is None else ", ".join(f"{n} in {g}" for g, n in summary.groups.items())
    rows = {
        "clients": f"{summary.clients:,}" + (f" and {summary.unseen:,} unseen" if summary.unseen else ""),
        "true groups": groups,
        "input": " x ".join(map(str, summary.shape)),
        **_predicted(schema, summary),
        "training samples per client": _spread(summary.train),
        "validation samples per client": _spread(summary.valid) if summary.valid else "none",
        "test samples per client": _spread(summary.test),
    }
    if summary.classes_per_client is not None and summary.largest_share is not None:
        rows["classes per client"] = _spread(summary.classes_per_client)
        rows["share of a client's most frequent class"] = f"{summary.largest_share:.0%}"
        rows["training samples by class"] = " ".join(map(str, summary.labels))
    wordy = [f"{column.name} ({', '.join(column.categories)})" for column in schema.columns if column.categories]
    if wordy:
        rows["columns of text"] = "; ".join(wordy)
    rows["inputs to the model"] = said(clients.normalise, summary.shape)
    if summary.inspected < summary.clients:
        rows["looked at"] = f"{summary.inspected:,} of {summary.clients:,} clients"
    table = _table(name, "", "")
    for key, value in rows.items():
        table.add_row(key, value)
    return [table]


def _predicted(schema: Schema, summary: Summary) -> dict[str, str]:
    """What is predicted: classes with their names, or how many numbers or labels."""
    names = f": {', '.join(schema.class_names)}" if schema.class_names else ""
    if schema.task in ("regression", "multilabel"):
        return {"task": schema.task, "outputs": str(summary.classes)}
    return {"classes": f"{summary.classes}{names}"}


def _spread(spread: Spread) -> str:
    if spread.smallest == spread.largest:
        return str(spread.smallest)
    return f"{spread.smallest} to {spread.largest}, median {spread.median:g}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)  # a name in two pieces is none
    return table


def summaries(title: str, what: str, rows: Sequence[Row]) -> Table:
    """Names with a sentence and some facts each: a column a fact, or a line for all where columns would cut words."""
    roomy = Console().width >= _ROOMY
    table = _table(title, "name", what, *(rows[0][2] if roomy and rows else ()))
    for name, summary, facts in rows:
        if roomy:
            table.add_row(name, escape(summary), *("-" if fact is None else str(fact) for fact in facts.values()))
        else:
            known = ", ".join(f"{key} {fact}" for key, fact in facts.items() if fact is not None)
            table.add_row(name, f"{escape(summary)}\n[dim]{escape(known)}[/dim]")
    return table
