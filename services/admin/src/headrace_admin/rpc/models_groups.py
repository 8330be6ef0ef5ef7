"""The shapes of REST for consumer groups. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace_admin.rpc.models import INT64_MAX, Int32, Int64, Request, Text, TopicName, example

State = Literal["empty", "preparing_rebalance", "completing_rebalance", "stable", "assigning", "reconciling"]


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

    model_config = example(topics=[{"topic": "flights"}], by_duration="1h30m", execute=False)

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

    model_config = example(topics=[{"topic": "flights", "partitions": [0, 1]}])

    topics: Annotated[list[TopicIn], Field(min_length=1, max_length=1_000)]
