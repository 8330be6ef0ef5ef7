"""Three brokers' engines with a compacted topic: who goes on inside a gap, who begins anew, what follows a trim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import NOW_MS
from services.broker.tests.kit.standalone import topic_id_of
from services.broker.tests.kit.trio import Trio, running_trio, until

from headrace_broker.core.partition import Partition
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine import cleaner
from headrace_broker.engine.produce import ProduceEntry
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.ids import NodeId, Offset, PartitionId

ID = PartitionId(topic_id_of("t"), 0)
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "1024",
    "min.insync.replicas": "1",
}


def core(trio: Trio, broker: NodeId) -> Partition:
    replica = trio.members[broker].broker.replicas.get(ID)
    assert replica is not None
    return replica.core


@asynccontextmanager
async def compacted(*, tail_bytes: int = 1 << 20, **configs: str) -> AsyncIterator[Trio]:
    """Broker 1 leads alone; the others copy, and are not waited for."""
    async with running_trio(tail_bytes=tail_bytes) as trio:
        topic = trio.image.topics[ID.topic_id]
        named = {**CONFIGS, **{name.replace("_", "."): value for name, value in configs.items()}}
        trio.image = replace(trio.image, topics={**trio.image.topics, ID.topic_id: replace(topic, configs=named)})
        trio.show()
        await until(lambda: all(core(trio, broker).config.compacts for broker in (ONE, TWO, THREE)))
        yield trio


async def put(trio: Trio, key: bytes, value: bytes | None, broker: NodeId = ONE) -> None:
    session = trio.members[broker].broker.produce_session()
    batch = build_batch(RecordColumns([value], [key], timestamps_ms=NOW_MS))
    session.accept(1, 1, 30_000, [ProduceEntry(ID, batch, None)])
    await until(lambda: bool(session.answers))
    [result] = session.answers.popleft().results
    assert result is not None
    assert result.error is None


async def rounds(trio: Trio, count: int, keys: int = 3) -> None:
    for at in range(count):
        for key in range(keys):
            await put(trio, b"key-%d" % key, b"%d" % at)


async def alone(trio: Trio) -> None:
    """From now on the leader is not reached, and is in sync alone."""
    ends = core(trio, ONE).log_end
    await until(lambda: all(core(trio, broker).high_watermark == ends for broker in (TWO, THREE)))
    trio.cut.add(ONE)
    trio.change(ID, isr=(ONE,))
    await put(trio, b"key-0", b"alone")
    await until(lambda: core(trio, ONE).high_watermark == core(trio, ONE).log_end)


def rows(trio: Trio, broker: NodeId) -> list[IndexRow]:
    one = core(trio, broker)
    return list(trio.members[broker].store.index(one.log, Offset(0), one.log_end))


def table(trio: Trio, broker: NodeId) -> dict[bytes, bytes]:
    """What a reader from the start has in the end; that the log is dense."""
    found: dict[bytes, bytes] = {}
    batches = trio.members[broker].store._live[core(trio, broker).log].batches
    end = core(trio, broker).first_batch
    for row in rows(trio, broker):
        assert row.base_offset == end
        end = row.next_offset
        decoded = decode_batch(batches[row.base_offset])
        for key, value in zip(decoded.keys(), decoded.values(), strict=True):
            found.pop(key or b"", None)
            found |= {} if value is None else {key or b"": value}
    return found


def gaps(trio: Trio, broker: NodeId) -> list[range]:
    """Of more than one batch."""
    return [
        range(row.base_offset, row.next_offset)
        for row in rows(trio, broker)
        if row.record_count == 0 and row.last_offset_delta > 0
    ]


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
async def test_followers_go_on_inside_a_gap_of_the_leader(tail_bytes: int) -> None:
    async with compacted(tail_bytes=tail_bytes) as trio:
        await rounds(trio, 5)
        await alone(trio)
        await rounds(trio, 20)
        await until(lambda: core(trio, ONE).high_watermark == core(trio, ONE).log_end)
        assert await trio.members[ONE].broker.cleaner.look()
        end = core(trio, TWO).log_end
        assert any(gap.start < end < gap.stop for gap in gaps(trio, ONE)), "the followers end inside a gap"
        starts = [core(trio, broker).truncations for broker in (TWO, THREE)]
        trio.cut.clear()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        for broker in (TWO, THREE):
            assert core(trio, broker).log_end == core(trio, ONE).log_end
            assert table(trio, broker) == table(trio, ONE)
        assert [core(trio, broker).truncations for broker in (TWO, THREE)] == starts, "nobody began anew"


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
async def test_followers_that_were_away_while_a_deletion_went_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    monkeypatch.setattr(cleaner, "AWAY_MS_MIN", 0)
    async with compacted(tail_bytes=tail_bytes, delete_retention_ms="0") as trio:
        await put(trio, b"gone", b"for ever")
        await rounds(trio, 5)
        await alone(trio)
        await put(trio, b"gone", None)
        await rounds(trio, 20)
        await until(lambda: core(trio, ONE).high_watermark == core(trio, ONE).log_end)
        assert await trio.members[ONE].broker.cleaner.look()
        assert core(trio, ONE).forgotten_to > core(trio, TWO).log_end
        assert b"gone" in table(trio, TWO)
        trio.cut.clear()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        for broker in (TWO, THREE):
            assert table(trio, broker) == table(trio, ONE)
            assert b"gone" not in table(trio, broker)
            assert core(trio, broker).forgotten_to == core(trio, ONE).forgotten_to
            assert core(trio, broker).truncations == 1


async def test_deletions_wait_for_followers_that_were_there_a_moment_ago() -> None:
    async with compacted(delete_retention_ms="0") as trio:
        await put(trio, b"gone", b"for ever")
        await rounds(trio, 5)
        await alone(trio)
        await put(trio, b"gone", None)
        await rounds(trio, 20)
        await until(lambda: core(trio, ONE).high_watermark == core(trio, ONE).log_end)
        assert await trio.members[ONE].broker.cleaner.look()
        assert core(trio, ONE).forgotten_to == 0
        trio.cut.clear()
        await until(lambda: trio.image.partitions[ID].isr == (ONE, TWO, THREE))
        assert core(trio, TWO).truncations == 0
        assert b"gone" not in table(trio, TWO)


async def test_a_trim_into_a_gap_reaches_followers_who_drop_whole_batches() -> None:
    async with compacted() as trio:
        await rounds(trio, 20)
        end = core(trio, ONE).log_end
        await until(lambda: all(core(trio, broker).high_watermark == end for broker in (ONE, TWO, THREE)))
        for broker in (ONE, TWO):  # not the third, whose batches are as they were
            assert await trio.members[broker].broker.cleaner.look()
        gap = max(gaps(trio, ONE), key=len)
        middle = gap[len(gap) // 2]
        [trimmed] = await trio.members[ONE].broker.trim([(ID, middle)])
        assert trimmed.log_start == middle
        await until(lambda: all(core(trio, broker).log_start == middle for broker in (TWO, THREE)))
        for broker in (ONE, TWO, THREE):
            kept = rows(trio, broker)
            assert kept[0].base_offset == core(trio, broker).first_batch <= middle < kept[0].next_offset
            assert all(row.base_offset != each for each in range(gap.start) for row in kept)
            assert table(trio, broker) == table(trio, ONE)
        assert core(trio, THREE).first_batch == middle, "a replica that has not compacted has a batch of its own there"


async def test_a_new_leader_feeds_those_who_compacted_more_than_it_has() -> None:
    async with compacted() as trio:
        await rounds(trio, 20)
        end = core(trio, ONE).log_end
        await until(lambda: all(core(trio, broker).high_watermark == end for broker in (ONE, TWO, THREE)))
        assert await trio.members[ONE].broker.cleaner.look()
        trio.change(ID, leader=TWO)
        await until(lambda: core(trio, TWO).leader_epoch == 1)
        await put(trio, b"key-0", b"by two", TWO)
        await until(lambda: all(core(trio, broker).high_watermark == end + 1 for broker in (ONE, TWO, THREE)))
        assert len(rows(trio, ONE)) < len(rows(trio, TWO))
        assert table(trio, ONE) == table(trio, TWO) == table(trio, THREE)
