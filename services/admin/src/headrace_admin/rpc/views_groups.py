"""What the engine found out about consumer groups as the shapes of REST."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast, get_args
from urllib.parse import quote

from headrace_admin.core.lag import PartitionLag, total
from headrace_admin.engine.groups import Listing
from headrace_admin.engine.resets import Moved, Reset
from headrace_admin.rpc import models
from headrace_admin.rpc import models_groups as shapes
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition
from headrace_common.core.problems import problem_body
from headrace_proto.v1 import coordinator_pb2 as pb


def listing_out(listing: Listing) -> shapes.GroupList:
    """All groups, and the shards that are missing."""
    return shapes.GroupList(
        groups=[
            shapes.GroupSummary(
                group=g.group.group_id,
                protocol=_protocol(g.group.protocol),
                state=_state(g.group.state),
                members=g.group.members,
                coordinator=g.coordinator,
            )
            for g in listing.groups
        ],
        missing_shards=[
            shapes.MissingShard(shard=u.shard, coordinator=u.coordinator, error=_problem(u.error, "/v1/groups"))
            for u in listing.unanswered
        ],
    )


def group_out(group: pb.GroupDescription) -> shapes.Group:
    """A group with its members."""
    return shapes.Group(
        group=group.group_id,
        protocol=_protocol(group.protocol),
        state=_state(group.state),
        generation=group.generation if group.generation >= 0 else None,
        assignment_epoch=group.assignment_epoch if group.assignment_epoch >= 0 else None,
        assignor=group.assignor,
        coordinator=group.coordinator,
        shard=group.shard,
        members=[_member(m) for m in group.members],
    )


def _member(m: pb.MemberDescription) -> shapes.Member:
    return shapes.Member(
        member_id=m.member_id,
        group_instance_id=m.group_instance_id if m.HasField("group_instance_id") else None,
        client_id=m.client_id,
        client_address=m.client_address,
        member_epoch=m.member_epoch if m.member_epoch >= 0 else None,
        state=m.state,
        topics=list(m.topics),
        pattern=m.pattern if m.HasField("pattern") else None,
        assigned=_partitions(m.assigned),
        target=_partitions(m.target),
    )


def _partitions(topics: Iterable[pb.TopicPartitions]) -> list[shapes.Partitions]:
    return [shapes.Partitions(topic=t.topic, partitions=list(t.partitions)) for t in topics]


def lag_out(group: pb.GroupDescription, lags: Sequence[PartitionLag]) -> shapes.GroupLag:
    """How far a group is behind."""
    ages = [one.lag_ms for one in lags if one.lag_ms is not None]
    return shapes.GroupLag(
        group=group.group_id,
        state=_state(group.state),
        total_lag=total(lags),
        lag_seconds_max=max(ages) / 1_000 if ages else None,
        partitions=[_lag(group.group_id, one) for one in lags],
    )


def _lag(group: str, one: PartitionLag) -> shapes.PartitionLag:
    committed, bounds, owner = one.committed, one.bounds, one.owner
    return shapes.PartitionLag(
        topic=one.partition.topic,
        partition=one.partition.partition,
        committed_offset=None if committed is None else committed.offset,
        leader_epoch=None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        committed_at_ms=None if committed is None else committed.committed_at_ms,
        log_start_offset=None if bounds is None else bounds.start,
        end_offset=None if bounds is None else bounds.end,
        lag=one.lag,
        lag_seconds=None if one.lag_ms is None else one.lag_ms / 1_000,
        member_id=None if owner is None else owner.member_id,
        client_id=None if owner is None else owner.client_id,
        error=None if one.error is None else _problem(one.error, _group(group) + "/lag"),
    )


def reset_out(group: str, reset: Reset) -> shapes.ResetPlan:
    """A plan, or what became of it."""
    return shapes.ResetPlan(
        group=group,
        executed=reset.executed,
        new_group=reset.new_group,
        members=reset.members,
        partitions=[_moved(group, m) for m in reset.moved],
    )


def _moved(group: str, moved: Moved) -> shapes.PlannedReset:
    p = moved.planned
    return shapes.PlannedReset(
        topic=p.partition.topic,
        partition=p.partition.partition,
        old_offset=p.old,
        new_offset=p.new,
        log_start_offset=p.bounds.start,
        end_offset=p.bounds.end,
        note=p.note,
        error=None if moved.error is None else _problem(moved.error, _group(group) + "/offsets/reset"),
    )


def outcomes_out(group: str, outcomes: Mapping[TopicPartition, HeadraceError | None]) -> shapes.OffsetOutcomes:
    """What became of each partition."""
    where = _group(group) + "/offsets/delete"
    return shapes.OffsetOutcomes(
        partitions=[
            shapes.OffsetOutcome(
                topic=p.topic, partition=p.partition, error=None if error is None else _problem(error, where)
            )
            for p, error in outcomes.items()
        ]
    )


def _problem(error: HeadraceError, instance: str) -> models.Problem:
    return models.Problem(**problem_body(error, instance))


def _group(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def _state(state: pb.GroupState.ValueType) -> shapes.State:
    """In small letters; a state that this version does not know is unknown."""
    name = pb.GroupState.Name(state).lower() if state in pb.GroupState.values() else "unknown"
    return cast("shapes.State", name) if name in get_args(shapes.State) else "unknown"


def _protocol(protocol: pb.GroupProtocol.ValueType) -> shapes.Protocol | None:
    match protocol:
        case pb.CLASSIC:
            return "classic"
        case pb.CONSUMER:
            return "consumer"
    return None
