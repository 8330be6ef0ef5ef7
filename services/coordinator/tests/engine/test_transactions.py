"""Shards of transactions in the engine, over logs and partitions in memory: durability, markers, moves, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.coordinator.tests.kit.dialogue import Brokers, Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster, topic_id_of
from services.coordinator.tests.kit.shard_logs import MemoryPartition, MemoryShardLogs

from headrace_common.core.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.transactions.effects import InitResult, TransactionDescription
from headrace_coordinator.core.transactions.values import EPOCH_LAST, Producer, Token, TxnState
from headrace_coordinator.engine.transaction_host import GATHER_MS
from headrace_coordinator.engine.transaction_watch import TransactionWatch
from headrace_coordinator.engine.transactions import Enrolment, Transactions
from headrace_coordinator.ports import Marker

SHARDS = 2
ID = "x"
SHARD = partition_for(ID.encode(), SHARDS)
NEIGHBOUR = next(i for i in map(str, range(100)) if partition_for(i.encode(), SHARDS) == SHARD)
"""Another id of the same shard."""
P = tuple(PartitionId(topic_id_of("t"), n) for n in range(3))


@dataclass
class World:
    """Engines that share their logs and brokers; each has a cluster of its own, so that one may not be told."""

    stack: AsyncExitStack
    logs: MemoryShardLogs = field(default_factory=MemoryShardLogs)
    brokers: Brokers = field(default_factory=Brokers)

    async def engine(self, node_id: int = 1, *, epoch: int | None = None, **options: Any) -> Running:
        cluster = MemoryCluster(shards=SHARDS, topics={"t": 3})
        for number in range(3):
            cluster.lead("t", number, 1)
        running: Running = await self.stack.enter_async_context(
            running_engine(cluster, self.logs, node_id=node_id, brokers=self.brokers, **options)
        )
        if epoch is not None:
            cluster.give(node_id, *range(SHARDS), epoch=epoch, kind=ShardKind.TRANSACTIONS)
        return running

    @property
    def log(self) -> MemoryPartition:
        return self.logs.partition(SHARD, ShardKind.TRANSACTIONS)

    @property
    def written(self) -> list[tuple[int, Marker]]:
        return [(id.partition, marker) for id, marker in self.brokers.markers.written]

    def appends(self) -> list[int]:
        """How many records each append had."""
        return [len(records) for records in self.log.appends]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        yield World(stack)


async def serving(world: World, node_id: int = 1, epoch: int = 1, **options: Any) -> Running:
    running = await world.engine(node_id, epoch=epoch, **options)
    await running.until_served(*range(SHARDS), kind=ShardKind.TRANSACTIONS)
    return running


async def init(running: Running, id: str = ID, timeout_ms: int = 60_000) -> Producer:
    return (await running.transactions.init(id, timeout_ms, None)).producer


async def enrol(running: Running, producer: Producer, *numbers: int, id: str = ID) -> HeadraceError | None:
    (error,) = await running.transactions.enrol([Enrolment(id, producer, [P[n] for n in numbers or (0,)])])
    return error


async def commit(running: Running, producer: Producer, id: str = ID) -> Producer:
    return await running.transactions.end(id, producer, commit=True)


async def described(running: Running, id: str = ID) -> TransactionDescription:
    found = (await running.transactions.describe(id)).found
    assert isinstance(found, TransactionDescription), found
    return found


async def until(running: Running, state: TxnState, id: str = ID) -> TransactionDescription:
    while (found := await described(running, id)).state is not state:
        await asyncio.sleep(0)
    return found


async def begun(world: World, *numbers: int, **options: Any) -> tuple[Running, Producer]:
    """An engine with one open transaction."""
    running = await serving(world, **options)
    producer = await init(running)
    assert await enrol(running, producer, *numbers) is None
    return running, producer


async def blocked(world: World, call: Awaitable[Any]) -> asyncio.Future[Any]:
    """``call`` while the log lets nothing through; it waits for its append."""
    world.log.shut_gate()
    future = asyncio.ensure_future(call)
    await world.log.until_waiting()
    assert not future.done()
    return future


# --- one transaction --------------------------------------------------------------------------------------------


async def test_begin_enrol_commit_and_the_next(world: World) -> None:
    running, producer = await begun(world, 0, 1)
    assert producer == Producer(1_000, 0)
    second = await commit(running, producer)
    assert second == Producer(1_000, 1)
    assert await enrol(running, second, 2) is None
    third = await running.transactions.end(ID, second, commit=False)
    await until(running, TxnState.COMPLETE_ABORT)
    assert third == Producer(1_000, 2)
    commit_, abort = Marker(1_000, 1, commit=True), Marker(1_000, 2, commit=False)
    assert world.written == [(0, commit_), (1, commit_), (2, abort)]
    assert running.measures.counts["decided"] == 2
    assert running.driver.endings == 0


async def test_an_answer_waits_for_the_log_and_so_do_the_markers(world: World) -> None:
    running, producer = await begun(world)
    ending = await blocked(world, commit(running, producer))
    assert world.written == []
    world.log.open_gate()
    assert await ending == Producer(1_000, 1)
    await world.brokers.markers.until_written(1)


async def test_an_enrolment_waits_for_the_log(world: World) -> None:
    running = await serving(world)
    producer = await init(running)
    enrolling = await blocked(world, enrol(running, producer))
    world.log.open_gate()
    assert await enrolling is None
    assert (await described(running)).partitions == (P[0],)


async def test_a_commit_is_answered_before_the_markers_are_written(world: World) -> None:
    running, producer = await begun(world)
    world.brokers.markers.shut_gate()
    assert await commit(running, producer) == Producer(1_000, 1)
    await world.brokers.markers.until_waiting()
    found = await described(running)
    assert (found.state, found.without_marker) == (TxnState.PREPARE_COMMIT, (P[0],))
    world.brokers.markers.open_gate()
    await until(running, TxnState.COMPLETE_COMMIT)


async def test_the_next_transaction_waits_for_the_markers(world: World) -> None:
    running, producer = await begun(world)
    world.brokers.markers.shut_gate()
    second = await commit(running, producer)
    enrolling = asyncio.ensure_future(enrol(running, second, 1))
    await world.brokers.markers.until_waiting()
    before = len(world.log.appends)
    assert not enrolling.done()
    world.brokers.markers.open_gate()
    assert await enrolling is None
    assert world.appends()[before:] == [1], "the end of the one and the beginning of the other are one record"


async def test_that_a_transaction_is_over_waits_for_the_next_one_to_be_written(world: World) -> None:
    running, producer = await begun(world)
    before = len(world.log.appends)
    second = await commit(running, producer)
    await world.brokers.markers.until_written(1)
    while running.driver.endings:
        await asyncio.sleep(0)
    assert await enrol(running, second, 1) is None
    assert len(world.log.appends) - before == 2


async def test_that_a_transaction_is_over_is_written_when_nothing_follows(world: World) -> None:
    clock = FakeClock()
    running, producer = await begun(world, clock=clock)
    before = len(world.log.appends)
    await commit(running, producer)
    await world.brokers.markers.until_written(1)
    assert "commit client" not in running.measures.counts
    while "commit client" not in running.measures.counts:
        await clock.advance(GATHER_MS)
    assert len(world.log.appends) - before == 2


async def test_a_marker_that_is_refused_is_written_again(world: World) -> None:
    running, producer = await begun(world)
    world.brokers.markers.refusals[P[0]] = [NotEnoughReplicas("too few")] * 3
    world.brokers.markers.lost_answers = 1
    await commit(running, producer)
    await until(running, TxnState.COMPLETE_COMMIT)
    assert world.written == [(0, Marker(1_000, 1, commit=True))]


async def test_a_partition_that_moved_on_ends_its_part(world: World) -> None:
    running, producer = await begun(world)
    world.brokers.markers.refusals[P[0]] = [InvalidProducerEpoch("a higher one is known")]
    await commit(running, producer)
    await until(running, TxnState.COMPLETE_COMMIT)
    assert world.written == []


async def test_a_commit_may_be_repeated_and_a_newer_producer_fences(world: World) -> None:
    running, producer = await begun(world)
    assert await commit(running, producer) == await commit(running, producer) == Producer(1_000, 1)
    await until(running, TxnState.COMPLETE_COMMIT)
    newer = await init(running)
    with pytest.raises(ProducerFenced):
        await commit(running, producer)
    assert await enrol(running, newer) is None
    newest = await init(running)
    assert (newer, newest) == (Producer(1_000, 2), Producer(1_000, 4))
    assert world.written[-1] == (0, Marker(1_000, 3, commit=False))


async def test_a_transaction_that_lasts_too_long_is_aborted(world: World) -> None:
    clock = FakeClock()
    running = await serving(world, clock=clock)
    producer = await init(running, timeout_ms=5_000)
    await enrol(running, producer)
    await clock.advance(4_999)
    assert (await described(running)).state is TxnState.ONGOING
    while not world.written:
        await clock.advance(500)
    assert world.written == [(0, Marker(1_000, 1, commit=False))]
    with pytest.raises(TransactionAbortable):
        await commit(running, producer)


# --- waiting ----------------------------------------------------------------------------------------------------


async def test_whoever_waits_too_long_for_an_end_is_told_so(world: World) -> None:
    running, producer = await begun(world, append_timeout_ms=400)
    world.brokers.markers.shut_gate()
    second = await commit(running, producer)
    assert isinstance(await enrol(running, second), ConcurrentTransactions)
    world.brokers.markers.open_gate()
    found = await until(running, TxnState.COMPLETE_COMMIT)
    assert found.partitions == (), "the enrolment was taken back"
    assert await enrol(running, second) is None


async def test_whoever_waits_too_long_for_the_log_is_told_so(world: World) -> None:
    running, producer = await begun(world, append_timeout_ms=400)
    world.log.shut_gate()
    with pytest.raises(CoordinatorNotAvailable):
        await commit(running, producer)
    world.log.open_gate()
    assert await commit(running, producer) == Producer(1_000, 1)


async def test_a_client_that_goes_away_takes_its_waiting_back(world: World) -> None:
    running, producer = await begun(world)
    world.brokers.markers.shut_gate()
    second = await commit(running, producer)
    enrolling = asyncio.ensure_future(enrol(running, second))
    (host,) = (host for host in running.transactions.hosts if host.number == SHARD)
    while not (tally := host.tally()) or not tally.waiting:
        await asyncio.sleep(0)
    enrolling.cancel()
    while not enrolling.done():
        await asyncio.sleep(0)
    tally = host.tally()
    assert tally is not None
    assert tally.waiting == 0


async def test_one_that_waits_for_an_end_does_not_keep_the_others_of_its_request(world: World) -> None:
    running, producer = await begun(world)
    other = await init(running, NEIGHBOUR)
    world.brokers.markers.shut_gate()
    second = await commit(running, producer)
    enrolments = [Enrolment(ID, second, [P[1]]), Enrolment(NEIGHBOUR, other, [P[2]])]
    errors = await running.transactions.enrol(enrolments)
    assert isinstance(errors[0], ConcurrentTransactions)
    assert errors[1] is None


async def test_what_comes_together_shares_an_append(world: World) -> None:
    running = await serving(world)
    one, two = await init(running), await init(running, NEIGHBOUR)
    before = len(world.log.appends)
    await running.transactions.enrol([Enrolment(ID, one, [P[0]]), Enrolment(NEIGHBOUR, two, [P[0]])])
    assert world.appends()[before:] == [2]


# --- producer ids -----------------------------------------------------------------------------------------------


async def test_without_producer_ids_no_new_id_begins_and_the_others_go_on(world: World) -> None:
    world.brokers.ids.given = 1
    running, producer = await begun(world, append_timeout_ms=400)
    with pytest.raises(CoordinatorNotAvailable):
        await init(running, NEIGHBOUR)
    second = await commit(running, producer)
    assert await enrol(running, second) is None
    world.brokers.ids.given = 5
    while (other := await soon(init(running, NEIGHBOUR))) is None:
        pass
    assert other != producer


async def soon(call: Awaitable[Producer]) -> Producer | None:
    try:
        return await call
    except CoordinatorNotAvailable:
        return None


async def test_each_new_id_has_a_producer_id_of_its_own(world: World) -> None:
    running = await serving(world)
    found = await asyncio.gather(*(init(running, f"n{n}") for n in range(200)))
    assert len({producer.producer_id for producer in found}) == 200


async def test_epochs_run_out_and_the_producer_goes_on_under_another_id(world: World) -> None:
    running = await serving(world)
    producer = await init(running)
    while producer.epoch < EPOCH_LAST:
        producer = await soonest(running, producer)
    assert await enrol(running, producer) is None
    following = await commit(running, producer)
    assert (following.producer_id != producer.producer_id, following.epoch) == (True, 0)
    assert await commit(running, producer) == following
    assert world.written[-1] == (0, Marker(producer.producer_id, EPOCH_LAST + 1, commit=True))


async def soonest(running: Running, producer: Producer) -> Producer:
    """The producer many epochs later: the record says so, by a shortcut that nobody else has."""
    (host,) = (host for host in running.transactions.hosts if host.number == SHARD)
    txn = host._core._register.ids[ID]
    txn.producer = Producer(producer.producer_id, EPOCH_LAST)
    return txn.producer


# --- losing and getting shards ----------------------------------------------------------------------------------


async def test_an_open_transaction_goes_on_at_the_next_coordinator(world: World) -> None:
    _, producer = await begun(world, 0, 1)
    second = await serving(world, 2, epoch=2)
    assert await enrol(second, producer, 2) is None
    assert await commit(second, producer) == Producer(1_000, 1)
    await until(second, TxnState.COMPLETE_COMMIT)
    assert [partition for partition, _ in world.written] == [0, 1, 2]


async def test_a_verdict_is_carried_out_by_the_next_coordinator(world: World) -> None:
    first, producer = await begun(world, 0, 1)
    world.brokers.markers.shut_gate()
    await commit(first, producer)
    await world.brokers.markers.until_waiting()
    second = await serving(world, 2, epoch=2)
    world.brokers.markers.open_gate()
    await until(second, TxnState.COMPLETE_COMMIT)
    assert {partition for partition, _ in world.written} == {0, 1}
    assert {marker for _, marker in world.written} == {Marker(1_000, 1, commit=True)}
    assert await commit(second, producer) == Producer(1_000, 1), "the producer that was not answered asks again"


async def test_a_prepared_transaction_is_kept(world: World) -> None:
    first, producer = await begun(world)
    token = await first.transactions.prepare(ID, producer, None)
    second = await serving(world, 2, epoch=2)
    found = await second.transactions.init(ID, 60_000, None)
    assert found == InitResult(producer, token)
    decided = await second.transactions.decide(token, commit=True)
    assert (decided.committed, decided.next) == (True, None), "two producers have the token by now"
    await until(second, TxnState.COMPLETE_COMMIT)
    assert world.written == [(0, Marker(1_000, 1, commit=True))]


async def test_a_zombie_decides_nothing_and_enrols_nothing(world: World) -> None:
    old, producer = await begun(world)
    await serving(world, 2, epoch=2)
    with pytest.raises(NotCoordinator):
        await commit(old, producer)
    assert isinstance(await enrol(old, producer, 1), NotCoordinator)
    assert world.written == []


async def test_a_zombie_answers_no_repeat_from_memory(world: World) -> None:
    old, producer = await begun(world)
    await commit(old, producer)
    await until(old, TxnState.COMPLETE_COMMIT)
    await serving(world, 2, epoch=2)
    with pytest.raises(NotCoordinator):
        await commit(old, producer)


async def test_a_shard_that_moves_away_takes_its_markers_back(world: World) -> None:
    first, producer = await begun(world)
    world.brokers.markers.shut_gate()
    await commit(first, producer)
    await world.brokers.markers.until_waiting()
    first.cluster.give(2, *range(SHARDS), kind=ShardKind.TRANSACTIONS)
    while first.driver.endings:
        await asyncio.sleep(0)
    assert not first.transactions.hosts
    world.brokers.markers.open_gate()


# --- owners -----------------------------------------------------------------------------------------------------


async def test_a_unit_commits_what_it_lists_and_aborts_the_rest(world: World) -> None:
    running = await serving(world)
    owner = await running.transactions.init_owner("job")
    assert (owner.owner_epoch, owner.last_sequence) == (0, -1)
    tokens: list[Token] = []
    for number in range(3):
        id = f"job/{number}"
        producer = (await running.transactions.init(id, 60_000, owner.owner_epoch)).producer
        await enrol(running, producer, number, id=id)
        tokens.append(await running.transactions.prepare(id, producer, owner.owner_epoch))
    unit = await running.transactions.commit_unit("job", owner.owner_epoch, 0, tokens[:2])
    assert not unit.repeated_sequence
    await world.brokers.markers.until_written(3)
    assert {partition: marker.commit for partition, marker in world.written} == {0: True, 1: True, 2: False}
    assert (await running.transactions.commit_unit("job", owner.owner_epoch, 0, tokens[:2])).repeated_sequence
    second = await serving(world, 2, epoch=2)
    assert (await second.transactions.init_owner("job")).last_sequence == 0


# --- operators --------------------------------------------------------------------------------------------------


async def test_transactions_are_listed_described_and_aborted(world: World) -> None:
    running, producer = await begun(world)
    other = await init(running, NEIGHBOUR)
    listed, loading = running.transactions.list_transactions((), (), 0)
    assert ([one.transactional_id for one in listed], loading) == (sorted([ID, NEIGHBOUR]), [])
    assert [one.transactional_id for one in running.transactions.list_transactions({TxnState.ONGOING}, (), 0)[0]] == [
        ID
    ]
    assert [o.transactional_id for o in running.transactions.list_transactions((), {other.producer_id}, 0)[0]] == [
        NEIGHBOUR
    ]
    assert running.transactions.list_transactions((), (), 3_600_000)[0] == []
    assert isinstance((await running.transactions.describe("nobody")).found, TransactionalIdNotFound)
    with pytest.raises(InvalidTxnState):
        await running.transactions.abort(NEIGHBOUR, None, None)
    await running.transactions.abort(ID, producer.producer_id, producer.epoch)
    await until(running, TxnState.COMPLETE_ABORT)
    assert world.written == [(0, Marker(1_000, 1, commit=False))]


async def test_ages_count_from_the_preparation_of_what_is_prepared(world: World) -> None:
    clock = FakeClock()
    running, producer = await begun(world, clock=clock)
    await clock.advance(20_000)
    assert [one.transactional_id for one in running.transactions.list_transactions((), (), 20_000)[0]] == [ID]
    await running.transactions.prepare(ID, producer, None)
    await clock.advance(5_000)
    assert [one.transactional_id for one in running.transactions.list_transactions((), (), 5_000)[0]] == [ID]
    assert running.transactions.list_transactions((), (), 5_001)[0] == []


async def test_ids_of_other_shards_are_not_here(world: World) -> None:
    running = await world.engine()
    with pytest.raises(NotCoordinator):
        await init(running)
    assert Transactions.shard_of(running.transactions, "a/b") == Transactions.shard_of(running.transactions, "a")


async def test_the_census_counts_and_names_what_is_overdue(world: World, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    running, producer = await begun(world, clock=clock)
    watch = TransactionWatch(running.transactions, running.driver, clock, prepared_ms_max=1_000)
    watch.look()
    assert (watch.census.open, watch.census.prepared, watch.census.overdue) == (1, 0, 0)
    await running.transactions.prepare(ID, producer, None)
    await clock.advance(2_000)
    for _ in range(2):
        watch.look()
    assert (watch.census.open, watch.census.prepared, watch.census.overdue) == (0, 1, 1)
    assert watch.census.oldest_prepared_ms >= 2_000
    assert sum("undecided" in record.message for record in caplog.records) == 1
