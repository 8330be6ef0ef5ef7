"""The shapes of REST for consumer groups. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headrace_admin.rpc.models import INT64_MAX, Answer, Int32, Int64, Problem, Request, Text, TopicName

State = Literal["empty", "preparing_rebalance", "completing_rebalance", "stable", "dead", "assigning", "reconciling"]

Protocol = Literal["classic", "consumer"]


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


# --- in -----------------------------------------------------------------------------------------------------------


class TopicIn(Request):
    """A topic, or some of its partitions."""

    topic: TopicName
    partitions: Annotated[list[Int32], Field(max_length=10_000)] = Field(
        default_factory=list, description="Empty: all of the topic."
    )


class OffsetIn(Request):
    """A position in one partition."""

    topic: TopicName
    partition: Int32
    offset: Int64 = Field(description="The next record to be read.")


class Reset(Request):
    """Where a group is to go on. Exactly one of the members that say where."""

    model_config = _example(topics=[{"topic": "flights"}], by_duration="1h30m", execute=False)

    topics: Annotated[list[TopicIn], Field(max_length=1_000)] = Field(
        default_factory=list, description="Empty: all that the group has committed."
    )
    to: Literal["earliest", "latest", "current"] | None = Field(
        None, description="The first record, one past the last, or what is committed (where nothing is: the end)."
    )
    to_datetime: Text | Int64 | None = Field(
        None, description="The first record at or after it: ISO 8601 with a zone, or milliseconds since the epoch."
    )
    to_offset: Int64 | None = None
    shift_by: Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)] | None = Field(
        None, description="From the committed offset; negative: back."
    )
    by_duration: Text | None = Field(
        None, description="The first record at or after that long ago: 1h30m, 2d, or ISO 8601 such as PT1H30M."
    )
    offsets: Annotated[list[OffsetIn], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Partitions with an offset each; then name no topics."
    )
    execute: bool = Field(False, description="False: plan only. True: only for a group without members.")


class DeleteOffsets(Request):
    """Committed offsets to be forgotten."""

    model_config = _example(topics=[{"topic": "flights", "partitions": [0, 1]}])

    topics: Annotated[list[TopicIn], Field(min_length=1, max_length=1_000)]


# --- out ----------------------------------------------------------------------------------------------------------


class GroupSummary(Answer):
    """A group in a list."""

    group: str
    protocol: Protocol | int | None = Field(description="null: it never had a member, only offsets.")
    state: State | int | None
    members: int
    coordinator: int


class MissingShard(Answer):
    """A shard whose groups are not in the list."""

    shard: int
    coordinator: int | None = Field(description="null: nobody has it.")
    error: Problem


class GroupList(Answer):
    """Groups by id."""

    groups: list[GroupSummary]
    missing_shards: list[MissingShard] = Field(description="Not empty: groups of these shards may be missing.")


class Partitions(Answer):
    """Partitions of one topic."""

    topic: str
    partitions: list[int]


class Member(Answer):
    """One member of a group."""

    member_id: str
    group_instance_id: str | None = Field(description="null: a dynamic member.")
    client_id: str
    client_address: str = Field(description="As the coordinator sees it.")
    member_epoch: int | None = Field(description="null: the classic protocol has none.")
    state: str
    topics: list[str]
    pattern: str | None
    assigned: list[Partitions]
    target: list[Partitions] = Field(description="What it will hold when all have moved; server-side protocol.")


class Group(Answer):
    """A group with its members."""

    group: str
    protocol: Protocol | int | None = Field(description="null: it never had a member, only offsets.")
    state: State | int | None
    generation: int | None = Field(description="Generation (classic) or group epoch; null: it never had a member.")
    assignment_epoch: int | None = Field(description="null: the classic protocol has none.")
    assignor: str
    coordinator: int
    shard: int
    members: list[Member]


class PartitionLag(Answer):
    """How far a group is behind in one partition; what is not known is null."""

    topic: str
    partition: int
    committed_offset: int | None = Field(description="The next record to be read; null: nothing is committed.")
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int | None
    log_start_offset: int | None
    end_offset: int | None
    lag: int | None = Field(description="Records that are there and not read yet.")
    lag_seconds: float | None = Field(description="Age of the first of them; 0: there is none.")
    member_id: str | None
    client_id: str | None
    error: Problem | None


class GroupLag(Answer):
    """How far a group is behind."""

    group: str
    state: State | int | None
    total_lag: int = Field(description="Of the partitions where it is known.")
    lag_seconds_max: float | None = Field(description="Of the partitions where it is known.")
    partitions: list[PartitionLag]


class PlannedReset(Answer):
    """A position before and after."""

    topic: str
    partition: int
    old_offset: int | None = Field(description="null: nothing is committed.")
    new_offset: int
    log_start_offset: int
    end_offset: int
    note: str | None = Field(description="Why it is not exactly what was asked for.")
    error: Problem | None


class ResetPlan(Answer):
    """A plan, or what became of it."""

    group: str
    executed: bool
    new_group: bool = Field(description="There is, or was, no group of this id.")
    members: int = Field(description="Not 0: it cannot be carried out until they have left.")
    partitions: list[PlannedReset]


class OffsetOutcome(Answer):
    """What became of one partition."""

    topic: str
    partition: int
    error: Problem | None


class OffsetOutcomes(Answer):
    """What became of each partition."""

    partitions: list[OffsetOutcome]
