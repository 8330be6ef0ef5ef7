"""A scrub finds what nobody reads, goes on, and takes its time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine
from services.broker.tests.kit.trio import ONE, TWO, running_trio, until

from headrace_broker.config import BrokerConfig
from headrace_broker.core.rows import LogId
from headrace_broker.engine import scrubber
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.scrubber import FIRST_MS, Scrub
from headrace_broker.rpc import encode_logs
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset, PartitionId

FAST = {"log.scrub.max.bytes.per.second": str(1 << 40)}


@asynccontextmanager
async def running(configs: dict[str, str]) -> AsyncIterator[Engine]:
    async with running_engine({"t": 2}) as engine:
        engine.cluster.show(replace(engine.cluster.image, cluster_configs=configs))
        await engine.settle()
        yield engine


def replica(engine: Engine, partition: int = 0) -> Replica:
    found = engine.broker.replicas.get(PartitionId(topic_id_of("t"), partition))
    assert found is not None
    return found


def spoil(engine: Engine, log: LogId, offset: int) -> None:
    engine.store._live[log].batches[Offset(offset)] = b"not it"


async def a_pass(engine: Engine) -> Scrub:
    await engine.clock.advance(FIRST_MS + 2_000)
    await engine.settle()
    return engine.broker.scrub()


async def test_a_pass_reads_every_batch_of_every_log() -> None:
    async with running(FAST) as engine:
        for _ in range(3):
            await engine.produce({0: batch_of(2), 1: batch_of(1)})
        before = engine.broker.scrub()
        done = await a_pass(engine)
    assert before == Scrub(False, 0, 0, 0, 0, None)
    size = 3 * (len(batch_of(2)) + len(batch_of(1)))
    assert (done.running, done.logs, done.logs_done, done.bytes_read, done.lost) == (False, 2, 2, size, 0)
    assert done.last_ended_ms is not None
    assert encode_logs.scrub(done).last_ended_ms == done.last_ended_ms


async def test_what_is_lost_is_told_and_the_other_logs_are_read() -> None:
    async with running(FAST) as engine:
        await engine.produce({0: batch_of(1), 1: batch_of(1)})
        await engine.produce({0: batch_of(1), 1: batch_of(1)})
        spoil(engine, replica(engine).core.log, 1)
        told: list[tuple[Replica, StorageFailed]] = []
        engine.broker.replication.lost.on_lost_batch = lambda replica, error: told.append((replica, error))  # type: ignore[method-assign]
        engine.broker.scrubber._cold.on_lost = engine.broker.replication.lost.on_lost_batch
        done = await a_pass(engine)
        assert [(found.id.partition, "offset 1" in str(error)) for found, error in told] == [(0, True)]
    assert (done.logs_done, done.lost, done.bytes_read >= 2 * len(batch_of(1))) == (2, 1, True)


async def test_it_reads_no_faster_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "CHUNK_BYTES", 1)
    size = len(batch_of(1))
    async with running({"log.scrub.max.bytes.per.second": "1024"}) as engine:
        for _ in range(40):
            await engine.produce(batch_of(1))
        await engine.clock.advance(FIRST_MS + 1_000)
        begun = engine.broker.scrub()
        await engine.clock.advance(1_000)
        later = engine.broker.scrub()
        await engine.clock.advance(120_000)
        done = engine.broker.scrub()
    assert begun.running
    assert 0 < later.bytes_read - begun.bytes_read <= 1024 + size
    assert (done.running, done.bytes_read) == (False, 40 * size)


async def test_it_can_be_turned_off_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "CHUNK_BYTES", 1)
    async with running({"log.scrub.max.bytes.per.second": "1024"}) as engine:
        for _ in range(20):
            await engine.produce({0: batch_of(1), 1: batch_of(1)})
        await engine.clock.advance(FIRST_MS + 1_000)
        image = engine.cluster.image
        engine.cluster.show(replace(image, cluster_configs={**image.cluster_configs, "log.scrub.enable": "false"}))
        await engine.settle()
        await engine.clock.advance(2_000)
        stopped = engine.broker.scrub()
        await engine.clock.advance(60_000)
        assert engine.broker.scrub().bytes_read == stopped.bytes_read
        engine.cluster.show(replace(image, cluster_configs=FAST))
        await engine.settle()
        await engine.clock.advance(5_000)
        done = engine.broker.scrub()
    assert (stopped.running, stopped.last_ended_ms) == (True, None)
    assert (done.running, done.logs_done) == (False, 2)


async def test_a_log_that_is_trimmed_or_stray_does_not_end_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "CHUNK_BYTES", 1)
    async with running({"log.scrub.max.bytes.per.second": "1024"}) as engine:
        for _ in range(20):
            await engine.produce({0: batch_of(1), 1: batch_of(1)})
        await engine.clock.advance(FIRST_MS + 1_000)
        await engine.broker.trim([(replica(engine, each).id, 18) for each in (0, 1)])
        replica(engine, 1).standing = Standing.STRAY
        await engine.clock.advance(60_000)
        done = engine.broker.scrub()
    assert (done.running, done.logs_done, done.lost) == (False, 2, 0)


async def test_the_next_pass_comes_after_the_interval() -> None:
    async with running({**FAST, "log.scrub.interval.ms": "20000"}) as engine:
        await engine.produce(batch_of(1))
        await engine.clock.advance(21_000)
        first = engine.broker.scrub()
        await engine.clock.advance(15_000)
        assert (engine.broker.scrub(), engine.broker.measures.scrub_passes) == (first, 1)
        await engine.clock.advance(10_000)
        assert engine.broker.measures.scrub_passes == 2


async def test_a_broker_that_stops_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "CHUNK_BYTES", 1)
    async with running({"log.scrub.max.bytes.per.second": "1024"}) as engine:
        for _ in range(20):
            await engine.produce(batch_of(1))
        await engine.clock.advance(FIRST_MS + 1_000)
        engine.broker.drain()
        await engine.clock.advance(2_000)
        read = engine.broker.scrub().bytes_read
        await engine.clock.advance(60_000)
        assert engine.broker.scrub().bytes_read == read


async def test_a_follower_finds_rot_that_nobody_reads_and_stops_to_copy_the_log_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrubber, "SLEEP_MS", 10.0)
    async with running_trio(broker=BrokerConfig(flush="os", tail_cache_bytes=0)) as trio:
        assert (await trio.client(ONE).produce(batch_of(2))).error is None
        await until(lambda: trio.core(TWO).written_end == 2)
        follower, store, log = trio.brokers[TWO], trio.store(TWO), trio.core(TWO).log
        store._live[log].batches[Offset(0)] = b"not it"
        follower.scrubber._plan.first_ms = 0.0
        await until(lambda: "broker-2" in trio.crashes)
        assert isinstance(trio.crashes.pop("broker-2"), StorageFailed)
        assert store.distrusted == [log]
        assert follower.scrub().lost == 1
