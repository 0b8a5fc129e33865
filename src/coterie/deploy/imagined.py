"""The form of a reply that no client has sent yet: what a client with a handful of empty samples would answer.

Where two replies differ, or the only reply is that of a newcomer, votes do not tell which form is right. The server has
the client function and the message, so it can see for itself. The numbers mean nothing and are thrown away.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from coterie.core.federation import Question
from coterie.core.jobs import Job, Setting, perform
from coterie.core.message import Message
from coterie.core.samples import ClientData, Samples
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.base import RoundMethod

_IMAGINED = "nobody"
_SAMPLES = 4
_DTYPES = {"floats": torch.float32, "token ids": torch.int64}
_log = logging.getLogger(__name__)


def imagined(question: Question[Any], task: Task, round: int, *, inputs: str) -> Message | None:
    """What one client's reply looks like, or None where that cannot be found out this way.

    `inputs` is what they are to the model (`Hello.inputs`).
    """
    method = getattr(question.function, "__self__", None)
    if not isinstance(method, RoundMethod):
        return None
    dtype = _DTYPES.get(inputs, torch.uint8)
    if task.kind in ("classification", "binary"):
        targets = torch.arange(_SAMPLES) % task.classes
    else:
        wide = task.kind == "multilabel" or task.classes > 1
        targets = torch.zeros(_SAMPLES, *([task.classes] if wide else []))
    samples = Samples(torch.zeros(_SAMPLES, *task.shape, dtype=dtype), targets)
    data = OwnPopulation({_IMAGINED: ClientData(samples, samples, samples)}, task.shape, task.classes, task.normalise)
    rows = None if question.rows is None else tuple(question.rows[:1])
    job = Job(question.function.__name__, round, (_IMAGINED,), rows, ({},))
    try:
        return perform(Setting(method, task, data, 0), job, question.message).reply.row(0)
    except Exception:  # a method that needs more than this to answer
        _log.debug("no reply could be imagined", exc_info=True)
        return None
