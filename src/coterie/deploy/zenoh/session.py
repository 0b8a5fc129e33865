"""What the peers of one process share: one zenoh session, and what they know of who else is there.

A session listens, connects to one or more seeds and learns of others by gossip. A liveliness token says that a peer is
there. Nothing that arrives is more than bytes of `wire`, checked by the peer that asked. With certificates, all of it
is signed, and only those who have shown that a name is theirs are there at all (see `signing`). Peers of the same
process ask each other directly: nothing between them could be in another's name.

What peers announce may be lost on its way, though both are there: zenoh promises no more of a put, which it may drop
where a link is full. So an announcement is news and no more: who is waited for longer than a moment is asked.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import zenoh

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.core.terminal import brief
from coterie.deploy.boundary import LONGEST_TEXT, blamed, checked
from coterie.deploy.hello import Hello
from coterie.deploy.presence import Presence
from coterie.deploy.reached import NOT_BEGUN
from coterie.deploy.turns import Turns
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.signing import Impostor

if TYPE_CHECKING:
    from coterie.deploy.zenoh.connection import PeerConnection

_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 0.5
_CONNECT_SECONDS = 3.0
_QUESTION_SECONDS = 3.0
_AT_ONCE = 100  # questions whose answers are waited for together
_MOMENT, _LONGEST_PAUSE = 1.0, 8.0  # seconds: before those who are waited for are asked, and between two questions
_SOME = 32  # so many of them: where more are late, they are at work
_LONGEST_SIGNATURE = 1000


class PeerSession:
    """One process's connection to a network of peers."""

    def __init__(
        self, network: str, address: Address, limit: int, note: Note = silent, turns: Turns | None = None
    ) -> None:
        self.limit, self.note, self.turns = limit, note, turns or Turns()
        self.met = None if address.security is None else address.security.acquaintances()
        self.root = f"coterie/{quote(network, safe='')}"
        self.presence = Presence((), note)
        self.here: dict[ClientId, PeerConnection] = {}
        self._has_seeds = any(seed != address.listen for seed in address.seeds)
        self._settled = False
        self._news, self._closed = threading.Event(), threading.Event()
        try:
            self.zenoh = zenoh.open(address.config(limit))
        except zenoh.ZError as error:
            raise CoterieError(f"Cannot listen at {address.listen}: {error}; choose another --listen.") from error
        self._declared = [
            self.zenoh.liveliness().declare_subscriber(
                f"{self.root}/alive/*", self.safely(self._on_life), history=True
            ),
            self.zenoh.declare_subscriber(f"{self.root}/progress/*", self.safely(self._on_progress)),
        ]
        if self.met is not None:
            self._do_beside(self._meet_newcomers)
        self._do_beside(self._ask_after)

    def _do_beside(self, work: Callable[[], None]) -> None:
        """Work in a thread of its own, until the session is closed: that may be in the midst of a question."""

        def done() -> None:
            with suppress(zenoh.ZError):
                work()

        threading.Thread(target=done, daemon=True).start()

    def settle(self) -> None:
        """Learn of those who are there, once."""
        if self._settled:
            return
        until = time.monotonic() + _CONNECT_SECONDS
        while self._has_seeds and not self.zenoh.info.peers_zid() and time.monotonic() < until:
            pause(_LOOK_SECONDS)
        pause(_SETTLE_SECONDS)
        self._settled = True

    def is_taken(self, name: ClientId) -> bool:
        """Whether another peer has this name: with certificates, one that can show it."""
        if name in self.here:
            return True
        there = self.zenoh.liveliness().get(f"{self.root}/alive/{quote(name, safe='')}", timeout=_QUESTION_SECONDS)
        taken = any(reply.ok is not None for reply in there)
        return taken and (self.met is None or bool(self.ask("hello", [name])))

    def safely(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """A handler that nothing which arrives can make fail: what it raises is the sender's failure, and is said."""

        def handle(arrived: Any) -> None:
            try:
                with blamed("what it sends cannot be handled"):
                    handler(arrived)
            except CoterieError as error:
                self.presence.turn_away(str(arrived.key_expr).rsplit("/", 1)[-1][:80], str(error))

        return handle

    def _on_life(self, sample: Any) -> None:
        name = _name_in(sample.key_expr)
        if name in self.here:
            return
        if sample.kind == zenoh.SampleKind.PUT:
            if self.presence.claim(name) and self.met is None:
                self.presence.admit(name)
        elif not self._closed.is_set():
            self.presence.leave(name)
        self._news.set()

    def _meet_newcomers(self) -> None:
        """Have each new peer show that its name is its own; one that does not answer is asked again after a while."""
        while not self._closed.is_set():
            self._news.wait(_QUESTION_SECONDS)
            self._news.clear()
            new = self.presence.strangers()
            for name in self.ask("hello", new) if new and not self._closed.is_set() else ():
                self.presence.admit(name)
                early = self.presence.held(name)
                if early is not None:
                    self._take_progress(name, *early)

    def _ask_after(self) -> None:
        """Ask those whom a peer here waits for how far they are: soon after a wait began, then less and less often."""
        before, rest = NOT_BEGUN, _MOMENT
        named: set[ClientId] = set()
        while not self._closed.wait(rest):
            at, late = self.presence.awaited()
            if not late or at != before:
                before, rest = at, _MOMENT
                continue
            some = late if len(late) <= _SOME else random.SystemRandom().sample(late, _SOME)
            said = self.ask("progress", some)
            for name, text in said.items():
                self.presence.look_up(name, text)
            mute = set(some) - said.keys()
            if mute - named:
                self.note(f"waiting for {brief(', '.join(sorted(mute - named)))} in round {at + 1}: no answer")
            named = (named | mute) - said.keys()
            rest = min(2 * rest, _LONGEST_PAUSE)

    def _on_progress(self, sample: Any) -> None:
        name = _name_in(sample.key_expr)
        attached = 0 if sample.attachment is None else len(sample.attachment)
        if len(sample.payload) > 60 or attached > _LONGEST_SIGNATURE or name in self.here:
            return  # what is held until a peer has introduced itself is short
        text = sample.payload.to_bytes()
        signature = b"" if sample.attachment is None else sample.attachment.to_bytes()
        # believed, or not, when it has introduced itself
        if self.met is None or not self.presence.hold(name, text, signature):
            self._take_progress(name, text, signature)

    def _take_progress(self, name: ClientId, text: bytes, signature: bytes) -> None:
        try:
            if self.met is not None:
                self.met.check(name, f"{self.root}/progress/{quote(name, safe='')}", text, signature)
        except Impostor as error:
            self.presence.turn_away(name, str(error))
            return
        self.presence.take_progress(name, text)

    def wait_for(
        self,
        number: int,
        seconds: float,
        fitting: Callable[[set[ClientId]], set[ClientId]] = lambda others: others,
        odd: Callable[[], str] = str,
    ) -> set[ClientId]:
        """All peers that fit, those here included, once there are so many; `odd` says who does not fit, and why.

        No peer is called odd before there are so many in all: later ones may be like it.
        """
        until = time.monotonic() + seconds
        while True:
            others = self.presence.others()
            fit = fitting(others) if len(others) + len(self.here) >= number else others
            if len(fit) + len(self.here) >= number:
                return fit | self.here.keys()
            if time.monotonic() > until:
                there = brief(", ".join(sorted(fit | self.here.keys())))
                raise Unfinished(
                    f"{number} peers are needed and after {seconds:g} s there are: {there}{odd()}; start the others "
                    "(peers with another configuration do not see each other)."
                )
            pause(_LOOK_SECONDS)

    def ask(self, what: str, names: Sequence[ClientId]) -> dict[ClientId, str]:
        """A short text from each of these peers; those that do not answer are missing."""
        here = dict(self.here)  # peers of this process may leave meanwhile
        said = {name: here[name].told(what) for name in names if name in here}
        asked = [(name, f"told/{quote(name, safe='')}?{what}") for name in names if name not in here]
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            found = self.get(some, _QUESTION_SECONDS, LONGEST_TEXT, introduced=what == "hello")
            said |= {name: data.decode(errors="replace") for name, data in found.items()}
        return {name: said[name] for name in names if said.get(name)}

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
                self.presence.turn_away(name, str(error))
        return said

    def look_up_progress(self) -> None:
        """How far all others are, for peers that have just come."""
        for name, text in self.ask("progress", sorted(self.presence.others())).items():
            self.presence.look_up(name, text)

    def get(
        self, questions: Sequence[tuple[ClientId, str]], seconds: float, most: int, *, introduced: bool = False
    ) -> dict[ClientId, bytes]:
        """Ask all at once; take what has come when the time is over. What is said in another's name does not count."""
        found: dict[ClientId, bytes] = {}
        lock, open_, done = threading.Lock(), threading.Semaphore(0), set[str]()

        def end(about: str) -> None:
            with lock:
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
                    self.presence.turn_away(name, str(error))

            return take

        for name, selector in questions:
            full = f"{self.root}/{selector};{secrets.token_hex(8)}"  # no answer to an earlier question will do
            handler = zenoh.handlers.Callback(on_reply(name, full), drop=partial(end, full))
            self.zenoh.get(full, handler, consolidation=zenoh.ConsolidationMode.NONE, timeout=seconds)
        until = time.monotonic() + seconds
        with self.turns.let_on():
            for _ in questions:
                open_.acquire(timeout=max(until - time.monotonic(), 0.001))
        return dict(found)

    def _believed(self, name: ClientId, about: str, sample: Any, most: int, introduced: bool) -> bytes:
        """An answer's bytes, once their number and their signature are right."""
        if len(sample.payload) > most:
            raise Impostor(f"it sends {len(sample.payload)} bytes, more than the {most} allowed")
        data: bytes = sample.payload.to_bytes()
        if self.met is not None:
            shown = b"" if sample.attachment is None else sample.attachment.to_bytes()
            (self.met.meet if introduced else self.met.check)(name, about, data, shown)
        return data

    def close(self) -> None:
        """Leave, with all peers that are still here."""
        self._closed.set()
        self._news.set()
        for peer in list(self.here.values()):
            peer.leave()
        for declared in reversed(self._declared):
            declared.undeclare()  # type: ignore[no-untyped-call]
        self.zenoh.close()  # type: ignore[no-untyped-call]


def _name_in(key: Any) -> ClientId:
    """The name that a key ends with; written otherwise than its owner does, it is somebody else's word about it."""
    written = str(key).rsplit("/", 1)[-1]
    name = unquote(written)
    if quote(name, safe="") != written:
        raise CoterieError("its name is not written as names are")
    return name
