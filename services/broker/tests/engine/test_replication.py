"""Three brokers' engines: copying, high watermarks, changes of leaders, ISR changes, reading from followers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.standalone import topic_id_of
from services.broker.tests.kit.trio import Trio, running_trio, until

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.copying import CopyAsk, Position
from headrace_broker.core.leadership import Proposal
from headrace_broker.core.partition import Partition
from headrace_broker.core.recovered import Damage
from headrace_broker.core.rows import IndexRow, LogId
from headrace_broker.engine import lost_batches
from headrace_broker.engine.fetch import FetchAsk, Fetched, FetchEntry
from headrace_broker.engine.offsets import OffsetAsk
from headrace_broker.engine.produce import Appended, ProduceEntry, ProduceSession
from headrace_broker.engine.replicas import Standing
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import BytesLost, IsrDecision
from headrace_common.core.errors import ErrorCode, StaleBrokerEpoch, StorageFailed
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId
from headrace_common.core.image import ReplicaRemoval

ID = PartitionId(topic_id_of("t"), 0)
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def core(trio: Trio, broker: NodeId, id: PartitionId = ID) -> Partition:
    replica = trio.members[broker].broker.replicas.get(id)
    assert replica is not None
    return replica.core


class Client:
    """Produces to one broker."""

    def __init__(self, trio: Trio, broker: NodeId) -> None:
        self.session: ProduceSession = trio.members[broker].broker.produce_session()

    def send(self, batch: bytes, *, acks: int = -1, id: PartitionId = ID) -> None:
        self.session.accept(1, acks, 30_000, [ProduceEntry(id, batch, None)])

    async def answer(self) -> Appended:
        await until(lambda: bool(self.session.answers))
        [result] = self.session.answers.popleft().results
        assert result is not None
        return result

    async def produce(self, batch: bytes, *, acks: int = -1, id: PartitionId = ID) -> Appended:
        self.send(batch, acks=acks, id=id)
        return await self.answer()


async def fetch(trio: Trio, broker: NodeId, offset: int, *, rack: str | None = None, wait_ms: int = 0) -> Fetched:
    ask = FetchAsk([FetchEntry(ID, Offset(offset), 1 << 20, None)], 1 if wait_ms else 0, 1 << 20, wait_ms, rack)
    [result] = await trio.members[broker].broker.fetches.fetch(ask)
    return result


@pytest.mark.parametrize("flush", [Flush.OS, Flush.GROUP, Flush.ALWAYS])
async def test_all_replicas_hold_the_same_bytes_and_learn_the_high_watermark(flush: Flush) -> None:
    async with running_trio(flush=flush) as trio:
        client = Client(trio, ONE)
        for number in range(10):
            answer = await client.produce(batch_of(3))
            assert (answer.error, answer.base_offset) == (None, 3 * number)
        await until(lambda: all(core(trio, broker).high_watermark == 30 for broker in (ONE, TWO, THREE)))
        logs = [await fetch(trio, broker, 0, rack=f"rack-{broker}") for broker in (ONE, TWO, THREE)]
        assert logs[0].batches == logs[1].batches == logs[2].batches
        assert len(logs[0].batches) == 10


async def test_nothing_is_acknowledged_before_every_in_sync_replica_holds_it() -> None:
    async with running_trio(flush=Flush.GROUP) as trio:
        gate = trio.members[THREE].store.sync_gate
        gate.clear()
        client = Client(trio, ONE)
        client.send(batch_of(1))
        await until(lambda: core(trio, TWO).written_end == 1 and core(trio, THREE).log_end == 1)
        await asyncio.sleep(0.05)
        assert not client.session.answers
        assert core(trio, ONE).high_watermark == 0
        gate.set()
        assert (await client.answer()).error is None


async def test_a_new_leader_goes_on_and_the_old_one_cuts_what_only_it_had() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(2))
        await until(lambda: core(trio, TWO).log_end == 2 and core(trio, THREE).log_end == 2)
        trio.cut.add(ONE)
        alone = Client(trio, ONE)
        alone.send(batch_of(5), acks=-1)
        assert (await Client(trio, ONE).produce(batch_of(1), acks=1)).error is None
        trio.change(ID, but=[1], leader=TWO, isr=(TWO, THREE))
        await until(lambda: core(trio, TWO).leader_epoch == 1)
        answer = await Client(trio, TWO).produce(batch_of(1))
        assert (answer.error, answer.base_offset) == (None, 2)
        assert core(trio, ONE).log_end == 8
        trio.cut.clear()
        trio.show()
        refused = await alone.answer()
        assert refused.error is not None
        assert refused.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: core(trio, ONE).high_watermark == 3)
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        logs = [await fetch(trio, broker, 0, rack=f"rack-{broker}") for broker in (ONE, TWO)]
        assert logs[0].batches == logs[1].batches


async def test_too_few_in_sync_refuses_acks_all_and_tells_those_who_wait() -> None:
    async with running_trio() as trio:
        client = Client(trio, ONE)
        await client.produce(batch_of(1))
        trio.cut.add(ONE)
        client.send(batch_of(1))
        await until(lambda: core(trio, ONE).log_end == 2)
        trio.fence(TWO, THREE)
        trio.change(ID, isr=(ONE,), elr=(TWO,))
        after = await client.answer()
        assert after.error is not None
        assert after.error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        before = await client.produce(batch_of(1))
        assert before.error is not None
        assert before.error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert core(trio, ONE).log_end == 2
        assert (await client.produce(batch_of(1), acks=1)).error is None
        assert core(trio, ONE).high_watermark == 1, "nothing is committed by too few"
        trio.cut.clear()
        trio.fence()
        trio.show()
        await until(lambda: core(trio, ONE).high_watermark == 3)
        assert (await client.produce(batch_of(1))).error is None


async def test_a_follower_that_lost_everything_copies_from_the_start_of_the_leaders_log() -> None:
    async with running_trio(tail_bytes=0) as trio:
        client = Client(trio, ONE)
        trio.cut.add(ONE)
        trio.change(ID, isr=(ONE, TWO), replicas=(ONE, TWO))
        trio.cut.clear()
        for _ in range(5):
            assert (await client.produce(batch_of(4))).error is None
        trio.change(ID, replicas=(ONE, TWO, THREE))
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert core(trio, THREE).log_end == 20


async def test_a_batch_sent_again_to_the_new_leader_gets_its_first_offset() -> None:
    async with running_trio() as trio:
        batch = batch_of(3, producer_id=7, epoch=0, sequence=0)
        first = await Client(trio, ONE).produce(batch)
        await until(lambda: core(trio, TWO).log_end == 3)
        trio.change(ID, leader=TWO)
        await until(lambda: core(trio, TWO).leader_epoch == 1)
        again = await Client(trio, TWO).produce(batch)
        assert (again.error, again.base_offset) == (None, first.base_offset)
        assert core(trio, TWO).log_end == 3


async def test_followers_serve_committed_records_only_and_name_what_they_do_not_know() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(2))
        await until(lambda: core(trio, TWO).high_watermark == 2)
        nearer = await fetch(trio, ONE, 0, rack="rack-2")
        assert (nearer.preferred, nearer.batches) == (TWO, [])
        entry = FetchEntry(ID, Offset(0), 1 << 20, None, from_leader=True)
        [here] = await trio.members[ONE].broker.fetches.fetch(FetchAsk([entry], 0, 1 << 20, 0, "rack-2"))
        assert (here.preferred, len(here.batches)) == (None, 1)
        assert len((await fetch(trio, TWO, 0, rack="rack-2")).batches) == 1
        plain = await fetch(trio, TWO, 0)
        assert plain.error is not None
        assert plain.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        beyond = await fetch(trio, TWO, 5, rack="rack-2")
        assert beyond.error is not None
        assert beyond.error.code is ErrorCode.OFFSET_NOT_AVAILABLE
        waiting = asyncio.ensure_future(fetch(trio, TWO, 2, rack="rack-2", wait_ms=5_000))
        await Client(trio, ONE).produce(batch_of(1))
        assert len((await waiting).batches) == 1


async def test_without_a_leader_nobody_is_served_and_a_returning_one_leads_on() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(1))
        trio.change(ID, leader=NO_NODE, isr=(), elr=(ONE, TWO))
        await until(lambda: core(trio, ONE).leading is None)
        nobody = await fetch(trio, ONE, 0, rack="rack-1")
        assert nobody.error is not None
        assert nobody.error.code is ErrorCode.LEADER_NOT_AVAILABLE
        trio.change(ID, leader=TWO, isr=(TWO,), elr=())
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert (await Client(trio, TWO).produce(batch_of(1))).base_offset == 1


async def test_a_fenced_follower_does_not_join_and_joins_once_unfenced() -> None:
    async with running_trio() as trio:
        trio.fence(THREE)
        trio.change(ID, isr=(ONE, TWO))
        for _ in range(3):
            await Client(trio, ONE).produce(batch_of(1))
        await until(lambda: core(trio, THREE).log_end == 3)
        assert trio.image.partitions[ID].isr == (ONE, TWO)
        trio.fence()
        trio.show()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))


async def test_many_partitions_share_one_stream_and_all_get_there() -> None:
    async with running_trio(partitions=40, tail_bytes=0) as trio:
        client = Client(trio, ONE)
        ids = [PartitionId(ID.topic_id, number) for number in range(40)]
        for _ in range(5):
            for id in ids:
                client.send(batch_of(2), id=id)
        for _ in range(200):
            assert (await client.answer()).error is None
        for broker in (TWO, THREE):
            await until(lambda broker=broker: all(core(trio, broker, id).high_watermark == 10 for id in ids))


async def test_a_restarted_follower_goes_on_where_its_log_ends_and_cuts_what_nobody_else_has() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(4))
        await until(lambda: core(trio, THREE).written_end == 4)
        alone = trio.members[THREE].store
    async with running_trio(stores={3: alone.reopen()}) as trio:  # the others begin with nothing
        client = Client(trio, ONE)
        for _ in range(3):
            assert (await client.produce(batch_of([b"other"]))).error is None
        await until(lambda: core(trio, THREE).high_watermark == 3)
        logs = [await fetch(trio, broker, 0, rack=f"rack-{broker}") for broker in (ONE, THREE)]
        assert logs[0].batches == logs[1].batches
        assert core(trio, THREE).log_end == 3


async def test_a_damaged_log_is_kept_until_a_leader_serves_and_then_copied_anew() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(4))
        await until(lambda: all(core(trio, broker).written_end == 4 for broker in (ONE, THREE)))
        stores = {n: trio.members[NodeId(n)].store.reopen() for n in (1, 2, 3)}
    hurt = stores[3]
    [found] = hurt.recovered()
    hurt._recovered = [replace(found, damage=Damage(ID, Offset(4), Offset(9), "the disk lied"))]
    async with running_trio(stores=stores) as trio:
        trio.change(ID, leader=NO_NODE, isr=(), elr=(ONE, TWO))
        await until(lambda: core(trio, ONE).leading is None)
        member = trio.members[THREE].broker
        replica = member.replicas.get(ID)
        assert replica is not None
        assert member.damaged == (ID,) or replica.damage is None, "it may have been copied before the leader went"
        trio.change(ID, leader=ONE, isr=(ONE, TWO), elr=())
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert member.damaged == ()
        assert replica.standing is Standing.ONLINE
        logs = [await fetch(trio, broker, 0, rack=f"rack-{broker}") for broker in (ONE, THREE)]
        assert logs[0].batches == logs[1].batches


async def test_a_replica_that_moved_away_is_deleted_by_order_only() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(1))
        trio.change(ID, replicas=(ONE, TWO), isr=(ONE, TWO))
        broker = trio.members[THREE].broker
        await until(lambda: broker.replicas.all()[0].standing is Standing.STRAY)
        trio.image = replace(trio.image, removals={ID: ReplicaRemoval(ID, (THREE,))})
        trio.show()
        await until(lambda: trio.members[THREE].cluster.removed == [ID])
        assert broker.replicas.get(ID) is None
        assert (await Client(trio, ONE).produce(batch_of(1))).base_offset == 1
        trio.image = replace(trio.image, removals={})
        trio.change(ID, replicas=(ONE, TWO, THREE))
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert core(trio, THREE).log_end == 2


async def test_an_order_for_a_replica_that_came_back_is_not_carried_out() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(1))
        trio.image = replace(trio.image, removals={ID: ReplicaRemoval(ID, (THREE,))})
        trio.show()
        await Client(trio, ONE).produce(batch_of(1))
        await until(lambda: core(trio, THREE).log_end == 2)
        assert trio.members[THREE].cluster.removed == []


async def test_a_replica_that_comes_back_while_it_is_deleted_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would open it again: the image that gave it back was taken in before its log was gone."""
    lower, deleting, returned = MemoryLogs.lower_evidence, asyncio.Event(), asyncio.Event()

    async def slowly(store: MemoryLogs, logs: Sequence[tuple[LogId, Offset, int]]) -> None:
        deleting.set()
        await returned.wait()
        await lower(store, logs)

    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(1))
        broker = trio.members[THREE].broker
        trio.change(ID, replicas=(ONE, TWO), isr=(ONE, TWO))
        await until(lambda: broker.replicas.all()[0].standing is Standing.STRAY)
        monkeypatch.setattr(MemoryLogs, "lower_evidence", slowly)
        trio.image = replace(trio.image, removals={ID: ReplicaRemoval(ID, (THREE,))})
        trio.show()
        await asyncio.wait_for(deleting.wait(), 5)
        trio.image = replace(trio.image, removals={})
        trio.change(ID, replicas=(ONE, TWO, THREE))
        await until(lambda: THREE in broker.replicas.image.partitions[ID].replicas)
        returned.set()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert core(trio, THREE).log_end == 1


async def test_a_replica_that_hears_of_its_move_before_its_leader_does_joins_though_nothing_is_written() -> None:
    """What it said before the leader knew of it is all that it says while the partition is at rest."""
    async with running_trio() as trio:
        trio.change(ID, replicas=(ONE, TWO), isr=(ONE, TWO))
        leader = trio.members[ONE].broker.replicas.get(ID)
        assert leader is not None
        await until(lambda: len(leader.sessions) == 1)
        trio.change(ID, replicas=(ONE, TWO, THREE), but=(ONE,))
        await until(lambda: len(leader.sessions) == 2)
        trio.show()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))


async def test_followers_begin_where_the_leaders_log_begins() -> None:
    async with running_trio() as trio:
        for _ in range(4):
            await Client(trio, ONE).produce(batch_of(2))
        [trimmed] = await trio.members[ONE].broker.trim([(ID, 5)])
        assert trimmed.log_start == 5
        await until(lambda: all(core(trio, broker).log_start == 5 for broker in (TWO, THREE)))
        assert all(core(trio, broker).first_batch == 4 for broker in (ONE, TWO, THREE))


async def test_a_new_leader_that_does_not_know_the_end_says_so_and_serves_what_it_knows() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(2))
        await until(lambda: core(trio, TWO).high_watermark == 2)
        await until(lambda: core(trio, THREE).log_end == 2)
        trio.cut.update((ONE, TWO))
        Client(trio, ONE).send(batch_of(1), acks=1)
        await until(lambda: core(trio, ONE).log_end == 3)
        trio.change(ID, leader=TWO, isr=(TWO, THREE))
        await until(lambda: core(trio, TWO).leader_epoch == 1)
        core(trio, TWO).high_watermark = Offset(1)  # what a follower knew a moment before
        ask = OffsetAsk(ID, -1, None, None)
        [latest] = await trio.members[TWO].broker.offsets.find([ask], 0)
        assert latest.error is not None
        assert latest.error.code is ErrorCode.OFFSET_NOT_AVAILABLE
        beyond = await fetch(trio, TWO, 2)
        assert (beyond.error, beyond.batches) == (None, []), "a consumer that was further waits; it is not sent back"
        trio.cut.clear()
        await until(lambda: core(trio, TWO).high_watermark == 2)
        [latest] = await trio.members[TWO].broker.offsets.find([ask], 0)
        assert (latest.error, latest.offset) == (None, 2)


async def test_a_consumer_hears_that_what_it_read_is_not_in_the_log_any_more() -> None:
    async with running_trio() as trio:
        await Client(trio, ONE).produce(batch_of(5))
        trio.cut.update((ONE, TWO))
        trio.change(ID, leader=TWO, isr=(TWO,), recovering=True)
        await until(lambda: core(trio, TWO).leader_epoch == 1)
        assert (await Client(trio, TWO).produce(batch_of(3), acks=1)).base_offset == 5
        ask = FetchAsk([FetchEntry(ID, Offset(6), 1 << 20, 1, last_epoch=0)], 0, 1 << 20, 0)
        [result] = await trio.members[TWO].broker.fetches.fetch(ask)
        assert result.parted == (0, 5)
        assert result.batches == []


async def test_a_batch_that_was_damaged_on_its_way_is_not_appended_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_trio() as trio:
        spoiled = 0

        def taken(*args: object, **kwargs: object) -> list[bytes] | None:
            nonlocal spoiled
            batches = take(*args, **kwargs)  # passed on as they came
            if batches and spoiled < 2:
                spoiled += 1
                return [batches[0][:-1] + bytes([batches[0][-1] ^ 1]), *batches[1:]]
            return batches

        tail = trio.members[ONE].broker.tail
        take = tail.take
        monkeypatch.setattr(tail, "take", taken)
        assert (await Client(trio, ONE).produce(batch_of(3))).error is None
        assert spoiled == 2
        await until(lambda: core(trio, TWO).high_watermark == 3)
        logs = [await fetch(trio, broker, 0, rack=f"rack-{broker}") for broker in (ONE, TWO)]
        assert logs[0].batches == logs[1].batches


def test_a_throttle_makes_the_next_request_wait_for_what_was_sent() -> None:
    rate = 1_000
    throttle = Throttle(lambda: rate)
    assert throttle.spend(500, now_ms=0) == 500
    assert throttle.spend(500, now_ms=500) == 500
    assert throttle.spend(500, now_ms=600) == 900
    assert throttle.spend(500, now_ms=10_000) == 500, "unused time is not saved up"
    rate = -1
    assert throttle.spend(10**9, now_ms=10_001) == 0


async def test_a_leader_that_was_deposed_sends_nothing_more_in_its_old_epoch() -> None:
    async with running_trio(tail_bytes=0) as trio:
        await Client(trio, ONE).produce(batch_of(2))
        session = trio.members[ONE].broker.replication.session()
        session.take(CopyAsk(NodeId(9), 1, [Position(ID, 0, 0, Offset(0), Offset(0), wants=True)]))
        trio.change(ID, leader=TWO, but=[])
        await until(lambda: core(trio, ONE).following is not None)
        answer = await session.answer()
        assert answer is not None
        assert [(one.batches, one.error is not None) for one in answer.partitions] == [([], True)]
        late = Position(ID, 0, 0, Offset(0), Offset(0), wants=True)
        session.take(CopyAsk(NodeId(9), 1, [late]))
        answer = await session.answer()
        assert answer is not None
        assert answer.partitions[0].error is not None
        session.end()


async def test_a_leader_that_lost_a_batch_which_others_have_stops_to_copy_the_log_anew() -> None:
    async with running_trio(tail_bytes=0) as trio:
        store = trio.members[ONE].store
        await Client(trio, ONE).produce(batch_of(2))
        log = core(trio, ONE).log
        store._live[log].batches[Offset(0)] = b"not it"
        assert isinstance((await fetch(trio, ONE, 0)).error, StorageFailed)
        await until(lambda: isinstance(trio.members[ONE].tasks.failure, StorageFailed))
        assert store.distrusted == [log]
        trio.members[ONE].tasks.failure = None


async def test_a_leader_whose_index_cannot_be_read_stops_to_copy_the_log_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(*_: object) -> Iterator[IndexRow]:
        raise BytesLost("a corrupt block")

    async with running_trio(tail_bytes=0) as trio:
        store = trio.members[ONE].store
        await Client(trio, ONE).produce(batch_of(2))
        monkeypatch.setattr(store, "index", corrupt)
        assert isinstance((await fetch(trio, ONE, 0)).error, StorageFailed)
        await until(lambda: isinstance(trio.members[ONE].tasks.failure, StorageFailed))
        assert store.distrusted == [core(trio, ONE).log]
        trio.members[ONE].tasks.failure = None


def shown_isr(trio: Trio) -> tuple[NodeId, ...]:
    leading = core(trio, ONE).leading
    assert leading is not None
    return leading.assignment.isr


async def test_a_leader_that_lost_a_batch_goes_on_where_no_other_is_in_sync() -> None:
    async with running_trio(tail_bytes=0) as trio:
        client, store = Client(trio, ONE), trio.members[ONE].store
        await client.produce(batch_of(2))
        trio.cut |= {TWO, THREE}
        trio.fence(TWO, THREE)
        trio.change(ID, isr=(ONE,))
        await until(lambda: set(shown_isr(trio)) == {ONE})
        store._live[core(trio, ONE).log].batches[Offset(0)] = b"not it"
        assert isinstance((await fetch(trio, ONE, 0)).error, StorageFailed)
        assert trio.members[ONE].broker.replication.lost._propose_resigning() == []
        assert store.distrusted == []
        assert (await client.produce(batch_of(1), acks=1)).error is None


async def test_a_leader_that_lost_a_batch_and_is_needed_has_another_lead_until_it_can_be_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third copies from the new leader what the old one could not give it; then the old one stops."""
    monkeypatch.setattr(lost_batches, "CHECK_MS", 10.0)
    async with running_trio(tail_bytes=0) as trio:
        client, store = Client(trio, ONE), trio.members[ONE].store
        await client.produce(batch_of(2))
        trio.cut.add(THREE)
        trio.fence(THREE)
        trio.change(ID, isr=(ONE, TWO))
        await until(lambda: set(shown_isr(trio)) == {ONE, TWO})
        store._live[core(trio, ONE).log].batches[Offset(0)] = b"not it"
        assert isinstance((await fetch(trio, ONE, 0)).error, StorageFailed)
        await until(lambda: trio.image.partitions[ID].leader == TWO)
        assert set(trio.image.partitions[ID].isr) == {ONE, TWO}, "it still counts"
        await until(lambda: core(trio, TWO).leading is not None)
        assert (await fetch(trio, TWO, 0)).error is None
        assert (await Client(trio, TWO).produce(batch_of(1))).error is None
        assert store.distrusted == []
        assert trio.members[ONE].tasks.failure is None
        trio.fence()
        trio.cut.clear()
        trio.show()
        await until(lambda: isinstance(trio.members[ONE].tasks.failure, StorageFailed))
        assert set(trio.image.partitions[ID].isr) == {ONE, TWO, THREE}
        assert store.distrusted == [core(trio, ONE).log]
        trio.members[ONE].tasks.failure = None


async def test_a_recovery_without_anybody_to_wait_for_is_ended_by_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_batches, "CHECK_MS", 10.0)
    async with running_trio(count=1) as trio:
        asked: list[tuple[PartitionId, Proposal]] = []
        cluster = trio.members[ONE].cluster

        async def alter(proposals: Sequence[tuple[PartitionId, Proposal]]) -> list[IsrDecision]:
            asked.extend(proposals)
            return [IsrDecision(trio.change(id, recovering=False)) for id, _ in proposals]

        monkeypatch.setattr(cluster, "alter_partitions", alter)
        now = trio.change(ID, recovering=True)
        await until(lambda: not trio.image.partitions[ID].recovering)
        assert asked == [(ID, Proposal(now.leader_epoch, now.partition_epoch, ((ONE, None),)))]


async def test_a_follower_has_one_session_and_its_newer_process_keeps_it() -> None:
    async with running_trio() as trio:
        replication = trio.members[ONE].broker.replication
        first, second, zombie = replication.session(), replication.session(), replication.session()
        first.take(CopyAsk(NodeId(9), 5))
        second.take(CopyAsk(NodeId(9), 6))
        assert first.ended
        first.take(CopyAsk(NodeId(9), 5, [Position(ID, 0, -1, Offset(0), Offset(0), wants=True)]))
        with pytest.raises(StaleBrokerEpoch):
            zombie.take(CopyAsk(NodeId(9), 5))
        assert not second.ended
        second.end()
