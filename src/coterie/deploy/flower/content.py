"""What a Flower message of ours holds, and what a client makes of one.

No `Strategy`, no Flower model types: a message holds the text of an order and the bytes of `wire`.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.notes import Note, silent
from coterie.deploy.boundary import blamed
from coterie.deploy.consent import Withheld
from coterie.deploy.gateway import Member
from coterie.deploy.protocol import HELLO

GOODBYE, TOLD = "goodbye", "told"
LONGEST_TOLD = 1000
REFUSED, WITHHELD = 400, 403  # our own error codes: Flower's are below 100
_RECORD, _TEXT, _BYTES = "coterie", "text", "bytes"
_SHORT = 1 << 19


def content_of(text: str, payload: bytes | None = None) -> RecordDict:
    """A message's content: a text, and bytes.

    Long ones are one opaque array, which Flower sends in pieces. Short ones stand beside the text: Flower fetches and
    sends each of its objects with a request of its own, and these are three objects less of six.
    """
    if payload is not None and len(payload) <= _SHORT:
        return RecordDict({_RECORD: ConfigRecord({_TEXT: text, _BYTES: payload})})
    content = RecordDict({_RECORD: ConfigRecord({_TEXT: text})})
    if payload is not None:
        content[_BYTES] = ArrayRecord({_BYTES: Array("uint8", (len(payload),), _RECORD, payload)})
    return content


def opened(content: RecordDict) -> tuple[str, bytes]:
    """The inverse of `content_of`; anything else is refused."""
    record = content.config_records.get(_RECORD)
    text = None if record is None else record.get(_TEXT)
    arrays = content.array_records.get(_BYTES)
    short = b"" if record is None else record.get(_BYTES, b"")
    if not isinstance(text, str) or not isinstance(short, bytes) or (arrays is not None and _BYTES not in arrays):
        raise wire.WireError("This is not a message of coterie's.")
    return text, short if arrays is None else arrays[_BYTES].data


def answer(member: Member, message: Message, limit: int = wire.DEFAULT_LIMIT, note: Note = silent) -> Message:
    """What a client replies to a message; a refusal is carried as Flower's error. No message can end the client."""
    try:
        with blamed("This message cannot be answered"):
            return Message(_answered(member, message, limit, note), reply_to=message)
    except CoterieError as error:
        return refusal(message, str(error), WITHHELD if isinstance(error, Withheld) else REFUSED)


def _answered(member: Member, message: Message, limit: int, note: Note) -> RecordDict:
    action = message.metadata.message_type.partition(".")[2]
    if action in (HELLO, GOODBYE):
        return content_of(*member.introduce())
    text, payload = opened(message.content)
    if action == TOLD:
        note(f"the server says: {text[:LONGEST_TOLD]}")
        return content_of("")
    return content_of(*member.answer(text, payload, limit))


def refusal(message: Message, reason: str, code: int = REFUSED) -> Message:
    """The reply that says why there is none."""
    return Message(Error(code=code, reason=reason), reply_to=message)
