"""Notes of topics and the inventory: what is on disk when, and what is said of it, before there is any image too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import BROKER_ID, image_of, topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.core.recovered import Damage
from headrace_broker.core.rows import LogWrite, PutState
from headrace_broker.core.topic_notes import NoteChanges, TopicNote
from headrace_broker.engine.broker import Broker
from headrace_broker.engine.inventory import PAGE_ENTRIES, HeldLog, Page
from headrace_broker.engine.replicas import Standing
from headrace_common.core.errors import Rejected, StorageFailed
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, ReplicaRemoval, TopicDeletion

ELSEWHERE = NodeId(2)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine({"t": 2}) as engine:
        yield engine


async def show(engine: Engine, image: ClusterImage) -> None:
    engine.cluster.show(image)
    await engine.settle()


def noted(engine: Engine) -> dict[str, tuple[int, dict[str, str], int]]:
    """Partition count, settings and revision by name."""
    notes = engine.notes.present.values()
    return {one.topic.name: (one.topic.partition_count, dict(one.topic.configs), one.revision) for one in notes}


async def pages(broker: Broker, *topics: TopicId) -> list[Page]:
    return [page async for page in broker.inventory(topics)]


async def held(broker: Broker, *topics: TopicId) -> dict[PartitionId, HeldLog]:
    return {log.id: log for page in await pages(broker, *topics) for log in page.logs}


def unled(image: ClusterImage, **changes: object) -> ClusterImage:
    partitions = {
        id: replace(one, leader=NO_NODE, isr=(), leader_epoch=one.leader_epoch + 1, **changes)
        for id, one in image.partitions.items()
    }
    return replace(image, partitions=partitions)


# --- notes ------------------------------------------------------------------------------------------------


async def test_a_topic_is_noted_before_its_first_log_is_made_and_once_per_image(engine: Engine) -> None:
    order = list[str]()
    keep, write = engine.notes.keep, engine.store.write

    async def spied(changes: NoteChanges) -> None:
        await keep(changes)
        order.append("note")

    def written(group: Sequence[LogWrite]) -> None:
        order.extend("log" for one in group if isinstance(one, PutState))
        write(group)

    engine.notes.keep = spied  # a spy
    engine.store.write = written  # a spy
    await show(engine, image_of({"t": 2, "u": 2, "v": 1}))
    assert order == ["note", "log", "log", "log"]
    assert [len(changes.noted) for changes in engine.notes.kept] == [1, 2]


async def test_only_what_changed_is_noted(engine: Engine) -> None:
    assert noted(engine) == {"t": (2, {}, 1)}
    await show(engine, replace(engine.cluster.image, cluster_configs={"message.max.bytes": "20"}))
    await show(engine, image_of({"t": 2}))
    assert noted(engine) == {"t": (2, {}, 1)}, "nothing new is said of it"
    await show(engine, image_of({"t": 3}, configs={"t": {"retention.ms": "7"}}))
    assert noted(engine) == {"t": (3, {"retention.ms": "7"}, 4)}
    assert len(engine.notes.kept) == 2


async def test_topics_without_logs_here_are_not_noted(engine: Engine) -> None:
    image = image_of({"t": 2, "u": 1})
    away = {
        id: replace(one, replicas=(ELSEWHERE,), leader=ELSEWHERE) if id.topic_id == topic_id_of("u") else one
        for id, one in image.partitions.items()
    }
    await show(engine, replace(image, partitions=away))
    assert noted(engine).keys() == {"t"}


async def test_a_stray_keeps_its_note_and_loses_it_with_its_last_log(engine: Engine) -> None:
    gone = replace(engine.cluster.image, topics={}, topic_ids={}, partitions={})
    await show(engine, gone)
    assert noted(engine) == {"t": (2, {}, 1)}
    order = TopicDeletion(topic_id_of("t"), "t", (BROKER_ID,))
    await show(engine, replace(gone, deletions={order.topic_id: order}))
    assert len(engine.broker.replicas) == 0
    assert noted(engine) == {}


async def test_a_topic_that_keeps_one_log_here_keeps_its_note(engine: Engine) -> None:
    moved = PartitionId(topic_id_of("t"), 0)
    image = engine.cluster.image
    elsewhere = replace(image.partitions[moved], replicas=(ELSEWHERE,), leader=ELSEWHERE, leader_epoch=1)
    removal = ReplicaRemoval(moved, (BROKER_ID,))
    await show(
        engine,
        replace(image, partitions={**image.partitions, moved: elsewhere}, removals={moved: removal}),
    )
    assert engine.cluster.removed == [moved]
    assert len(engine.broker.replicas) == 1
    assert noted(engine).keys() == {"t"}


async def test_a_broker_that_has_no_notes_yet_writes_them_with_its_first_image() -> None:
    store = MemoryLogs()
    async with running_engine({"t": 2, "u": 1}, store=store):
        pass
    async with running_engine({"t": 2, "u": 1}, store=store.reopen()) as engine:
        assert noted(engine) == {"t": (2, {}, 1), "u": (1, {}, 1)}
        assert len(engine.notes.kept) == 1


@pytest.mark.parametrize("deleting", [False, True])
async def test_a_disk_that_refuses_stops_the_broker_and_nothing_is_acknowledged_any_more(deleting: bool) -> None:
    async with running_engine({"t": 1}, fails=True) as engine:
        engine.notes.failure = StorageFailed("the disk refused the notes")
        image = image_of({"t": 1, "u": 1})
        if deleting:
            order = TopicDeletion(topic_id_of("t"), "t", (BROKER_ID,))
            image = replace(image, topics={}, topic_ids={}, partitions={}, deletions={order.topic_id: order})
        await show(engine, image)
        assert engine.tasks.failure is engine.notes.failure
        assert engine.broker.loop.failure is engine.notes.failure
        assert [
            one for one in engine.store.reopen().list_recovered() if one.state.partition.topic_id != topic_id_of("t")
        ] == []


# --- metadata that was restored ---------------------------------------------------------------------------


def restored_image(partitions: int = 1) -> ClusterImage:
    """From a backup of when the topic was younger: another incarnation, a lower revision, nobody leads."""
    return unled(replace(image_of({"t": partitions}), incarnation=b"r" * 16))


async def stopped_with_newer_notes() -> tuple[MemoryLogs, MemoryTopicNotes]:
    store, notes = MemoryLogs(), MemoryTopicNotes()
    async with running_engine({"t": 3}, configs={"t": {"retention.ms": "7"}}, store=store, notes=notes) as engine:
        for _ in range(5):
            await show(engine, replace(engine.cluster.image))
        await engine.produce({0: batch_of(4), 2: batch_of(2)})
    return store.reopen(), notes.reopen()


async def test_an_older_backup_does_not_overwrite_what_brokers_noted_before_somebody_leads() -> None:
    store, notes = await stopped_with_newer_notes()
    before = dict(notes.present)
    async with running_engine(store=store, notes=notes, image=restored_image()) as engine:
        assert notes.present == before
        assert {id.partition for id in await held(engine.broker)} == {0, 1, 2}
        decided = replace(image_of({"t": 3}, leader_epoch=9), incarnation=b"r" * 16)
        await show(engine, decided)
        [note] = notes.present.values()
        assert note == TopicNote(decided.topics[topic_id_of("t")], b"r" * 16, engine.cluster.image.revision)


async def test_a_removal_that_came_with_a_backup_deletes_nothing_before_somebody_leads() -> None:
    """A replica that was given back after the backup would be deleted by the order to remove it before."""
    store, notes = await stopped_with_newer_notes()
    image = restored_image(3)
    moved = PartitionId(topic_id_of("t"), 0)
    elsewhere = replace(image.partitions[moved], replicas=(ELSEWHERE,))
    image = replace(
        image,
        partitions={**image.partitions, moved: elsewhere},
        removals={moved: ReplicaRemoval(moved, (BROKER_ID,))},
    )
    async with running_engine(store=store, notes=notes, image=image) as engine:
        await engine.settle()
        assert (await held(engine.broker))[moved].written_end == 4
        assert engine.cluster.removed == []
        led = {
            id: replace(one, leader=one.replicas[0], isr=one.replicas[:1], leader_epoch=9)
            for id, one in image.partitions.items()
        }
        await show(engine, replace(image, partitions=led))
        assert engine.cluster.removed == [moved], "an order of metadata that is in force is carried out"


async def test_a_deletion_that_came_with_a_backup_is_final() -> None:
    store, notes = await stopped_with_newer_notes()
    order = TopicDeletion(topic_id_of("t"), "t", (BROKER_ID,))
    image = replace(restored_image(), topics={}, topic_ids={}, partitions={}, deletions={order.topic_id: order})
    async with running_engine(store=store, notes=notes, image=image) as engine:
        await engine.settle()
        assert engine.cluster.confirmed == [order.topic_id]
        assert await pages(engine.broker) == []
        assert notes.present == {}


# --- the inventory ----------------------------------------------------------------------------------------


async def test_every_log_is_told_with_its_end_and_epochs_strays_too(engine: Engine) -> None:
    await engine.produce({0: batch_of(3)})
    await show(engine, replace(engine.cluster.image, topics={}, topic_ids={}, partitions={}))
    [page] = await pages(engine.broker)
    first, second = (PartitionId(topic_id_of("t"), number) for number in range(2))
    assert page.logs == [
        HeldLog(first, 0, Offset(3), damaged=False, known_epoch=0, fencing_token=None),
        HeldLog(second, -1, Offset(0), damaged=False, known_epoch=0, fencing_token=None),
    ]
    assert [note.topic.name for note in page.topics] == ["t"]


async def test_it_is_answered_before_there_is_an_image_and_a_log_that_nobody_led_knows_no_epoch() -> None:
    store, notes = await stopped_with_newer_notes()
    async with running_engine(store=store, notes=notes, image=None) as engine:
        logs = await held(engine.broker)
        assert {id.partition: (log.last_epoch, log.written_end) for id, log in logs.items()} == {
            0: (0, 4),
            1: (-1, 0),
            2: (0, 2),
        }
        [page] = await pages(engine.broker)
        assert [(note.topic.partition_count, note.revision) for note in page.topics] == [(3, 1)]
    async with running_engine(image=unled(image_of({"t": 1}))) as engine:
        [log] = (await held(engine.broker)).values()
        assert (log.known_epoch, log.last_epoch, log.written_end) == (-1, -1, 0)


async def test_a_log_without_a_note_is_told_alone() -> None:
    store, _ = await stopped_with_newer_notes()
    async with running_engine(store=store, image=None) as engine:
        [page] = await pages(engine.broker)
        assert (len(page.topics), len(page.logs)) == (0, 3)


async def test_damaged_logs_are_told_and_those_being_deleted_are_not() -> None:
    store, notes = await stopped_with_newer_notes()
    hurt = PartitionId(topic_id_of("t"), 0)
    store._recovered = [
        replace(log, damage=Damage(hurt, Offset(4), Offset(9), "the disk lied")) if log.state.partition == hurt else log
        for log in store.list_recovered()
    ]
    async with running_engine(store=store, notes=notes, image=None) as engine:
        logs = await held(engine.broker)
        assert [id.partition for id, log in logs.items() if log.damaged] == [0]
        doomed = engine.broker.replicas.get(PartitionId(topic_id_of("t"), 2))
        assert doomed is not None
        doomed.standing = Standing.DELETING
        assert sorted(id.partition for id in await held(engine.broker)) == [0, 1]


async def test_only_what_is_down_by_the_flush_policy_counts(engine: Engine) -> None:
    await engine.produce({0: batch_of(3)})
    engine.store.stalls = 1_000_000
    engine.send({0: batch_of(2)})
    await engine.settle()
    log = (await held(engine.broker))[PartitionId(topic_id_of("t"), 0)]
    replica = engine.broker.replicas.get(log.id)
    assert replica is not None
    assert (replica.core.log_end, log.written_end) == (5, 3)


async def test_only_the_topics_asked_for_once_each(engine: Engine) -> None:
    await show(engine, image_of({"t": 2, "u": 1}))
    u, nothing = topic_id_of("u"), TopicId(b"n" * 16)
    [page] = await pages(engine.broker, u, nothing, u, TopicId(b""))
    assert [note.topic.name for note in page.topics] == ["u"]
    assert [log.id for log in page.logs] == [PartitionId(u, 0)]
    assert await pages(engine.broker, nothing) == []


async def test_a_log_that_waits_for_its_note_is_told_when_the_note_is_there(engine: Engine) -> None:
    keep, goes_on = engine.notes.keep, asyncio.Event()

    async def slow(changes: NoteChanges) -> None:
        await goes_on.wait()
        await keep(changes)

    engine.notes.keep = slow  # a slow disk
    engine.cluster.show(image_of({"t": 2, "u": 1}))
    await engine.settle()
    asked = asyncio.create_task(pages(engine.broker, topic_id_of("u")))
    await engine.settle()
    assert not asked.done()
    goes_on.set()
    [page] = await asked
    assert ([note.topic.name for note in page.topics], len(page.logs)) == (["u"], 1)


async def test_too_many_topics_are_refused(engine: Engine) -> None:
    with pytest.raises(Rejected, match="10001 topics; 10000 is the most"):
        await pages(engine.broker, *(TopicId(bytes(16)) for _ in range(10_001)))


async def test_others_have_their_turn_between_pages_and_what_goes_meanwhile_is_left_out() -> None:
    count = 2 * PAGE_ENTRIES
    async with running_engine({"t": count}) as engine:
        found: list[Page] = []
        turns = list[int]()

        async def another() -> None:
            while True:
                turns.append(len(found))
                await asyncio.sleep(0)

        other = asyncio.create_task(another())
        async for page in engine.broker.inventory(()):
            found.append(page)
            if len(found) == 1:
                for number in (count - 1, count - 2):
                    replica = engine.broker.replicas.get(PartitionId(topic_id_of("t"), number))
                    assert replica is not None
                    engine.broker.replicas.remove(replica)
        other.cancel()
        assert 1 in turns, "between the first and the second page"
        assert [len(page) for page in found] == [PAGE_ENTRIES, PAGE_ENTRIES - 1]
        told = [log.id.partition for page in found for log in page.logs]
        assert sorted(told) == list(range(count - 2))
