"""The only evaluation loop of the package: how models do on clients' data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.cohort import Cohort, Part
from coterie.core.compiled import Refusal
from coterie.core.metrics import metrics_of
from coterie.core.samples import Samples
from coterie.core.states import Stack, State, count, row
from coterie.core.task import Task

_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Scores:
    """How models did on clients' data. Rows are models where several were scored on the same client."""

    loss: Tensor
    correct: Tensor
    count: Tensor
    score: Tensor | None = None
    """The value of the task's metric where that is not the accuracy; NaN where it is not defined."""


def score(task: Task, models: Stack, samples: Samples) -> Scores:
    """Every model of the stack on one client's samples: mean loss [K], correct answers [K], number of samples."""
    rows, total = count(models), len(samples)
    number = torch.full((rows,), float(total), dtype=torch.float64)
    if not total:
        return Scores(torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64), number)
    compiled = task.compiled
    if not isinstance(compiled, Refusal) and compiled.takes(samples.extra, rows):
        mean, share = compiled.score(models, samples)
        return Scores(mean, (share * total).round().nan_to_num(0.0), number)
    loss, correct = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    for index in range(rows):
        for output, target in _outputs(task, row(models, index), samples):
            loss[index] += float(task.loss_of(output, target)) * len(output)
            correct[index] += right_answers(task, output, target)
    return Scores(loss / total, correct, number)


def right_answers(task: Task, output: Tensor, target: Tensor) -> float:
    """How many answers are right; with several labels a sample, the share of its labels that are; 0 for numbers."""
    if task.kind == "regression" or task.loss == "reconstruction":
        return 0.0
    if task.kind == "multilabel":
        return float(((output > 0) == (target > 0.5)).cpu().double().mean(-1).sum())
    if task.kind == "binary" and (output.dim() == 1 or output.shape[-1] == 1):
        return float(((output > 0).flatten() == (target > 0.5).flatten()).sum())
    return float((output.argmax(-1) == target).sum())


def _outputs(task: Task, state: State, samples: Samples) -> list[tuple[Tensor, Tensor]]:
    module, results = task.loaded(state).eval(), []
    with torch.inference_mode():
        for each in samples.batches(_EVALUATION_BATCH):
            batch = each.on(task.device)
            inputs = task.inputs(batch.x)
            results.append((task.outputs(module, batch, inputs), task.targets(batch, inputs)))
    return results


def outputs(task: Task, model: Stack, samples: Samples) -> Tensor:
    """What the network answers to one client's samples with the only model of the stack, [n, ...]."""
    compiled = task.compiled
    if not isinstance(compiled, Refusal) and compiled.takes(samples.extra):
        return compiled.outputs(model, samples)[0]
    return torch.cat([output for output, _ in _outputs(task, row(model, 0), samples)]).cpu()


def evaluate(c: Cohort, models: Stack, part: Part = "test") -> Scores:
    """Each client's own row of `models` on its own data: every entry of the result is [C]."""
    judged = _score_and_metric if c.task.primary.name != "accuracy" else score
    each = [
        judged(c.task, {name: t[index : index + 1] for name, t in models.items()}, samples)
        for index, samples in enumerate(c.part(part))
    ]
    scores = [s.score for s in each if s.score is not None]
    return Scores(
        torch.cat([s.loss for s in each]),
        torch.cat([s.correct for s in each]),
        torch.cat([s.count for s in each]),
        torch.cat(scores) if scores else None,
    )


def _score_and_metric(task: Task, model: Stack, samples: Samples) -> Scores:
    """One model, with the value of the task's metric: loss and metric are of the same outputs."""
    number = torch.tensor([float(len(samples))], dtype=torch.float64)
    if not len(samples):
        nothing = torch.zeros(1, dtype=torch.float64)
        return Scores(nothing, nothing, number, torch.full((1,), math.nan, dtype=torch.float64))
    output = outputs(task, model, samples)
    learnt = task.targets(samples, output)
    values = (
        float(task.loss_of(output, learnt)),
        right_answers(task, output, learnt),
        task.primary(task.predictions(output, samples.y), samples.y),
    )
    loss, correct, metric = (torch.tensor([value], dtype=torch.float64) for value in values)
    return Scores(loss, correct, number, metric)


def measured(c: Cohort, models: Stack, part: Part = "test") -> dict[str, Tensor]:
    """All that can be measured of each client's own row of `models` on its own data, by name, [C] each.

    What is not defined for a client is NaN.
    """
    known = metrics_of(c.task.kind)
    values: dict[str, list[float]] = {name: [] for name in known}
    for index, samples in enumerate(c.part(part)):
        prediction = None
        if len(samples):
            output = outputs(c.task, {name: t[index : index + 1] for name, t in models.items()}, samples)
            prediction = c.task.predictions(output, samples.y) if c.task.predicts(output) else None
        for name, metric in known.items():
            values[name].append(math.nan if prediction is None else metric(prediction, samples.y))
    return {name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()}


def losses(c: Cohort, models: Stack, part: Part = "train", *, batch: int = 0) -> Tensor:
    """The loss of every model on every client's data, [K, C]; with `batch`, on that many samples drawn this round."""

    def chosen(index: int, samples: Samples) -> Samples:
        if not batch or batch >= len(samples):
            return samples
        drawn = c.rng(index, "score").choice(len(samples), batch, replace=False)
        return samples.take(torch.from_numpy(drawn))

    return torch.stack([score(c.task, models, chosen(i, s)).loss for i, s in enumerate(c.part(part))], dim=1)


def sample_losses(task: Task, models: Stack, samples: Samples) -> Tensor:
    """The loss of every model on each of a client's samples, [K, n]."""
    if task.loss == "cross_entropy" and samples.extra is None and samples.y.dim() == 1 and len(samples):
        found = probabilities(task, models, task.inputs(samples.x))
        if found.dim() == 3:
            own = found.gather(2, samples.y.view(1, -1, 1).expand(len(found), -1, 1))[..., 0]
            return -own.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    rows = []
    for index in range(count(models)):
        each = [
            float(task.loss_of(output[at : at + 1], target[at : at + 1]))
            for output, target in _outputs(task, row(models, index), samples)
            for at in range(len(output))
        ]
        rows.append(torch.tensor(each, dtype=torch.float64))
    return torch.stack(rows)


def probabilities(task: Task, models: Stack, inputs: Tensor) -> Tensor:
    """Class probabilities of every model for inputs already in the network's input space: [K, n, classes]."""
    compiled = task.compiled
    if not isinstance(compiled, Refusal) and compiled.takes(None, count(models)):
        return compiled.probabilities(models, inputs)
    results = []
    for index in range(count(models)):
        module = task.loaded(row(models, index)).eval()
        with torch.inference_mode():
            kind = task.dtype if inputs.is_floating_point() else inputs.dtype  # token ids stay what they are
            ready = inputs.to(task.device, kind).split(_EVALUATION_BATCH)
            parts = [F.softmax(task.answers(module, part).to(task.dtype), dim=-1) for part in ready]
        results.append(torch.cat(parts).to(inputs.device))
    return torch.stack(results)
