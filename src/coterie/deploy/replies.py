"""What a reply must look like, judged by what was asked and by the model that is learnt, not by who answers first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure, Question
from coterie.core.message import Message
from coterie.core.samples import ClientId
from coterie.core.states import State
from coterie.core.terminal import brief
from coterie.deploy.boundary import blamed
from coterie.deploy.client import reply_type

_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32"}
_MODEL, _MODELS, _CLUSTER = "model", "models", "cluster"
_LARGEST_COUNT = 1 << 40
_ROUNDING = 1e-6
_ENOUGH = 3  # clients that all answer in one form
_MOST_FORMS = 1000


class Expected:
    """The form of the replies to one question.

    The field `model` of a reply is the task's whole model. A field that has the name of a part of the question (or
    begins with it, as `control_change` with `control`) has the tensors of that part. A cluster is one of those that
    the question was about.
    """

    def __init__(
        self,
        question: Question[Any],
        template: State,
        limit: int,
        *,
        imagine: Callable[[], Message | None] = lambda: None,
        known: dict[str, str] | None = None,
    ) -> None:
        """`imagine` makes the reply of a client that does not exist; `known` are forms that have been found right."""
        self._kind, self._template, self._limit = reply_type(question.function), template, limit
        self._imagine, self._known = imagine, {} if known is None else known
        sent = question.message.tensors
        self._parts = {path.split("/", 1)[0] for path in sent if "/" in path}
        self._sent = {path: tensor.dtype for path, tensor in sent.items()}
        self._clusters = _largest(sent)
        self._about = f"{question.function.__name__} {_form(question.message)}"

    def read(self, answer: bytes) -> Message | Failure:
        """A client's reply, still packed, or what is wrong with it; its header is judged before a tensor is made."""
        if len(answer) > self._limit:
            return Failure("too large", f"its reply has {len(answer)} bytes, more than the {self._limit} allowed")
        try:
            with blamed("its reply cannot be read"):
                wrong = self._wrong_layout(wire.layout_of(answer, limit=self._limit))
                if wrong:
                    return Failure("wrong shape", brief(wrong))
                message = Message.read(answer, self._kind, limit=self._limit)
                wrong = self._wrong_numbers(message)
        except CoterieError as error:
            return Failure("wrong shape", brief(str(error)))
        return Failure("wrong shape", wrong) if wrong else message

    def opened(self, message: Message) -> Any:
        """The object in a message, or a `Failure` that says why it is not one of the type that was asked for."""
        try:
            with blamed("its reply cannot be read"):
                return message.open()
        except CoterieError as error:
            return Failure("wrong shape", brief(str(error)))

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
        for path, (low, high) in getattr(self._kind, "limits", {}).items():
            tensor = message.tensors.get(path)
            most = message.tensors[high] if isinstance(high, str) else high
            # a mean of ones may be 1 and a rounding; NaN is not measured
            if tensor is not None and bool(((tensor < low - _ROUNDING) | (tensor > most + _ROUNDING)).any()):
                return f"{path} is not between {low:g} and {high if isinstance(high, str) else f'{high:g}'}"
        for path, tensor in message.tensors.items():
            if tensor.is_floating_point() or not tensor.numel():
                continue
            low, high = int(tensor.min()), int(tensor.max())
            most = self._clusters - 1 if path == _CLUSTER else _LARGEST_COUNT
            least = -1 if getattr(self._kind, "may_be_nowhere", False) else 0
            if path == _CLUSTER and not least <= low <= high <= most:
                return f"{path} is {high if high > most else low}, and there are {self._clusters} clusters"
            if not -_LARGEST_COUNT <= low <= high <= _LARGEST_COUNT:
                return f"{path} is too large to be true"
        return ""

    def alike(self, replies: dict[ClientId, Message], failed: dict[ClientId, Failure]) -> dict[ClientId, Message]:
        """The replies of the right form.

        It is the one that a client of our own imagination has, whatever those say who answer: a client may be asked
        alone, and many names may be one attacker's. Only where no reply can be imagined is it that of all, if these
        are three or more, and else that of most, of two as common the one with more of the model. A form that is not
        of the type that was asked for has no vote.
        """
        forms = {client: _form(reply) for client, reply in replies.items()}
        examples = {form: replies[client] for client, form in forms.items()}
        refused: dict[str, Failure] = {}
        if len(examples) > 1:  # where there is one form, that is found out when the replies are opened, together
            values = {form: self.opened(reply) for form, reply in examples.items()}
            refused = {form: value for form, value in values.items() if isinstance(value, Failure)}
        votes = Counter(form for form in forms.values() if form not in refused)
        usual = self._known.get(self._about) or self._found(votes)
        if usual is None:
            usual = max(votes, key=lambda form: (votes[form], *self._known_entries(examples[form]), form), default="")
        if usual not in forms.values():  # the only form is a wrong one, and has not been opened yet
            values = {form: self.opened(reply) for form, reply in examples.items()}
            refused |= {form: value for form, value in values.items() if isinstance(value, Failure)}
        other = Failure("wrong shape", "its reply has another form than was asked for")
        failed |= {client: refused.get(form, other) for client, form in forms.items() if form != usual}
        return {client: reply for client, reply in replies.items() if forms[client] == usual}

    def _found(self, votes: Counter[str]) -> str | None:
        """A form that is right beyond doubt, to be remembered."""
        if not votes:
            return None
        imagined = self._imagine()
        if imagined is not None:
            right = _form(imagined)
        elif len(votes) == 1 and votes.total() >= _ENOUGH:
            right = next(iter(votes))
        else:
            return None
        if len(self._known) < _MOST_FORMS:
            self._known[self._about] = right
        return right

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
