"""What a device agrees to tell, and the secret that only it knows.

A server says which client function it wants; the device decides. Each client function names what its answer tells
(`@on_client(tells=...)`, words of `federation.TELLS`), and a device refuses what it does not want told.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, unknown
from coterie.core.federation import TELLS
from coterie.core.files import write_whole
from coterie.methods.embedding.privacy import check_flip

SECRET_VARIABLE = "COTERIE_SECRET"
"""A secret from the environment instead of the file, for devices whose disk is not their own."""
MOST_QUESTIONS = 30
"""Unless its owner says otherwise, a device answers so many questions about its labels."""
LEAST_NOISE = 0.05
"""... and adds noise of this standard deviation to the label shares that its answers are made from."""
_SECRET, _ASKED = "secret", "questions"


class Withheld(CoterieError):
    """This device does not consent to tell what it is asked."""


@dataclass(frozen=True)
class Consent:
    """A device's own rules, which no server can change."""

    refuse: frozenset[str] = frozenset()
    least_flip: float = 0.0
    """The least probability with which the bits of an embedding are flipped, whatever the run says."""
    most_questions: int = 0
    """How many questions about its labels a device answers in its life; 0: any number."""
    least_noise: float = 0.0
    """The least standard deviation of the noise on label shares behind such answers (MD-ICFL's strong privacy)."""

    def __post_init__(self) -> None:
        check_flip(self.least_flip, "--least-flip")
        for word in sorted(self.refuse):
            if word not in TELLS:
                raise unknown("thing to refuse", word, TELLS)
        if self.most_questions < 0:
            raise CoterieError(f"--most-questions must be at least 0, not {self.most_questions}.")
        if not 0 <= self.least_noise <= 1:
            raise CoterieError(f"--least-noise must be from 0 to 1, not {self.least_noise}.")

    def tells(self, word: str) -> bool:
        """Whether this device tells such a thing (a word of `TELLS`)."""
        return word not in self.refuse

    def check(self, function: Any, root: Path) -> None:
        """Refuse a question that this device does not answer; count those about its labels."""
        told = getattr(function, "tells", ())
        for word in told:
            if not self.tells(word):
                raise Withheld(f"This device refuses to tell {word}, and {function.__name__} asks for it.")
        if "labels" in told and self.most_questions:
            asked = _count(root / _ASKED)
            if asked >= self.most_questions:
                raise Withheld(
                    f"This device has answered {asked} questions about its labels and answers no more; "
                    "its owner may allow more with --most-questions."
                )
            _write(root / _ASKED, str(asked + 1))


def refused_words(text: str) -> frozenset[str]:
    """`labels,features` of the command line."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def own_secret(root: Path) -> str:
    """The secret of this device: made when it first joins, readable by its user alone, the same for its whole life."""
    given = os.environ.get(SECRET_VARIABLE, "")
    if given:
        return given
    path = root / _SECRET
    try:
        if path.is_file() and (known := path.read_text(encoding="ascii").strip()):
            return known
        made = secrets.token_hex(32)
        _write(path, made)
        return made
    except (OSError, UnicodeDecodeError) as error:
        raise CoterieError(f"The secret of this device in {path} cannot be read or made: {error}.") from error


def _count(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise CoterieError(f"The count of answered questions in {path} cannot be read: {error}.") from error


def _write(path: Path, text: str) -> None:
    """A small file that its user alone may read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, text.encode(), private=True)
