"""Members of a group that read by ``poll_batches``: rebalances and commits as with ``poll``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import TopicPartition
from headrace.records import Committed

from .groups import PROTOCOLS, Member, fill, shared, until

PARTITIONS = 6


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs(group_consumer_heartbeat_interval_ms=50)
    backend.create_topic("t", PARTITIONS)
    return backend


class BatchMember(Member):
    """Polls for at most two rows at a time, so that batches are cut."""

    def __init__(self, memory: LabCluster, protocol: str, **settings: Any) -> None:
        self.places: dict[int, list[int]] = {}
        super().__init__(memory, protocol, **settings)

    def poll(self, timeout_ms: float = 5) -> list[headrace.Record]:
        for part in self.consumer.poll_batches(timeout_ms=timeout_ms, max_rows=2):
            assert part.partition in self.held, "what was given up is not handed out"
            self.values += part.table["value"].to_pylist()
            self.places.setdefault(part.partition, []).append(part.next_offset)
        return []


def test_members_come_and_go_and_each_record_is_read_once(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(60)], PARTITIONS)
    first = BatchMember(memory, protocol)
    until(lambda: len(first.values) >= 10, first)
    second = BatchMember(memory, protocol)
    until(shared([first, second], PARTITIONS), first, second)
    fill(memory, [b"%d" % n for n in range(60, 120)], PARTITIONS)
    until(lambda: len(first.values) + len(second.values) >= 70, first, second)
    first.close()
    until(lambda: len(first.values) + len(second.values) >= 120, second)
    assert sorted(first.values + second.values, key=int) == [b"%d" % n for n in range(120)]
    for member in (first, second):
        for places in member.places.values():
            assert all(one <= other for one, other in pairwise(places))
    second.close()


def test_what_was_handed_out_is_committed_at_the_next_call_and_at_the_end(memory: LabCluster) -> None:
    fill(memory, [b"%d" % n for n in range(5)], 1)
    one = TopicPartition("t", 0)

    def committed() -> Committed | None:
        with memory.consumer(group_id="g") as other:
            return other.committed([one])[one]

    def read_four_and_fail() -> None:
        with memory.consumer("t", group_id="g") as consumer:
            got = 0
            while got < 4:
                parts = consumer.poll_batches(timeout_ms=1000, max_rows=2)
                got += sum(len(part.table) for part in parts)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_four_and_fail()
    assert committed() == Committed(2, 0), "the last rows were not handled"
    with memory.consumer("t", group_id="g") as consumer:
        while not (parts := [part for part in consumer.poll_batches(timeout_ms=1000) if len(part.table)]):
            pass
        [part] = parts
        assert part.table["offset"].to_pylist() == [2, 3, 4]
    assert committed() == Committed(part.next_offset, part.leader_epoch) == Committed(5, 0)


def test_a_member_hears_where_it_begins(memory: LabCluster) -> None:
    """Also where the group had committed and nothing came since."""
    fill(memory, [b"%d" % n for n in range(12)], PARTITIONS)
    for _ in range(2):
        places: dict[int, int] = {}
        with memory.consumer("t", group_id="g", fetch_max_wait_ms=20) as consumer:
            while places != dict.fromkeys(range(PARTITIONS), 2):
                places |= {part.partition: part.next_offset for part in consumer.poll_batches(timeout_ms=1000)}
