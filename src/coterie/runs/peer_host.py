"""Several peers in one process: each with its data, its folder, its key and its own rounds, behind one connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from coterie.core.errors import CoterieError, Interrupted, Unfinished
from coterie.core.interrupts import pause
from coterie.core.notes import Note
from coterie.core.samples import ClientId, Population
from coterie.core.threads import use_one_thread
from coterie.deploy.boundary import check_name
from coterie.deploy.bundle import MOST_CLIENTS
from coterie.deploy.protocol import RunSpec
from coterie.deploy.turns import Turns
from coterie.deploy.zenoh.address import Address, PeerSecurity
from coterie.deploy.zenoh.session import PeerSession
from coterie.runs.config import RunConfig
from coterie.runs.folder import RunFolder, RunKind, home_of
from coterie.runs.network_result import Milestones, together
from coterie.runs.peer import Agreement, PeerOptions, Seat, gather, peer_method, task_of
from coterie.runs.peer_terms import network_of
from coterie.runs.records import CONFIG_FILE, RESULT_FILE
from coterie.runs.result import Result
from coterie.runs.view import SilentView, View, Views

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
_LAST_SECONDS = 120.0


@dataclass(frozen=True)
class Hosted:
    """Who shares a process: their data, their certificates if there are any, and how many compute at once."""

    theirs: Mapping[ClientId, Population]
    security: Mapping[ClientId, PeerSecurity] | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        for name in self.theirs:
            check_name(name, "--names")
        if not 1 <= len(self.theirs) <= MOST_CLIENTS:
            raise CoterieError(f"A process has 1 to {MOST_CLIENTS} peers, not {len(self.theirs)}; start several.")
        if self.workers < 1:
            raise CoterieError("--workers must be at least 1.")


def run_peers(
    config: RunConfig, hosted: Hosted, address: Address, out: Path, options: PeerOptions, *, view: View | None = None
) -> Result:
    """Be several peers of a network until their rounds are over; what their folders already hold goes on.

    They share the process and the connection, and what it knows of who is there. They compute in turn, and each goes
    its own way: what one cannot do is its own failure.
    """
    views = Views(view)
    peer_method(config)
    resume = (out / CONFIG_FILE).is_file()
    if (out / RESULT_FILE).is_file():
        raise CoterieError(f"The run in {out} is finished; choose another --out.")
    folder = RunFolder.reopen(out, RunKind.HOST) if resume else RunFolder.create(out, config.to_toml(), RunKind.HOST)
    with folder.starting(resume):
        seats = [
            Seat(config, name, own, home_of(out, name))
            for name, own in hosted.theirs.items()
            if not (home_of(out, name) / RESULT_FILE).is_file()  # it is done, and the others go on
        ]
        if seats:
            _take_part(config, hosted, seats, address, folder, options, views.note)
    return together(config, folder, list(hosted.theirs), views)


def _take_part(
    config: RunConfig,
    hosted: Hosted,
    seats: Sequence[Seat],
    address: Address,
    folder: RunFolder,
    options: PeerOptions,
    note: Note,
) -> None:
    identities = {name: own.identity(name) for name, own in (hosted.security or {}).items()}
    turns = Turns(hosted.workers)
    with closing(PeerSession(network_of(config), address, options.limit, note, turns)) as session:
        who = f"{len(seats)} peers listen" if len(seats) > 1 else f"{seats[0].name} listens"
        note(f"{who} at {address.listen}; waiting for {options.peers} peers")
        with ExitStack() as starting:
            for seat in seats:
                starting.enter_context(seat.folder.starting(seat.resume))
            agreement = gather(config, session, seats, identities, options)
        _Crew(config, hosted, seats, agreement, options, turns, note).work(folder)


class _Crew:
    """The threads of a process's peers."""

    def __init__(
        self,
        config: RunConfig,
        hosted: Hosted,
        seats: Sequence[Seat],
        agreement: Agreement,
        options: PeerOptions,
        turns: Turns,
        note: Note,
    ) -> None:
        self._config, self._agreement, self._options = config, agreement, options
        self._turns, self._note = turns, note
        self._seats = [seat for seat in seats if seat.name in agreement.specs]
        self._rounds = {seat.name: 0 for seat in self._seats}
        self._said: set[str] = set()
        self._failed: dict[ClientId, Exception] = {}
        # one at a time computes: what they compute with can be one for all
        self._task = lru_cache(1 if hosted.workers == 1 else 0)(lambda spec: task_of(config, spec))

    def work(self, folder: RunFolder) -> None:
        """All rounds of all peers; who does not come to the end is named, and if nobody does, that is an error."""
        threads = [threading.Thread(target=self._run, args=(seat,), daemon=True) for seat in self._seats]
        milestones = Milestones(self._config.rounds, self._note)
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                milestones.reached(self._lowest)
                pause(_LOOK_SECONDS)
        except KeyboardInterrupt:
            until = time.monotonic() + _LAST_SECONDS
            for thread in threads:  # each saves what it has; some may not have been started yet
                if thread.ident is not None:
                    thread.join(max(until - time.monotonic(), 0.0))
            raise Interrupted(
                f"Stopped after {self._lowest} of {self._config.rounds} rounds; nothing is lost", folder.go_on
            ) from None
        milestones.reached(self._lowest)
        for name, error in self._failed.items():
            self._note(f"{name} did not come to the end: {error}")
        if len(self._failed) == len(self._seats):
            raise Unfinished(f"No peer came to the end; {next(iter(self._failed))} said: {self._error}")

    @property
    def _error(self) -> Exception:
        return next(iter(self._failed.values()))

    @property
    def _lowest(self) -> int:
        failed = dict(self._failed)  # more may fail meanwhile
        lost = {name for name, error in failed.items() if not isinstance(error, Interrupted)}
        return min((reached for name, reached in self._rounds.items() if name not in lost), default=0)

    def _run(self, seat: Seat) -> None:
        use_one_thread()
        try:
            with self._turns.taken(), seat.folder.starting(seat.resume):
                spec: RunSpec = self._agreement.specs[seat.name]
                view = Views(_OnePeer(self, seat.name))
                seat.run(spec, self._task(spec), self._options, self._agreement.noticed, view)
        except KeyboardInterrupt:  # before its first round
            self._failed[seat.name] = Interrupted("Stopped before the first round")
        except Exception as error:
            _log.debug("%s failed", seat.name, exc_info=True)
            self._failed[seat.name] = error
        finally:
            seat.leave()

    def ended(self, name: ClientId, round: int) -> None:
        """A peer has finished a round."""
        self._rounds[name] = round

    def say(self, name: ClientId, text: str) -> None:
        """What a peer has to say; what several say alike is said once."""
        if text not in self._said:
            self._said.add(text)
            self._note(f"{name}: {text}")


class _OnePeer(SilentView):
    """Follows one peer of several."""

    def __init__(self, crew: _Crew, name: ClientId) -> None:
        self._crew, self._name = crew, name

    @override
    def update(self, row: Mapping[str, Any]) -> None:
        self._crew.ended(self._name, row["round"])

    @override
    def note(self, text: str) -> None:
        self._crew.say(self._name, text)
