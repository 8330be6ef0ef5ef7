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
Role = Literal["broker", "controller", "coordinator", "admin"] | int
"""An enum; a number where this version does not know its name, as in all that follow."""


class Request(BaseModel):
    """What comes in: strict, nothing unknown."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What goes out, for the document; ``headrace_common.rpc.answers`` makes it. Other members are a fault."""

    model_config = ConfigDict(extra="forbid")


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


class Node(Answer):
    """A registered process."""

    role: Role
    id: int
    grpc: str
    http: str | None = Field(description="REST; null: it has none.")
    metrics: str | None
    rack: str | None
    incarnation: str = Field(description="32 hexadecimal digits; new at each start of the process.")
    epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    version: str
    drained: bool
    external: str | None = Field(description="gRPC, for those who come from outside; null: it has none.")
    feature_level_max: int
    internal: str | None = Field(description="gRPC, for other nodes; null: they come to grpc.")


class ActiveController(Answer):
    """Who may write metadata."""

    id: int
    epoch: int
    grpc: str | None


class Cluster(Answer):
    """The cluster at a glance."""

    cluster_id: str
    revision: int
    metadata_store_reachable: bool
    active_controller: ActiveController | None
    topic_count: int
    partition_count: int
    offline_partition_count: int
    under_replicated_partition_count: int
    under_min_isr_partition_count: int
    not_preferred_partition_count: int
    reassigning_partition_count: int
    recovering_partition_count: int
    feature_level: int
    brokers: list[Node]
    other_nodes: list[Node]


class Brokers(Answer):
    """All registered brokers."""

    brokers: list[Node]


class TopicSummary(Answer):
    """A topic without its partitions."""

    name: str
    id: str = Field(description="32 hexadecimal digits.")
    partitions: int
    internal: bool
    configs: dict[str, str] = Field(description="Only what was set for this topic.")


class Topics(Answer):
    """One page of topics."""

    topics: list[TopicSummary]
    total: int
    next: str | None = Field(description="Give it as `after` to get the next page; null: this was the last.")


class Compaction(Answer):
    """How far one replica's log is compacted."""

    cleaned_to: int = Field(description="Everything below was compacted.")
    cleanable_to: int = Field(description="Up to here it may be compacted now.")
    clean_bytes: int = Field(description="Below cleaned_to.")
    dirty_bytes: int = Field(description="From cleaned_to to cleanable_to.")
    dirty_ratio: float = Field(description="dirty_bytes of both; compare it with min.cleanable.dirty.ratio.")
    last_compacted_ms: int | None = Field(description="The broker's clock; null: not since the broker started.")
    stuck: bool = Field(description="It cannot be compacted; it is tried again later.")
    waits_for: str | None = Field(description="What it waits for, or why it is stuck; null: nothing.")


class Partition(Answer):
    """One partition."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    recovering: bool
    adding: list[int]
    removing: list[int]
    log_start_offset: int | None = Field(None, description="At the leader; null: not known.")
    high_watermark: int | None = Field(None, description="At the leader; null: not known.")
    last_stable_offset: int | None = Field(
        None, description="Up to where readers of read_committed come; null: not known."
    )
    size_bytes: int | None = Field(None, description="At the leader; null: not known.")
    oldest_timestamp_ms: int | None = Field(
        None, description="Of its records, at the leader; null: none, or not known."
    )
    compaction: Compaction | None = Field(None, description="At the leader; null: it is not compacted, or not known.")


class Topic(Answer):
    """A topic with its partitions."""

    name: str
    id: str = Field(description="32 hexadecimal digits.")
    internal: bool
    configs: dict[str, str] = Field(description="Only what was set for this topic.")
    partitions: list[Partition]
    notes: list[str]


class ConfigEntry(Answer):
    """One setting with its effective value."""

    name: str
    value: str
    source: Literal["default", "static", "cluster", "broker", "topic"] | int | None
    read_only: bool
    type: str
    documentation: str


class ConfigEntries(Answer):
    """Effective settings."""

    configs: list[ConfigEntry]


class Trimmed(Answer):
    """What became of one partition."""

    partition: int
    log_start_offset: int | None
    error: Problem | None


class TrimResult(Answer):
    """What became of each partition."""

    partitions: list[Trimmed]


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


class Segment(Answer):
    """Part of a log."""

    base_offset: int
    end_offset: int
    size_bytes: int
    created_at_ms: int
    sealed_at_ms: int | None = Field(description="null: it is still written.")
    min_timestamp_ms: int = Field(description="Of what was written into it; -1: no records, or they have no times.")
    max_timestamp_ms: int


class LogTransaction(Answer):
    """An open transaction in one log."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int = Field(description="The broker's clock when its first batch was appended.")


class Log(Answer):
    """One log on a broker."""

    topic: str | None = Field(description="null: no topic has this id.")
    topic_id: str
    partition: int
    state: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int = Field(description="Transactions below this are decided.")
    size_bytes: int
    leader_epoch: int
    note: str | None
    oldest_timestamp_ms: int | None = Field(description="null: it has no records, or they have no times.")
    compaction: Compaction | None = Field(description="null: the topic is not compacted.")
    oldest_open: LogTransaction | None = Field(
        description="The open transaction that began first, which holds readers of read_committed back."
    )
    fencing_token: int | None = Field(description="null: none was ever set.")
    unreadable: str | None = Field(description="A batch that no consumer can read, and why; null: none is known.")
    segments: list[Segment]


class TopicLog(Log):
    """One replica."""

    broker: int


class Unanswered(Answer):
    """A broker that could not be asked."""

    broker: int
    error: Problem


class TopicLogs(Answer):
    """All replicas of a topic."""

    logs: list[TopicLog] = Field(description="By partition and broker.")
    unanswered: list[Unanswered] = Field(description="Brokers whose logs are not in the list.")


class Scrub(Answer):
    """How far a broker is with reading all it stores, by which rot is found while other replicas are sound."""

    running: bool
    logs: int = Field(description="Of the pass under way, or of the last one; 0: none since the broker's start.")
    logs_done: int
    bytes_read: int
    lost_logs: int = Field(description="With a batch that could not be read, since the broker's start.")
    last_ended_ms: int | None = Field(description="Wall clock; null: no pass has ended since the broker's start.")


class Logs(Answer):
    """What a broker keeps."""

    broker: int
    disk_free_bytes: int
    disk_total_bytes: int
    disk_reserve_bytes: int | None = Field(description="Below this free it refuses records; null: it did not tell.")
    recovery_report: str
    scrub: Scrub | None = Field(description="null: it has none.")
    logs: list[Log]


class Health(Answer):
    """Whether the process lives, and may be sent requests."""

    status: Literal["ok"]
