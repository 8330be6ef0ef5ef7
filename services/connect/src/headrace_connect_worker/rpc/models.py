"""Shapes of answers and requests in the OpenAPI document; ``kafka_shapes`` and ``core.commands`` make and read them."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Responses: TypeAlias = dict[int | str, dict[str, Any]]
Config = dict[str, str]
Kind = Literal["source", "sink", "unknown"]


class Shape(BaseModel):
    """Nothing unknown."""

    model_config = ConfigDict(extra="forbid")


class Error(Shape):
    """Why a request failed."""

    error_code: int = Field(description="The status.")
    message: str


class Worker(Shape):
    """Which worker answers."""

    version: str
    commit: str
    kafka_cluster_id: str | None


class Health(Shape):
    """Whether a worker takes requests."""

    status: Literal["healthy", "starting", "unhealthy"]
    message: str


class TaskId(Shape):
    """A task of a connector."""

    connector: str
    task: int


class ConnectorInfo(Shape):
    """A connector."""

    name: str
    config: Config
    tasks: list[TaskId]
    type: Kind


class State(Shape):
    """How a connector is."""

    state: str
    worker_id: str
    trace: str = Field("", description="Why it failed, or waits; not there while it works.")


class TaskState(State):
    """How a task is."""

    id: int


class ConnectorStatus(Shape):
    """How a connector and its tasks are."""

    name: str
    connector: State
    tasks: list[TaskState]
    type: Kind


class Expansion(Shape):
    """What `expand` asks for."""

    info: ConnectorInfo | None = None
    status: ConnectorStatus | None = None


class Task(Shape):
    """A task with its configuration."""

    id: TaskId
    config: Config


class Topics(Shape):
    """What a connector has used."""

    topics: list[str]


class Offset(Shape):
    """Where reading goes on in a partition."""

    partition: dict[str, Any] | None = Field(
        None, description='Of a source `{"split": ID}`, of a sink `{"kafka_topic", "kafka_partition"}`.'
    )
    offset: dict[str, Any] | None = Field(
        None, description='Of a source its position, of a sink `{"kafka_offset"}`; null: it is to be forgotten.'
    )


class Offsets(Shape):
    """All of a connector."""

    offsets: list[Offset]


class Message(Shape):
    """What was done."""

    message: str


class Plugin(Shape):
    """What can be named."""

    class_: str = Field(alias="class")
    type: Literal["source", "sink", "converter", "transformation", "predicate", "unknown"]
    version: str = Field("", description="Not there where none is known.")


class ConfigKey(Shape):
    """A setting."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: list[str]


class ConfigValue(Shape):
    """Its value, and what is wrong with it."""

    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(Shape):
    """Both; a key that no setting has is without a definition."""

    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(Shape):
    """What validation says."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class LoggerLevel(Shape):
    """How much of a logger is written."""

    level: str
    last_modified: int | None


class Records(Shape):
    """The first records, as they would be written."""

    records: list[dict[str, Any]]


class CreateConnector(Shape):
    """A new connector."""

    name: str
    config: Config
    initial_state: Literal["RUNNING", "PAUSED", "STOPPED"] = "RUNNING"


class Level(Shape):
    """What a logger is to have."""

    level: Literal["OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"]


class Preview(Shape):
    """What to show of a connector."""

    config: Config
    records: int = Field(10, ge=1, le=1_000)


class Verify(Shape):
    """What to compare."""

    topics: list[str] = Field([], max_length=1_000, description="Of those that it reads; none: all.")
    records: int = Field(
        100_000, ge=1, le=10_000_000, description="The newest of each partition that the target has, as offsets."
    )
    repair: bool = Field(False, description="Write what is missing or different. The connector must be stopped.")


class Range(Shape):
    """How the records of a range of offsets and the rows of the target agree."""

    topic: str
    partition: int
    first: int
    end: int
    records: int = Field(description="That should be rows: of a key only the last one.")
    refused: int = Field(description="That do not fit the table, and are none.")
    missing: int
    different: int = Field(description="Rows with other values, and those that a record has deleted.")
    unexpected: int = Field(description="Rows that no record has made.")
    repaired: int
    examples: list[int] = Field(description="Offsets of records that are missing or different.")


class Verified(Shape):
    """What was compared."""

    name: str
    agrees: bool
    wrong: int
    repaired: int
    ranges: list[Range]


class Progress(Shape):
    """How far a verification is, in offsets of all partitions together."""

    offsets: int = Field(description="That are to be compared; 0: not known yet.")
    scanned: int = Field(description="That were read before, to know the last record of each key.")
    compared: int


class Failure(Shape):
    """Why a verification has ended without a result."""

    status: int = Field(description="Of HTTP, as if it were the answer of a request.")
    detail: str


class AnyVerification(Shape):
    """Of one connector, from its begin on."""

    id: str
    at: int = Field(description="When it began, in ms since 1970.")
    path: str = Field(description="Where it can be asked for, and deleted.")
    connector: str
    repair: bool
    state: Literal["running", "completed", "failed"]
    progress: Progress
    error: Failure | None = Field(description="When it has failed.")


class ListedVerification(AnyVerification):
    """One of several, without its ranges."""

    agrees: bool | None = Field(description="When it is completed.")
    wrong: int | None = Field(description="When it is completed: rows that are missing, different or unexpected.")
    repaired: int | None = Field(description="When it is completed: how many of those were written.")


class Verifications(Shape):
    """Those that run, and the newest that have ended."""

    verifications: list[ListedVerification] = Field(description="The newest is first.")


class Verification(AnyVerification):
    """One, with what was compared."""

    result: Verified | None = Field(description="When it is completed.")


class Change(Shape):
    """A key that would change."""

    key: str
    before: str | None
    after: str | None


class Wrong(Shape):
    """What is wrong with a configuration."""

    key: str | None
    problem: str


class Plan(Shape):
    """What a configuration would change."""

    name: str
    action: Literal["create", "change", "none"]
    changes: list[Change]
    problems: list[Wrong]


class Tables(Shape):
    """Of a source."""

    tables: list[str]


class Event(Shape):
    """Something that has happened."""

    at: int = Field(description="Milliseconds since the epoch.")
    kind: str = Field(description="`drift`, `snapshot`, `failed`, `restarting`, `running`, or a connector's own.")
    text: str
    task: int | None
    worker_id: str
    detail: dict[str, str]


class Events(Shape):
    """Of a connector, the newest last."""

    events: list[Event]


class SomeTables(Shape):
    """Of a source; as `public.orders`."""

    tables: list[str] = Field(min_length=1, max_length=1_000)


NO_CONTENT: Final[Responses] = {204: {"description": "Done"}}
ACCEPTED: Final[Responses] = {202: {"description": "It is written down, and workers follow"}}


def answers(model: Any, status: int = 200, description: str = "As asked") -> Responses:
    """The answer of success of an operation."""
    return {status: {"model": model, "description": description}}


def takes(model: type[BaseModel] | None, *, nullable: bool = False) -> dict[str, Any]:
    """What an operation reads from its body; None: keys and texts."""
    if model is None:
        value: dict[str, Any] = {"type": "string"}
        if nullable:
            value = {"anyOf": [value, {"type": "null"}]}
        schema: dict[str, Any] = {"type": "object", "additionalProperties": value}
    else:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
