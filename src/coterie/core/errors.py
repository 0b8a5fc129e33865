"""The one error style: a sentence that says what is wrong and what to do, and exit code 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CoterieError(Exception):
    """Something the user can put right. The message is one sentence (what is wrong) plus what to do.

    The command line prints it without a traceback and exits with 2; a Python caller may catch it.
    """


class Unfinished(CoterieError):
    """The machine, not the input, stopped a run: what it has saved is whole, and it can be resumed."""


class NothingLearnt(CoterieError):
    """A run came to nothing: its result would be that of an untrained or a broken model, so there is none."""


class Interrupted(Unfinished):
    """The user stopped it. `go_on` is the command that goes on with it, where there is one."""

    def __init__(self, what: str, go_on: str = "") -> None:
        super().__init__(f"{what}: {go_on}" if go_on else f"{what}.")
        self.what, self.go_on = what, go_on


def unknown(kind: str, name: str, known: Iterable[str]) -> CoterieError:
    """The error for a name that does not exist, with the nearest existing ones."""
    names = sorted(known)
    if not names:
        return CoterieError(f"There is no {kind} {name!r}, and there are no others; leave it out.")
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return CoterieError(f"There is no {kind} {name!r}; {hint}: {', '.join(names)}.")


def installing(extra: str) -> str:
    """The command that installs an extra of the package, for an error that asks for it."""
    return f"pip install 'coterie[{extra}]'"
