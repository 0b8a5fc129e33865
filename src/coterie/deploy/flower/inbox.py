"""Replies on their way to the server. Apart from `pieces`, since a client need not load what a server does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from coterie.core import wire
from coterie.core.federation import Failure
from coterie.deploy.flower.compat import (
    ConfirmMessageReceivedRequest,
    HttpGrid,
    ObjectPullError,
    ObjectTree,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    make_pull_object_fn_protobuf,
)
from coterie.deploy.flower.pieces import LimitedPull, Pull, TooLong, ids_of, put_together

_MOST_UNWANTED = 10_000


class _Incoming:
    """A reply on its way to the server."""

    def __init__(self, tree: ObjectTree, pull: Pull, limit: int) -> None:
        self.id, self._missing, self._limit = tree.object_id, ids_of(tree), limit
        self._pull, self._contents = LimitedPull(pull, limit), dict[str, bytes]()

    def fetched(self) -> Message | None:
        """The whole message, or None as long as a piece is still to come."""
        for piece in self._missing:  # they come in any order
            with suppress(ObjectUnavailableError):
                self._contents[piece] = self._pull(piece)
        self._missing = [piece for piece in self._missing if piece not in self._contents]
        return None if self._missing else put_together(self.id, self._contents, self._limit)


class ReplyInbox:
    """Replies to the server's messages, without waiting for any: Flower's own way waits a second and more for each."""

    def __init__(self, grid: Grid, limit: int) -> None:
        self._grid, self._limit = grid, limit
        self._http = grid if isinstance(grid, HttpGrid) else None
        self._incoming: dict[str, _Incoming] = {}
        self._unwanted: dict[str, None] = {}

    def pull(self, wanted: Iterable[str]) -> Iterator[tuple[str, Message | Failure]]:
        """What has come whole, by the message it replies to; and what will never do."""
        if self._http is None:
            for message in self._grid.pull_messages(list(wanted)):
                yield message.metadata.reply_to_message_id, message
            return
        asked = list(wanted)
        self._look(self._http, [message for message in (*asked, *self._unwanted) if message not in self._incoming])
        self.forget([name for name in self._unwanted if name in self._incoming])
        for name in asked:
            if name not in self._incoming:
                continue
            try:
                found: Message | Failure | None = self._incoming[name].fetched()
            except TooLong as error:
                found = Failure("too large", str(error))
            except wire.WireError as error:
                found = Failure("wrong shape", str(error))
            except ObjectPullError:
                found = Failure("lost", "its reply did not come whole")
            if found is not None:
                self.forget([name])
                yield name, found

    def _look(self, grid: HttpGrid, wanted: list[str]) -> None:
        client, node = grid._runtime_client, grid.node
        response = client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            pull = make_pull_object_fn_protobuf(client.PullObject, node, message.metadata.run_id)
            self._incoming[message.metadata.reply_to_message_id] = _Incoming(tree, pull, self._limit)

    def forget(self, names: Iterable[str]) -> None:
        """Have the SuperLink let go of replies that are read, or not wanted any more; also if they come later."""
        for name in names:
            reply = self._incoming.pop(name, None)
            if reply is None:
                self._unwanted[name] = None
                if len(self._unwanted) > _MOST_UNWANTED:
                    del self._unwanted[next(iter(self._unwanted))]
                continue
            self._unwanted.pop(name, None)
            if self._http is None:
                continue
            done = ConfirmMessageReceivedRequest(
                node=self._http.node, run_id=self._http.run.run_id, message_object_id=reply.id
            )
            with suppress(httpx.HTTPError):
                self._http._runtime_client.ConfirmMessageReceived(done)
