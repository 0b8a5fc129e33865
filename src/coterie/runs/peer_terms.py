"""What the peers of one process and all others come to about a run: whose data fit, and what the run is about."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

from coterie.core.errors import CoterieError
from coterie.core.files import digest
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.deploy.boundary import checked
from coterie.deploy.fitting import unlike
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import RunSpec
from coterie.runs.classes import check_said
from coterie.runs.config import RunConfig
from coterie.runs.spec import NoMajority, agree, alone, drafted, left_out, model_of, odd_ones, usable

_HELLO_SECONDS, _LAST_SECONDS = 1.0, 2.0
_COMMON = ("shape", "classes", "normalise", "class_names", "columns", "task", "target_mean", "target_std")
_DATA = ("shape", "classes", "class_names", "task")


class Askable(Protocol):
    """Where other peers are asked."""

    def hellos(self, names: Sequence[ClientId]) -> dict[ClientId, Hello]:
        """How they introduce themselves."""

    def ask(self, what: str, names: Sequence[ClientId]) -> dict[ClientId, str]:
        """A short text from each."""


def network_of(config: RunConfig) -> str:
    """The name of the network: peers with another configuration do not even see each other."""
    alike = replace(config, checkpoint_seconds=10.0, evaluate_every=1)
    return f"{config.method}-{digest(alike.to_toml().encode())}"


class FittingPeers:
    """Those of the peers that are there whose data fit together: only they are counted, by every one of them.

    One of this process that is odd has to `leave`, with the reason; where no other is left, that is an error.
    """

    def __init__(
        self,
        config: RunConfig,
        network: Askable,
        own: Mapping[ClientId, Hello],
        note: Note,
        leave: Callable[[ClientId, str], None],
    ) -> None:
        self._config, self._network, self._own, self._note, self._leave = config, network, dict(own), note, leave
        self._hellos: dict[ClientId, Hello] = {}
        self._odd: dict[ClientId, str] = {}
        self._unclear, self._running, self._asked = "", False, 0.0

    def __call__(self, others: set[ClientId]) -> set[ClientId]:
        """The others that fit those here; none as long as it is not clear who is odd. An odd peer ends."""
        now = time.monotonic()
        if others != self._hellos.keys() or now > self._asked + _HELLO_SECONDS:  # one may be back with other data
            self._hellos, self._asked = self._network.hellos(sorted(others)), now
            told = believed(self._config, self._network, sorted(others), silent)
            self._running = 2 * told.total() > len(others) > 0
        if self._running:  # the network has agreed already, and tells us whether we fit
            return others
        there = {**self._hellos, **self._own}
        try:
            odd = odd_ones(self._config, there)
        except NoMajority as error:
            if str(error) != self._unclear:
                self._note(f"{error} Waiting for more peers.")
            self._unclear, self._odd = str(error), {}
            return set()
        for name in sorted(odd.keys() - self._odd.keys() - self._own.keys()):
            self._note(f"{name} is not counted: {odd[name]}")
        self._odd, self._unclear = odd, ""
        fit = there.keys() - odd.keys() - self._own.keys()
        self._part_with(self._own.keys() & odd.keys())
        return fit

    def _part_with(self, strange: set[ClientId]) -> None:
        if not strange:
            return
        pause(_LAST_SECONDS)  # the others ask who is odd, too: who is gone cannot say why
        if strange == self._own.keys():
            raise CoterieError(
                f"This peer does not fit the others: {self._odd[min(strange)]}; correct its data, or how they are "
                "read, and start it again."
            )
        for name in sorted(strange):
            del self._own[name]
            self._leave(name, f"it does not fit the others: {self._odd[name]}")

    def others(self) -> str:
        """Who is there and does not fit, for the end of a wait."""
        return left_out("not counted", self._odd, self._unclear)

    def notices(self) -> list[str]:
        """What the report should say of how the run began: who was left out, who alone has some labels."""
        said = [f"{name} is not counted: {why}" for name, why in sorted(self._odd.items())]
        if not self._running:
            there = {**self._hellos, **self._own}
            fit = {name: hello for name, hello in there.items() if name not in self._odd}
            brought = [f"{name} {what}" for name, what in alone(self._config, fit).items()]
            for text in brought:
                self._note(text)
            said += brought
        return said


def run_specs(
    config: RunConfig, network: Askable, everyone: set[ClientId], own: Mapping[ClientId, Hello], note: Note
) -> tuple[dict[ClientId, RunSpec], dict[ClientId, CoterieError]]:
    """What this configuration says, with the classes and the normalisation of the network, for each peer of this
    process; and who of them cannot take part in that.

    Where there is a network already, they are those that most of its peers tell; else all who are there come to them by
    themselves. Nothing else is taken from others, and a model that is code is never theirs.
    """
    others = sorted(everyone - own.keys())
    hellos = {**network.hellos(others), **own}
    said = believed(config, network, others, note)
    mine = cache(lambda: agree(config, hellos))
    specs: dict[ClientId, RunSpec] = {}
    refused: dict[ClientId, CoterieError] = {}
    disbelieved: set[str] = set()
    for name, hello in own.items():
        told = most_told(said, hello)
        try:
            # not yet a network's word: it must be what we would say too
            if told is not None and 2 * said.total() <= len(others):
                strange = [each for each in _DATA if getattr(mine(), each) != getattr(told, each)]
                if strange:
                    disbelieved.add(", ".join(strange))
                    told = None
            spec = mine() if told is None else _as_told(config, name, hello, told)
            specs[name] = replace(spec, run=network_of(config))
        except CoterieError as error:
            refused[name] = error
    for what in sorted(disbelieved):
        note(f"what {said.total()} of {len(others)} peers say of the run's {what} is not believed")
    return specs, refused


def _as_told(config: RunConfig, name: ClientId, own: Hello, told: RunSpec) -> RunSpec:
    why = unlike(own, told)
    if why:
        raise CoterieError(f"These data are not what the network is about: {why}.")
    return usable(config, replace(drafted(config, {name: own}), **{each: getattr(told, each) for each in _COMMON}))


def most_told(said: Counter[RunSpec], own: Hello) -> RunSpec | None:
    """What most of the others say that the run is about, of those whose word fits our own data.

    If none of them fits our data, all are counted: one peer that lies keeps no other out.
    """
    if not said:
        return None
    said = Counter({spec: number for spec, number in said.items() if not unlike(own, spec)}) or said
    votes: Counter[tuple[object, ...]] = Counter()
    for spec, number in said.items():
        votes[_common(spec)] += number
    most = max(votes.values())
    tied = {_common(spec): spec for spec in said if votes[_common(spec)] == most}
    # of as many, the one that is nearest to our data, and one that does not depend on who answered first
    return min(tied.values(), key=lambda spec: (abs(spec.classes - own.classes), repr(_common(spec))))


def believed(config: RunConfig, network: Askable, others: Sequence[ClientId], note: Note) -> Counter[RunSpec]:
    """What others say that the run is about, as far as it fits our own configuration, and how many say so."""
    said: Counter[RunSpec] = Counter()
    understood = cache(lambda text: _understood(config, text))
    for name, text in network.ask("agreement", others).items():
        try:
            said[understood(text)] += 1
        except CoterieError as error:
            note(f"what {name} says of the run is not believed: {error}")
    return said


def _understood(config: RunConfig, text: str) -> RunSpec:
    spec = checked(RunSpec, text)
    if (spec.method, spec.model) != (config.method, model_of(config)):
        raise CoterieError(f"it is about {spec.method} and the model {spec.model}")
    check_said(config.scenario.classes, spec.classes, spec.class_names)
    return spec


def _common(spec: RunSpec) -> tuple[object, ...]:
    """What a peer takes from others: what all clients' data are together."""
    return tuple(getattr(spec, name) for name in _COMMON)
