"""Whether a client takes part in a run, by what its server has told it."""

from __future__ import annotations

from flwr.app import Message

from coterie.core.errors import CoterieError
from coterie.core.terminal import brief, harmless
from coterie.deploy.flower.content import GOODBYE, TOLD, opened
from coterie.deploy.protocol import ADMITTED, HELLO, NOT_ADMITTED


class Admission:
    """What was said last of whether this client takes part."""

    refused = ""
    """Why it does not, in the server's words."""

    def hear(self, message: Message) -> None:
        """A message that was answered; to be asked for work is to take part."""
        action = message.metadata.message_type.partition(".")[2]
        if action == TOLD:
            text = brief(harmless(opened(message.content)[0]))
            self.refused = text if text.startswith(NOT_ADMITTED) else "" if text == ADMITTED else self.refused
        elif action not in (HELLO, GOODBYE):
            self.refused = ""

    def check(self, name: str) -> None:
        """At the end of a run: who was not admitted has no model, which a script must see."""
        if self.refused:
            raise CoterieError(
                f"{name} took no part in the run, since the server says: {self.refused}; correct its data, or how they "
                "are read (--set, --target-column), and join the next run."
            )
