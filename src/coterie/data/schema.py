"""How a user's data were read and became inputs of a model, so that new data can be read in the same way later."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from coterie.core import wire
from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.samples import Normalise, Population

SCHEMA_FILE = "schema.json"
"""Its name in the folder of a run."""
Layout = Literal["rows", "tokens", "series", "images", "images-last"]
"""What the axes of inputs are.

rows [n, features]; tokens [n, length], whole numbers that reach the model as they are; series [n, steps, features];
images [n, channels, height, width] or [n, height, width]; images-last [n, height, width, channels].
"""
TestsName = Literal["auto", "own", "all"]
"""Which labels a client will be asked for: its own, as often as it has them in training; or all, also those it lacks.

"auto" is "own" where a part of each client's data is kept for testing. Where clients have tests of their own, it is
"all" if on average more than a tenth of a client's test samples have labels that it does not have in training.
"""
Missing = Literal["refuse", "mean", "drop"]
"""What happens to missing values of a table: an error; the column's mean over all clients; the row is left out."""
Classes = int | tuple[str, ...] | None
"""The classes of own data: how many, numbered from 0; their names; or, None, those that the data have."""
MOST_NAMES = 1000
"""So many classes, or categories of one column, can have names."""
MOST_CLASSES = 1 << 16
LONGEST_NAME = 100
"""The longest name of a class or a category, in characters."""


@dataclass(frozen=True)
class Column:
    """One column of a table among the inputs: a number, or text that becomes one 0/1 input for each category."""

    name: str
    categories: tuple[str, ...] = ()
    """In the order of the inputs; empty where the column holds numbers."""
    fill: float | None = None
    """What stands for a missing number: the mean over all clients' training rows. None where one is refused."""
    known: int = 0
    """How many numbers that is the mean of."""

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.categories) or 1


@dataclass(frozen=True)
class Schema:
    """How raw data become inputs and answers become words. A population has one, and a run's folder keeps it."""

    shape: tuple[int, ...]
    """Shape of one input as the model gets it."""
    classes: int
    layout: str = ""
    """A `Layout`; empty where a population does not say it."""
    dtype: str = "float32"
    """The type of raw inputs."""
    task: str = ""
    """What kind of targets they are; empty where a population does not say it."""
    normalise: Normalise = field(default_factory=Normalise)
    class_names: tuple[str, ...] = ()
    """The label of each class, in sorted order over all clients; empty where labels are the numbers themselves."""
    columns: tuple[Column, ...] = ()
    """Of a table: the columns that are inputs, in their order."""
    target: str = ""
    """Of a table: the column of the targets."""
    client: str = ""
    """Of a single table: the column with the clients' names."""
    missing: str = "refuse"
    """A `Missing`."""
    image_size: int | None = None
    """Of image files: the side they are scaled to."""

    def to_json(self) -> str:
        """The text of `schema.json`."""
        return json.dumps(wire.pack(self)[0], indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """The schema of a text that `to_json` wrote, or an error that says what is wrong with it.

        Keys that an older version did not write have their defaults.
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict):
                raise wire.WireError("it holds no table")
            known = {"shape": found["shape"], "classes": found["classes"]}
            found["columns"] = [{"known": 0, **column} for column in found.get("columns", ())]
            schema: Schema = wire.unpack(cls, {**wire.pack(cls(**known))[0], **found}, {})
        except (wire.WireError, *UNREADABLE) as error:
            raise CoterieError(f"This is not a schema of a run's data ({error}).") from error
        schema._check()
        return schema

    def _check(self) -> None:
        whole = {self.classes, *self.shape}
        fits = (
            all(isinstance(n, int) and 0 < n < 1 << 32 for n in whole)
            and self.layout in ("", *get_args(Layout))
            and self.missing in get_args(Missing)
            and len(self.class_names) in (0, self.classes)
            and len(self.normalise.mean) == len(self.normalise.std) > 0
        )
        if not fits:
            raise CoterieError("This is not a schema of a run's data: its parts do not belong together.")


def schema_of(population: Population) -> Schema:
    """The schema of any population; one that has none of its own is described by its shape and its normalisation."""
    own: Schema | None = getattr(population, "schema", None)
    if own is not None:
        return own
    layout = "images" if len(population.shape) == 3 else "rows" if len(population.shape) == 1 else ""
    return Schema(tuple(population.shape), population.classes, layout, "uint8", normalise=population.normalise)


def read_schema(folder: Path) -> Schema:
    """The schema in the folder of a run."""
    file = folder / SCHEMA_FILE
    try:
        return Schema.from_json(file.read_bytes())
    except OSError as error:
        raise CoterieError(
            f"{file} cannot be read ({error.strerror or error}); name the folder of a run of this version of coterie."
        ) from error
    except CoterieError as error:
        raise CoterieError(f"{file} is damaged: {error} Run it again into a new folder.") from error
