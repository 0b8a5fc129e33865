"""Peers that find and answer each other over zenoh: no broker, no server, no order in which they must be started.

What a process has of the network is its `PeerSession`; a `PeerConnection` is one peer in it, with its name, its answers
and its signature. Queryables answer "who are you", "how far are you" and "your model of round t".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import quote

from coterie.core.errors import CoterieError
from coterie.core.interrupts import pause, raise_if_interrupted
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.deploy.boundary import LATEST, whole_number
from coterie.deploy.hello import Hello
from coterie.deploy.presence import Roster
from coterie.deploy.protocol import to_text
from coterie.deploy.reached import NOT_BEGUN
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.session import PeerSession
from coterie.deploy.zenoh.signing import Identity

_LOOK_SECONDS, _NEXT_SECONDS = 0.5, 0.1
_HISTORY = 64  # answers of so many rounds are kept for peers that are behind
_MOST_WAITING = 4096
_SOON = 2
_LONGEST_WAIT = 3_600_000  # milliseconds

Kind = Literal["model", "change", "sketch"]
"""What a peer can be asked for: its model, this with the one its training began with, or sketches of its ways."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Wanted:
    """What somebody asks for, until when, and where the answer goes."""

    round: int
    kind: Kind
    until: float
    reply: Callable[[bytes], None]
    end: Callable[[], None]


class PeerConnection:
    """One peer's view of the others, and its answers to them."""

    def __init__(self, name: ClientId, hello: Hello, session: PeerSession, identity: Identity | None = None) -> None:
        self.name, self.session, self._identity = name, session, identity
        self.limit = session.limit
        self.sent = self.received = 0
        self._lock = threading.Lock()
        self._own_progress = NOT_BEGUN
        self._answers: dict[int, Mapping[Kind, bytes]] = {}
        self._waiting: list[Wanted] = []
        self._texts = {"hello": to_text(hello), "agreement": ""}
        self._latest_is_fine = self._alone = self._gone = False
        self._stamp = 0
        self._declared: list[Any] = []

    @classmethod
    def alone(
        cls, name: ClientId, network: str, hello: Hello, address: Address, limit: int, note: Note = silent
    ) -> PeerConnection:
        """A peer that is the only one of its process; its session closes with it."""
        identity = None if address.security is None else address.security.identity(name)
        made = cls(name, hello, PeerSession(network, address, limit, note), identity)
        made._alone = True
        return made

    def enter(self) -> None:
        """Appear to the others, under a name that no other peer has."""
        session, own = self.session, quote(self.name, safe="")
        session.settle()
        if session.is_taken(self.name):
            raise CoterieError(f"There is a peer {self.name!r} in this network already; choose another --name.")
        session.here[self.name] = self
        session.presence.enter(self.name)
        root, safely = session.root, session.safely
        self._declared = [
            session.zenoh.declare_queryable(f"{root}/told/{own}", safely(self._on_question)),
            session.zenoh.declare_queryable(f"{root}/model/{own}", safely(self._on_request)),
            session.zenoh.liveliness().declare_token(f"{root}/alive/{own}"),
        ]

    def others(self) -> set[ClientId]:
        """Who else is there now."""
        return self.session.presence.others((self.name,))

    def progress(self) -> dict[ClientId, int]:
        """How far the others that are there have come, as far as is known."""
        return self.session.presence.progress(self.name)

    def usual(self) -> int:
        """How far most of the others are at least."""
        return self.session.presence.usual(self.name)

    def roster(self, round: int) -> Roster:
        """Who is in a round, oneself included."""
        return self.session.presence.roster(round)

    def meet(self, round: int, until: float) -> list[ClientId]:
        """Wait until all who move have come to a round; who has not by then, and where each of them stands."""
        presence = self.session.presence
        with self.session.turns.let_on():
            while not presence.wait(round, min(_LOOK_SECONDS, max(until - time.monotonic(), 0.0))):
                raise_if_interrupted()
                if time.monotonic() >= until:
                    return presence.behind(round)
        raise_if_interrupted()
        return []

    def give_up(self, name: ClientId) -> int:
        """Wait for a peer no more until it moves; returned is where it stands."""
        return self.session.presence.give_up(name)

    def linger(self, round: int, seconds: float) -> None:
        """Stay to answer those who have not come to a round, the end, as long as anybody makes progress.

        Who has not begun, as far as is known, is waited for too: at their own pace, peers may be far apart. No peer
        needs more than so many seconds for each round; one that moves to and fro keeps nobody longer than that.
        """
        self.announce(round)
        presence, moved = self.session.presence, time.monotonic()
        seen, last = presence.moves, moved + seconds * (round + 1)
        with self.session.turns.let_on():
            while presence.lowest() < round and time.monotonic() < min(moved + seconds, last):
                if presence.wait(round, _LOOK_SECONDS):
                    pause(_NEXT_SECONDS)
                raise_if_interrupted()
                if presence.moves != seen:
                    seen, moved = presence.moves, time.monotonic()

    def told(self, what: str) -> str:
        """What this peer says of itself."""
        return str(self._own_progress) if what == "progress" else self._texts.get(what, "")

    def _on_question(self, query: Any) -> None:
        what = str(query.parameters).partition(";")[0]
        told, about = self.told(what).encode(), f"{query.key_expr}?{query.parameters}"
        shown = None
        if self._identity is not None:
            shown = (self._identity.introduction if what == "hello" else self._identity.sign)(about, told)
        query.reply(query.key_expr, told, attachment=shown)
        query.drop()

    def _on_request(self, query: Any) -> None:
        """Another peer asks for our model of a round, or its sketch."""
        when, kind, patience, _ = [*str(query.parameters).split(";", 4), "", "", "", ""][:4]
        number, wait = whole_number(when, 0, LATEST), whole_number(patience, 0, _LONGEST_WAIT)
        known = next((each for each in KINDS if each == kind), None)
        if number is None or wait is None or known is None:
            query.drop()
            return

        def reply(answer: bytes) -> None:
            about = f"{query.key_expr}?{query.parameters}"
            signed = None if self._identity is None else self._identity.sign(about, answer)
            query.reply(query.key_expr, answer, attachment=signed)

        self.serve(Wanted(number, known, time.monotonic() + wait / 1000, reply, query.drop))

    def serve(self, wanted: Wanted) -> None:
        """Answer; if we are not there yet, when we are."""
        with self._lock:
            gone, latest = self._gone, max(self._answers, default=None)
            at = latest if self._latest_is_fine and latest is not None else wanted.round
            answer = self._answers.get(at, {}).get(wanted.kind)
            # only for what comes soon, so that no peer can fill the places of those who wait
            soon = self._own_progress < at <= max(self._own_progress, 0) + _SOON or not self._answers
            if answer is None and soon and not gone and len(self._waiting) < _MOST_WAITING:
                self._waiting.append(wanted)
                return
        self._answer(wanted, answer)

    def _answer(self, wanted: Wanted, answer: bytes | None) -> None:
        if answer is not None:
            with self._lock:
                self.sent += len(answer)  # before it is there: who has it may end the run
        try:
            if answer is not None:
                wanted.reply(answer)
        finally:
            wanted.end()

    def offer(self, round: int, answers: Mapping[Kind, bytes], *, latest_is_fine: bool) -> None:
        """Our answers of a round, of every kind that is asked for; those who wait for them get them now."""
        longest = max(map(len, answers.values()))
        if longest > self.limit:
            raise CoterieError(f"An answer takes {longest} bytes; allow that at every peer with --max-megabytes.")
        needed = min(self.session.presence.lowest(), round)
        with self._lock:
            self._latest_is_fine = latest_is_fine
            self._answers[round] = answers
            self._own_progress = max(self._own_progress, round)
            for old in [number for number in self._answers if number < max(needed, round - _HISTORY + 1)]:
                del self._answers[old]
            waiting = [item for item in self._waiting if item.until > time.monotonic()]  # the others have given up
            ready = [item for item in waiting if item.round <= round]
            self._waiting = [item for item in waiting if item.round > round]
        for wanted in ready:
            own = self._answers.get(wanted.round, answers if latest_is_fine else {})
            self._answer(wanted, own.get(wanted.kind))
        self.announce(round)

    def announce(self, progress: int) -> None:
        """Tell the others how far we are. They may miss it, and ask (see `PeerSession`)."""
        self._own_progress = max(self._own_progress, progress)
        key = f"{self.session.root}/progress/{quote(self.name, safe='')}"
        # what is older than the last word is not read: a clock that is set back must not make it so
        self._stamp = max(self._stamp + 1, time.time_ns())
        text = f"{self._own_progress};{self._stamp}"
        signed = None if self._identity is None else self._identity.sign(key, text.encode())
        self.session.zenoh.put(key, text, attachment=signed)
        self.session.presence.reach(self.name, self._own_progress)

    def agree(self, text: str) -> None:
        """What the run is about, for those who come later."""
        self._texts["agreement"] = text

    def fetch(self, round: int, names: Sequence[ClientId], *, kind: Kind, seconds: float) -> dict[ClientId, bytes]:
        """The models of these peers, or their sketches, of those that answer in time."""
        here = {name: peer for name in names if (peer := self.session.here.get(name)) is not None}
        found = self._from_here(here, round, kind, seconds)
        asked = [
            (name, f"model/{quote(name, safe='')}?{round};{kind};{int(1000 * seconds)}")
            for name in names
            if name not in here
        ]
        found |= self.session.get(asked, seconds, self.limit) if asked else {}
        self.received += sum(map(len, found.values()))
        return found

    def _from_here(
        self, peers: Mapping[ClientId, PeerConnection], round: int, kind: Kind, seconds: float
    ) -> dict[ClientId, bytes]:
        """The answers of peers of the same process."""
        found: dict[ClientId, bytes] = {}
        answered, until = threading.Semaphore(0), time.monotonic() + seconds
        for name, peer in peers.items():
            peer.serve(Wanted(round, kind, until, partial(found.__setitem__, name), answered.release))
        for _ in peers:
            if not answered.acquire(blocking=False):
                with self.session.turns.let_on():
                    answered.acquire(timeout=max(until - time.monotonic(), 0.001))
        return dict(found)

    def leave(self) -> None:
        """Be gone from the network; who waits for an answer waits no longer."""
        with self._lock:
            self._gone, waiting, self._waiting = True, self._waiting, []
        for wanted in waiting:
            wanted.end()
        for declared in reversed(self._declared):
            declared.undeclare()
        self._declared = []
        if self.session.here.get(self.name) is self:
            del self.session.here[self.name]
            self.session.presence.leave(self.name)

    def close(self) -> None:
        """Leave."""
        self.leave()
        if self._alone:
            self.session.close()
