"""
The shapes of REST: what comes in and goes out, as the OpenAPI document says them.

Unknown members of a request are refused. 64-bit numbers are JSON integers; readers whose numbers are doubles are
exact up to 2^53.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
Text = Annotated[str, Field(max_length=32_768)]
NodeIds = Annotated[list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1, max_length=32)]
Configs = Annotated[dict[str, Text], Field(max_length=200)]
Int32 = Annotated[int, Field(ge=0, le=INT32_MAX)]
Int64 = Annotated[int, Field(ge=0, le=INT64_MAX)]


class Request(BaseModel):
    """What comes in: strict, nothing unknown."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What goes out, for the document; ``headrace_common.rpc.answers`` makes it. Other members are a fault."""

    model_config = ConfigDict(extra="forbid")


def example(**example: Any) -> ConfigDict:
    """The configuration of a request whose schema shows an example."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


# --- in -----------------------------------------------------------------------------------------------------------


class CreateTopic(Request):
    """A new topic."""

    name: TopicName
    partitions: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Absent: the cluster's num.partitions."
    )
    replication_factor: Annotated[int, Field(ge=1, le=32)] | None = Field(
        None, description="Absent: the cluster's default.replication.factor."
    )
    configs: Configs = Field(default_factory=dict, description="Settings of this topic, under Kafka's names.")
    assignments: Annotated[list[NodeIds], Field(max_length=10_000)] | None = Field(
        None, description="Broker ids per partition, preferred leader first; then leave out the two numbers."
    )
    validate_only: bool = Field(False, description="Say what would happen and do nothing.")
    if_not_exists: bool = Field(
        False, description="Be content with a topic of this name, whatever it is like; 200 instead of 201 describes it."
    )
    timeout_ms: Annotated[int, Field(ge=1, le=600_000)] = Field(30_000, description="How long to wait for it.")


class AddPartitions(Request):
    """More partitions for a topic."""

    partitions: Annotated[int, Field(ge=1, le=100_000)] = Field(description="The new count in all.")
    assignments: Annotated[list[NodeIds], Field(max_length=10_000)] | None = Field(
        None, description="Broker ids per new partition."
    )
    validate_only: bool = False


class ChangeConfigs(Request):
    """Changes of settings; all of them or none."""

    set: Configs = Field(default_factory=dict)
    delete: Annotated[list[Text], Field(max_length=200)] = Field(
        default_factory=list, description="Back to the default."
    )
    append: Configs = Field(default_factory=dict, description="Lists only.")
    subtract: Configs = Field(default_factory=dict, description="Lists only.")
    validate_only: bool = False


class TrimOffset(Request):
    """The new start of one partition."""

    partition: Int32
    offset: Annotated[int, Field(ge=-1, le=INT64_MAX)] = Field(
        description="The first offset that stays; -1: everything that is committed goes."
    )


class Trim(Request):
    """Records to drop from the front of partitions."""

    partitions: Annotated[list[TrimOffset], Field(min_length=1, max_length=10_000)]


class AsText(Request):
    """UTF-8."""

    text: str


class AsBase64(Request):
    """Any bytes, standard base64."""

    base64: str


class AsJson(Request):
    """A JSON value, written compactly as UTF-8."""

    json_: Any = Field(alias="json")


Content = AsText | AsBase64 | AsJson | Annotated[str, Field(description="The same as text.")] | None


class HeaderIn(Request):
    """One header."""

    name: Annotated[str, Field(max_length=32_768)]
    value: Content = None


class RecordIn(Request):
    """One record to write."""

    value: Content = Field(None, description="Absent or null: no value.")
    key: Content = Field(None, description="Absent or null: no key.")
    headers: Annotated[list[HeaderIn], Field(max_length=1_000)] = Field(default_factory=list)
    partition: Int32 | None = Field(None, description="Absent: by the key, or any.")
    timestamp_ms: Int64 | None = Field(None, description="Absent: now.")


class ProduceRecords(Request):
    """Records to write."""

    records: Annotated[list[RecordIn], Field(min_length=1, max_length=1_000)]


# --- out ----------------------------------------------------------------------------------------------------------


class Problem(Answer):
    """RFC 9457. ``code`` is Kafka's name of the error."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    retriable: bool = Field(description="The same request may succeed later.")
    next_step: str
    errors: list[dict[str, str]] | None = None


class Written(Answer):
    """Where a record is."""

    partition: int
    offset: int
    timestamp_ms: int


class WrittenRecords(Answer):
    """Where the records are, in the order of the request."""

    records: list[Written]


class HeaderOut(Answer):
    """One header."""

    name: str
    value: dict[str, Any] | None


class RecordOut(Answer):
    """One record. Key and value are objects with one member: text, json or base64; or null."""

    offset: int
    timestamp_ms: int
    key: dict[str, Any] | None
    value: dict[str, Any] | None
    headers: list[HeaderOut]


class Records(Answer):
    """Some records, ascending."""

    records: list[RecordOut]
    next_offset: int = Field(description="Where to go on.")


class Health(Answer):
    """Whether the process lives, and may be sent requests."""

    status: Literal["ok"]
