"""A shard's life in the engine, over a log in memory: loading, serving, waiting for the log, and letting go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.coordinator.tests.kit.dialogue import Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster, MemoryLogEnds, topic_id_of
from services.coordinator.tests.kit.shard_logs import MemoryPartition, MemoryShardLogs

from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidRegularExpression,
    NotCoordinator,
    Overloaded,
    RecordTooLarge,
)
from headrace_common.core.ids import Offset, PartitionId
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import ConsumerStanding, Message
from headrace_coordinator.core.events import ConsumerHeartbeat, Left, OffsetToCommit
from headrace_coordinator.core.values import Subscription
from headrace_coordinator.engine.coordinator import Committer
from headrace_coordinator.engine.host import STALL_GRACE_MS, Phase
from headrace_coordinator.engine.lag import LagWatch
from headrace_coordinator.engine.streams import MESSAGES_MAX, MemberStream

SHARDS = 4
GROUP = "g"
SHARD = partition_for(GROUP.encode(), SHARDS)
NEIGHBOUR = next(g for g in map(str, range(100)) if partition_for(g.encode(), SHARDS) == SHARD)
"""Another group of the same shard."""
NOBODY = Committer("", None, -1)


@dataclass
class World:
    """Engines that share their logs; each has a cluster of its own, so that one may not be told."""

    stack: AsyncExitStack
    logs: MemoryShardLogs = field(default_factory=MemoryShardLogs)

    async def engine(self, node_id: int = 1, *, epoch: int | None = None, **options: Any) -> Running:
        cluster = MemoryCluster(shards=SHARDS, topics={"t": 3, "u": 2})
        running: Running = await self.stack.enter_async_context(
            running_engine(cluster, self.logs, node_id=node_id, **options)
        )
        if epoch is not None:
            cluster.give(node_id, *range(SHARDS), epoch=epoch)
        return running

    @property
    def partition(self) -> MemoryPartition:
        return self.logs.partition(SHARD)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


async def serving(world: World, node_id: int = 1, epoch: int = 1, **options: Any) -> Running:
    running = await world.engine(node_id, epoch=epoch, **options)
    await running.until_served(*range(SHARDS))
    return running


async def until_epoch(running: Running, epoch: int) -> None:
    while {host.epoch for host in running.coordinator.hosts} != {epoch}:
        await asyncio.sleep(0)
    await running.until_served(*range(SHARDS))


async def commit(running: Running, offset: int, group_id: str = GROUP, partition: int = 0) -> None:
    outcomes = await running.coordinator.commit(group_id, NOBODY, [OffsetToCommit("t", partition, offset)])
    assert [one.error for one in outcomes.outcomes] == [None]


async def committed(running: Running, group_id: str = GROUP) -> dict[int, int]:
    found = await running.coordinator.offsets(group_id, None, None, None)
    return {one.partition: one.committed.offset for one in found.offsets if one.committed is not None}


def beat(running: Running, stream: MemberStream, member: str, epoch: int, **said: object) -> None:
    at = running.coordinator.moment()
    heartbeat = ConsumerHeartbeat(stream.group_id, stream.number, at, member, epoch, **said)  # fields
    running.coordinator.say(stream, heartbeat)


def join(running: Running, member: str, *topics: str, pattern: str | None = None) -> MemberStream:
    stream = running.coordinator.open_stream(GROUP, "127.0.0.1:1")
    beat(running, stream, member, 0, subscription=Subscription(frozenset(topics), pattern), owned=())
    return stream


async def said(stream: MemberStream) -> Message:
    async with asyncio.timeout(10):
        message = await stream.next_message()
    assert message is not None
    return message


async def standing(stream: MemberStream) -> ConsumerStanding:
    message = await said(stream)
    assert isinstance(message, ConsumerStanding)
    return message


def partitions(standing: ConsumerStanding) -> dict[str, tuple[int, ...]]:
    assert standing.error is None
    assert standing.assignment is not None
    return {one.topic: one.partitions for one in standing.assignment}


# --- loading ----------------------------------------------------------------------------------------------------


async def test_groups_of_other_shards_are_not_here(world: World) -> None:
    running = await world.engine()
    with pytest.raises(NotCoordinator):
        await commit(running, 1)
    with pytest.raises(NotCoordinator):
        running.coordinator.open_stream(GROUP, "")


async def test_requests_are_told_that_the_shard_is_being_read(world: World) -> None:
    world.partition.shut_gate()
    running = await world.engine(epoch=1)
    await world.partition.until_waiting()
    with pytest.raises(CoordinatorLoading):
        await commit(running, 1)
    world.partition.shut_reading()
    world.partition.open_gate()
    await running.until_served(*(n for n in range(SHARDS) if n != SHARD))
    with pytest.raises(CoordinatorLoading):
        await committed(running)
    assert running.coordinator.list_groups([]) == ([], [SHARD])
    world.partition.open_reading()
    await running.until_served(SHARD)
    await commit(running, 1)


async def test_the_next_coordinator_knows_what_was_acknowledged(world: World) -> None:
    first = await serving(world)
    for offset in range(5):
        await commit(first, offset)
    await commit(first, 7, partition=2)
    second = await serving(world, 2, epoch=2)
    assert await committed(second) == {0: 4, 2: 7}


async def test_a_record_that_cannot_be_read_fails_the_shard_and_no_other(world: World) -> None:
    world.partition.records.append((b"\xff\xff", b"?"))
    running = await world.engine(epoch=1)
    await running.until_served(*(n for n in range(SHARDS) if n != SHARD))
    (host,) = (host for host in running.coordinator.hosts if host.number == SHARD)
    async with asyncio.timeout(10):
        while host.phase is not Phase.FAILED:
            await asyncio.sleep(0.001)
    with pytest.raises(CoordinatorNotAvailable):
        await commit(running, 1)


# --- durability -------------------------------------------------------------------------------------------------


async def test_a_commit_is_answered_when_it_is_durable_and_not_before(world: World) -> None:
    running = await serving(world)
    world.partition.shut_gate()
    waiting = asyncio.ensure_future(commit(running, 5))
    await world.partition.until_waiting()
    assert not waiting.done()
    world.partition.open_gate()
    await waiting
    assert await committed(running) == {0: 5}


async def test_what_comes_while_an_append_is_under_way_shares_the_next(world: World) -> None:
    running = await serving(world)
    world.partition.shut_gate()
    first = asyncio.ensure_future(commit(running, 1))
    await world.partition.until_waiting()
    before = len(world.partition.appends)
    rest = [asyncio.ensure_future(commit(running, n, partition=n % 3)) for n in range(2, 40)]
    while len(running.coordinator.hosts[SHARD]._inbox):
        await asyncio.sleep(0)
    world.partition.open_gate()
    await asyncio.gather(first, *rest)
    assert [len(records) for records in world.partition.appends[before:]] == [1, 3]


async def test_whoever_waits_too_long_is_told_and_the_writer_goes_on(world: World) -> None:
    running = await serving(world, append_timeout_ms=50)
    world.partition.shut_gate()
    with pytest.raises(CoordinatorNotAvailable):
        await commit(running, 5)
    world.partition.open_gate()
    while not world.partition.appends:
        await world.partition.until_changed()
    assert await committed(running) == {0: 5}


async def test_lost_answers_change_nothing(world: World) -> None:
    running = await serving(world)
    for offset in range(5):
        world.partition.lost_answers = 2
        await commit(running, offset)
    assert await committed(running) == {0: 4}
    assert await committed(await serving(world, 2, epoch=2)) == {0: 4}


async def test_a_member_hears_nothing_that_is_not_durable(world: World) -> None:
    running = await serving(world)
    world.partition.shut_gate()
    stream = join(running, "m", "t")
    await world.partition.until_waiting()
    heard = asyncio.ensure_future(standing(stream))
    await asyncio.sleep(0)
    assert not heard.done()
    world.partition.open_gate()
    assert partitions(await heard) == {"t": (0, 1, 2)}


async def test_an_append_that_is_refused_for_good_reads_the_shard_anew(world: World) -> None:
    running = await serving(world)
    await commit(running, 1)
    world.partition.refusals.append(RecordTooLarge("the group is too large"))
    with pytest.raises(CoordinatorNotAvailable):
        await commit(running, 2)
    await running.until_served(SHARD)
    assert await committed(running) == {0: 1}, "memory was ahead of the log, and is not any more"


async def test_too_much_behind_the_log_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_coordinator.engine.host.HELD_MAX", 3)
    running = await serving(world)
    world.partition.shut_gate()
    calls = [asyncio.ensure_future(commit(running, 1, partition=n % 3)) for n in range(3)]
    await world.partition.until_waiting()
    with pytest.raises(Overloaded):
        await commit(running, 2)
    world.partition.open_gate()
    await asyncio.gather(*calls)
    await commit(running, 2)


# --- losing and getting shards ----------------------------------------------------------------------------------


async def test_a_zombie_writes_nothing_and_tells_everybody_that_it_is_none(world: World) -> None:
    old = await serving(world)
    await commit(old, 1)
    stream = join(old, "m", "t")
    await standing(stream)
    new = await serving(world, 2, epoch=2)
    with pytest.raises(NotCoordinator):
        await commit(old, 9, NEIGHBOUR)
    with pytest.raises(NotCoordinator):
        await said(stream)
    with pytest.raises(NotCoordinator):
        await commit(old, 9, NEIGHBOUR)
    assert old.measures.counts["lost"] == 1
    assert await committed(new) == {0: 1}
    assert await committed(new, NEIGHBOUR) == {}


async def test_a_zombie_throws_nobody_out_that_the_new_owner_knows(world: World) -> None:
    old = await serving(world)
    new = await serving(world, 2, epoch=2)
    epoch = (await standing(join(new, "m", "t"))).member_epoch
    stream = old.coordinator.open_stream(GROUP, "")
    beat(old, stream, "m", epoch)
    with pytest.raises(NotCoordinator):
        await said(stream)


async def test_a_zombie_answers_no_read_even_within_its_tenure(world: World) -> None:
    old = await serving(world)
    await commit(old, 1)
    new = await serving(world, 2, epoch=2)
    await commit(new, 2)
    with pytest.raises(NotCoordinator):
        await committed(old)


async def test_a_zombie_past_its_tenure_answers_no_heartbeat(world: World) -> None:
    old = await serving(world)
    stream = join(old, "m", "t")
    first = await standing(stream)
    await serving(world, 2, epoch=2)
    old.cluster.tenure_until_ms = -math.inf
    for host in old.coordinator.hosts:
        host._proved_until_ms = -math.inf
    beat(old, stream, "m", first.member_epoch)
    with pytest.raises(NotCoordinator):
        await said(stream)


async def test_within_its_tenure_it_answers_nothing_once_the_image_gives_the_shard_away(world: World) -> None:
    old = await serving(world)
    stream = join(old, "m", "t")
    first = await standing(stream)
    new = await serving(world, 2, epoch=2)
    old.cluster._image = new.cluster.image  # it has come, and the host has not been told yet
    beat(old, stream, "m", first.member_epoch)
    with pytest.raises(NotCoordinator):
        await said(stream)


async def test_without_a_tenure_a_proof_is_enough(world: World) -> None:
    running = await serving(world)
    stream = join(running, "m", "t")
    epoch = (await standing(stream)).member_epoch
    running.cluster.tenure_until_ms = -math.inf
    running.coordinator.hosts[SHARD]._proved_until_ms = -math.inf
    before = len(world.partition.appends)
    beat(running, stream, "m", epoch)
    assert (await standing(stream)).error is None
    assert world.partition.appends[before:] == [[]]
    beat(running, stream, "m", epoch)
    assert (await standing(stream)).error is None
    assert world.partition.appends[before:] == [[]], "one proof lasts for a while"


async def test_a_shard_that_moves_away_is_let_go_of_at_once(world: World) -> None:
    running = await serving(world)
    stream = join(running, "m", "t")
    await standing(stream)
    world.partition.shut_gate()
    waiting = asyncio.ensure_future(commit(running, 5, NEIGHBOUR))
    asked = asyncio.ensure_future(running.coordinator.describe(GROUP))
    running.cluster.give(2, *range(SHARDS))
    with pytest.raises(NotCoordinator):
        await said(stream)
    with pytest.raises(NotCoordinator):
        await waiting
    assert (await asked).group_id == GROUP
    assert not running.coordinator.hosts
    world.partition.open_gate()


async def test_a_shard_that_moves_away_and_back_is_read_anew(world: World) -> None:
    first = await serving(world)
    await commit(first, 1)
    second = await serving(world, 2, epoch=2)
    await commit(second, 2)
    first.cluster.give(2, *range(SHARDS), epoch=2)
    first.cluster.give(1, *range(SHARDS), epoch=3)
    await until_epoch(first, 3)
    assert await committed(first) == {0: 2}
    with pytest.raises(NotCoordinator):
        await commit(second, 9)


async def test_an_image_that_skips_the_move_away_is_a_new_epoch_all_the_same(world: World) -> None:
    running = await serving(world)
    await commit(running, 1)
    running.cluster.give(1, *range(SHARDS), epoch=5)
    await until_epoch(running, 5)
    assert world.partition.fences.token == 5
    assert await committed(running) == {0: 1}


# --- members ----------------------------------------------------------------------------------------------------


async def test_members_share_topics_and_hear_of_changes_unasked(world: World) -> None:
    running = await serving(world)
    one = join(running, "m1", "t")
    assert partitions(await standing(one)) == {"t": (0, 1, 2)}
    running.cluster.put_topic("t", 6)
    assert partitions(await standing(one)) == {"t": (0, 1, 2, 3, 4, 5)}


async def test_a_pattern_sees_topics_that_are_made_later(world: World) -> None:
    running = await serving(world)
    stream = join(running, "m", pattern="new-.*")
    assert (await standing(stream)).error is None
    running.cluster.put_topic("new-one", 2)
    assert partitions(await standing(stream)) == {"new-one": (0, 1)}
    running.cluster.put_topic("other", 2)
    running.cluster.put_topic("new-two", 1)
    assert partitions(await standing(stream)) == {"new-one": (0, 1), "new-two": (0,)}


async def test_a_pattern_survives_its_coordinator(world: World) -> None:
    first = await serving(world)
    stream = join(first, "m", pattern="new-.*")
    epoch = (await standing(stream)).member_epoch
    second = await serving(world, 2, epoch=2)
    again = second.coordinator.open_stream(GROUP, "127.0.0.1:2")
    beat(second, again, "m", epoch)
    assert (await standing(again)).error is None
    second.cluster.put_topic("new-one", 2)
    while not (news := await standing(again)).assignment:
        pass
    assert partitions(news) == {"new-one": (0, 1)}


async def test_a_pattern_that_cannot_be_read_is_answered_on_the_stream(world: World) -> None:
    running = await serving(world)
    stream = join(running, "m", pattern="(")
    assert isinstance((await standing(stream)).error, InvalidRegularExpression)
    beat(running, stream, "m", 0, subscription=Subscription(frozenset({"t"})), owned=())
    assert partitions(await standing(stream)) == {"t": (0, 1, 2)}


async def test_a_member_that_does_not_read_is_cut_off(world: World) -> None:
    running = await serving(world)
    stream = join(running, "m", "t")
    epoch = (await standing(stream)).member_epoch
    for _ in range(MESSAGES_MAX + 1):
        beat(running, stream, "m", epoch)
    while not stream.ended:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await stream.next_message()


async def test_a_stream_that_breaks_starts_the_grace_and_leaving_does_not_wait(world: World) -> None:
    running = await serving(world)
    one, two = join(running, "m1", "t"), join(running, "m2", "t")
    await standing(one)
    running.coordinator.say(two, Left(GROUP, two.number, running.coordinator.moment(), "m2", None, permanently=True))
    messages = []
    while (message := await two.next_message()) is not None:
        messages.append(type(message).__name__)
    assert messages[-1] == "LeaveAnswer"
    (group,) = running.coordinator.list_groups([])[0]
    assert group.members == 1
    running.coordinator.broke(one)
    running.coordinator.close_stream(one)
    async with asyncio.timeout(10):
        while running.coordinator.list_groups([])[0][0].members:
            await asyncio.sleep(0.01)


def test_fresh_ids_are_uuids_under_a_name(world: World) -> None:
    del world
    from headrace_coordinator.engine.coordinator import Coordinator

    one, two = (Coordinator.fresh_id(None, "client") for _ in range(2))  # needs no self
    assert one != two
    assert UUID(one.removeprefix("client-")).version == 4


# --- administration and measuring -------------------------------------------------------------------------------


async def test_groups_are_listed_described_and_deleted(world: World) -> None:
    running = await serving(world)
    await commit(running, 1, "empty")
    stream = join(running, "m", "t")
    await standing(stream)
    groups, loading = running.coordinator.list_groups([])
    assert ([group.group_id for group in groups], loading) == (["empty", GROUP], [])
    described = await running.coordinator.describe(GROUP)
    assert not isinstance(described.found, HeadraceError)
    assert [m.client_address for m in described.found.members] == [""]
    assert (await running.coordinator.delete_group(GROUP)) is not None
    assert await running.coordinator.delete_group("empty") is None
    assert isinstance((await running.coordinator.describe("empty")).found, HeadraceError)
    assert await committed(await serving(world, 2, epoch=2), "empty") == {}


async def test_lag_is_measured_in_records_and_bounded(world: World) -> None:
    running = await serving(world)
    await commit(running, 3, "a", 0)
    await commit(running, 9, "a", 1)
    await commit(running, 1, "b", 0)
    ends = MemoryLogEnds({PartitionId(topic_id_of("t"), n): Offset(7) for n in range(3)})
    watch = LagWatch(running.coordinator, ends, running.coordinator._ports.clock, interval_ms=1, partitions_max=2)
    await watch.look()
    found = {(lag.group_id, lag.partition): lag.records for lag in watch.census.lags}
    both = {("a", 0): 4, ("a", 1): 0}
    assert found in (both, {("b", 0): 6})
    assert watch.census.groups_left_out == 1
    assert watch.census.shards == {"serving": SHARDS}
    assert watch.census.groups == {"EMPTY": 2}


# --- time -------------------------------------------------------------------------------------------------------


async def test_after_a_standstill_heartbeats_are_read_before_sessions_are_judged(world: World) -> None:
    clock = FakeClock()
    running = await serving(world, clock=clock)
    stream = join(running, "m", "t")
    epoch = (await standing(stream)).member_epoch
    session_ms = running.coordinator._ports.settings.group_consumer_session_timeout_ms
    await clock.until_asleep()
    standstill(clock, session_ms + 5_000)
    await clock.advance(0)  # the timer fires, late
    assert running.coordinator.list_groups([])[0][0].members == 1
    beat(running, stream, "m", epoch)
    assert (await standing(stream)).error is None
    await clock.advance(STALL_GRACE_MS)
    assert running.coordinator.list_groups([])[0][0].members == 1
    await clock.advance(session_ms + 1)
    assert running.coordinator.list_groups([])[0][0].members == 0


def standstill(clock: FakeClock, ms: float) -> None:
    """Time passes and nobody runs."""
    clock._move_to(clock.monotonic_ms() + ms)
