"""Peers that find and answer each other over zenoh: no broker, no server, no order in which they must be started.

Every peer listens, connects to one or more seeds and learns of the others by gossip. A liveliness token says that it is
there; queryables answer "who are you", "how far are you" and "your model of round t". Nothing that arrives is more than
bytes of `wire`, checked by the peer that asked. With certificates, all of it is signed, and only those who have shown
that a name is theirs are there at all (see `signing`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

import zenoh

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.deploy.boundary import LATEST, LONGEST_TEXT, blamed, checked, whole_number
from coterie.deploy.hello import Hello
from coterie.deploy.presence import Presence
from coterie.deploy.protocol import to_text
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.signing import Impostor

_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 0.5
_CONNECT_SECONDS = 3.0
_QUESTION_SECONDS = 3.0
_HISTORY = 64  # answers of so many rounds are kept for peers that are behind
_MOST_WAITING = 4096
_SOON = 2
_LONGEST_WAIT = 3_600_000  # milliseconds
_LONGEST_SIGNATURE = 1000

Kind = Literal["model", "change", "sketch"]
"""What a peer can be asked for: its model, this with the one its training began with, or sketches of its ways."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class PeerConnection:
    """One peer's view of the others, and its answers to them."""

    def __init__(
        self, name: ClientId, network: str, hello: Hello, address: Address, limit: int, note: Note = silent
    ) -> None:
        self.name, self.limit, self._note = name, limit, note
        self._identity = None if address.security is None else address.security.identity(name)
        self._has_seeds = any(seed != address.listen for seed in address.seeds)
        self.sent = self.received = 0
        self._root = f"coterie/{quote(network, safe='')}"
        self._lock = threading.Lock()
        self._presence = Presence(name, note)
        self.others, self.progress = self._presence.others, self._presence.progress
        self._news, self._closed = threading.Event(), threading.Event()
        self._own_progress = -1
        self._answers: dict[int, Mapping[Kind, bytes]] = {}
        self._waiting: list[tuple[int, str, Any, float]] = []
        self._texts = {"hello": to_text(hello), "agreement": ""}
        self._latest_is_fine = False
        try:
            self._session = zenoh.open(address.config(limit))
        except zenoh.ZError as error:
            raise CoterieError(f"Cannot listen at {address.listen}: {error}; choose another --listen.") from error
        self._declared: list[Any] = []
        self._declared += [
            self._session.liveliness().declare_subscriber(
                f"{self._root}/alive/*", self._safely(self._on_life), history=True
            ),
            self._session.declare_subscriber(f"{self._root}/progress/*", self._safely(self._on_progress)),
        ]
        if self._identity is not None:
            threading.Thread(target=self._meet_newcomers, daemon=True).start()

    def enter(self) -> None:
        """Appear to the others, under a name that no other peer has."""
        until = time.monotonic() + _CONNECT_SECONDS
        while self._has_seeds and not self._session.info.peers_zid() and time.monotonic() < until:
            pause(_LOOK_SECONDS)
        pause(_SETTLE_SECONDS)  # learn of the others first
        own = quote(self.name, safe="")
        there = self._session.liveliness().get(f"{self._root}/alive/{own}", timeout=_QUESTION_SECONDS)
        taken = any(reply.ok is not None for reply in there)
        if taken and (self._identity is None or self.ask("hello", [self.name])):
            raise CoterieError(f"There is a peer {self.name!r} in this network already; choose another --name.")
        self._declared += [
            self._session.declare_queryable(f"{self._root}/told/{own}", self._safely(self._on_question)),
            self._session.declare_queryable(f"{self._root}/model/{own}", self._safely(self._on_request)),
            self._session.liveliness().declare_token(f"{self._root}/alive/{own}"),
        ]

    def _safely(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """A handler that nothing which arrives can make fail: what it raises is the sender's failure, and is said."""

        def handle(arrived: Any) -> None:
            try:
                with blamed("what it sends cannot be handled"):
                    handler(arrived)
            except CoterieError as error:
                self._presence.turn_away(str(arrived.key_expr).rsplit("/", 1)[-1][:80], str(error))

        return handle

    def _on_life(self, sample: Any) -> None:
        name = unquote(str(sample.key_expr).rsplit("/", 1)[-1])
        if sample.kind == zenoh.SampleKind.PUT:
            if self._presence.claim(name) and self._identity is None:
                self._presence.admit(name)
        elif self._presence.leave(name) and not self._closed.is_set():
            self._note(f"{name} has left")
        self._news.set()

    def _meet_newcomers(self) -> None:
        """Have each new peer show that its name is its own; one that does not answer is asked again after a while."""
        while not self._closed.is_set():
            self._news.wait(_QUESTION_SECONDS)
            self._news.clear()
            new = self._presence.strangers()
            for name in self.ask("hello", new) if new and not self._closed.is_set() else ():
                self._presence.admit(name)
                early = self._presence.held(name)
                if early is not None:
                    self._take_progress(name, *early)

    def _on_progress(self, sample: Any) -> None:
        name = unquote(str(sample.key_expr).rsplit("/", 1)[-1])
        attached = 0 if sample.attachment is None else len(sample.attachment)
        if len(sample.payload) > 60 or attached > _LONGEST_SIGNATURE or name == self.name:
            return  # what is held until a peer has introduced itself is short
        text = sample.payload.to_bytes()
        signature = b"" if sample.attachment is None else sample.attachment.to_bytes()
        # believed, or not, when it has introduced itself
        if self._identity is None or not self._presence.hold(name, text, signature):
            self._take_progress(name, text, signature)

    def _take_progress(self, name: ClientId, text: bytes, signature: bytes) -> None:
        try:
            if self._identity is not None:
                self._identity.check(name, f"{self._root}/progress/{quote(name, safe='')}", text, signature)
        except Impostor as error:
            self._presence.turn_away(name, str(error))
            return
        self._presence.take_progress(name, text)

    def _on_question(self, query: Any) -> None:
        what = str(query.parameters).partition(";")[0]
        told = (str(self._own_progress) if what == "progress" else self._texts.get(what, "")).encode()
        about = f"{query.key_expr}?{query.parameters}"
        shown = None
        if self._identity is not None:
            shown = (self._identity.introduction if what == "hello" else self._identity.sign)(about, told)
        query.reply(query.key_expr, told, attachment=shown)
        query.drop()

    def _on_request(self, query: Any) -> None:
        """Another peer asks for our model of a round, or its sketch; if we are not there yet, it is answered when we
        are."""
        when, kind, patience, _ = [*str(query.parameters).split(";", 4), "", "", "", ""][:4]
        number, wait = whole_number(when, 0, LATEST), whole_number(patience, 0, _LONGEST_WAIT)
        if number is None or wait is None or kind not in KINDS:
            query.drop()
            return
        until = time.monotonic() + wait / 1000
        with self._lock:
            latest = max(self._answers, default=None)
            at = latest if self._latest_is_fine and latest is not None else number
            answer = _of_kind(self._answers.get(at, {}), kind)
            # only for what comes soon, so that no peer can fill the places of those who wait
            soon = self._own_progress < at <= max(self._own_progress, 0) + _SOON or not self._answers
            if answer is None and soon and len(self._waiting) < _MOST_WAITING:
                self._waiting.append((number, kind, query, until))
                return
        if answer is not None:
            self._reply(query, answer)
        query.drop()

    def _reply(self, query: Any, answer: bytes) -> None:
        about = f"{query.key_expr}?{query.parameters}"
        signed = None if self._identity is None else self._identity.sign(about, answer)
        query.reply(query.key_expr, answer, attachment=signed)
        with self._lock:
            self.sent += len(answer)

    def offer(self, round: int, answers: Mapping[Kind, bytes], *, latest_is_fine: bool) -> None:
        """Our answers of a round, of every kind that is asked for; those who wait for them get them now."""
        longest = max(map(len, answers.values()))
        if longest > self.limit:
            raise CoterieError(f"An answer takes {longest} bytes; allow that at every peer with --max-megabytes.")
        with self._lock:
            self._latest_is_fine = latest_is_fine
            self._answers[round] = answers
            self._own_progress = max(self._own_progress, round)
            for old in [number for number in self._answers if number <= round - _HISTORY]:
                del self._answers[old]
            waiting = [item for item in self._waiting if item[3] > time.monotonic()]  # the others have given up
            ready = [item for item in waiting if item[0] <= round]
            self._waiting = [item for item in waiting if item[0] > round]
        for number, kind, query, _ in ready:
            answer = _of_kind(self._answers.get(number, answers if latest_is_fine else {}), kind)
            if answer is not None:
                self._reply(query, answer)
            query.drop()
        self.announce(round)

    def announce(self, progress: int) -> None:
        """Tell the others how far we are."""
        self._own_progress = max(self._own_progress, progress)
        key, text = f"{self._root}/progress/{quote(self.name, safe='')}", f"{self._own_progress};{time.time_ns()}"
        signed = None if self._identity is None else self._identity.sign(key, text.encode())
        self._session.put(key, text, attachment=signed)

    def agree(self, text: str) -> None:
        """What the run is about, for those who come later."""
        self._texts["agreement"] = text

    def wait_for(
        self,
        number: int,
        seconds: float,
        fitting: Callable[[set[ClientId]], set[ClientId]] = lambda others: others,
        odd: Callable[[], str] = str,
    ) -> set[ClientId]:
        """All peers that fit, oneself included, once there are so many of them; `odd` says who does not fit, and why.

        No peer is called odd before there are so many in all: later ones may be like it.
        """
        until = time.monotonic() + seconds
        while True:
            others = self.others()
            fit = fitting(others) if len(others) + 1 >= number else others
            if len(fit) + 1 >= number:
                return fit | {self.name}
            if time.monotonic() > until:
                there = ", ".join(sorted(fit | {self.name}))
                raise Unfinished(
                    f"{number} peers are needed and after {seconds:g} s there are: {there}{odd()}; start the others "
                    "(peers with another configuration do not see each other)."
                )
            pause(_LOOK_SECONDS)

    def ask(self, what: str, names: Sequence[ClientId]) -> dict[ClientId, str]:
        """A short text from each of these peers; those that do not answer are missing."""
        asked = [(name, f"told/{quote(name, safe='')}?{what}") for name in names]
        found = self._get(asked, _QUESTION_SECONDS, LONGEST_TEXT, introduced=what == "hello")
        return {name: data.decode(errors="replace") for name, data in found.items() if data}

    def hellos(self, names: Sequence[ClientId]) -> dict[ClientId, Hello]:
        """How others introduce themselves."""
        said: dict[ClientId, Hello] = {}
        for name, text in self.ask("hello", names).items():
            try:
                said[name] = checked(Hello, text)
                if said[name].name != name:
                    raise CoterieError(f"it says that it is {said[name].name}")
            except CoterieError as error:
                said.pop(name, None)
                self._presence.turn_away(name, str(error))
        return said

    def look_up_progress(self) -> None:
        """How far all others are, for a peer that has just come."""
        for name, text in self.ask("progress", sorted(self.others())).items():
            self._presence.look_up(name, text)

    def fetch(self, round: int, names: Sequence[ClientId], *, kind: Kind, seconds: float) -> dict[ClientId, bytes]:
        """The models of these peers, or their sketches, of those that answer in time."""
        asked = [(name, f"model/{quote(name, safe='')}?{round};{kind};{int(1000 * seconds)}") for name in names]
        found = self._get(asked, seconds, self.limit)
        self.received += sum(map(len, found.values()))
        return found

    def _get(
        self, questions: Sequence[tuple[ClientId, str]], seconds: float, most: int, *, introduced: bool = False
    ) -> dict[ClientId, bytes]:
        """Ask all at once; take what has come when the time is over. What is said in another's name does not count."""
        found: dict[ClientId, bytes] = {}
        open_, done = threading.Semaphore(0), set[str]()

        def end(about: str) -> None:
            with self._lock:
                first = about not in done
                done.add(about)
            if first:
                open_.release()

        def on_reply(name: ClientId, about: str) -> Callable[[Any], None]:
            def take(reply: Any) -> None:
                if reply.ok is None:
                    return
                try:
                    with blamed("its answer cannot be read"):
                        found.setdefault(name, self._believed(name, about, reply.ok, most, introduced))
                    end(about)  # another peer under this name need not be waited for
                except CoterieError as error:
                    self._presence.turn_away(name, str(error))

            return take

        for name, selector in questions:
            full = f"{self._root}/{selector};{secrets.token_hex(8)}"  # no answer to an earlier question will do
            handler = zenoh.handlers.Callback(on_reply(name, full), drop=partial(end, full))
            self._session.get(full, handler, consolidation=zenoh.ConsolidationMode.NONE, timeout=seconds)
        until = time.monotonic() + seconds
        for _ in questions:
            open_.acquire(timeout=max(until - time.monotonic(), 0.001))
        return dict(found)

    def _believed(self, name: ClientId, about: str, sample: Any, most: int, introduced: bool) -> bytes:
        """An answer's bytes, once their number and their signature are right."""
        if len(sample.payload) > most:
            raise Impostor(f"it sends {len(sample.payload)} bytes, more than the {most} allowed")
        data: bytes = sample.payload.to_bytes()
        if self._identity is not None:
            shown = b"" if sample.attachment is None else sample.attachment.to_bytes()
            (self._identity.meet if introduced else self._identity.check)(name, about, data, shown)
        return data

    def close(self) -> None:
        """Leave."""
        self._closed.set()
        self._news.set()
        for declared in reversed(self._declared):
            declared.undeclare()
        self._session.close()  # type: ignore[no-untyped-call]


def _of_kind(answers: Mapping[Kind, bytes], kind: str) -> bytes | None:
    """The answer of a kind, if there is one."""
    return next((answer for name, answer in answers.items() if name == kind), None)
