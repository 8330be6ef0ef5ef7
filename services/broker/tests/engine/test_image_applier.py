"""Following the image: which logs are made, led, set aside and deleted, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import BROKER_ID, image_of, topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.recovered import Damage
from headrace_broker.core.rows import DropLog, IndexRow, LogId, LogWrite
from headrace_broker.engine.image_applier import DELETION_RETRY_MS
from headrace_broker.engine.replicas import Replica, Standing
from headrace_common.core.errors import ErrorCode, MetadataUnavailable, StorageFailed
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Partition, ReplicaRemoval, TopicDeletion

ID = PartitionId(topic_id_of("t"), 0)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine({"t": 2}) as engine:
        yield engine


def replica_of(engine: Engine, number: int = 0, topic: str = "t") -> Replica:
    replica = engine.broker.replicas.get(PartitionId(topic_id_of(topic), number))
    assert replica is not None
    return replica


def with_partition(image: ClusterImage, number: int = 0, **changes: object) -> ClusterImage:
    partition_id = PartitionId(topic_id_of("t"), number)
    changed: Partition = replace(image.partitions[partition_id], **changes)  # names are its
    return replace(image, partitions={**image.partitions, partition_id: changed})


async def show(engine: Engine, image: ClusterImage) -> None:
    engine.cluster.show(image)
    await engine.settle()


async def error_of(engine: Engine, number: int = 0) -> ErrorCode | None:
    [result] = await engine.produce({number: batch_of(1)})
    return None if result.error is None else result.error.code


async def test_its_partitions_are_made_and_led(engine: Engine) -> None:
    assert [one.core.leader_epoch for one in engine.broker.replicas.all()] == [0, 0]
    assert replica_of(engine).standing is Standing.ONLINE


async def test_who_loses_the_lead_stops_and_who_gets_it_back_goes_on(engine: Engine) -> None:
    await engine.produce(batch_of(2))
    await show(engine, with_partition(engine.cluster.image, leader=NO_NODE, leader_epoch=1))
    assert await error_of(engine) is ErrorCode.LEADER_NOT_AVAILABLE
    await show(engine, with_partition(engine.cluster.image, leader=BROKER_ID, leader_epoch=2))
    [result] = await engine.produce(batch_of(1))
    assert result.base_offset == 2
    assert replica_of(engine).core.epochs.epoch_at(Offset(2)) == 2


async def test_a_partition_elsewhere_says_who_leads(engine: Engine) -> None:
    image = with_partition(engine.cluster.image, replicas=(NodeId(2),), leader=NodeId(2), leader_epoch=4)
    await show(engine, image)
    [result] = await engine.produce(batch_of(1))
    assert result.error is not None
    assert result.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.leader == (2, 4)
    assert replica_of(engine).standing is Standing.STRAY


async def test_nobody_begins_to_lead_while_fenced_or_before_this_very_process_is_seen() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        image = engine.cluster.image
        [key] = image.nodes
        fresh = image_of({"t": 2, "u": 1})
        fenced = replace(fresh, nodes={key: replace(fresh.nodes[key], fenced=True)})
        await show(engine, fenced)
        assert replica_of(engine, 0, "u").core.leader_epoch is None
        assert replica_of(engine).core.leader_epoch == 0, "it goes on with what it led"
        other = replace(fresh, nodes={key: replace(fresh.nodes[key], incarnation=b"o" * 16)})
        await show(engine, other)
        assert replica_of(engine, 0, "u").core.leader_epoch is None
        await show(engine, fresh)
        assert replica_of(engine, 0, "u").core.leader_epoch == 0


async def test_a_topic_is_served_once_it_is_complete(engine: Engine) -> None:
    whole = image_of({"t": 2, "u": 1})
    partitions_first = replace(whole, topics=engine.cluster.image.topics, topic_ids=engine.cluster.image.topic_ids)
    await show(engine, partitions_first)
    assert engine.broker.replicas.get(PartitionId(topic_id_of("u"), 0)) is None
    await show(engine, replace(whole, partitions=partitions_first.partitions))
    assert replica_of(engine, 0, "u").core.leader_epoch == 0


def without_topic(image: ClusterImage, *, order: bool) -> ClusterImage:
    deletion = TopicDeletion(topic_id_of("t"), "t", (BROKER_ID,))
    return replace(
        image, topics={}, topic_ids={}, partitions={}, deletions={deletion.topic_id: deletion} if order else {}
    )


async def test_a_log_that_is_missing_from_the_image_is_kept(engine: Engine) -> None:
    await engine.produce(batch_of(2))
    before = engine.cluster.image
    await show(engine, without_topic(before, order=False))
    assert replica_of(engine).standing is Standing.STRAY
    assert await error_of(engine) is ErrorCode.UNKNOWN_TOPIC_ID
    assert engine.cluster.confirmed == []
    await show(engine, before)
    [result] = await engine.produce(batch_of(1))
    assert result.base_offset == 2, "nothing was lost"


async def test_a_log_is_deleted_by_order_only_and_confirmed_after_it_is_gone(engine: Engine) -> None:
    await engine.produce(batch_of(2))
    await show(engine, without_topic(engine.cluster.image, order=True))
    await engine.settle()
    assert len(engine.broker.replicas) == 0
    assert engine.cluster.confirmed == [topic_id_of("t")]
    assert engine.store.reopen().list_recovered() == []


async def test_a_deletion_of_what_was_never_here_is_confirmed_too(engine: Engine) -> None:
    other = TopicId(b"o" * 16)
    image = replace(engine.cluster.image, deletions={other: TopicDeletion(other, "o", (BROKER_ID,))})
    await show(engine, image)
    assert engine.cluster.confirmed == [other]
    assert len(engine.broker.replicas) == 2


async def test_a_confirmation_that_failed_is_sent_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | None] = [MetadataUnavailable("etcd is away"), None]
    confirm = engine.cluster.confirm_deletions

    async def flaky(topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId]) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        await confirm(topic_ids)

    monkeypatch.setattr(engine.cluster, "confirm_deletions", flaky)
    await show(engine, without_topic(engine.cluster.image, order=True))
    assert engine.cluster.confirmed == []
    await engine.clock.advance(DELETION_RETRY_MS)
    assert engine.cluster.confirmed == [topic_id_of("t")]


async def test_producers_under_way_hear_that_their_topic_was_deleted(engine: Engine) -> None:
    engine.store.stalls = 1
    engine.send(batch_of(1))
    await engine.settle()
    engine.send(batch_of(1))
    engine.cluster.show(without_topic(engine.cluster.image, order=True))
    await engine.settle()
    await engine.clock.advance(1_000)
    codes = [result.error.code if result.error else None for _ in range(2) for result in (await engine.answer())[1]]
    assert all(code in {None, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER} for code in codes)
    assert codes[1] is not None


async def test_settings_change_while_running(engine: Engine) -> None:
    await show(engine, image_of({"t": 2}, configs={"t": {"max.message.bytes": "10"}}))
    assert await error_of(engine) is ErrorCode.MESSAGE_TOO_LARGE
    await show(engine, replace(image_of({"t": 2}), cluster_configs={"message.max.bytes": "20"}))
    assert await error_of(engine) is ErrorCode.MESSAGE_TOO_LARGE
    await show(engine, image_of({"t": 2}))
    assert await error_of(engine) is None


async def test_a_damaged_log_never_leads_until_the_loss_was_accepted() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        await engine.produce(batch_of(3))
        before = replica_of(engine).id
    again = store.reopen()
    damage = Damage(before, Offset(3), Offset(9), "the disk lied")
    again._recovered = [
        replace(log, damage=damage) if log.state.partition == before else log for log in again.list_recovered()
    ]
    damaged = next(log.log for log in again.list_recovered() if log.damage is not None)
    again._evidence[damaged] = Offset(9)
    async with running_engine(store=again) as engine:
        [result] = await engine.produce(batch_of(1))
        assert result.error is not None
        assert result.error.code is ErrorCode.REPLICA_DAMAGED
        assert "3 to 8" in str(result.error)
        assert replica_of(engine).standing is Standing.DAMAGED
        assert engine.broker.damaged == (before,)
        assert await error_of(engine, 1) is None
        await show(engine, with_partition(engine.cluster.image, recovering=True, leader_epoch=1, partition_epoch=1))
        assert again.evident_end(damaged) == 3, "or the next start would find it damaged again"
        assert engine.broker.damaged == (), "or joining again would take it offline again"
        [result] = await engine.produce(batch_of(1))
        assert result.base_offset == 3


async def test_a_damaged_log_that_cannot_be_read_stops_no_broker_and_is_not_written_to() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        await engine.produce(batch_of(3))
        hurt = replica_of(engine)
    again = store.reopen()
    damage = Damage(hurt.id, Offset(3), Offset(9), "its rows are not readable")
    again._recovered = [
        replace(log, damage=damage) if log.state.partition == hurt.id else log for log in again.list_recovered()
    ]
    floor, writes = again.floor, list[LogWrite]()

    def unreadable(log: LogId, offset: Offset) -> IndexRow | None:
        if log == hurt.core.log:
            raise StorageFailed("a corrupt block")
        return floor(log, offset)

    again.floor = unreadable  # a broken disk
    write = again.write

    def recorded(group: Sequence[LogWrite]) -> None:
        writes.extend(group)
        write(group)

    again.write = recorded  # a spy
    async with running_engine(store=again) as engine:
        assert replica_of(engine).standing is Standing.DAMAGED
        assert engine.broker.damaged == (hurt.id,)
        assert await error_of(engine, 1) is None
        await engine.broker.checkpoint()
    assert writes
    assert hurt.core.log not in {one.log for one in writes}


async def test_an_older_or_equal_word_about_the_epoch_writes_nothing(engine: Engine) -> None:
    written: list[LogWrite] = []
    write = engine.store.write

    def recorded(writes: Sequence[LogWrite]) -> None:
        written.extend(writes)
        write(writes)

    engine.store.write = recorded  # a spy
    await show(engine, with_partition(engine.cluster.image, partition_epoch=7))
    await show(engine, replace(engine.cluster.image, cluster_configs={"num.partitions": "3"}))
    assert written == []
    assert not any(isinstance(one, DropLog) for one in written)


# --- replicas that move away -----------------------------------------------------------------------------------------

ORDER = {ID: ReplicaRemoval(ID, (BROKER_ID,))}


def elsewhere(image: ClusterImage) -> ClusterImage:
    return with_partition(image, replicas=(NodeId(2),), leader=NodeId(2), leader_epoch=1)


async def test_a_replica_that_moved_away_is_deleted_by_order_only(engine: Engine) -> None:
    await engine.produce(batch_of(1))
    here = engine.cluster.image
    await show(engine, elsewhere(here))
    assert replica_of(engine).standing is Standing.STRAY
    await show(engine, replace(engine.cluster.image, removals=ORDER))
    assert engine.cluster.removed == [ID]
    assert engine.broker.replicas.get(ID) is None
    await show(engine, with_partition(here, leader_epoch=2))
    [result] = await engine.produce(batch_of(1))
    assert result.base_offset == 0, "it begins anew"


async def test_an_order_for_a_replica_that_came_back_is_not_carried_out(engine: Engine) -> None:
    await engine.produce(batch_of(1))
    await show(engine, replace(engine.cluster.image, removals=ORDER))
    [result] = await engine.produce(batch_of(1))
    assert result.base_offset == 1
    assert engine.cluster.removed == []


async def test_a_replica_that_comes_back_while_it_is_deleted_begins_anew(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would open it again: the image that gave it back was taken in before its log was gone."""
    lower, deleting, returned = MemoryLogs.lower_evidence, asyncio.Event(), asyncio.Event()

    async def slowly(store: MemoryLogs, logs: Sequence[tuple[LogId, Offset, int]]) -> None:
        deleting.set()
        await returned.wait()
        await lower(store, logs)

    await engine.produce(batch_of(1))
    here = engine.cluster.image
    await show(engine, elsewhere(here))
    monkeypatch.setattr(MemoryLogs, "lower_evidence", slowly)
    await show(engine, replace(engine.cluster.image, removals=ORDER))
    await asyncio.wait_for(deleting.wait(), 5)
    await show(engine, with_partition(here, leader_epoch=2))
    returned.set()
    await engine.settle()
    [result] = await engine.produce(batch_of(1))
    assert (result.error, result.base_offset) == (None, 0)
