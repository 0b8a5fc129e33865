"""A federation whose clients are on other machines, whatever carries the messages."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.checks import check_reply
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.federation import Engine, Failure, Ledger, Question, Replies
from coterie.core.interrupts import pause
from coterie.core.jobs import action_of
from coterie.core.message import Message
from coterie.core.notes import Note, silent
from coterie.core.quorum import Quorum, discounted
from coterie.core.samples import ClientId
from coterie.core.task import Task
from coterie.deploy.fitting import unlike
from coterie.deploy.hello import Hello
from coterie.deploy.imagined import imagined
from coterie.deploy.latecomers import DeployedLatecomers
from coterie.deploy.latecomers import Transport as Transport
from coterie.deploy.protocol import Order, Returned, RunSpec
from coterie.deploy.replies import Expected

R = TypeVar("R")
LIMIT = 1 << 29
"""No message may be longer than this many bytes unless the user says so."""
_LOOK_SECONDS = 0.2
_OFFENCES = 2
_BREAK = 4
_LONGEST_BREAK = 256
_MOST_CLIENTS = 100_000  # that can ever take part in one run: without keys, anybody can come under any number of names


Hellos = Mapping[ClientId, Hello]


def counted(number: int, what: str) -> str:
    """How many are needed, as the beginning of a sentence."""
    return f"{number} {what} is" if number == 1 else f"{number} {what}s are"


def gathered(
    transport: Transport,
    least: int,
    patience: float,
    go_on: str,
    fitting: Callable[[Hellos], Hellos] = lambda there: there,
    note: Note = silent,
    others: Callable[[], str] = str,
) -> dict[ClientId, Hello]:
    """Those who are there and fit, once there are enough of them; `others` says who does not, and why."""
    until = time.monotonic() + patience
    seen: set[ClientId] = set()
    while True:
        there = dict(fitting(transport.look()))
        new, seen = sorted(set(there) - seen), set(there)
        for client in new:
            note(f"{client} is there ({len(there)} of {least})")
        if len(there) >= least:
            return there
        if time.monotonic() > until:
            raise Unfinished(
                f"{counted(least, 'client')} needed and after {patience:g} s there are: "
                f"{', '.join(sorted(there)) or 'none'}{others()}; start the others, then go on: {go_on}"
            )
        pause(_LOOK_SECONDS)


class RemoteFederation(Engine):
    """A federation of real clients. Their memories stay with them; what they send is checked before it is believed."""

    def __init__(
        self,
        task: Task,
        spec: RunSpec,
        transport: Transport,
        *,
        known: Sequence[ClientId] = (),
        refused: Iterable[ClientId] = (),
        least: int = 1,
        patience: float = 60.0,
        limit: int = LIMIT,
        path: str = "deployment",
        go_on: str = "coterie serve --resume",
        inputs: str = "",
        strict: bool = True,
        quorum: Quorum | None = None,
        note: Note = silent,
        on_saved: Callable[[int, list[ClientId]], None] = silent,
    ) -> None:
        self.task, self.spec, self._path = task, spec, path
        self.seed, self.round = spec.seed, 0
        self.ledger = Ledger()
        self.failures: list[tuple[int, ClientId, Failure]] = []
        self.memory: dict[ClientId, Memory] = {}
        self._transport, self._limit = transport, limit
        self._least, self._patience, self._go_on, self._inputs = least, patience, go_on, inputs
        self._strict, self._note, self._on_saved = strict, note, on_saved
        self._known, self._session = set(known), secrets.token_hex(8)
        self._prepared, self._safe = False, 0
        self._silent: set[ClientId] = set()
        self._refused = set(refused)
        self._said: set[tuple[ClientId, str]] = set()
        self._offences = Counter[ClientId]()
        self._breaks: dict[ClientId, int] = {}
        self._present: tuple[ClientId, ...] = ()
        self._late = DeployedLatecomers(transport, quorum or Quorum())
        self._likely = sum(t.numel() * t.element_size() for t in task.template.values())
        self._samples: dict[ClientId, int] = {}
        self._forms: dict[str, str] = {}
        self._gather()
        self._known |= set() if known else set(self._present)

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """Clients that were there when the round began."""
        return self._present

    @property
    def path(self) -> str:
        """How the clients are reached."""
        return self._path

    @property
    def registered(self) -> int:
        """All clients that have ever been there."""
        return len(self._known)

    def begin(self, round: int) -> tuple[ClientId, ...]:
        """Look who is there; those never seen before are the newcomers."""
        self.round = round
        self._silent.clear()
        self._late.settled = False
        self._gather()
        new = tuple(client for client in self._present if client not in self._known)
        for client in new:
            self._note(f"{client} joins in round {round + 1}")
        self._known.update(new)
        return new

    def _gather(self) -> None:
        """Wait until there are enough clients to go on with."""
        there = gathered(self._transport, self._least, self._patience, self._go_on, self._free)
        self._samples.update({client: hello.samples for client, hello in there.items()})
        self._present = tuple(sorted(there))

    def _free(self, there: Hellos) -> Hellos:
        """Clients that fit, and are not at work on an earlier round."""
        self.ledger.up["train"] += self._late.hear()
        return {client: hello for client, hello in self._fitting(there).items() if client not in self._late.busy}

    @property
    def waiting(self) -> frozenset[ClientId]:
        """Clients whose late replies are there to be used."""
        return frozenset(self._late.waiting)

    def settle(self) -> None:
        """Wait for those who are still at work, as long as a client may take; from here on all are waited for."""
        slow = self._late.busy
        self._late.settle()
        back = slow & self._fitting(self._transport.look()).keys() if slow else set[ClientId]()
        self._present = tuple(sorted({*self._present, *back}))
        self._silent -= back

    def _fitting(self, there: Hellos) -> Hellos:
        """Clients whose data are what the run is about, and that are not on a break."""
        return {
            client: hello
            for client, hello in there.items()
            if self._breaks.get(client, 0) <= self.round and self._fits(client, hello)
            if client in self._known or len(self._known) < _MOST_CLIENTS
        }

    def _fits(self, client: ClientId, hello: Hello) -> bool:
        why = unlike(hello, self.spec, self._inputs)
        if why and client not in self._refused:
            self._refused.add(client)
            self._note(f"{client} is not admitted: {why}")
            self.refuse(client, f"not admitted: {why}")  # for the run's log and report
            self._transport.tell(client, f"you are not admitted to this run ({client}: {why})")
        return not why

    def _judge(self, failed: Mapping[ClientId, Failure]) -> None:
        """Who breaks the rules twice is not asked for a while: 4 rounds, then 8, up to 256."""
        for client, failure in failed.items():
            if failure.kind not in ("wrong shape", "too large", "refused") or not self._strict:
                continue
            self._offences[client] += 1
            if self._offences[client] < _OFFENCES:
                continue
            length = min(_BREAK << min(self._offences[client] - _OFFENCES, 30), _LONGEST_BREAK)
            self._breaks[client] = self.round + 1 + length
            self._silent.add(client)
            text = f"not asked for {length} rounds, after {self._offences[client]} replies against the rules"
            self._note(f"{client} is {text}")
            self.refuse(client, text)  # for the run's log and report
            self._transport.tell(client, f"you are {text}; the last: {failure.reason}")

    def truth(self, ids: Sequence[ClientId]) -> Tensor:
        """Refused: the true groups of real clients are not known."""
        raise CoterieError("This method needs the true groups, which only the simulator knows; use another.")

    @override
    def groups(self, ids: Sequence[ClientId]) -> list[int] | None:
        return None

    def answer(self, question: Question[R]) -> Replies[R]:
        """One message to each client, all at once."""
        ids, purpose = question.ids, question.purpose
        due = self._late.due(question, self.round)
        asked = [client for client in ids if client not in self._silent and client not in due]
        payloads = _payloads(question)
        order = Order(
            agreement=self.spec,
            action=action_of(question.function),
            session=self._session,
            round=self.round,
            era=self.round + 1 if self._prepared else 0,
            safe=self._safe,
            each=question.rows is not None,
            common=question.message.common,
        )
        sent = {client: payloads[client] for client in asked}
        enough = self._late.enough(len(asked), len(due))
        answers = self._transport.deliver(purpose, order, sent, enough=enough, likely=self._likely) if sent else {}
        shut = self._late.closed(order, purpose, answers, enough)
        came = {client: answer for client, answer in answers.items() if isinstance(answer, Returned)}
        if question.counted:
            self.ledger.down[purpose] += sum(len(payloads[client]) for client in asked)
            self.ledger.up[purpose] += sum(len(answer.payload) for answer in came.values())
        failed = {client: answer for client, answer in answers.items() if isinstance(answer, Failure)}
        # a client that does not answer is not waited for a second time in this round
        self._silent.update(client for client, failure in failed.items() if failure.kind in ("late", "lost"))
        came |= {client: late.reply for client, late in due.items()}
        ages = {client: self.round - late.round for client, late in due.items()}
        here = [client for client in ids if client in due or client in sent]
        replies: Replies[R] = self._accept(question, here, came, failed, ages)
        self.failures += [(self.round, client, failure) for client, failure in replies.failed.items()]
        if shut:
            self._note(f"round {self.round + 1} is closed ({order.action}); {len(shut)} clients are late")
        self._tell({client: failure for client, failure in replies.failed.items() if client not in shut})
        self._judge(replies.failed)
        lost = {client: Failure("lost", "it did not answer earlier in this round") for client in set(ids) - set(here)}
        losses = {client: answer.loss for client, answer in came.items() if answer.loss is not None}
        return replace(replies, failed={**replies.failed, **lost}, losses=losses)

    def _tell(self, failed: Mapping[ClientId, Failure]) -> None:
        """Say whose replies are missing: of those who are gone each time, of bad ones the first of a kind."""
        for client, failure in failed.items():
            if failure.kind in ("late", "lost"):
                self._note(f"going on without {client} in round {self.round + 1}: {failure.reason}")
            elif (client, failure.kind) not in self._said:
                self._said.add((client, failure.kind))
                self._note(f"refused the reply of {client} in round {self.round + 1}: {failure.reason}")

    def _accept(
        self,
        question: Question[Any],
        ids: Sequence[ClientId],
        answers: Mapping[ClientId, Returned],
        failed: dict[ClientId, Failure],
        ages: Mapping[ClientId, int],
    ) -> Replies[Any]:
        """Open the replies that have the right form, stack them, refuse the bad ones by name."""
        expected = Expected(
            question,
            self.task.template,
            self._limit,
            imagine=lambda: imagined(question, self.task, self.round, inputs=self._inputs),
            known=self._forms,
        )
        messages: dict[ClientId, Message] = {}
        for client in ids:
            if client not in answers:
                failed.setdefault(client, Failure("lost", "it did not answer"))
                continue
            read = expected.read(answers[client].payload)
            if isinstance(read, Failure):
                failed[client] = read
            else:
                messages[client] = read
        messages = expected.alike(messages, failed)
        if not messages:
            return Replies((), None, failed)
        names, first = list(messages), next(iter(messages.values()))
        stacked = {path: torch.stack([messages[name].tensors[path] for name in names]) for path in first.tensors}
        said = torch.tensor([self._samples.get(name, 0) for name in names])
        good, bad = check_reply(names, stacked, self.task.template, unbounded=first.unbounded, said=said)
        failed = failed | bad
        if not good:
            return Replies((), None, failed)
        if len(good) < len(names):
            stacked = {path: tensor[torch.tensor(good)] for path, tensor in stacked.items()}
        ids = tuple(names[index] for index in good)
        stale = {client: ages[client] for client in ids if client in ages}
        value = expected.opened(first.holding(discounted(stacked, ids, stale)))
        if isinstance(value, Failure):  # all are of one form, so none of them can be opened
            return Replies((), None, failed | dict.fromkeys(ids, value))
        return Replies(ids, value, failed, stale=stale)

    def note(self, text: str) -> None:
        """Tell those who watch the run."""
        self._note(text)

    def restore(self, memory: dict[ClientId, Memory], next_round: int) -> None:
        """Go on from a checkpoint: the clients will use the memories of that time."""
        self._prepared, self._safe = True, next_round + 1

    @override
    def commit(self) -> None:
        self._prepared = True

    def saved(self, next_round: int) -> None:
        """A checkpoint has been written: clients need not remember how it was before."""
        self._safe = next_round + 1
        self._on_saved(next_round, sorted(self._known))

    def take_touched(self) -> list[ClientId]:
        """Clients keep their memories themselves."""
        return []

    @override
    def close(self) -> None:
        self._transport.close()


def _payloads(question: Question[Any]) -> dict[ClientId, bytes]:
    """What each client is sent: the same, or its own row."""
    if question.rows is None:
        return dict.fromkeys(question.ids, question.message.encode())
    encodings = {row: question.message.row(row).encode() for row in dict.fromkeys(question.rows)}
    return {client: encodings[row] for client, row in zip(question.ids, question.rows, strict=True)}
