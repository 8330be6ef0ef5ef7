"""Three brokers: copying, high watermarks, changes of leaders, ISR changes, reading from followers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import BROKER_ID, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_engine
from services.broker.tests.kit.trio import ALL, ONE, THREE, TWO, Trio, running_trio, until

from headrace_broker.config import BrokerConfig
from headrace_broker.core.copying import CopyAsk, Position
from headrace_broker.core.leadership import Proposal
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine import lost_batches
from headrace_broker.engine.fetch import FetchAsk, FetchEntry
from headrace_broker.engine.offsets import OffsetAsk
from headrace_broker.engine.replicas import Standing
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import BytesLost
from headrace_common.core.errors import ErrorCode, HeadraceError, StaleBrokerEpoch, StorageFailed
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId

COLD = BrokerConfig(flush="os", tail_cache_bytes=0)
"""All is read from the log."""


def code(error: HeadraceError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


@pytest.mark.parametrize("flush", ["os", "group", "always"])
async def test_all_replicas_hold_the_same_bytes_and_learn_the_high_watermark(
    flush: Literal["os", "group", "always"],
) -> None:
    async with running_trio(broker=BrokerConfig(flush=flush)) as trio:
        client = trio.client(ONE)
        for number in range(10):
            answer = await client.produce(batch_of(3))
            assert (answer.error, answer.base_offset) == (None, 3 * number)
        await until(lambda: all(trio.core(broker).high_watermark == 30 for broker in ALL))
        logs = [(await trio.fetch(broker, rack=f"rack-{broker}")).batches for broker in ALL]
        assert logs[0] == logs[1] == logs[2]
        assert len(logs[0]) == 10


async def test_nothing_is_acknowledged_before_every_in_sync_replica_holds_it() -> None:
    async with running_trio(broker=BrokerConfig(flush="group")) as trio:
        client = trio.client(ONE)
        await client.produce(batch_of(1))
        await asyncio.sleep(10)  # nothing is left to be synced
        gate = trio.store(THREE).sync_gate
        gate.clear()
        client.send(batch_of(1))
        await until(lambda: trio.core(TWO).written_end == 2 and trio.core(THREE).log_end == 2)
        await asyncio.sleep(1)
        assert not client.session.answers
        assert trio.core(ONE).high_watermark == 1
        gate.set()
        assert (await client.answer()).error is None


async def test_a_new_leader_goes_on_and_the_old_one_cuts_what_only_it_had() -> None:
    async with running_trio() as trio:
        await trio.client(ONE).produce(batch_of(2))
        await until(lambda: trio.core(TWO).log_end == 2 and trio.core(THREE).log_end == 2)
        trio.cut(ONE)
        alone = trio.client(ONE)
        alone.send(batch_of(5))
        assert (await trio.client(ONE).produce(batch_of(1), acks=1)).error is None
        trio.silence(ONE)
        await until(lambda: trio.now.leader_epoch == 1 and trio.core(TWO).leading is not None)
        answer = await trio.client(TWO).produce(batch_of(1))
        assert (answer.error, answer.base_offset) == (None, 2)
        assert trio.core(ONE).log_end == 8
        trio.cluster.heal()
        assert code((await alone.answer()).error) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: trio.core(ONE).high_watermark == 3)
        await until(trio.all_in_sync)
        assert await trio.stored(ONE) == await trio.stored(TWO)


async def test_too_few_in_sync_refuses_acks_all_and_tells_those_who_wait() -> None:
    async with running_trio(min_insync_replicas="2") as trio:
        client = trio.client(ONE)
        await client.produce(batch_of(1))
        trio.cut(ONE)
        client.send(batch_of(1))
        await until(lambda: trio.core(ONE).log_end == 2)
        for follower in (TWO, THREE):
            trio.silence(follower)
        assert code((await client.answer()).error) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert trio.now.isr == (ONE,)
        assert code((await client.produce(batch_of(1))).error) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert trio.core(ONE).log_end == 2
        assert (await client.produce(batch_of(1), acks=1)).error is None
        assert trio.core(ONE).high_watermark == 1, "nothing is committed by too few"
        trio.cluster.heal()
        await until(lambda: trio.core(ONE).high_watermark == 3)
        assert (await client.produce(batch_of(1))).error is None


async def test_a_batch_sent_again_to_the_new_leader_gets_its_first_offset() -> None:
    async with running_trio() as trio:
        batch = batch_of(3, producer_id=7, epoch=0, sequence=0)
        first = await trio.client(ONE).produce(batch)
        await trio.lead(TWO)
        again = await trio.client(TWO).produce(batch)
        assert (again.error, again.base_offset) == (None, first.base_offset)
        assert trio.core(TWO).log_end == 3


async def test_followers_serve_committed_records_only_and_name_what_they_do_not_know() -> None:
    async with running_trio() as trio:
        await trio.client(ONE).produce(batch_of(2))
        await until(lambda: trio.core(TWO).high_watermark == 2)
        nearer = await trio.fetch(ONE, rack="rack-2")
        assert (nearer.preferred, nearer.batches) == (TWO, [])
        entry = FetchEntry(trio.id, Offset(0), 1 << 20, None, from_leader=True)
        [here] = await trio.brokers[ONE].fetches.fetch(FetchAsk([entry], 0, 1 << 20, 0, "rack-2"))
        assert (here.preferred, len(here.batches)) == (None, 1)
        assert len((await trio.fetch(TWO, rack="rack-2")).batches) == 1
        assert code((await trio.fetch(TWO)).error) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code((await trio.fetch(TWO, 5, rack="rack-2")).error) is ErrorCode.OFFSET_NOT_AVAILABLE
        waiting = asyncio.ensure_future(trio.fetch(TWO, 2, rack="rack-2", wait_ms=5_000))
        await trio.client(ONE).produce(batch_of(1))
        assert len((await waiting).batches) == 1


async def test_without_a_leader_nobody_is_served_and_a_returning_one_leads_on() -> None:
    async with running_trio() as trio:
        await trio.client(ONE).produce(batch_of(1))
        await trio.lead(TWO)
        trio.cut(ONE)
        assert (await trio.client(TWO).produce(batch_of(1))).error is None, "once the first is out of the ISR"
        for broker in (THREE, TWO):
            trio.cluster.kill(broker)
        await until(lambda: trio.now.leader == NO_NODE)
        assert code((await trio.fetch(ONE, rack="rack-1")).error) is ErrorCode.LEADER_NOT_AVAILABLE
        trio.cluster.heal()
        await trio.restart(THREE, TWO)
        await until(trio.all_in_sync)
        leader = trio.now.leader
        assert (await trio.client(leader).produce(batch_of(1))).base_offset == 2


async def test_a_fenced_follower_does_not_join_and_joins_once_unfenced() -> None:
    async with running_trio() as trio:
        trio.silence(THREE)
        await until(lambda: THREE not in trio.now.isr)
        for _ in range(3):
            await trio.client(ONE).produce(batch_of(1))
        await until(lambda: trio.core(THREE).log_end == 3)
        await asyncio.sleep(10)
        assert set(trio.now.isr) == {ONE, TWO}
        trio.cluster.heal()
        await until(trio.all_in_sync)


async def test_many_partitions_share_one_stream_and_all_get_there() -> None:
    async with running_trio(partitions=40, broker=COLD) as trio:
        client = trio.client(ONE)
        for _ in range(5):
            for number in range(40):
                client.send(batch_of(2), id=PartitionId(trio.id.topic_id, number))
        for _ in range(200):
            assert (await client.answer()).error is None
        for broker in (TWO, THREE):
            await until(lambda broker=broker: all(trio.core(broker, n).high_watermark == 10 for n in range(40)))


async def test_a_damaged_log_is_kept_until_a_leader_serves_and_then_copied_anew() -> None:
    async with running_trio() as trio:
        await trio.client(ONE).produce(batch_of(4))
        await until(lambda: all(trio.core(broker).written_end == 4 for broker in ALL))
        for broker in (THREE, TWO, ONE):
            trio.cluster.kill(broker)
        trio.cluster.disk(THREE).rot()
        await trio.restart(THREE)
        await asyncio.sleep(10)
        hurt = trio.brokers[THREE]
        assert hurt.damaged == (trio.id,)
        await trio.restart(ONE, TWO)
        await until(lambda: trio.all_in_sync() and hurt.damaged == ())
        replica = hurt.replicas.get(trio.id)
        assert replica is not None
        assert replica.standing is Standing.ONLINE
        assert await trio.stored(ONE) == await trio.stored(THREE)


async def test_a_replica_that_hears_of_its_move_before_its_leader_does_joins_though_nothing_is_written() -> None:
    """What it said before the leader knew of it is all that it says while the partition is at rest."""
    async with running_trio() as trio:
        await trio.assign(ONE, TWO)
        await until(lambda: trio.brokers[THREE].replicas.get(trio.id) is None)
        leader = trio.brokers[ONE].replicas.get(trio.id)
        assert leader is not None
        await until(lambda: len(leader.sessions) == 1)
        trio.cluster.cut("controller-1", ONE, one_way=True)
        await trio.admin.alter_reassignments({("t", 0): [1, 2, 3]})
        await until(lambda: len(leader.sessions) == 2)
        assert THREE not in trio.brokers[ONE].replicas.image.partitions[trio.id].replicas
        trio.cluster.heal()
        await until(trio.all_in_sync)


async def test_followers_begin_where_the_leaders_log_begins() -> None:
    async with running_trio() as trio:
        for _ in range(4):
            await trio.client(ONE).produce(batch_of(2))
        [trimmed] = await trio.brokers[ONE].trim([(trio.id, Offset(5))])
        assert trimmed.log_start == 5
        await until(lambda: all(trio.core(broker).log_start == 5 for broker in (TWO, THREE)))
        assert all(trio.core(broker).first_batch == 4 for broker in ALL)


async def test_a_new_leader_that_does_not_know_the_end_says_so_and_serves_what_it_knows() -> None:
    async with running_trio() as trio:
        trio.cut(THREE)
        await trio.client(ONE).produce(batch_of(2), acks=1)
        await until(lambda: trio.core(TWO).log_end == 2)
        await trio.lead(TWO)
        ask = OffsetAsk(trio.id, -1, None, None)
        [latest] = await trio.brokers[TWO].offsets.find([ask], 0)
        assert code(latest.error) is ErrorCode.OFFSET_NOT_AVAILABLE
        beyond = await trio.fetch(TWO, 2)
        assert (beyond.error, beyond.batches) == (None, []), "a consumer that was further waits; it is not sent back"
        trio.cluster.heal()
        await until(lambda: trio.core(TWO).high_watermark == 2)
        [latest] = await trio.brokers[TWO].offsets.find([ask], 0)
        assert (latest.error, latest.offset) == (None, 2)


async def test_a_batch_that_was_damaged_on_its_way_is_not_appended_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_trio() as trio:
        spoiled = 0

        def taken(*args: Any, **kwargs: Any) -> list[bytes] | None:
            nonlocal spoiled
            batches = take(*args, **kwargs)
            if batches and spoiled < 2:
                spoiled += 1
                return [batches[0][:-1] + bytes([batches[0][-1] ^ 1]), *batches[1:]]
            return batches

        tail = trio.brokers[ONE].tail
        take = tail.take
        monkeypatch.setattr(tail, "take", taken)
        assert (await trio.client(ONE).produce(batch_of(3))).error is None
        assert spoiled == 2
        await until(lambda: trio.core(TWO).high_watermark == 3)
        assert await trio.stored(ONE) == await trio.stored(TWO)


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
    async with running_trio(broker=COLD) as trio:
        await trio.client(ONE).produce(batch_of(2))
        session = trio.brokers[ONE].replication.session()
        position = Position(trio.id, 0, 0, Offset(0), Offset(0), wants=True)
        session.take(CopyAsk(NodeId(9), 1, [position]))
        await trio.lead(TWO)
        await until(lambda: trio.core(ONE).following is not None)
        answer = await session.answer()
        assert answer is not None
        assert [(one.batches, one.error is not None) for one in answer.partitions] == [([], True)]
        session.take(CopyAsk(NodeId(9), 1, [position]))
        answer = await session.answer()
        assert answer is not None
        assert answer.partitions[0].error is not None
        session.end()


# --- leaders that lost a batch ----------------------------------------------------------------------------------------


def spoil(trio: Trio, broker: NodeId) -> None:
    """The first batch is not what was written."""
    trio.store(broker)._live[trio.core(broker).log].batches[Offset(0)] = b"not it"


async def stopped(trio: Trio, broker: NodeId) -> None:
    """It stops, as its storage failed."""
    await until(lambda: f"broker-{broker}" in trio.crashes)
    assert isinstance(trio.crashes.pop(f"broker-{broker}"), StorageFailed)


async def test_a_leader_that_lost_a_batch_which_others_have_stops_to_copy_the_log_anew() -> None:
    async with running_trio(broker=COLD) as trio:
        await trio.client(ONE).produce(batch_of(2))
        store, log = trio.store(ONE), trio.core(ONE).log
        spoil(trio, ONE)
        assert isinstance((await trio.fetch(ONE)).error, StorageFailed)
        await stopped(trio, ONE)
        assert store.distrusted == [log]
        await trio.restart(ONE)
        await until(lambda: trio.brokers[ONE].damaged == () and trio.all_in_sync())
        assert await trio.stored(ONE) == await trio.stored(TWO)


async def test_a_leader_whose_index_cannot_be_read_stops_to_copy_the_log_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(*_: object) -> Iterator[IndexRow]:
        raise BytesLost("a corrupt block")

    async with running_trio(broker=COLD) as trio:
        await trio.client(ONE).produce(batch_of(2))
        store, log = trio.store(ONE), trio.core(ONE).log
        monkeypatch.setattr(store, "index", corrupt)
        assert isinstance((await trio.fetch(ONE)).error, StorageFailed)
        await stopped(trio, ONE)
        assert store.distrusted == [log]


async def test_a_leader_that_lost_a_batch_goes_on_where_no_other_is_in_sync() -> None:
    async with running_trio(broker=COLD, min_insync_replicas="1") as trio:
        client = trio.client(ONE)
        await client.produce(batch_of(2))
        for follower in (TWO, THREE):
            trio.cluster.kill(follower)
        await until(lambda: trio.now.isr == (ONE,))
        spoil(trio, ONE)
        assert isinstance((await trio.fetch(ONE)).error, StorageFailed)
        await asyncio.sleep(60)
        assert trio.now.leader == ONE
        assert trio.store(ONE).distrusted == []
        assert (await client.produce(batch_of(1), acks=1)).error is None


async def test_a_leader_that_lost_a_batch_and_is_needed_has_another_lead_until_it_can_be_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third copies from the new leader what the old one could not give it; then the old one stops."""
    monkeypatch.setattr(lost_batches, "CHECK_MS", 10.0)
    async with running_trio(broker=COLD, min_insync_replicas="2") as trio:
        await trio.client(ONE).produce(batch_of(2))
        trio.cluster.kill(THREE)
        await until(lambda: set(trio.now.isr) == {ONE, TWO})
        store, log = trio.store(ONE), trio.core(ONE).log
        spoil(trio, ONE)
        assert isinstance((await trio.fetch(ONE)).error, StorageFailed)
        await until(lambda: trio.now.leader == TWO and trio.core(TWO).leading is not None)
        assert set(trio.now.isr) == {ONE, TWO}, "it still counts"
        assert (await trio.fetch(TWO)).error is None
        assert (await trio.client(TWO).produce(batch_of(1))).error is None
        assert store.distrusted == []
        assert not trio.crashes
        await trio.restart(THREE)
        await stopped(trio, ONE)
        assert store.distrusted == [log]
        await trio.restart(ONE)
        await until(lambda: trio.brokers[ONE].damaged == () and trio.all_in_sync())
        assert await trio.stored(ONE) == await trio.stored(TWO)


# --- one engine -------------------------------------------------------------------------------------------------------

ID = PartitionId(topic_id_of("t"), 0)


async def test_a_recovery_without_anybody_to_wait_for_is_ended_by_the_leader() -> None:
    image = image_of({"t": 1})
    recovering = replace(image.partitions[ID], recovering=True)
    async with running_engine(image=replace(image, partitions={ID: recovering})) as engine:
        await engine.clock.advance(lost_batches.CHECK_MS)
        await engine.settle()
        ended = Proposal(recovering.leader_epoch, recovering.partition_epoch, ((BROKER_ID, None),))
        assert engine.cluster.proposed == [(ID, ended)]


async def test_a_follower_has_one_session_and_its_newer_process_keeps_it() -> None:
    async with running_engine({"t": 1}) as engine:
        replication = engine.broker.replication
        first, second, zombie = replication.session(), replication.session(), replication.session()
        first.take(CopyAsk(NodeId(9), 5))
        second.take(CopyAsk(NodeId(9), 6))
        assert first.ended
        first.take(CopyAsk(NodeId(9), 5, [Position(ID, 0, -1, Offset(0), Offset(0), wants=True)]))
        with pytest.raises(StaleBrokerEpoch):
            zombie.take(CopyAsk(NodeId(9), 5))
        assert not second.ended
        second.end()
