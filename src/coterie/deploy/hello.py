"""How a client introduces itself: what its data are, in names, sizes and moments; and what all clients say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

import torch

from coterie.core.samples import Normalise
from coterie.core.targets import KINDS, TargetScale
from coterie.data.agreed import moments_in
from coterie.data.encoding import MOST_CATEGORIES
from coterie.data.scaling import InputMoments, NormaliseName, channels, scale_of
from coterie.data.scaling import pooled as common_scale
from coterie.data.schema import LONGEST_NAME, MOST_CLASSES, MOST_NAMES, Column
from coterie.deploy.boundary import Between, Length, Name, OneOf, PlainLine

INPUTS = ("uint8", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool")
_LARGEST_INPUT = 1 << 24
MOST_CHANNELS = 1 << 12
_LONGEST_NAMES = 20_000  # characters of all names together: every order carries them
_LARGEST_WEIGHT = 10  # of a client in the common normalisation, in medians of all

Shape = Annotated[tuple[Annotated[int, Between(1, 1 << 16)], ...], Length(1, 4)]
Classes = Annotated[int, Between(1, MOST_CLASSES)]
Middle = Annotated[float, Between(-1e12, 1e12)]
Spread = Annotated[float, Between(0, 1e12)]
Means = Annotated[tuple[Middle, ...], Length(1, MOST_CHANNELS)]
Names = Annotated[tuple[Annotated[str, PlainLine(LONGEST_NAME)], ...], Length(0, MOST_NAMES)]
Words = Annotated[tuple[Annotated[str, PlainLine(LONGEST_NAME)], ...], Length(0, MOST_CATEGORIES)]
Deviations = Annotated[tuple[Spread, ...], Length(1, MOST_CHANNELS)]
TargetMeans = Annotated[tuple[Middle, ...], Length(0, MOST_CHANNELS)]
TargetSpreads = Annotated[tuple[Spread, ...], Length(0, MOST_CHANNELS)]


@dataclass(frozen=True)
class ColumnTold:
    """A column of a table: its name, its words where it holds text, and the mean of its known numbers where gaps are
    filled in with it.
    """

    name: Annotated[str, PlainLine(LONGEST_NAME)]
    text: bool = False
    words: Words = ()
    known: Annotated[int, Between(0, 10**12)] = 0
    mean: Middle = 0.0

    @property
    def column(self) -> Column:
        """The same for those who read tables."""
        return Column(self.name, self.words, self.mean if self.known else None, self.known)

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.words) if self.text else 1

    def wrong(self) -> str:
        """Words of a column of numbers, or one word twice."""
        fits = (self.text or not self.words) and len(set(self.words)) == len(self.words)
        return "" if fits else "a column has words that it cannot have"


def told_column(column: Column, *, words: bool = True) -> ColumnTold:
    """What a client, or a run, says of a column; its `words` need not be told, nor the mean of its numbers."""
    text = bool(column.categories)
    if not words or column.fill is None:
        return ColumnTold(column.name, text, column.categories if words else ())
    return ColumnTold(column.name, text, column.categories, column.known, short(column.fill))


ColumnsTold = Annotated[tuple[ColumnTold, ...], Length(0, MOST_NAMES)]


@dataclass(frozen=True)
class Hello:
    """How a client introduces itself: its name, the form of its data, and their moments per channel."""

    name: Name
    shape: Shape
    classes: Classes
    dtype: Annotated[str, OneOf(INPUTS)]
    samples: Annotated[int, Between(1, 10**9)]
    mean: Means
    deviation: Deviations
    names: Names = ()
    """Its labels, where they are words."""
    columns: ColumnsTold = ()
    """The columns of its inputs, where its data are a table."""
    task: Annotated[str, OneOf(KINDS)] = "classification"
    """What its targets are; whether they are two classes is for all clients together to say."""
    lowest: Annotated[int, Between(0, MOST_CLASSES - 1)] = 0
    """Its lowest label, where labels are numbers."""
    target_mean: TargetMeans = ()
    target_deviation: TargetSpreads = ()
    """The moments of its training targets, where these are numbers."""

    @property
    def inputs(self) -> str:
        """What the inputs are to the model: bytes and floats, which are brought to one scale, or token ids."""
        return {"uint8": "bytes", "int64": "token ids"}.get(self.dtype, "floats")

    @property
    def form(self) -> tuple[object, ...]:
        """What must be alike for inputs to be those of one model: columns may come in any order."""
        columns = tuple(sorted((column.name, column.text) for column in self.columns))
        return (columns or self.shape, self.inputs)

    @property
    def described(self) -> str:
        """Its inputs, in a few words."""
        return f"{self.inputs} of shape {self.shape}" if not self.columns else f"a table of {len(self.columns)} columns"

    def moments(self, columns: tuple[ColumnTold, ...] = ()) -> InputMoments:
        """What it says of its inputs, as they are when it reads its table with these columns."""
        told = InputMoments(self.samples, self.mean, self.deviation)
        if not columns or len(self.mean) != sum(column.width or 2 for column in self.columns):
            return told
        return moments_in(tuple(c.column for c in columns), tuple(c.column for c in self.columns), told)

    def wrong(self) -> str:
        """What does not belong together: one mean and one deviation per channel, names and classes."""
        number = channels(self.shape, torch.float32)
        if len(self.mean) not in (1, number) or len(self.deviation) != len(self.mean):
            return f"inputs of shape {self.shape} have {number} means and deviations, or one"
        if self.lowest >= self.classes:
            return f"the lowest label {self.lowest} is none of {self.classes} classes"
        if self.names and (len(self.names) != self.classes or self.task not in ("classification", "binary")):
            return f"{len(self.names)} names are not those of {self.classes} classes"
        if len(self.target_mean) not in (0, self.classes) or len(self.target_deviation) != len(self.target_mean):
            return f"{self.classes} targets have as many means and deviations, or none"
        if self.inputs == "bytes" and not all(0 <= number <= 1 for number in (*self.mean, *self.deviation)):
            return "the means of bytes are between 0 and 1"
        return wrong_columns(self.columns, self.shape, self.names) or too_large(self.shape)


def wrong_columns(columns: tuple[ColumnTold, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> str:
    """Columns that do not make such inputs, and more words than an order should carry."""
    if len({column.name for column in columns}) != len(columns):
        return "two columns have one name"
    quiet = any(column.text and not column.words for column in columns)  # a device need not tell its words
    if columns and not quiet and (sum(column.width for column in columns),) != shape:
        return f"the columns do not make inputs of shape {shape}"
    words = [*names, *(word for column in columns for word in (column.name, *column.words))]
    fits = sum(map(len, words)) <= _LONGEST_NAMES
    return "" if fits else f"names of classes and columns have more than {_LONGEST_NAMES} characters together"


def too_large(shape: tuple[int, ...]) -> str:
    """Inputs that are larger than any model takes."""
    return "" if prod(shape) <= _LARGEST_INPUT else f"an input has at most {_LARGEST_INPUT} numbers"


def pooled(
    hellos: Mapping[str, Hello],
    choice: NormaliseName = "auto",
    columns: tuple[ColumnTold, ...] = (),
    shape: tuple[int, ...] | None = None,
) -> Normalise:
    """How all clients' inputs become those of the model: as in the simulator (`data.scaling.pooled`).

    A client counts by its number of samples, which cannot be checked: at most ten times as much as the median client.
    One that does not tell its features one by one is left out where others do.
    """
    everyone = [hello.moments(columns) for hello in hellos.values()]
    most = max(len(told.mean) for told in everyone)
    first = next(iter(hellos.values()))
    counted = [told for told in everyone if len(told.mean) == most]
    return common_scale(counted, choice, shape or first.shape, getattr(torch, first.dtype), most=_LARGEST_WEIGHT)


def pooled_targets(hellos: Mapping[str, Hello]) -> TargetScale | None:
    """The common scale of targets that are numbers, of those clients who tell theirs; they count as in `pooled`."""
    told = [
        InputMoments(hello.samples, hello.target_mean, hello.target_deviation)
        for hello in hellos.values()
        if hello.target_mean
    ]
    if not told:
        return None
    mean, deviation = scale_of(told, _LARGEST_WEIGHT)
    return TargetScale(tuple(mean.tolist()), tuple((d if d > 0 else 1.0) for d in deviation.tolist()))


def short(number: float) -> float:
    """A number with as many digits as matter: of a thousand features all are sent."""
    return float(f"{number:.12g}")
