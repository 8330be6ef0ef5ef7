"""
Schemas of what REST answers, for its OpenAPI document: made of the protos by the rule of ``json_form``.

The protos' comments describe members; ``tools/proto_comments.py`` extracts them. ``answer_types`` says what each route
answers, ``rest`` makes the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from headrace_common.rpc.json_form import OF_LEADER, MessageKind, enum_name, is_map, is_outcome, members_of, shape_of
from headrace_proto.v1 import (
    access_pb2,
    admin_pb2,
    broker_pb2,
    certificates_pb2,
    cluster_pb2,
    controller_pb2,
    coordinator_pb2,
    transaction_pb2,
)

Schema: TypeAlias = dict[str, Any]

REFERENCE: Final = "x-answer"
"""Where pydantic's schema of an answer has the reference that belongs into its place: it knows only its own schemas."""
_PREFIX: Final = "#/components/schemas/"
_NAMES: Final[Mapping[str, str]] = {
    "ApiKeyDescription": "Key",
    "BrokerLoad": "Load",
    "DeleteRecordsResult": "Trimmed",
    "DescribedTransaction": "Transaction",
    "GroupDescription": "Group",
    "ListedGroup": "GroupSummary",
    "ListedTransaction": "TransactionSummary",
    "LogCompaction": "Compaction",
    "LogDescription": "Log",
    "MemberDescription": "Member",
    "OffsetResult": "OffsetOutcome",
    "PlannedMove": "Move",
    "ReassignmentProgress": "Reassignment",
    "SegmentDescription": "Segment",
    "StrayTopic": "Stray",
    "Topic": "TopicSummary",
    "TopicDescription": "Topic",
    "TopicPartitions": "Partitions",
    "TroubledPartition": "Troubled",
    "UnansweredShard": "MissingShard",
    "UnaskedPartitions": "Unasked",
}
"""Schemas that are called otherwise than their messages."""
_NEVER_UNSET: Final = frozenset({"ClusterState", "LogState", "NodeRole"})
_MESSAGES: Final[Mapping[str, Schema]] = {
    "Endpoint": {"type": "string", "description": "host:port"},
    "ErrorDetail": {"$ref": f"{_PREFIX}Problem"},
    "PreparedToken": {"type": "string"},
}
_SCALARS: Final[Mapping[int, Schema]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_SINT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_INT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.TYPE_SINT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": "integer", "format": "int64"},
}


@dataclass(frozen=True, eq=False)
class Answer:
    """
    What a route answers. It stands in the annotation of what the route returns:
    ``Annotated[Json, Answer("Brokers", "All registered brokers.", more={"brokers": list_of(cluster_pb2.Node)})]``.
    """

    name: str
    doc: str = ""
    """Empty: the message's comment."""
    message: type[Message] | None = None
    """Has the members, but those that ``more`` names again."""
    only: frozenset[str] | None = None
    """The members of the message that are answered; None: all."""
    more: dict[str, Schema] = field(default_factory=dict)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> Schema:
        return {REFERENCE: ref_to(self)}

    def schema(self) -> Schema:
        base = {} if self.message is None else schema_of(self.message.DESCRIPTOR)
        members = {n: s for n, s in base.get("properties", {}).items() if self.only is None or n in self.only}
        return _object(members | self.more, self.doc or base.get("description", ""))


# --- parts of schemas -------------------------------------------------------------------------------------------------


def text(description: str = "") -> Schema:
    return described({"type": "string"}, description)


def number(description: str = "") -> Schema:
    return described({"type": "integer", "format": "int64"}, description)


def flag(description: str = "") -> Schema:
    return described({"type": "boolean"}, description)


def list_of(what: Schema | type[Message], description: str = "") -> Schema:
    """An array of schemas or of messages."""
    return described({"type": "array", "items": what if isinstance(what, dict) else ref(what.DESCRIPTOR)}, description)


def or_null(schema: Schema) -> Schema:
    inner = {name: value for name, value in schema.items() if name != "description"}
    either = inner.get("anyOf", [inner])
    null = {"type": "null"}
    return described({"anyOf": either if null in either else [*either, null]}, schema.get("description", ""))


def described(schema: Schema, description: str) -> Schema:
    """The same, with a description where there is one."""
    return schema | {"description": description} if description else schema


def ref(kind: MessageKind) -> Schema:
    """Where the document has the schema of a message."""
    return {"$ref": _PREFIX + ref_name(kind)}


def ref_name(kind: MessageKind) -> str:
    """What the document calls the schema of a message."""
    return _NAMES.get(kind.name, kind.name)


def ref_to(answer: Answer) -> Schema:
    """Where the document has the schema of an answer."""
    return {"$ref": _PREFIX + answer.name}


# --- messages ---------------------------------------------------------------------------------------------------------


_NULL: Final = re.compile(r"\b(Absent|Unspecified):")


@cache
def _comments() -> Mapping[str, str]:
    found: dict[str, str] = json.loads(files("headrace_admin.rpc").joinpath("proto_comments.json").read_text("utf-8"))
    return {name: _NULL.sub("Null:", said) for name, said in found.items()}


def schema_of(kind: MessageKind) -> Schema:
    """The object that ``json_of`` makes of a message of this kind."""
    return _object(_of_fields(kind) | _computed().get(kind.name, {}), _comments().get(kind.name, ""))


def _of_fields(kind: MessageKind) -> Schema:
    shape = shape_of(kind)
    members = {} if shape.inline is None else _of_fields(kind.fields_by_name[shape.inline].message_type)
    for name, each in members_of(kind).items():
        said, schema = _comments().get(f"{kind.name}.{each.name}", ""), _member(each)
        if each.name in shape.absent:
            schema, said = or_null(schema), said.replace("-1", "null")
        members[name] = described(schema, said or schema.get("description", ""))
    return members


def _object(members: Schema, description: str) -> Schema:
    made = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return described(made, description)


def _member(field: FieldDescriptor) -> Schema:
    if is_outcome(field):
        return or_null(_MESSAGES["ErrorDetail"])
    if field.message_type is not None and is_map(field):
        return {"type": "object", "additionalProperties": _value(field.message_type.fields_by_name["value"])}
    if field.is_repeated:
        return list_of(_value(field))
    return or_null(_value(field)) if field.containing_oneof is not None else _value(field)


def _value(field: FieldDescriptor) -> Schema:
    if field.message_type is not None:
        return _MESSAGES.get(field.message_type.name) or ref(field.message_type)
    return _SCALARS[field.type] if field.enum_type is None else _enum(field.enum_type)


def _enum(kind: EnumDescriptor) -> Schema:
    """Its names; a number where the server is newer, null where it is not set."""
    names = {v.name: enum_name(kind, v.name) for v in kind.values}
    known = {"type": "string", "enum": [name for name in names.values() if name is not None]}
    said = [
        f"{name}: {_comments()[f'{kind.name}.{value}']}"
        for value, name in names.items()
        if f"{kind.name}.{value}" in _comments()
    ]
    schema = described({"anyOf": [known, {"type": "integer"}]}, " ".join(said))
    return schema if None not in names.values() or kind.name in _NEVER_UNSET else or_null(schema)


@cache
def _computed() -> Mapping[str, dict[str, Schema]]:
    """What ``json_form`` computes besides, by the message's name."""
    log = _of_fields(broker_pb2.LogDescription.DESCRIPTOR)
    unknown = "At the leader. Null: not known, or as there."
    return {
        "BrokerStatus": {"state": {"type": "string", "enum": ["online", "away", "stopping"]}},
        "LogCompaction": {
            "dirty_ratio": described({"type": "number"}, "dirty_bytes of both; compare with min.cleanable.dirty.ratio.")
        },
        "NodeFeatures": {"node": text("Role and id, such as broker-1.")},
        "Partition": {
            name: described(or_null(log[name]), " ".join(filter(None, (unknown, log[name].get("description")))))
            for name in OF_LEADER
        },
        "PartitionLag": {
            "lag_seconds": described(
                or_null({"type": "number"}), "Age of the first unread record; 0: there is none. Null: not known."
            )
        },
        "StrayTopic": {
            "name": or_null(text("As brokers remember it. Null: none does.")),
            "partitions": or_null(number("As brokers remember it. Null: none does.")),
        },
    }


# --- the document -----------------------------------------------------------------------------------------------------


def components(answers: Iterable[Answer]) -> dict[str, Schema]:
    """The schemas of answers and of all that they hold, by name."""
    made = {answer.name: answer.schema() for answer in answers}
    ours = (access_pb2, admin_pb2, broker_pb2, certificates_pb2, cluster_pb2, controller_pb2, coordinator_pb2)
    kinds = {k.name: k for f in (*ours, transaction_pb2) for k in f.DESCRIPTOR.message_types_by_name.values()}
    kinds |= {name: kinds[message] for message, name in _NAMES.items()}
    wanted = [name for schema in made.values() for name in _refs(schema)]
    while wanted:
        name = wanted.pop()
        if name not in made and name in kinds:
            made[name] = schema_of(kinds[name])
            wanted += _refs(made[name])
    return made


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_PREFIX)
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from _refs(inner)
