"""Three brokers' engines with a compacted topic: who goes on inside a gap, who begins anew, what follows a trim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import NOW_MS
from services.broker.tests.kit.trio import ONE, THREE, TWO, Trio, running_trio, until

from headrace_broker.config import BrokerConfig
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine import cleaner
from headrace_broker.engine.image_applier import ImageApplier
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.configs import TopicConfig
from headrace_common.core.ids import NodeId, Offset, TopicId
from headrace_common.core.image import ClusterImage

CONFIGS = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "min_insync_replicas": "1",
}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold a few batches."""
    config = ImageApplier._config

    def small(applier: ImageApplier, image: ClusterImage, topic_id: TopicId) -> TopicConfig:
        return replace(config(applier, image, topic_id), segment_bytes=1_024)

    monkeypatch.setattr(ImageApplier, "_config", small)


@asynccontextmanager
async def compacted(*, tail_bytes: int = 1 << 20, **configs: str) -> AsyncIterator[Trio]:
    """Broker 1 leads; nothing is compacted but by ``compact``."""
    broker = BrokerConfig(flush="os", tail_cache_bytes=tail_bytes)
    async with running_trio(broker=broker, **{**CONFIGS, **configs}) as trio:
        for each in trio.brokers.values():
            each.cleaner.drain()
        yield trio


async def compact(trio: Trio, broker: NodeId) -> None:
    cleaner = trio.brokers[broker].cleaner
    cleaner._draining = False
    assert await cleaner.look()


async def put(trio: Trio, key: bytes, value: bytes | None, broker: NodeId = ONE) -> None:
    batch = build_batch(RecordColumns([value], [key], timestamps_ms=NOW_MS))
    assert (await trio.client(broker).produce(batch, acks=1)).error is None


async def rounds(trio: Trio, count: int, keys: int = 3) -> None:
    for at in range(count):
        for key in range(keys):
            await put(trio, b"key-%d" % key, b"%d" % at)


async def alone(trio: Trio) -> None:
    """From now on the leader is not reached, and is in sync alone."""
    ends = trio.core(ONE).log_end
    await until(lambda: all(trio.core(broker).high_watermark == ends for broker in (TWO, THREE)))
    trio.cut(ONE)
    await put(trio, b"key-0", b"alone")
    await until(lambda: trio.core(ONE).high_watermark == trio.core(ONE).log_end)


def rows(trio: Trio, broker: NodeId) -> list[IndexRow]:
    one = trio.core(broker)
    return list(trio.store(broker).index(one.log, Offset(0), one.log_end))


def table(trio: Trio, broker: NodeId) -> dict[bytes, bytes]:
    """What a reader from the start has in the end; that the log is dense."""
    found: dict[bytes, bytes] = {}
    batches = trio.store(broker)._live[trio.core(broker).log].batches
    end = trio.core(broker).first_batch
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
        await until(lambda: trio.core(ONE).high_watermark == trio.core(ONE).log_end)
        await compact(trio, ONE)
        end = trio.core(TWO).log_end
        assert any(gap.start < end < gap.stop for gap in gaps(trio, ONE)), "the followers end inside a gap"
        starts = [trio.core(broker).truncations for broker in (TWO, THREE)]
        trio.cluster.heal()
        await until(trio.all_in_sync)
        for broker in (TWO, THREE):
            assert trio.core(broker).log_end == trio.core(ONE).log_end
            assert table(trio, broker) == table(trio, ONE)
        assert [trio.core(broker).truncations for broker in (TWO, THREE)] == starts, "nobody began anew"


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
        await until(lambda: trio.core(ONE).high_watermark == trio.core(ONE).log_end)
        await compact(trio, ONE)
        assert trio.core(ONE).forgotten_to > trio.core(TWO).log_end
        assert b"gone" in table(trio, TWO)
        trio.cluster.heal()
        await until(trio.all_in_sync)
        for broker in (TWO, THREE):
            assert table(trio, broker) == table(trio, ONE)
            assert b"gone" not in table(trio, broker)
            assert trio.core(broker).forgotten_to == trio.core(ONE).forgotten_to
            assert trio.core(broker).truncations == 1


async def test_deletions_wait_for_followers_that_were_there_a_moment_ago() -> None:
    async with compacted(delete_retention_ms="0") as trio:
        await put(trio, b"gone", b"for ever")
        await rounds(trio, 5)
        await alone(trio)
        await put(trio, b"gone", None)
        await rounds(trio, 20)
        await until(lambda: trio.core(ONE).high_watermark == trio.core(ONE).log_end)
        await compact(trio, ONE)
        assert trio.core(ONE).forgotten_to == 0
        trio.cluster.heal()
        await until(trio.all_in_sync)
        assert trio.core(TWO).truncations == 0
        assert b"gone" not in table(trio, TWO)


async def test_a_trim_into_a_gap_reaches_followers_who_drop_whole_batches() -> None:
    async with compacted() as trio:
        await rounds(trio, 20)
        end = trio.core(ONE).log_end
        await until(lambda: all(trio.core(broker).high_watermark == end for broker in (ONE, TWO, THREE)))
        for broker in (ONE, TWO):  # not the third, whose batches are as they were
            await compact(trio, broker)
        gap = max(gaps(trio, ONE), key=len)
        middle = gap[len(gap) // 2]
        [trimmed] = await trio.brokers[ONE].trim([(trio.id, Offset(middle))])
        assert trimmed.log_start == middle
        await until(lambda: all(trio.core(broker).log_start == middle for broker in (TWO, THREE)))
        for broker in (ONE, TWO, THREE):
            kept = rows(trio, broker)
            assert kept[0].base_offset == trio.core(broker).first_batch <= middle < kept[0].next_offset
            assert all(row.base_offset != each for each in range(gap.start) for row in kept)
            assert table(trio, broker) == table(trio, ONE)
        assert trio.core(THREE).first_batch == middle, "a replica that has not compacted has a batch of its own there"


async def test_a_new_leader_feeds_those_who_compacted_more_than_it_has() -> None:
    async with compacted() as trio:
        await rounds(trio, 20)
        end = trio.core(ONE).log_end
        await until(lambda: all(trio.core(broker).high_watermark == end for broker in (ONE, TWO, THREE)))
        await compact(trio, ONE)
        await trio.lead(TWO)
        await put(trio, b"key-0", b"by two", TWO)
        await until(lambda: all(trio.core(broker).high_watermark == end + 1 for broker in (ONE, TWO, THREE)))
        assert len(rows(trio, ONE)) < len(rows(trio, TWO))
        assert table(trio, ONE) == table(trio, TWO) == table(trio, THREE)
