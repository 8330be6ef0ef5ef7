"""When a host is pinged."""

from __future__ import annotations

import pytest

from headrace_connect.core.counts import Counts
from headrace_connect.core.host_messages import TaskCounts
from headrace_connect_worker.core.pinging import IDLE_MS_MAX, Pinging

LOOK_MS = 1_000


def counted(**counts: int) -> TaskCounts:
    return TaskCounts("shop", 0, Counts(**counts))


def pings(pinging: Pinging, looks: range) -> list[int]:
    return [look for look in looks if pinging.is_due(look * LOOK_MS)]


def test_an_idle_host_is_pinged_rarely() -> None:
    assert pings(Pinging(30_000), range(20)) == [0, 5, 10, 15]


def test_a_host_that_works_is_pinged_with_each_look_until_it_is_idle() -> None:
    pinging = Pinging(30_000)
    assert pings(pinging, range(1)) == [0]
    for look in range(1, 4):
        pinging.hear([counted(read_records=look)])
        assert pinging.is_due(look * LOOK_MS)
    pinging.hear([])
    assert pings(pinging, range(4, 14)) == [8, 13]


def test_that_a_task_has_waited_longer_is_no_work() -> None:
    pinging = Pinging(30_000)
    pinging.hear([counted(read_records=1, read_us=5)])
    assert pinging.is_due(0)
    pinging.hear([counted(read_records=1, read_us=900_000)])
    assert not pinging.is_due(LOOK_MS)


@pytest.mark.parametrize("silence_ms", [1_000, 6_000, 12_000, 30_000, 600_000])
def test_a_host_is_heard_often_enough_to_be_known_alive(silence_ms: int) -> None:
    pinging = Pinging(silence_ms)
    assert pinging.is_due(0)
    assert pinging.is_due(min(IDLE_MS_MAX, silence_ms / 6))
