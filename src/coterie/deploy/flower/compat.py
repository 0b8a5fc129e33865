"""Everything of Flower's that is not its public interface, in one place, with what it is needed for.

Flower's `Strategy` and SuperNode do not fit (see `client` and `transport`), so its protocol is spoken directly; its
modules may move with any release. A name is loaded when it is first used: the SuperLink's process does not load what a
client needs. One that is missing is an error of one sentence; tests/deploy/test_compat.py lists all that are missing.
"""

# What is imported here for the types is imported by others from here.
# mypy: implicit-reexport
# ruff: noqa: F401
from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from flwr.app.message import remove_content_from_message
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode, SubStatus
    from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, run_from_proto
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
        PushMessagesResponse,
        RegisterNodeFleetRequest,
        UnregisterNodeFleetRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
    )
    from flwr.supercore import log
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        ObjectPushError,
        ObjectUnavailableError,
        inflate_object_from_contents,
        pull_objects,
        push_object_contents_from_iterable,
    )
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


class Internal(NamedTuple):
    """Names of one of Flower's modules, and why we need them."""

    module: str
    names: str
    why: str


INTERNALS = tuple(
    Internal(*row)
    for row in (
        ("flwr.app.message", "remove_content_from_message", "what is sent first of a message: all but its content"),
        ("flwr.app.message.arraychunk", "ArrayChunk", "the piece of a long array, the only object that may be long"),
        ("flwr.cli.build", "build_fab_from_disk", "the app that a run needs is packed from our folder"),
        ("flwr.common.constant", "ErrorCode", "how Flower says that a client is gone"),
        ("flwr.common.constant", "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", "how long a piece of a message can be"),
        ("flwr.common.constant", "SubStatus", "how a run has ended"),
        (
            "flwr.common.serde",
            "fab_to_proto message_from_proto message_to_proto run_from_proto",
            "objects to and from the protocol's",
        ),
        (
            "flwr.proto.control_pb2",
            "RegisterNodeRequest StartRunRequest StopRunRequest",
            "calls of the operators' part: keys, start and stop of a run",
        ),
        (
            "flwr.proto.fleet_pb2",
            "ActivateNodeRequest DeactivateNodeRequest PullMessagesRequest PushMessagesRequest "
            "PushMessagesResponse RegisterNodeFleetRequest UnregisterNodeFleetRequest",
            "calls of the clients' part",
        ),
        ("flwr.proto.heartbeat_pb2", "SendNodeHeartbeatRequest", "a client's sign of life"),
        (
            "flwr.proto.message_pb2",
            "ConfirmMessageReceivedRequest ObjectTree PushObjectRequest",
            "pieces of messages, and the tree of their names",
        ),
        ("flwr.proto.node_pb2", "Node", "a client's node in every call"),
        (
            "flwr.proto.runtime_pb2",
            "AcquireTaskRequest PullAppMessagesRequest PullTaskInputRequest PushTaskOutputRequest",
            "calls of the server's part of a run",
        ),
        ("flwr.supercore", "log", "the SuperLink's log"),
        (
            "flwr.supercore.app_utils",
            "start_parent_process_monitor",
            "the SuperLink ends with the process that started it",
        ),
        ("flwr.supercore.constant", "TaskType", "which task a server's part is"),
        ("flwr.supercore.control", "ControlHttpClient", "the connection of an operator"),
        ("flwr.supercore.fab", "Fab", "an app as a run is started with it"),
        (
            "flwr.supercore.heartbeat",
            "HeartbeatSender make_task_heartbeat_fn_http",
            "signs of life of the server's part",
        ),
        (
            "flwr.supercore.inflatable.inflatable_object",
            "get_all_nested_objects get_object_body get_object_head_values_from_object_content "
            "get_object_tree iterate_object_tree no_object_id_recompute",
            "a message as the objects that it is sent in",
        ),
        (
            "flwr.supercore.inflatable.inflatable_protobuf_utils",
            "make_confirm_message_received_fn_protobuf make_pull_object_fn_protobuf make_push_object_fn_protobuf",
            "single objects over the protocol",
        ),
        (
            "flwr.supercore.inflatable.inflatable_utils",
            "ObjectPullError ObjectPushError ObjectUnavailableError inflate_object_from_contents "
            "pull_objects push_object_contents_from_iterable",
            "the objects of a message, fetched, sent and put together",
        ),
        ("flwr.supercore.interceptors", "RuntimeVersionHttpInterceptor", "calls must name the version of Flower"),
        (
            "flwr.supercore.primitives.asymmetric",
            "generate_key_pairs public_key_to_bytes",
            "keys in the form in which they are registered",
        ),
        (
            "flwr.supercore.protobuf.client",
            "ProtobufClient",
            "the type of all connections",
        ),
        ("flwr.supercore.runtime", "RuntimeHttpClient", "the connection by which the server's part of a run is taken"),
        ("flwr.supercore.task_identity", "TaskIdentity", "messages are made in the name of the run's task"),
        ("flwr.superlink", "extensions", "our filter of requests is put in front of the SuperLink"),
        ("flwr.superlink.cli", "flower_superlink", "the SuperLink itself"),
        ("flwr.superlink.grid", "HttpGrid", "the connection of the server's part of a run"),
        ("flwr.supernode.fleet_http_client", "FleetHttpClient", "the connection of a client"),
        (
            "flwr.supernode.node_auth_http_interceptor",
            "NodeAuthHttpInterceptor",
            "a client's calls are signed with its key",
        ),
    )
)
PRIVATE = (
    Internal("ProtobufClient", "_client _interceptors", "headers carry the operator's token; calls are not cut in two"),
    Internal("HttpGrid", "_runtime_client _retry_invoker node", "replies are fetched in a loop of our own"),
    Internal("TaskIdentity", "task_id run_id node_id", "this process takes the place of a run's task"),
)
"""Attributes of their objects that no method of theirs gives, by the name of the class."""
_MODULES = {name: internal.module for internal in INTERNALS for name in internal.names.split()}


def load(module: str, name: str) -> Any:
    """One of Flower's names, which may be a module; an `ImportError` if it is not there."""
    found = import_module(module)
    return getattr(found, name) if hasattr(found, name) else import_module(f"{module}.{name}")


if not TYPE_CHECKING:  # or every misspelt name would be of some type

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("flwr")  # without Flower at all, the extra is named where the command begins
        try:
            globals()[name] = load(_MODULES[name], name)
        except ImportError as error:
            raise CoterieError(
                f"Flower {version('flwr')} has no {_MODULES[name]}.{name}, which coterie needs ({error}); "
                "install a version that was tested: pip install 'coterie[flower]'."
            ) from error
        return globals()[name]
