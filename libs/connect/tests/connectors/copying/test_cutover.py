"""A group is moved only when it stands still, and only where each of its positions is known."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest
from libs.connect.tests.connectors.copying.systems import Connection, Log, System, Topic, settings

from headrace.errors import Conflict, NotFound, Rejected, WaitTimedOut
from headrace.records import TopicPartition
from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.copying.cutover import Move, translate_group
from headrace_connect.connectors.copying.syncs import Run, Sync
from headrace_connect.connectors.copying.translating import History, NoTranslation

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def system() -> System:
    made = System({"orders": Topic([Log(), Log()], id="id"), "other": Topic([Log()])})
    made.groups["g"] = {P1: 3, P0: 7}
    return made


def history(end: int, *, topic_id: str = "id", start: int = 0) -> History:
    return History([Sync(1, topic_id, "eu.orders", 0, start, end, [Run(start, 100, end - start)])])


def move(made: System, *known: Mapping[TopicPartition, History], wait_ms: float = 0) -> list[Move]:
    looks = list(known)

    async def histories(_: Collection[TopicPartition]) -> Mapping[TopicPartition, History]:
        return looks.pop(0) if len(looks) > 1 else looks[0]

    return asyncio.run(translate_group(Connection(made), histories, "g", settings(), SystemClock(), wait_ms))


def test_all_positions_are_translated() -> None:
    assert move(system(), {P0: history(9), P1: history(9)}) == [
        Move(P0, 7, TopicPartition("eu.orders", 0), 107),
        Move(P1, 3, TopicPartition("eu.orders", 1), 103),
    ]


def test_it_waits_for_what_is_not_copied_yet() -> None:
    late = {P0: history(9)}, {P0: history(9), P1: history(2)}, {P0: history(9), P1: history(3)}
    assert [one.offset for one in move(system(), *late, wait_ms=60_000)] == [107, 103]
    with pytest.raises(WaitTimedOut, match=r"orders-1: offset 3 was not copied yet; the connector is at 2.*run\?"):
        move(system(), late[1])


def test_what_was_copied_of_a_topic_before_it_was_made_again_does_not_count() -> None:
    with pytest.raises(WaitTimedOut, match="made again"):
        move(system(), {P0: history(9), P1: history(9, topic_id="old")})


def test_what_cannot_be_moved_is_refused() -> None:
    known = {P0: history(9), P1: history(9)}
    running = system()
    running.members["g"] = 2
    with pytest.raises(Conflict, match="2 members at the source"):
        move(running, known)
    nothing = system()
    nothing.groups.clear()
    with pytest.raises(NotFound, match="committed nothing"):
        move(nothing, known)
    beside = system()
    beside.groups["g"][TopicPartition("other", 0)] = 1
    with pytest.raises(Rejected, match="reads other, which this connector does not copy"):
        move(beside, known)
    with pytest.raises(NoTranslation, match=r"orders-1: offset 3 was copied before"):
        move(system(), {P0: history(9), P1: history(9, start=4)})
