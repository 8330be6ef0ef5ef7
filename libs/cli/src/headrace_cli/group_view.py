"""
What ``headrace group`` asks the admin service, as plain rows for people and programs. The only user of the types that
``AdminClient`` has for groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_common.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.group_types import GroupDescription, MemberInfo, PartitionLag, PlannedOffset, ResetPlan
    from headrace.records import TopicPartition

Row = dict[str, Any]


def list_groups(admin: AdminClient, states: Sequence[str]) -> Row:
    """All groups, and the shards that are missing."""
    found = admin.list_groups(states=states)
    return {
        "groups": [
            {
                "group": g.group_id,
                "protocol": g.protocol,
                "state": g.state,
                "members": g.members,
                "coordinator": g.coordinator,
            }
            for g in found.groups
        ],
        "missing_shards": [
            {"shard": m.shard, "coordinator": m.coordinator, **error_of(m.error)} for m in found.missing
        ],
    }


def describe(admin: AdminClient, group_id: str) -> Row:
    """A group with its members."""
    return _group(admin.describe_group(group_id))


def _group(group: GroupDescription) -> Row:
    return {
        "group": group.group_id,
        "protocol": group.protocol,
        "state": group.state,
        "generation": group.generation,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "shard": group.shard,
        "members": [_member(m) for m in group.members],
    }


def _member(m: MemberInfo) -> Row:
    return {
        "member_id": m.member_id,
        "client_id": m.client_id,
        "client_address": m.client_address,
        "group_instance_id": m.group_instance_id,
        "state": m.state,
        "member_epoch": m.member_epoch,
        "topics": list(m.topics),
        "pattern": m.pattern,
        "assigned": by_topic(m.assigned),
        "target": by_topic(m.target),
    }


def by_topic(partitions: Iterable[TopicPartition]) -> list[str]:
    """``["flights:0,2", "gates:1"]``, as ``--topic`` takes it."""
    numbers: dict[str, list[int]] = {}
    for topic, n in sorted(partitions):
        numbers.setdefault(topic, []).append(n)
    return [f"{topic}:{','.join(map(str, held))}" for topic, held in numbers.items()]


def lag(admin: AdminClient, group_id: str, topics: Sequence[str], *, ages: bool) -> list[Row]:
    """One row per partition."""
    return [_lag(group_id, one) for _, one in sorted(admin.group_lag(group_id, topics, ages=ages).items())]


def _lag(group_id: str, one: PartitionLag) -> Row:
    return {
        "group": group_id,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed_offset": one.committed_offset,
        "log_start_offset": one.log_start_offset,
        "end_offset": one.end_offset,
        "lag": one.lag,
        "lag_seconds": None if one.lag_ms is None else one.lag_ms / 1_000,
        "member_id": one.member_id,
        "client_id": one.client_id,
        "leader_epoch": one.leader_epoch,
        "metadata": one.metadata or None,
        "committed_at_ms": one.committed_at_ms,
        **error_of(one.error),
    }


def committed(admin: AdminClient, group_id: str, topics: Sequence[str]) -> list[tuple[str, int, int]]:
    """What a group has committed."""
    lags = admin.group_lag(group_id, topics, ages=False)
    return [
        (tp.topic, tp.partition, o.committed_offset) for tp, o in sorted(lags.items()) if o.committed_offset is not None
    ]


def plan(reset: ResetPlan) -> Row:
    """A plan, or what became of it."""
    return {
        "group": reset.group_id,
        "executed": reset.executed,
        "new_group": reset.new_group,
        "members": reset.members,
        "partitions": [_planned(p) for p in reset.partitions],
    }


def _planned(p: PlannedOffset) -> Row:
    return {
        "topic": p.partition.topic,
        "partition": p.partition.partition,
        "old_offset": p.old_offset,
        "new_offset": p.new_offset,
        "change": None if p.old_offset is None else p.new_offset - p.old_offset,
        "log_start_offset": p.log_start_offset,
        "end_offset": p.end_offset,
        "note": p.note,
        **error_of(p.error),
    }


def delete(admin: AdminClient, group_ids: Sequence[str]) -> list[Row]:
    """What became of each group."""
    return [{"group": i, **error_of(e)} for i, e in admin.delete_groups(group_ids).items()]


def delete_offsets(admin: AdminClient, group_id: str, topics: Sequence[str | tuple[str, int]]) -> list[Row]:
    """What became of each partition."""
    done = admin.delete_offsets(group_id, topics)
    return [{"topic": tp.topic, "partition": tp.partition, **error_of(e)} for tp, e in sorted(done.items())]


def error_of(error: HeadraceError | None) -> Row:
    """The two columns that every row with an outcome has."""
    return {"error": None if error is None else error.code.name, "message": None if error is None else str(error)}
