"""
What ``headrace group`` asks the admin service, as plain rows for people and programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import HeadraceError
from headrace_common.core.problems import problem_body

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.group_types import ResetPlan

Row = dict[str, Any]

_HELD: Final = ("assigned", "target")


def list_groups(admin: AdminClient, states: Sequence[str]) -> Row:
    from headrace_common.rpc import answers

    return answers.groups(admin.list_groups(states=states).wire)


def describe(admin: AdminClient, group_id: str) -> Row:
    """A group with its members. Raises: GroupNotFound."""
    from headrace_common.rpc import answers

    return answers.group(admin.describe_group(group_id).wire)


def member_for_people(m: Row) -> Row:
    """What a member holds as ``flights:0,2 gates:1``, as ``--topic`` takes it."""
    return m | {name: [f"{t['topic']}:{','.join(map(str, t['partitions']))}" for t in m[name]] for name in _HELD}


def item_for_people(item: Row) -> Row:
    """One item of a work group, with who follows it and how far behind: ``worker-2 (31)``."""
    told: Row = item["item"] | {"owner": item["owner"], "epoch": item["epoch"]}
    for name, warm_up in (("standby", False), ("warm_up", True)):
        told[name] = [
            f["member_id"] + ("" if f["lag"] is None else f" ({f['lag']})")
            for f in item["followers"]
            if f["warm_up"] is warm_up
        ]
    return told


def lag(admin: AdminClient, group_id: str, topics: Sequence[str], *, ages: bool) -> Row:
    """How far a group is behind, in all and per partition."""
    from headrace_common.rpc import answers
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.DescribeGroupLagRequest(group_id=group_id, topics=topics, without_age=not ages)
    return answers.lag(group_id, admin.ask("DescribeGroupLag", request))


def list_committed(admin: AdminClient, group_id: str, topics: Sequence[str]) -> list[tuple[str, int, int]]:
    rows = lag(admin, group_id, topics, ages=False)["partitions"]
    return [(r["topic"], r["partition"], r["committed_offset"]) for r in rows if r["committed_offset"] is not None]


def plan(reset: ResetPlan) -> Row:
    """A plan, or what became of it."""
    from headrace_common.rpc import answers

    return answers.reset(reset.group_id, reset.wire)


def with_change(row: Row) -> Row:
    """A planned position with how far it goes, for people."""
    old = row["old_offset"]
    return row | {"change": None if old is None else row["new_offset"] - old}


def delete(admin: AdminClient, group_ids: Sequence[str]) -> list[Row]:
    """What became of each group."""
    from headrace_common.rpc.answers import group_path

    return [{"group": i, "error": error_of(e, group_path(i))} for i, e in admin.delete_groups(group_ids).items()]


def delete_offsets(admin: AdminClient, group_id: str, topics: Sequence[str | tuple[str, int]]) -> list[Row]:
    """What became of each partition."""
    from headrace_common.rpc.answers import group_path

    done = admin.delete_offsets(group_id, topics)
    where = f"{group_path(group_id)}/offsets/delete"
    return [
        {"topic": tp.topic, "partition": tp.partition, "error": error_of(e, where)} for tp, e in sorted(done.items())
    ]


def error_of(error: HeadraceError | None, where: str) -> Row | None:
    """What every row with an outcome has: the problem as REST tells it at this path."""
    return None if error is None else problem_body(error, where)
