"""Which kind of task a user's targets are, and what is wrong with those that are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import ClientData, ClientId, Samples
from coterie.core.targets import TASKS, TargetScale, TaskKind, TaskName

from .checks import checked_classes
from .schema import TestsName

P = TypeVar("P", bound=Sequence[Samples])
_MOST_STRANGE = 0.1  # of a client's test samples, by whose labels it has none
_SAY = 'say task="{}" in Python, or --set task={} on the command line'


@dataclass(frozen=True)
class Goal:
    """What is predicted: its kind, how many outputs it takes (one a class, label or number), and its scale."""

    kind: TaskKind
    classes: int
    scale: TargetScale | None = None


def settle(
    parts: Mapping[ClientId, tuple[Samples, Samples]], task: TaskName = "auto", classes: int | None = None
) -> tuple[Goal, dict[ClientId, tuple[Samples, Samples]]]:
    """The kind of all clients' targets together, and their (training, test) samples with targets of its type."""
    if task not in TASKS:
        raise unknown("task", str(task), TASKS)
    each = [(client, part.y) for client, pair in parts.items() for part in pair]
    kind = _inferred(each) if task == "auto" else task
    targets = {client: tuple(_checked(client, part.y, kind) for part in pair) for client, pair in parts.items()}
    forms = {tuple(y.shape[1:]): client for client, ys in targets.items() for y in ys}
    if len(forms) > 1:
        (first, a), (second, b) = list(forms.items())[:2]
        raise CoterieError(
            f"The targets of client {a} have shape {first} a sample and those of client {b} {second}; bring all to one."
        )
    goal = _goal(kind, [y for ys in targets.values() for y in ys], [ys[0] for ys in targets.values()], classes)
    return goal, {
        client: (replace(parts[client][0], y=train), replace(parts[client][1], y=test))
        for client, (train, test) in targets.items()
    }


def tests_alike(tests: TestsName, kind: TaskKind, tested: Sequence[ClientData]) -> bool:
    """Whether clients are asked for labels as often as they have them in training (`TestsName`).

    `tested` are those that came with tests of their own.
    """
    if tests not in get_args(TestsName):
        raise unknown("value of tests", str(tests), get_args(TestsName))
    if tests != "auto" or kind not in ("classification", "binary"):
        return tests != "all"
    strange = [float((~torch.isin(data.test.y, _held(data))).double().mean()) for data in tested if len(data.test)]
    return not strange or sum(strange) / len(strange) <= _MOST_STRANGE


def _held(data: ClientData) -> Tensor:
    """The labels that a client has to learn from."""
    labels = [part.y for part in (data.train, data.valid) if part is not None]
    return torch.cat(labels)


def _goal(kind: TaskKind, targets: Sequence[Tensor], training: Sequence[Tensor], classes: int | None) -> Goal:
    if kind == "multilabel":
        return Goal(kind, int(targets[0].shape[1]))
    if kind == "regression":
        return Goal(kind, 1 if targets[0].dim() == 1 else int(targets[0].shape[1]), TargetScale.measured(training))
    number = checked_classes(targets, classes)
    if kind == "binary" and number > 2:
        raise CoterieError(f"A binary task has the classes 0 and 1, and there is a label {number - 1}; renumber them.")
    return Goal("binary" if number == 2 else "classification", max(number, 2 if kind == "binary" else 1))


def _inferred(targets: Sequence[tuple[ClientId, Tensor]]) -> TaskKind:
    """The kind that these targets clearly are, or one sentence."""
    whole = [(client, y) for client, y in targets if not y.dtype.is_floating_point]
    if any(y.dim() == 2 and y.shape[1] > 1 for _, y in targets):
        if all(bool(((y == 0) | (y == 1)).all()) for _, y in targets):
            return "multilabel"
        client, y = next((client, y) for client, y in targets if not bool(((y == 0) | (y == 1)).all()))
        if not y.dtype.is_floating_point:
            raise CoterieError(
                f"Client {client} has whole numbers in targets of shape {tuple(y.shape)}; give 0 and 1 for several "
                f"labels a sample, or {_SAY.format('regression', 'regression')} to predict the numbers."
            )
        return "regression"
    if len(whole) == len(targets):
        return "classification"
    if any(bool((y != y.round()).any()) for _, y in targets if y.dtype.is_floating_point):
        return "regression"
    client, y = next((client, y) for client, y in targets if y.dtype.is_floating_point)
    raise CoterieError(
        f"The targets of client {client} are {_dtype(y)} without fractions, which may be classes or numbers; give "
        f"integers from 0 up for classes, or {_SAY.format('regression', 'regression')}."
    )


def _checked(client: ClientId, y: Tensor, kind: TaskKind) -> Tensor:
    """Targets of the type that the kind has: whole numbers for classes, floats for labels and numbers."""
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if kind == "regression":
        if not bool(torch.isfinite(y.double()).all()):
            raise CoterieError(f"The targets of client {client} hold NaN or infinity; remove those samples.")
        return y if y.dtype.is_floating_point and y.dtype != torch.float16 else y.to(torch.float64)
    if kind == "multilabel":
        if y.dim() != 2 or not bool(((y == 0) | (y == 1)).all()):
            raise CoterieError(
                f"Client {client} has targets of shape {tuple(y.shape)}; for several labels a sample give a matrix of "
                "0 and 1, a row for each sample and a column for each label."
            )
        return y.to(torch.float32)
    if y.dim() != 1:
        raise CoterieError(f"Client {client} has targets of shape {tuple(y.shape)}; give one label for each input.")
    if y.dtype.is_floating_point and bool((y != y.round()).any()):
        raise CoterieError(
            f"The targets of client {client} are {_dtype(y)} with fractions; give integers from 0 up for classes, or "
            f"{_SAY.format('regression', 'regression')}."
        )
    labels = y.to(torch.int64)
    if int(labels.min()) < 0:
        raise CoterieError(
            f"Client {client} has the label {int(labels.min())}; give integers from 0 up, or "
            f"{_SAY.format('regression', 'regression')} if they are numbers to predict."
        )
    return labels


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
