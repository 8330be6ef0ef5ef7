"""How much there may be: a process holds its shards, together, to their part of the cluster's limit."""

from __future__ import annotations

from headrace_common.core.errors import ErrorCode, Rejected
from headrace_coordinator.core.effects import JoinAnswer
from headrace_coordinator.core.room import Room, groups

from .world import World


def test_one_process_with_all_shards_has_all_the_room() -> None:
    room = Room("things.max", "things", 10)
    counts = {0: 4, 1: 5}
    room.shards = 2
    for shard in (0, 1):
        room.enter(shard, lambda shard=shard: counts[shard])
    assert room.fault("new") is None
    counts[0] += 1
    fault = room.fault("new")
    assert isinstance(fault, Rejected)
    assert fault.code is ErrorCode.POLICY_VIOLATION
    assert "things.max (10)" in str(fault)


def test_a_process_with_some_shards_has_their_part_whichever_of_them_is_full() -> None:
    room = Room("things.max", "things", 100)
    room.shards = 50
    for shard in range(25):
        room.enter(shard, lambda: 0)
    assert room.limit == 50
    room.enter(3, lambda: 49)
    assert room.fault("new") is None
    room.enter(4, lambda: 1)
    assert room.fault("new") is not None
    room.leave(3)
    assert room.fault("new") is None


def test_there_is_room_for_one_in_any_case() -> None:
    room = Room("things.max", "things", 1)
    room.shards = 50
    room.enter(0, lambda: 0)
    assert room.fault("new") is None


def test_new_groups_are_refused_by_join_and_by_commit_and_those_that_are_there_go_on() -> None:
    w = World(room=groups(1))
    assert w.commit(5, group="first") is ErrorCode.NONE
    assert w.commit(5, group="second") is ErrorCode.POLICY_VIOLATION
    w.join(1, group="second")
    answer = w.last(1)
    assert isinstance(answer, JoinAnswer)
    assert isinstance(answer.error, Rejected)
    assert answer.error.code is ErrorCode.POLICY_VIOLATION
    assert w.committed(group="second") is None
    assert w.commit(6, group="first") is ErrorCode.NONE
    w.join(2, group="first")
    assert w.heard(2) == [] or w.joined(2), "it has room for its members"
