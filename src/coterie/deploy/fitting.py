"""Whether what a client says of its data is what a run is about."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.terminal import brief, shown
from coterie.data.labels import are_whole
from coterie.deploy.hello import ColumnTold, Hello
from coterie.deploy.protocol import RunSpec


def unlike(hello: Hello, spec: RunSpec, inputs: str = "") -> str:
    """Why a client's data are not what the run is about; nothing if they are."""
    kind = "classification" if spec.kind == "binary" else spec.kind
    if hello.task != kind:
        return f"its targets are those of {hello.task}, the run is about {kind}"
    columns = other_columns(hello.columns, spec.columns)
    if columns:
        return f"the columns of its table are not those of the run: they differ in {columns}"
    if (hello.shape != spec.shape and not spec.columns) or hello.inputs != (inputs or hello.inputs):
        return (
            f"it has {hello.inputs if inputs else 'inputs'} of shape {hello.shape}, the run is about "
            f"{inputs or 'inputs'} of shape {spec.shape}"
        )
    if kind == "classification":
        return unknown_label(hello, spec.class_names, spec.classes)
    fits = hello.classes == spec.classes
    return "" if fits else f"it has {hello.classes} targets a sample, the run is about {spec.classes}"


def other_columns(own: Sequence[ColumnTold], usual: Sequence[ColumnTold]) -> str:
    """The names of columns that only one of two tables has, or has as text and the other as numbers."""
    here, there = ({(column.name, column.text) for column in columns} for columns in (own, usual))
    return brief(", ".join(map(shown, sorted({name for name, _ in here ^ there}))))


def are_words(hello: Hello) -> bool:
    """Whether a client's labels are words. Whole numbers are told like words by a client that lacks the first."""
    return bool(hello.names) and not are_whole(hello.names)


def ends_of(hello: Hello) -> tuple[int, int]:
    """The lowest and the highest label of a client; words are numbered from 0."""
    if hello.names and not are_words(hello):
        numbers = [int(name) for name in hello.names]
        return min(numbers), max(numbers)
    return hello.lowest, hello.classes - 1


def unknown_label(hello: Hello, names: tuple[str, ...], classes: int) -> str:
    """Which of a client's labels is none of the run's: these names or, without names, the numbers below `classes`."""
    known = f"the run is about {classes} classes ({brief(', '.join(names), 80) if names else f'0 to {classes - 1}'})"
    words = bool(names) and not are_whole(names)
    if are_words(hello) != words:
        kinds = {True: "words", False: "numbers"}
        return f"its labels are {kinds[not words]}, those of the run are {kinds[words]}"
    if hello.names and names:
        listed = set(names)
        strange = next((name for name in hello.names if name not in listed), None)
        return "" if strange is None else f"it has the label {shown(strange)}, {known}"
    first, last = (int(names[0]), int(names[-1])) if names else (0, classes - 1)
    strange = next((str(end) for end in ends_of(hello) if not first <= end <= last), None)
    return "" if strange is None else f"it has the label {strange}, {known}"
