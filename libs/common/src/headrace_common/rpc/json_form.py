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
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace_common.core.errors import error_for
from headrace_common.core.ids import Endpoint
from headrace_common.core.problems import problem_body

Json = dict[str, Any]


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
    shape = SHAPES.get(message.DESCRIPTOR.name, _PLAIN)
    told: Json = {} if shape.inline is None else json_of(getattr(message, shape.inline), where)
    fields = message.DESCRIPTOR.fields_by_name
    has_outcome = "error" in fields and fields["error"].enum_type is not None
    for each in message.DESCRIPTOR.fields:
        name = each.name
        if name in shape.hidden or name == shape.inline or (has_outcome and name == "message"):
            continue
        value: Any = _outcome(message, where) if has_outcome and name == "error" else _member(message, each, where)
        told[shape.names.get(name, name)] = None if name in shape.absent and value < 0 else value
    return told | shape.more(message)


def _outcome(message: Any, where: str) -> Json | None:
    return problem_body(error_for(message.error, message.message), where) if message.error else None


def _member(message: Message, field: Any, where: str) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
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
    if known is None:
        return value
    name: str = known.name
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


def _shape(*hidden: str, **names: str) -> Shape:
    return Shape(names=names, hidden=frozenset(hidden))


_BY_BROKER: Final = _shape(broker_id="broker")
_TIMES: Final = frozenset({"started_at_ms", "prepared_at_ms"})

SHAPES: Final[Mapping[str, Shape]] = {
    "BrokerLoad": _BY_BROKER,
    "BrokerStatus": Shape(
        names={"broker_id": "id"}, hidden=frozenset({"fenced", "in_controlled_shutdown"}), more=_broker_state
    ),
    "DescribedTransaction": Shape(inline="transaction"),
    "GroupDescription": Shape(
        names={"group_id": "group"}, hidden=frozenset({"error"}), absent=frozenset({"generation", "assignment_epoch"})
    ),
    "GroupListing": _shape(group_id="group"),
    "ListedGroup": Shape(inline="group"),
    "ListedTransaction": Shape(inline="transaction"),
    "LogCompaction": Shape(names={"last_ms": "last_compacted_ms"}, more=_dirty_ratio),
    "MemberDescription": Shape(absent=frozenset({"member_epoch"})),
    "Partition": Shape(
        hidden=frozenset({"topic_id", "last_known_elr", "partition_epoch"}), absent=frozenset({"leader"})
    ),
    "PartitionLag": Shape(hidden=frozenset({"lag_ms"}), absent=frozenset({"leader_epoch"}), more=_lag_seconds),
    "PlannedMove": _shape("topic_id"),
    "ReplicaProgress": _BY_BROKER,
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
