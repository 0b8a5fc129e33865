"""A client on Flower: it fetches orders from a SuperLink, answers them in this very process, and sends the replies.

Flower's own SuperNode starts a fresh process for every message and runs the code that the SuperLink sends it. A
`Device` needs neither: it speaks Flower's Fleet protocol and runs nothing but what is installed here.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from coterie.core.errors import CoterieError
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.wire import WireError
from coterie.deploy.boundary import reason_of
from coterie.deploy.flower.admission import Admission
from coterie.deploy.flower.calls import WholeCalls
from coterie.deploy.flower.compat import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    Node,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    ObjectPushError,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    UnregisterNodeFleetRequest,
    generate_key_pairs,
    get_all_nested_objects,
    get_object_tree,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    public_key_to_bytes,
    pull_objects,
    push_object_contents_from_iterable,
    remove_content_from_message,
)
from coterie.deploy.flower.content import GOODBYE, TOLD, answer, refusal
from coterie.deploy.flower.outbox import Outbox, Stubborn
from coterie.deploy.flower.pieces import LimitedPull, ids_of, put_together
from coterie.deploy.flower.refusals import STILL_THERE, never_reached, turned_away
from coterie.deploy.gateway import Member

_HEARTBEAT_SECONDS = 10  # Flower takes no less; a node is gone after two of them
_POLL_SECONDS, _LONGEST_POLL_SECONDS, _POLL_SHARE = 0.1, 1.0, 0.1
_PIECE_SECONDS = 0.05
_LONGEST_PIECE_SECONDS = 1.0
_MESSAGE_SECONDS = 600.0
_RETRY_SECONDS = 1.0
_GRACE_SECONDS = 15.0
_LEAST_GRACE_SECONDS = 3.0
_FORGOTTEN_SECONDS = 3.0 * _HEARTBEAT_SECONDS
_UNSURE = (401, 403, 404, 502, 503, 504)
_MOST_IN_A_ROW = 10


class _Gone(Exception):
    """The server is not there, or does not know this client any more."""


@dataclass(frozen=True)
class Security:
    """How a client knows the server (its CA), and how the server knows the client (its key)."""

    ca: Path | None = None
    key: Path | None = None

    def keys(self) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
        """The client's key pair; without a file, a fresh one that only tells it from other clients."""
        if self.key is None:
            return generate_key_pairs()
        try:
            private = load_ssh_private_key(self.key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise CoterieError(
                f"The key {self.key} cannot be read ({error}); make one with `coterie certs`."
            ) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise CoterieError(f"The key {self.key} is not an elliptic-curve key; make one with `coterie certs`.")
        return private, private.public_key()


class Session:
    """One connection to a SuperLink: registered, active, with a heart that beats."""

    def __init__(self, server: str, security: Security, outbox: Outbox) -> None:
        self._outbox = outbox
        self._private, public = security.keys()
        self._registers = security.key is None
        self._key = public_key_to_bytes(public)
        self._client = FleetHttpClient.from_server_address(
            server,
            security.ca is None,
            None if security.ca is None else str(security.ca),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self._private, public),
                WholeCalls(),
            ],
        )
        self._stop = threading.Event()
        try:
            killed = None if self._registers else outbox.killed()
            if killed is not None:  # Flower thinks that it is still there, for two heartbeats
                with suppress(httpx.HTTPStatusError):
                    self._client.DeactivateNode(DeactivateNodeRequest(node_id=killed))
            if self._registers:
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._key))
            activated = self._client.ActivateNode(
                ActivateNodeRequest(public_key=self._key, heartbeat_interval=_HEARTBEAT_SECONDS)
            )
        except BaseException:
            self._client.close()
            raise
        self.node = Node(node_id=activated.node_id)
        outbox.joined(self.node.node_id)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=_HEARTBEAT_SECONDS)
        while not self._stop.wait(_HEARTBEAT_SECONDS * 0.7):
            try:
                self._client.SendNodeHeartbeat(request)
            except (httpx.HTTPError, RuntimeError, ValueError):
                continue  # the loop that fetches messages finds out, and connects again

    def receive(self, limit: int) -> tuple[Message, str] | None:
        """The next message, if there is one, and why it cannot be accepted, if so."""
        response = self._client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        envelope, tree = response.messages_list[0], response.message_object_trees[0]
        run = envelope.metadata.run_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self.node, run)
        received = make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self.node, run)
        try:
            contents = pull_objects(
                ids_of(tree),
                LimitedPull(pull, limit),
                max_time=_MESSAGE_SECONDS,
                initial_backoff=_PIECE_SECONDS,
                backoff_cap=_LONGEST_PIECE_SECONDS,
            )
            received(tree.object_id)
            return put_together(tree.object_id, contents, limit), ""
        except WireError as error:
            received(tree.object_id)
            return message_from_proto(envelope), str(error)

    def send(self, reply: Message, seconds: float, note: Note) -> None:
        """A reply, in the pieces that Flower makes of it."""
        run, stubborn = reply.metadata.run_id, Stubborn(note)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            response = stubborn(lambda: self._client.PushMessages(request))
            objects = get_all_nested_objects(reply)
            pieces = {name: objects[name].deflate() for name in response.objects_to_push}
        self._outbox.keep(self.node.node_id, run, response.session_id, pieces)
        push = make_push_object_fn_protobuf(self._client.PushObject, self.node, run, response.session_id)

        def send_one(name: str, piece: bytes) -> None:
            stubborn(lambda: push(name, piece) or True, stored=True)
            self._outbox.sent(name)

        push_object_contents_from_iterable(pieces.items(), send_one)
        self._outbox.clear()

    def send_rest(self, note: Note) -> None:
        """Of an upload that was cut when this client was killed, what is missing."""
        upload = self._outbox.kept()
        if upload is not None and upload.node == str(self.node.node_id):
            push = make_push_object_fn_protobuf(self._client.PushObject, self.node, int(upload.run), upload.session)
            taken = 0
            for name, piece in upload.pieces.items():
                with suppress(ObjectPushError, httpx.HTTPStatusError):  # it has that piece, or wants it no more
                    push(name, piece.numpy().tobytes())
                    taken += 1
            note(f"sent the rest of an answer that was finished before: {taken} of {len(upload.pieces)} pieces")
        self._outbox.clear()

    def close(self) -> None:
        """Sign off, so that the server need not wait for a client that has left."""
        self._stop.set()
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
            if self._registers:
                self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self.node.node_id))
            self._outbox.left()
        except (httpx.HTTPError, RuntimeError, ValueError):
            pass  # the server is gone already
        self._client.close()


def join(
    member: Member, server: str, security: Security, *, wait: float, limit: int, stay: bool = False, note: Note = silent
) -> None:
    """Take part in the runs of a server until it says goodbye; one that is away is waited for, `wait` seconds long."""
    away: float | None = None
    known, outbox, admission = False, Outbox(member.outbox), Admission()
    while True:
        try:
            session = _connected(server, security, outbox, patient=known or away is not None)
        except _Gone as error:
            if away is None:
                away = time.monotonic()
                note(f"{error}; waiting for it")
            if time.monotonic() - away > wait:
                raise CoterieError(f"{error}; waited {wait:g} s for it: start `coterie serve` there.") from error
            pause(_RETRY_SECONDS)
            continue
        away, known = None, True
        note(f"{member.name} has joined {server}")
        try:
            session.send_rest(note)
            if _serve(member, session, limit, stay, note, admission):
                break
        except (_Gone, httpx.TransportError) as error:
            note(str(error))
        finally:
            session.close()
    admission.check(member.name)


def _connected(server: str, security: Security, outbox: Outbox, *, patient: bool) -> Session:
    begun = time.monotonic()
    until = begun + (_GRACE_SECONDS if patient else _LEAST_GRACE_SECONDS)
    while True:
        try:
            return Session(server, security, outbox)
        except httpx.HTTPStatusError as error:
            # a server that has just been started may not have read its clients' keys yet
            there = error.response.status_code == STILL_THERE and outbox.did_not_leave
            if there:  # one that was killed is thought to be there for a while
                until = begun + _FORGOTTEN_SECONDS
            if time.monotonic() < until:
                pause(_RETRY_SECONDS)
                continue
            if error.response.status_code >= 500 and security.key is None:
                raise _Gone(f"{server} answers with error {error.response.status_code}") from error
            raise turned_away(server, error.response, security.key is not None, there) from error
        except (httpx.TransportError, OSError) as error:
            why = never_reached(server, security.ca, error)
            raise (CoterieError(why) if why else _Gone(f"{server} cannot be reached ({error})")) from error


def _serve(member: Member, session: Session, limit: int, stay: bool, note: Note, admission: Admission) -> bool:
    """Answer messages; true when the server has said goodbye. No message can end this client."""
    unforeseen, since = 0, time.monotonic()
    while True:
        try:
            answered = _answer_next(member, session, limit, note, admission)
            if answered is None:
                pause(poll_pause(time.monotonic() - since))
                continue
            unforeseen, since = 0, time.monotonic()
            if answered.endswith(f".{GOODBYE}") and not stay:
                return True
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _UNSURE:
                raise _Gone("the server does not know this client any more; joining again") from error
            note(f"a message was lost (HTTP {error.response.status_code})")
        except httpx.TransportError as error:
            raise _Gone(f"the connection was lost ({error}); joining again") from error
        except (ObjectPullError, ObjectPushError) as error:
            note(f"a message was lost: {error}")
        except Exception as error:
            unforeseen += 1
            note(f"a message could not be handled: {reason_of(error)}")
            if unforeseen > _MOST_IN_A_ROW:
                raise _Gone("nothing that the server sends can be handled; joining again") from error
            pause(_RETRY_SECONDS)


def poll_pause(idle: float) -> float:
    """How long to wait before asking again, after so many seconds without a message.

    Each question costs the SuperLink milliseconds, and hundreds of clients ask. A tenth of the time that has passed
    makes no round a tenth longer.
    """
    return min(max(_POLL_SECONDS, _POLL_SHARE * idle), _LONGEST_POLL_SECONDS)


def _answer_next(member: Member, session: Session, limit: int, note: Note, admission: Admission) -> str | None:
    """Answer the next message, if there is one; returned is its type."""
    received = session.receive(limit)
    if received is None:
        return None
    began = time.monotonic()
    message, wrong = received
    reply = refusal(message, wrong) if wrong else answer(member, message, limit, note)
    kind: str = message.metadata.message_type
    if reply.has_error():
        note(f"refused {kind}: {reply.error.reason}")
    else:
        admission.hear(message)
    try:
        session.send(reply, time.monotonic() - began, note)
    except (httpx.HTTPStatusError, ObjectPushError) as error:
        unsure = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _UNSURE
        if unsure or not kind.endswith(f".{TOLD}"):
            raise  # the server does not wait for the answer to what it has told, and may have forgotten it
    return kind
