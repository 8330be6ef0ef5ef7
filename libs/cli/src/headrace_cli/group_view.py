"""
What ``headrace group`` asks the admin service, as plain rows for people and programs. The only user of the types that
``AdminClient`` has for groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from headrace_common.core.errors import HeadraceError
from headrace_common.core.problems import problem_body

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.group_types import (
        GroupDescription,
        MemberInfo,
        MissingShard,
        PartitionLag,
        PlannedOffset,
        ResetPlan,
    )
    from headrace.records import TopicPartition

Row = dict[str, Any]

_HELD: Final = ("assigned", "target")


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
        "missing_shards": [missing_row(m, "/v1/groups") for m in found.missing],
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
        "assignor": group.assignor,
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
        "assigned": _by_topic(m.assigned),
        "target": _by_topic(m.target),
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> list[Row]:
    numbers: dict[str, list[int]] = {}
    for topic, n in sorted(partitions):
        numbers.setdefault(topic, []).append(n)
    return [{"topic": topic, "partitions": held} for topic, held in numbers.items()]


def member_for_people(m: Row) -> Row:
    """What a member holds as ``flights:0,2 gates:1``, as ``--topic`` takes it."""
    return m | {name: [f"{t['topic']}:{','.join(map(str, t['partitions']))}" for t in m[name]] for name in _HELD}


def lag(admin: AdminClient, group_id: str, topics: Sequence[str], *, ages: bool) -> Row:
    """How far a group is behind, in all and per partition."""
    lags = admin.group_lag(group_id, topics, ages=ages)
    rows = [_lag(group_id, one) for _, one in sorted(lags.items())]
    return {
        "group": group_id,
        "state": admin.describe_group(group_id).state,
        "total_lag": sum(row["lag"] or 0 for row in rows),
        "lag_seconds_max": max((row["lag_seconds"] for row in rows if row["lag_seconds"] is not None), default=None),
        "partitions": rows,
    }


def _lag(group_id: str, one: PartitionLag) -> Row:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed_offset": one.committed_offset,
        "leader_epoch": one.leader_epoch,
        "metadata": one.metadata,
        "committed_at_ms": one.committed_at_ms,
        "log_start_offset": one.log_start_offset,
        "end_offset": one.end_offset,
        "lag": one.lag,
        "lag_seconds": None if one.lag_ms is None else one.lag_ms / 1_000,
        "member_id": one.member_id,
        "client_id": one.client_id,
        "error": error_of(one.error, f"{path(group_id)}/lag"),
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
        "partitions": [_planned(p, f"{path(reset.group_id)}/offsets/reset") for p in reset.partitions],
    }


def _planned(p: PlannedOffset, where: str) -> Row:
    return {
        "topic": p.partition.topic,
        "partition": p.partition.partition,
        "old_offset": p.old_offset,
        "new_offset": p.new_offset,
        "log_start_offset": p.log_start_offset,
        "end_offset": p.end_offset,
        "note": p.note,
        "error": error_of(p.error, where),
    }


def with_change(row: Row) -> Row:
    """A planned position with how far it goes, for people."""
    old = row["old_offset"]
    return row | {"change": None if old is None else row["new_offset"] - old}


def delete(admin: AdminClient, group_ids: Sequence[str]) -> list[Row]:
    """What became of each group."""
    return [{"group": i, "error": error_of(e, path(i))} for i, e in admin.delete_groups(group_ids).items()]


def delete_offsets(admin: AdminClient, group_id: str, topics: Sequence[str | tuple[str, int]]) -> list[Row]:
    """What became of each partition."""
    done = admin.delete_offsets(group_id, topics)
    where = f"{path(group_id)}/offsets/delete"
    return [
        {"topic": tp.topic, "partition": tp.partition, "error": error_of(e, where)} for tp, e in sorted(done.items())
    ]


def missing_row(shard: MissingShard, where: str) -> Row:
    """A shard that could not be asked."""
    return {"shard": shard.shard, "coordinator": shard.coordinator, "error": error_of(shard.error, where)}


def path(group_id: str) -> str:
    """Where REST has a group."""
    return f"/v1/groups/{quote(group_id, safe='')}"


def error_of(error: HeadraceError | None, where: str) -> Row | None:
    """What every row with an outcome has: the problem as REST tells it at this path."""
    return None if error is None else problem_body(error, where)
