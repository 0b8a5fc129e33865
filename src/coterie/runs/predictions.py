"""What a model predicts, in the user's words, and as a CSV file."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.core.samples import ClientId
from coterie.core.targets import TaskKind
from coterie.data.new_samples import new_inputs
from coterie.data.schema import Schema
from coterie.data.tables import is_number

_BATCH = 512


@dataclass(frozen=True)
class Predictor:
    """A model, and how its answers are said: the names of classes, or numbers in the user's units."""

    model: nn.Module
    schema: Schema
    kind: TaskKind
    client: ClientId

    def __call__(self, x: Any) -> npt.NDArray[Any]:
        """One answer for each of the inputs, which may be an array, a DataFrame, or the path of a file."""
        return self.said(self.outputs(new_inputs(x, self.schema, self.client)))

    def outputs(self, x: Tensor) -> Tensor:
        """What the model answers to raw inputs."""
        # a network that looks at all samples of a client together must see them together
        together = any(getattr(part, "looks_at_all", False) for part in self.model.modules())
        size = len(x) if together else _BATCH
        with torch.inference_mode():
            return torch.cat([self.model(part) for part in x.split(max(size, 1))])

    def said(self, output: Tensor) -> npt.NDArray[Any]:
        """Answers in the user's words."""
        if self.kind == "regression":
            numbers: npt.NDArray[Any] = output.double().numpy()
            return numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers
        if self.kind == "multilabel":
            labels: npt.NDArray[Any] = (output > 0).long().numpy()
            return labels
        one = output.dim() == 1 or output.shape[-1] == 1
        classes: npt.NDArray[Any] = ((output.reshape(-1) > 0).long() if one else output.argmax(-1)).numpy()
        names = self.schema.class_names
        return np.array(names, dtype=object)[classes] if names else classes


def as_csv(predicted: npt.NDArray[Any], schema: Schema) -> str:
    """One line for each sample, under the name of the target."""
    table = predicted.reshape(len(predicted), -1)
    names = [name for name in schema.target.split(",") if name] or ["prediction"]
    if len(names) != table.shape[1]:
        names = [f"prediction-{place}" for place in range(1, table.shape[1] + 1)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows(map(_cell, row) for row in table.tolist())
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a spreadsheet shows it. A word may be another client's: one that begins like a formula is quoted."""
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@＝＋－＠" and not is_number(value)
    return f"'{value}" if formula else value
