"""The shapes of REST for replication: status, elections, reassignments, plans. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace_admin.rpc.models import INT64_MAX, Int32, NodeIds, Request, TopicName, example

Rate = Annotated[int, Field(ge=-1, le=INT64_MAX, description="Bytes per second; -1: no bound.")]


class PartitionIn(Request):
    """A partition, or all of a topic."""

    topic: TopicName
    partition: Int32 | None = Field(None, description="Absent: all of the topic.")


class Elect(Request):
    """Leaders to be elected."""

    model_config = example(type="preferred", partitions=[{"topic": "flights"}])

    type: Literal["preferred", "unclean", "without-missing"] = Field(
        "preferred",
        description="preferred: back to the first replica, where it is in sync. without-missing: where nobody leads, "
        "give up the eligible replicas that are away. unclean: where nobody leads, any living replica.",
    )
    partitions: Annotated[list[PartitionIn], Field(max_length=10_000)] = Field(
        default_factory=list, description="Empty: all; for preferred only."
    )
    confirm: bool = Field(False, description="True: records may be lost; unclean and without-missing need it.")


class ReassignmentIn(Request):
    """A partition and the replicas it is to have."""

    topic: TopicName
    partition: Int32
    replicas: NodeIds = Field(description="Broker ids, preferred leader first.")


class Reassign(Request):
    """Partitions that are to have other replicas."""

    model_config = example(
        reassignments=[{"topic": "flights", "partition": 0, "replicas": [2, 3, 4]}],
        throttle_bytes_per_s=20_000_000,
        validate_only=True,
    )

    reassignments: Annotated[list[ReassignmentIn], Field(min_length=1, max_length=10_000)]
    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Say what would happen and do nothing.")


class CancelReassignments(Request):
    """Reassignments to be cancelled."""

    model_config = example(partitions=[{"topic": "flights", "partition": 0}])

    partitions: Annotated[list[PartitionIn], Field(max_length=10_000)] = Field(
        default_factory=list, description="Those under way, or all of a topic's that are."
    )
    all: bool = Field(False, description="True: every one that is under way.")


class Throttle(Request):
    """How fast reassignments copy, per broker."""

    model_config = example(bytes_per_s=20_000_000)

    bytes_per_s: Rate


class Drain(Request):
    """Nothing needs to be said to drain a broker."""


class Rebalance(Request):
    """How to rebalance."""

    model_config = example(topics=[], validate_only=True)

    topics: Annotated[list[TopicName], Field(max_length=10_000)] = Field(
        default_factory=list, description="Empty: all."
    )
    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Plan, and do nothing.")


class Decommission(Request):
    """How to empty a broker."""

    model_config = example(throttle_bytes_per_s=20_000_000)

    throttle_bytes_per_s: Rate | None = Field(None, description="Set first; absent: it stays as it is. -1: no bound.")
    validate_only: bool = Field(False, description="Plan, and do nothing.")
