"""
One rule from messages to JSON, for what REST answers and what commands print.

Members have the names of the message's fields. 64-bit integers are numbers, bytes hexadecimal digits, addresses
``host:port``, enums their names in small letters (unspecified: null; a number where the name is not known). Zeros are
written; what is absent is null. An error, given as a detail or as ``error`` and ``message``, is a problem as
``core.problems`` has it. ``SHAPES`` says where a message differs from the rule.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from headrace_common.core.errors import error_for
from headrace_common.core.ids import Endpoint
from headrace_common.core.problems import problem_body

Json = dict[str, Any]
MessageKind = Any
"""A descriptor of a message. The stubs of protobuf have two classes for it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the JSON of a message differs from the rule."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Members that are called otherwise than their fields."""
    hidden: frozenset[str] = frozenset()
    """Fields that are not told."""
    inline: str | None = None
    """The field whose members stand among those of this message."""
    absent: frozenset[str] = frozenset()
    """Numbers that are null below 0."""
    more: Callable[[Any], Json] = lambda _: {}
    """Members that are computed."""


def json_of(message: Message, where: str = "") -> Json:
    """
    A message as plain data for ``json.dumps``.

    Args:
        where: the path of REST that its problems name.
    """
    shape = shape_of(message.DESCRIPTOR)
    told: Json = {} if shape.inline is None else json_of(getattr(message, shape.inline), where)
    for name, each in members_of(message.DESCRIPTOR).items():
        value: Any = _outcome(message, where) if is_outcome(each) else _member(message, each, where)
        told[name] = None if each.name in shape.absent and value < 0 else value
    return told | shape.more(message)


def shape_of(kind: MessageKind) -> Shape:
    """Where messages of this kind differ from the rule."""
    return SHAPES.get(kind.name, _PLAIN)


@cache
def members_of(kind: MessageKind) -> Mapping[str, FieldDescriptor]:
    """The members that come from fields of such a message itself, with their fields."""
    shape = shape_of(kind)
    hidden = shape.hidden | {shape.inline}
    if "error" in kind.fields_by_name and is_outcome(kind.fields_by_name["error"]):
        hidden |= {"message"}
    return {shape.names.get(f.name, f.name): f for f in kind.fields if f.name not in hidden}


def is_outcome(field: FieldDescriptor) -> bool:
    """Whether it is an error that comes with a ``message`` beside it, which together are a problem."""
    return field.name == "error" and field.enum_type is not None


def is_map(field: FieldDescriptor) -> bool:
    """Whether it is a map, which JSON has as an object."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _outcome(message: Any, where: str) -> Json | None:
    return problem_body(error_for(message.error, message.message), where) if message.error else None


def _member(message: Message, field: Any, where: str) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        key, entry = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return {str(_value(key, k, where)): _value(entry, v, where) for k, v in sorted(value.items())}
    if field.is_repeated:
        return [_value(field, one, where) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value, where)


def _value(field: Any, value: Any, where: str) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        special = _MESSAGES.get(field.message_type.name)
        return json_of(value, where) if special is None else special(value, where)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return _enum(field.enum_type, value)
    return value.hex() if field.type == FieldDescriptor.TYPE_BYTES else value


def text_of_token(token: Message) -> str:
    """The text by which people and programs name a prepared transaction."""
    return base64.urlsafe_b64encode(token.SerializeToString(deterministic=True)).decode().rstrip("=")


def _enum(kind: Any, value: int) -> str | int | None:
    known = kind.values_by_number.get(value)
    return value if known is None else enum_name(kind, known.name)


def enum_name(kind: EnumDescriptor, name: str) -> str | None:
    """What JSON says for a value of an enum; None: that it is not set."""
    if name.endswith("_UNSPECIFIED"):
        return None
    return _ENUM_NAMES.get(name) or name.removeprefix(_PREFIXES.get(kind.name, "")).lower()


_PLAIN: Final = Shape()
_MESSAGES: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "Endpoint": lambda at, _: str(Endpoint(at.host, at.port)),
    "ErrorDetail": lambda error, where: problem_body(error_for(error.code, error.message), where),
    "PreparedToken": lambda token, _: text_of_token(token),
}
_PREFIXES: Final = {"TxnState": "TXN_", "TxnStanding": "TXN_"}
_ENUM_NAMES: Final = {
    "DEFAULT_CONFIG": "default",
    "STATIC_BROKER_CONFIG": "static",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "cluster",
    "DYNAMIC_BROKER_CONFIG": "broker",
    "DYNAMIC_TOPIC_CONFIG": "topic",
}


def _dirty_ratio(compaction: Any) -> Json:
    total = compaction.clean_bytes + compaction.dirty_bytes
    return {"dirty_ratio": compaction.dirty_bytes / total if total else 0.0}


def _broker_state(broker: Any) -> Json:
    return {"state": "stopping" if broker.in_controlled_shutdown else "away" if broker.fenced else "online"}


def _lag_seconds(lag: Any) -> Json:
    return {"lag_seconds": lag.lag_ms / 1_000 if lag.HasField("lag_ms") else None}


def _stray_topic(stray: Any) -> Json:
    known = stray.HasField("topic")
    return {
        "name": stray.topic.name if known else None,
        "partitions": stray.topic.partition_count if known else None,
    }


def _node_name(node: Any) -> Json:
    return {"node": f"{_enum(node.DESCRIPTOR.fields_by_name['role'].enum_type, node.role)}-{node.id}"}


def _shape(*hidden: str, **names: str) -> Shape:
    return Shape(names=names, hidden=frozenset(hidden))


OF_LEADER: Final = (
    "log_start_offset",
    "high_watermark",
    "last_stable_offset",
    "size_bytes",
    "oldest_timestamp_ms",
    "compaction",
)
"""What JSON says of a partition besides: what the leader's log has, or null."""
_BY_BROKER: Final = _shape(broker_id="broker")
_MISSING_SHARDS: Final = _shape(unanswered="missing_shards")
_TIMES: Final = frozenset({"started_at_ms", "prepared_at_ms"})

SHAPES: Final[Mapping[str, Shape]] = {
    "BrokerLoad": _BY_BROKER,
    "BrokerStatus": Shape(
        names={"broker_id": "id"}, hidden=frozenset({"fenced", "in_controlled_shutdown"}), more=_broker_state
    ),
    "DeleteOffsetsResponse": _shape(results="partitions"),
    "DeleteRecordsResult": _shape("topic_id"),
    "DescribeClusterResponse": _shape("nodes", "troubled", "shard_count", "unowned_shard_count", "access_behind"),
    "DescribeReassignmentsResponse": _shape(partitions="reassignments"),
    "DescribeRestoreResponse": _shape("restore", silent="silent_brokers"),
    "DescribeStatusResponse": _shape(
        controller_id="active_controller",
        offline="offline_partitions",
        under_min_isr="under_min_isr_partitions",
        under_replicated="under_replicated_partitions",
        reassigning="reassigning_partitions",
        recovering="recovering_partitions",
        not_preferred="not_preferred_partitions",
        shards="group_shards",
        unowned_shards="unowned_group_shards",
    ),
    "DescribedTransaction": Shape(inline="transaction"),
    "GroupDescription": Shape(
        names={"group_id": "group"}, hidden=frozenset({"error"}), absent=frozenset({"generation", "assignment_epoch"})
    ),
    "GroupListing": _shape(group_id="group"),
    "ListClusterGroupsResponse": _MISSING_SHARDS,
    "ListClusterTransactionsResponse": _MISSING_SHARDS,
    "ListOpenTransactionsResponse": _MISSING_SHARDS,
    "ListPreparedTransactionsResponse": _MISSING_SHARDS,
    "ListTopicsResponse": _shape("more"),
    "ListedGroup": Shape(inline="group"),
    "ListedTransaction": Shape(inline="transaction"),
    "LogCompaction": Shape(names={"last_ms": "last_compacted_ms"}, more=_dirty_ratio),
    "MemberDescription": Shape(absent=frozenset({"member_epoch"})),
    "Node": _shape("session_key"),
    "NodeFeatures": Shape(hidden=frozenset({"role", "id"}), more=_node_name),
    "Partition": Shape(
        hidden=frozenset({"topic_id", "last_known_elr", "partition_epoch"}),
        absent=frozenset({"leader"}),
        more=lambda _: dict.fromkeys(OF_LEADER),
    ),
    "PartitionLag": Shape(hidden=frozenset({"lag_ms"}), absent=frozenset({"leader_epoch"}), more=_lag_seconds),
    "PartitionOutcome": _shape("topic_id"),
    "PlannedMove": _shape("topic_id"),
    "ReassignmentProgress": _shape(replicas="new_replicas"),
    "ReplicaProgress": _BY_BROKER,
    "Restore": _shape(expected="expected_brokers", missing="missing_brokers"),
    "StrayLog": _BY_BROKER,
    "StrayTopic": Shape(hidden=frozenset({"topic"}), more=_stray_topic),
    "StuckCompaction": _BY_BROKER,
    "Topic": _shape(topic_id="id", partition_count="partitions"),
    "TopicDescription": Shape(inline="topic"),
    "TopicPartitions": _shape("topic_id"),
    "TransactionDescription": Shape(hidden=frozenset({"partitions", "without_marker", "error"}), absent=_TIMES),
    "TransactionListing": Shape(absent=_TIMES),
}
"""By the message's name."""
