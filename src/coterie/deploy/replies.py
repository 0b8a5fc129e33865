"""What a reply must look like, judged by what was asked and by the model that is learnt, not by who answers first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.federation import Failure, Question
from coterie.core.message import Message
from coterie.core.samples import ClientId
from coterie.core.states import State
from coterie.deploy.boundary import blamed
from coterie.deploy.client import reply_type

_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32"}
_MODEL, _MODELS, _CLUSTER = "model", "models", "cluster"
_LARGEST_COUNT = 1 << 40


class Expected:
    """The form of the replies to one question.

    The field `model` of a reply is the task's whole model. A field that has the name of a part of the question (or
    begins with it, as `control_change` with `control`) has the tensors of that part. A cluster is one of those that
    the question was about.
    """

    def __init__(self, question: Question[Any], template: State, limit: int) -> None:
        self._kind, self._template, self._limit = reply_type(question.function), template, limit
        sent = question.message.tensors
        self._parts = {path.split("/", 1)[0] for path in sent if "/" in path}
        self._sent = {path: tensor.dtype for path, tensor in sent.items()}
        self._clusters = _largest(sent)

    def read(self, answer: bytes) -> Message | Failure:
        """A client's reply, still packed, or what is wrong with it; its header is judged before a tensor is made."""
        if len(answer) > self._limit:
            return Failure("too large", f"its reply has {len(answer)} bytes, more than the {self._limit} allowed")
        try:
            with blamed("its reply cannot be read"):
                wrong = self._wrong_layout(wire.layout_of(answer, limit=self._limit))
                if wrong:
                    return Failure("wrong shape", wrong)
                message = Message.read(answer, self._kind, limit=self._limit)
                wrong = self._wrong_numbers(message)
        except wire.WireError as error:
            return Failure("wrong shape", str(error))
        return Failure("wrong shape", wrong) if wrong else message

    def opened(self, message: Message) -> Any:
        """The object in a message, or a `Failure` that says why it is not one of the type that was asked for."""
        try:
            with blamed("its reply cannot be read"):
                return message.open()
        except wire.WireError as error:
            return Failure("wrong shape", str(error))

    def _wrong_layout(self, layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
        groups: dict[str, set[str]] = {}
        for path, (dtype, shape) in layout.items():
            group, _, name = path.partition("/")
            groups.setdefault(group, set()).add(name)
            wanted = self._template.get(name) if name else None
            if wanted is not None and (shape != tuple(wanted.shape) or dtype != _DTYPES.get(wanted.dtype, dtype)):
                right = f"{_DTYPES.get(wanted.dtype)} of {tuple(wanted.shape)}"
                return f"{path} is {dtype} of shape {shape} instead of {right}"
        for group, names in groups.items():
            wrong = names ^ self._names_of(group, names)
            if wrong:
                return f"{group} has not the tensors that it should have: {', '.join(sorted(wrong)[:3])}"
        return ""

    def _names_of(self, group: str, names: set[str]) -> set[str]:
        """The tensors that a part of a reply must have, as far as that is known."""
        if names == {""}:
            return names  # a single tensor
        if group == _MODEL:
            return set(self._template)
        source = next((part for part in self._parts if group == part or group.startswith(f"{part}_")), None)
        if source is None:
            return names
        whole = {path.split("/", 1)[1]: dtype for path, dtype in self._sent.items() if path.startswith(f"{source}/")}
        if not names & set(whole):
            return names  # the same word for something else
        # what has no difference (counters) need not be in a change
        return {name for name, dtype in whole.items() if name in names or dtype.is_floating_point}

    def _wrong_numbers(self, message: Message) -> str:
        for path, tensor in message.tensors.items():
            if tensor.is_floating_point() or not tensor.numel():
                continue
            low, high = int(tensor.min()), int(tensor.max())
            most = self._clusters - 1 if path == _CLUSTER else _LARGEST_COUNT
            if path == _CLUSTER and not -1 <= low <= high <= most:
                return f"{path} is {high if high > most else low}, and there are {self._clusters} clusters"
            if not -_LARGEST_COUNT <= low <= high <= _LARGEST_COUNT:
                return f"{path} is too large to be true"
        return ""

    def alike(self, replies: dict[ClientId, Message], failed: dict[ClientId, Failure]) -> dict[ClientId, Message]:
        """The replies of the usual form: that of most clients; of two as common, the one with more of the model.

        A form that is not of the type that was asked for has no vote. Where there is one form, that is found out when
        the replies are opened, together.
        """
        forms = {client: _form(reply) for client, reply in replies.items()}
        if len(set(forms.values())) <= 1:
            return replies
        examples = {form: replies[client] for client, form in forms.items()}
        refused = {form: value for form, reply in examples.items() if isinstance(value := self.opened(reply), Failure)}
        votes = Counter(form for form in forms.values() if form not in refused)
        usual = max(votes, key=lambda form: (votes[form], *self._known_entries(examples[form]), form), default="")
        other = Failure("wrong shape", "its reply has another form than those of the other clients")
        failed |= {client: refused.get(form, other) for client, form in forms.items() if form != usual}
        return {client: reply for client, reply in replies.items() if forms[client] == usual}

    def _known_entries(self, reply: Message) -> tuple[int, int]:
        """How much of a reply is as the model has it, then how little else it has: one number a client is usual."""
        inside = [path for path in reply.tensors if path.partition("/")[2] in self._template]
        return len(inside), -sum(t.numel() for path, t in reply.tensors.items() if path not in inside)


def _largest(sent: Mapping[str, Tensor]) -> int:
    """How many clusters a question can be about: its models, the rows of its plain tensors, else any of its axes."""
    models = [len(tensor) for path, tensor in sent.items() if path.startswith(f"{_MODELS}/") and tensor.dim()]
    plain = [len(tensor) for path, tensor in sent.items() if "/" not in path and tensor.dim()]
    return max(models or [*plain, *(size for tensor in sent.values() for size in tensor.shape)], default=0)


def _form(message: Message) -> str:
    tensors = sorted((name, str(t.dtype), tuple(t.shape)) for name, t in message.tensors.items())
    return json.dumps([message.skeleton, tensors])
