"""What a run is, as data: everything that `config.toml` holds and that makes the run again."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from coterie.core.errors import UNREADABLE, CoterieError, unknown
from coterie.core.settings import (
    changed_fields,
    coerce,
    from_settings,
    quoted,
    to_toml,
)
from coterie.core.terminal import brief, shown
from coterie.data.drift import DriftTo
from coterie.data.labels import said_classes
from coterie.data.scaling import NormaliseName
from coterie.data.schema import Classes, Layout, Missing, TestsName
from coterie.data.shift import ShiftKind
from coterie.methods import Method, chosen_method
from coterie.methods.base import ServerMethod
from coterie.runs.folder import IN_PYTHON
from coterie.runs.options import RunOptions
from coterie.simulation.faults import Faults, Schedule
from coterie.simulation.simulator import EngineOptions

OWN_DATA = "own data"


@dataclass(frozen=True)
class ScenarioConfig:
    """Whose data: a named scenario with overrides (None: its own default), or a folder of the user's."""

    name: str = "rotated-digits"
    data: str | None = None
    root: str | None = None
    clients: int | None = None
    samples: int | None = None
    test_samples: int | None = None
    groups: int | None = None
    alpha: float | None = None
    partition: str | None = None
    pixels: str | None = None
    image_size: int | None = None
    validation: float = 0.0
    unseen: float = 0
    drift: Schedule = ()
    drift_to: DriftTo = "other"
    shift: ShiftKind | None = None
    group_sizes: tuple[int, ...] = ()
    mixed: float = 0.0
    layout: Layout | None = None
    client_column: str | None = None
    target_column: str | None = None
    ignore: tuple[str, ...] = ()
    missing: Missing = "refuse"
    classes: Classes = None
    normalise: NormaliseName = "auto"
    tests: TestsName = "auto"

    def __post_init__(self) -> None:
        if self.data is not None:
            object.__setattr__(self, "name", OWN_DATA)  # they have neither the name nor the rates of a scenario
        object.__setattr__(self, "classes", said_classes(self.classes))

    @property
    def preset_name(self) -> str:
        """The scenario that presets know it by; the user's own data are none of them."""
        return self.name if self.data is None else ""


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunOptions):
    """One run: its options, and what is learnt by which method on whose data."""

    method: str
    model: str = ""
    track: tuple[str, ...] = ()
    scenario: ScenarioConfig = field(default_factory=ScenarioConfig)
    settings: Mapping[str, Any] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_method(self.method)

    @property
    def label(self) -> str:
        """The method's own name, also where it is named by a file; results and folders are called by it."""
        return chosen_method(self.method).name

    @property
    def subject(self) -> str:
        """What the run is about, for its report: the scenario, or the path of the user's data."""
        return self.scenario.name if self.scenario.data is None else self.scenario.data

    def build_method(self, defaults: Mapping[str, Any]) -> Method:
        """The method with its settings; `defaults` (the scenario's training) give way to what the user set.

        A rate belongs to its optimiser: with another optimiser than the scenario's, the scenario's rate does not count.
        """
        kind = chosen_method(self.method)
        own = kind.__dataclass_fields__
        changed = {f for f in own if own[f].default != ServerMethod.__dataclass_fields__.get(f, own[f]).default}
        fitting = {key: value for key, value in defaults.items() if key in own and key not in changed}
        fitting |= kind.scenario_training.get(self.scenario.preset_name, {})
        chosen = kind.expand(self.settings, self.scenario.preset_name)
        usual = own["optimiser"].default
        if chosen.get("optimiser", fitting.get("optimiser", usual)) != fitting.get("optimiser", usual):
            fitting.pop("lr", None)
        return from_settings(kind, {**fitting, **chosen}, self.method)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        said = self.plain.keys() | {"method", "model", "track"}
        plain = {name: getattr(self, name) for name in _PLAIN if name in said}
        scenario = {"name": self.scenario.name, **changed_fields(self.scenario)}
        if self.scenario.data is not None:
            del scenario["name"]
        tables = {"faults": changed_fields(self.faults), "engine": changed_fields(self.engine)}
        return to_toml({**plain, "scenario": scenario, "settings": dict(self.settings), **tables})


_TABLES: dict[str, type[Any]] = {"scenario": ScenarioConfig, "faults": Faults, "engine": EngineOptions}


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        tables: dict[str, Any] = quoted(tomllib.loads(path.read_text(encoding="utf-8")))
        return tables
    except FileNotFoundError:
        raise CoterieError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise CoterieError(f"{path} is a folder, not a TOML file; name the file itself.") from None
    except (OSError, *UNREADABLE) as error:
        raise CoterieError(f"{path} is not a readable TOML file: {brief(str(error))}.") from None


def merge(tables: Mapping[str, Any], assignments: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Lay `--set` assignments over a file's tables: `a.b=c` sets key b of table a, a bare key the run's or method's.

    `METHOD.key` is for that method alone, so that one command line can set several methods. A bare key that both have
    (panm's `metric`) is the method's.
    """
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    for key in ("settings", *_TABLES):
        if not isinstance(merged.get(key, {}), Mapping):
            raise CoterieError(f"{key} must be a table ([{key}]), not {shown(merged[key])}.")
    own = chosen_method(str(tables["method"])).__dataclass_fields__ if "method" in tables else {}
    plain = {f.name for f in dataclasses.fields(RunConfig)} - {"settings", *_TABLES, *own}
    for key, value in sorted(assignments.items(), key=lambda each: each[0].startswith(f"{method}.")):  # these win
        table, dot, name = key.partition(".")
        if not dot and key in plain:
            merged[key] = value
        elif not dot:
            merged.setdefault("settings", {})[key] = value
        elif table in (method, "settings"):
            merged.setdefault("settings", {})[name] = value
        elif table in _TABLES:
            merged.setdefault(table, {})[name] = value
        else:
            raise unknown("table", table, [*_TABLES, method])
    return merged


def from_tables(tables: Mapping[str, Any]) -> RunConfig:
    """A run from the tables of a TOML file, every key and type checked."""
    where = tables.get("scenario")
    if isinstance(where, Mapping) and where.get("name") == IN_PYTHON:
        raise CoterieError(
            "The data and the model of this run were given in Python; start it again, or resume it, with the program "
            "that gave them."
        )
    fields = {f.name: f for f in dataclasses.fields(RunConfig)}
    values: dict[str, Any] = {}
    _check_places(tables)
    for key, value in tables.items():
        if key not in fields:
            raise unknown("setting", key, fields)
        if key in _TABLES or key == "settings":
            if not isinstance(value, Mapping):
                raise CoterieError(f"{key} must be a table ([{key}]), not {shown(value)}.")
            values[key] = from_settings(_TABLES[key], value, key) if key in _TABLES else dict(value)
        else:
            values[key] = coerce(_PLAIN[key], value, key)
    if "method" not in values:
        raise CoterieError('No method is given; name one, such as method = "fedavg".')
    config = RunConfig(**values)
    kind = chosen_method(config.method)
    expanded = kind.expand(config.settings, config.scenario.preset_name)
    settings = dataclasses.asdict(from_settings(kind, expanded, config.method))
    return dataclasses.replace(config, settings={key: settings.get(key, own) for key, own in config.settings.items()})


def _check_places(tables: Mapping[str, Any]) -> None:
    """Refuse a name that another table has, and say which."""
    method = tables.get("method")
    own = chosen_method(method).__dataclass_fields__ if isinstance(method, str) else {}
    names = {name: set(kind.__dataclass_fields__) for name, kind in _TABLES.items()}
    names |= {"settings": {*own, "preset"}, "": {*_PLAIN, "settings", *_TABLES}}
    for table, keys in [("", tables), *((name, part) for name, part in tables.items() if isinstance(part, Mapping))]:
        for key in keys:
            homes = [home for home, known in names.items() if key in known]
            if homes and table in names and table not in homes:
                owner = {"": "the run", "settings": method}.get(table, table)
                where = {"": f"{key}, outside the tables", "settings": f"a setting of {method}"}
                said = " or ".join(where.get(home, f"{home}.{key}") for home in homes)
                raise CoterieError(f"There is no setting of {owner} {key!r}; it is {said}.")


_FIRST = ("method", "rounds", "seed", "model")
"""What config.toml says first; the other options follow as they are declared."""
_HINTS = get_type_hints(RunConfig)
_PLAIN: dict[str, Any] = {
    name: _HINTS[name] for name in dict.fromkeys([*_FIRST, *_HINTS]) if name not in ("settings", *_TABLES)
}
