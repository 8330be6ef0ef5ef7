"""
What a request that changes something is about, for the audit: one item for each resource that it names, with what was
asked for, and afterwards how each ended. ``test_audit_requests.py`` holds the rows against the table of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.errors import ErrorCode
from headrace_common.core.secret import SHOWN
from headrace_proto.v1 import controller_pb2

VALUES_MAX: Final = 200
"""Values of one item; more are not looked at."""
ITEMS_MAX: Final = 1_000
"""With more resources a request is one item, which names the first of them."""
_VALUE_CHARS_MAX: Final = 2_048
_SECRET_MESSAGES: Final = frozenset({"ScramVerifier"})
"""What proves a password is not shown, whatever its members are called."""
_OF_TOPIC: Final = controller_pb2.TOPIC_CONFIG


class Item(NamedTuple):
    """One resource of a request."""

    operation: Operation
    type: ResourceType
    name: str
    asked: Mapping[str, str]
    """What was asked for, by the names of the request's members."""


@dataclass(frozen=True, slots=True)
class Row:
    """How an operation's requests are read."""

    operation: Operation
    type: ResourceType
    name: Callable[[Any], str] = lambda _: CLUSTER_NAME
    """Of an entry, or of the request where there are none."""
    entries: str | None = None
    """The member with an entry for each resource; None: the request is about one."""


_O, _T = Operation, ResourceType


def _named(entry: Any) -> str:
    return str(entry.name)


def _text(entry: Any) -> str:
    return str(entry)


def _group(request: Any) -> str:
    return str(request.group_id)


def _configured(entry: Any) -> str:
    """Settings of brokers are the cluster's."""
    if entry.resource.type == _OF_TOPIC:
        return str(entry.resource.name)
    return f"broker {entry.resource.name}" if entry.resource.name else CLUSTER_NAME


def _grantee(change: Any) -> str:
    item = change.WhichOneof("item")
    if item == "block":
        return str(change.block)
    if item == "role":
        return f"role {change.role.name}"
    return str(getattr(change, item).principal) if item else ""


def _partition(entry: Any) -> str:
    return f"{entry.topic_id.hex()}/{entry.partition}"


def _user(request: Any) -> str:
    return f"User:{request.name}" if request.name else ""


def _transactional_id(request: Any) -> str:
    return str(request.transactional_id)


ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "Controller/CreateTopics": Row(_O.CREATE, _T.TOPIC, _named, "topics"),
        "Controller/DeleteTopics": Row(_O.DELETE, _T.TOPIC, _text, "names"),
        "Controller/CreatePartitions": Row(_O.ALTER, _T.TOPIC, _named),
        "Controller/IncrementalAlterConfigs": Row(_O.ALTER_CONFIGS, _T.TOPIC, _configured, "resources"),
        "Controller/UnregisterNode": Row(_O.ALTER, _T.CLUSTER),
        "Controller/ElectLeaders": Row(_O.ALTER, _T.CLUSTER),
        "Controller/AlterReassignments": Row(_O.ALTER, _T.CLUSTER),
        "Controller/DrainBroker": Row(_O.ALTER, _T.CLUSTER),
        "Controller/AdoptTopic": Row(_O.ALTER, _T.CLUSTER),
        "Controller/AlterAccess": Row(_O.ALTER, _T.PRINCIPAL, _grantee, "changes"),
        "Controller/CreateKey": Row(_O.CREATE_TOKENS, _T.PRINCIPAL, lambda request: str(request.owner)),
        "Controller/DeleteKeys": Row(_O.ALTER, _T.PRINCIPAL, lambda id: f"key {id}", "ids"),
        "Controller/CreateUser": Row(_O.ALTER, _T.PRINCIPAL, _user),
        "Controller/ChangePassword": Row(_O.ALTER, _T.PRINCIPAL, _user),
        "Controller/DeleteUser": Row(_O.ALTER, _T.PRINCIPAL, _user),
        "Controller/AlterQuotas": Row(
            _O.ALTER_CONFIGS, _T.CLUSTER, lambda change: f"quotas {change.entity}", "changes"
        ),
        "Broker/DeleteRecords": Row(_O.DELETE, _T.TOPIC, _partition, "partitions"),
        "Broker/WriteTxnMarkers": Row(_O.ALTER, _T.CLUSTER),
        "Coordinator/DeleteGroups": Row(_O.DELETE, _T.GROUP, _text, "group_ids"),
        "Coordinator/DeleteOffsets": Row(_O.DELETE, _T.GROUP, _group),
        "TransactionCoordinator/AbortTransaction": Row(_O.WRITE, _T.TRANSACTIONAL_ID, _transactional_id),
        "Admin/ResetOffsets": Row(_O.READ, _T.GROUP, _group),
        "Admin/DecidePrepared": Row(_O.WRITE, _T.TRANSACTIONAL_ID, lambda request: str(request.token.transactional_id)),
    }
)
"""By ``SERVICE/OPERATION``: all that change something at once, by ``core.audit.operations``."""


def only_asks(request: Any) -> bool:
    """Whether it is a rehearsal, which changes nothing."""
    names = request.DESCRIPTOR.fields_by_name
    return ("validate_only" in names and bool(request.validate_only)) or (
        "execute" in names and not bool(request.execute)
    )


def items_of(operation: str, request: Any) -> list[Item]:
    """What the request is about; at least one item."""
    row = ROWS[operation]
    entries: Sequence[Any] = [request] if row.entries is None else list(getattr(request, row.entries))
    if not entries or len(entries) > ITEMS_MAX:
        name = row.name(entries[0]) if entries else ""
        return [Item(row.operation, row.type, name, _values(request))]
    beside = {} if row.entries is None else _values(request, without=row.entries)
    return [
        Item(row.operation, _type_of(row, entry), row.name(entry), {**beside, **_entry_values(entry)})
        for entry in entries
    ]


def statuses_of(answer: Any, count: int) -> list[ErrorCode]:
    """How each of ``count`` items ended, by the answer; where it tells no single ones: well."""
    ended = [ErrorCode.NONE] * count
    for field, value in answer.ListFields():
        if field.message_type is None:
            continue
        found = list(value) if field.is_repeated else [value]
        if field.message_type.GetOptions().map_entry or "error" not in field.message_type.fields_by_name:
            continue
        errors = [ErrorCode(one.error) for one in found]
        if len(errors) == count:
            return errors
        if count == 1:
            return [next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)]
    return ended


def _type_of(row: Row, entry: Any) -> ResourceType:
    if isinstance(entry, controller_pb2.AlterConfigsResource) and entry.resource.type != _OF_TOPIC:
        return _T.CLUSTER
    return row.type


def _entry_values(entry: Any) -> dict[str, str]:
    if isinstance(entry, controller_pb2.AlterConfigsResource):
        return {
            change.name: f"{controller_pb2.AlterConfigOp.Name(change.op)} {change.value}".strip()
            for change in entry.changes
        }
    return _values(entry) if isinstance(entry, Message) else {}


def _values(message: Any, *, without: str = "") -> dict[str, str]:
    """The members that are set, by their paths."""
    values: dict[str, str] = {}
    for name, value in _walk(message, ""):
        if without and (name == without or name.startswith((f"{without}.", f"{without}["))):
            continue
        if len(values) >= VALUES_MAX:
            break
        values[name] = value[:_VALUE_CHARS_MAX]
    return values


def _walk(message: Any, path: str) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.name in _SECRET_MESSAGES:
            yield name, SHOWN
            continue
        if not field.is_repeated:
            yield from _walk_one(field, value, name)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from ((f"{name}.{key}", str(one)) for key, one in sorted(value.items()))
        elif field.message_type is None:
            yield name, ",".join(_shown(field, one) for one in value[:VALUES_MAX])
        else:
            for at, one in enumerate(value[:VALUES_MAX]):
                yield from _walk(one, f"{name}[{at}].")


def _walk_one(field: Any, value: Any, name: str) -> Iterator[tuple[str, str]]:
    if field.message_type is not None:
        yield from _walk(value, f"{name}.")
    else:
        yield name, _shown(field, value)


def _shown(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value if known is None else known.name)
    return value.hex() if isinstance(value, bytes) else str(value)
