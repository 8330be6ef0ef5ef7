"""How far new replicas have come, and how fast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_admin.core.progress import Extent, progress_of, waits_for
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition

P = PartitionId(TopicId(b"t" * 16), 0)
L, A, B = NodeId(1), NodeId(2), NodeId(3)
MOVING = Partition(P, (A, B, L), (L,), L, 0, 0, adding=(A, B), removing=(L,))


def test_bytes_against_the_leaders() -> None:
    held = {(L, P): Extent(1000, 0, 100), (A, P): Extent(250, 0, 30)}
    found = progress_of(MOVING, held)
    assert found.leader_bytes == 1000
    assert [(r.broker, r.size_bytes, r.percent, r.in_sync) for r in found.replicas] == [
        (A, 250, 25, False),
        (B, None, 0, False),
    ]
    assert [r.bytes_per_s for r in found.replicas] == [None, None]


def test_whom_a_move_waits_for() -> None:
    assert waits_for(MOVING, {L, A, B}) == ()
    assert waits_for(MOVING, {L, A}) == (B,)
    assert waits_for(replace(MOVING, isr=(L, A, B)), ()) == (), "all there is to wait for has come"
    assert waits_for(replace(MOVING, leader=NO_NODE), {A, B}) == (L,), "nobody to copy from"
    assert waits_for(replace(MOVING, adding=(), removing=()), ()) == ()
    assert progress_of(MOVING, {}, present={L, A}).waits_for == (B,)


def test_rates_need_two_looks() -> None:
    before = {(L, P): Extent(1000, 0, 100), (A, P): Extent(250, 0, 30)}
    now = {(L, P): Extent(1000, 0, 100), (A, P): Extent(500, 0, 60), (B, P): Extent(100, 0, 10)}
    assert [r.bytes_per_s for r in progress_of(MOVING, now, before, 500).replicas] == [500, 200]
    smaller = {**now, (A, P): Extent(10, 0, 1)}
    assert progress_of(MOVING, smaller, before, 500).replicas[0].bytes_per_s == 0


@pytest.mark.parametrize(
    ("leader", "copy", "percent"),
    [
        (Extent(1000, 0, 100), Extent(1000, 0, 100), 99),
        (Extent(0, 5, 5), Extent(0, 0, 0), 99),
        (Extent(1000, 0, 100), Extent(5000, 0, 99), 99),
        (Extent(1000, 50, 100), Extent(0, 0, 0), 0),
        (Extent(1000, 50, 100), Extent(0, 50, 75), 50),
    ],
)
def test_a_hundred_is_said_only_when_it_is_in_sync(leader: Extent, copy: Extent, percent: int) -> None:
    held = {(L, P): leader, (A, P): copy}
    assert progress_of(MOVING, held).replicas[0].percent == percent
    joined = Partition(P, (A, B, L), (L, A), L, 0, 0, adding=(A, B), removing=(L,))
    assert progress_of(joined, held).replicas[0].percent == 100
