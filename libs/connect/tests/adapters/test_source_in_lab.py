"""A source's task over real brokers and a coordinator, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf

import numpy as np
import pyarrow as pa
import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import aio
from headrace.settings import ProducerSettings
from headrace_common.runtime.clock import SystemClock, limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect import Chunk, Position, Split
from headrace_connect.core.errors import Fault
from headrace_connect.core.source_commit import Boundary, Rules
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.plugin import NoSettings, Source
from headrace_connect.runtime.adapters.source_log import SdkSourceLog, SourcePlace, _Writer
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.ports import Outgoing
from headrace_connect.runtime.sending import BadRecords, Outbox, Sending
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.faults import KillAt, Killed
from headrace_connect.testing.memory import TOPIC, RawPipeline
from headrace_lab.lab import install_lab

PATIENCE_MS = 120_000
SPLIT = Split("all")


class Numbers(Source[NoSettings]):
    """Those below a bound that is raised."""

    bound = 0

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        while True:
            if at < self.bound:
                at += 1
                yield Chunk([str(at - 1)], {"at": at})
            else:
                yield Chunk([], {"at": at}, drained=True)
                await asyncio.sleep(0.01)


class Running:
    """A task, and what it came to."""

    def __init__(self, generation: int, topic: str) -> None:
        self.source = Numbers(NoSettings())
        self.place = SourcePlace("shop", 0, generation, topic, True, True, 10_010)
        self.steps = KillAt()
        self.task: SourceTask
        self.ended: asyncio.Task[None]

    async def write(self, bound: int) -> None:
        """Until all numbers below it are committed."""
        self.source.bound = bound
        await until(lambda: self.task._machine.committed.get(SPLIT.id) == {"at": bound})


@asynccontextmanager
async def started(cluster: LabCluster, generation: int = 5, topic: str = "connect-offsets") -> AsyncIterator[Running]:
    servers, clock, made = ",".join(cluster.bootstrap_servers), SystemClock(), Running(generation, topic)
    async with aio.AdminClient(servers) as admin, TaskRunner() as runner:
        log = SdkSourceLog(RunConfig(servers, "c"), made.place, SdkTopics(admin, clock), clock)
        outside = SourceOutside(log, RawPipeline(), clock, made.steps)
        made.task = SourceTask(made.source, [SPLIT], outside, SourceTaskSettings(Rules(interval_ms=10)))
        made.ended = runner.start(_told(made.task.run()), name="task")
        yield made
        made.task.ask(CloseAsked())
        await made.ended


async def _told(run: object) -> str:
    """What a task failed with."""
    try:
        await run  # type: ignore[misc]
    except TaskFailed as failed:
        return str(failed.fault)
    return ""


async def until(holds: Callable[[], object]) -> None:
    async with limit_ms(PATIENCE_MS):
        while not holds():
            await asyncio.sleep(0.01)


async def committed(cluster: LabCluster, count: int, topic: str = TOPIC) -> list[bytes | None]:
    """Values that readers see, so many at least."""
    found: list[bytes | None] = []
    servers = ",".join(cluster.bootstrap_servers)
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with aio.Consumer(topic, bootstrap_servers=servers, **settings) as consumer, limit_ms(PATIENCE_MS):
        while len(found) < count:
            found += [record.value for record in await consumer.poll(500)]
    return found


FORGETS = {"unit_prepared_timeout_ms": 5_000, "transactional_id_check_interval_ms": 100}


@pytest.mark.parametrize("also", [{}, {"transactional_id_expiration_ms": 5_000}], ids=["the id", "and its owner"])
async def test_a_source_that_is_quiet_until_it_is_forgotten_goes_on(labs: Labs, also: dict[str, int]) -> None:
    """An hour, and a week, are seconds here."""
    cluster = labs(1, transactions=FORGETS | also)
    with install_lab(cluster.lab):
        async with started(cluster) as task:
            await task.write(2)
            for bound in (4, 5):
                await asyncio.sleep(20)
                await task.write(bound)
            assert task.steps.reached.count("connect.source.claimed") >= 3, "it was forgotten each time"
        async with started(cluster, 6) as task:
            await task.write(6)
        assert await committed(cluster, 6) == [b"%d" % n for n in range(6)]


async def test_a_newer_generation_ends_one_that_was_forgotten_too(labs: Labs) -> None:
    cluster = labs(1, transactions=FORGETS)
    with install_lab(cluster.lab):
        async with started(cluster, 5) as old:
            await old.write(2)
            await asyncio.sleep(20)
            async with started(cluster, 6) as new:
                await new.write(3)
                old.source.bound = 3
                await until(old.ended.done)
                assert old.ended.result() == str(Fault.FENCED)
                await new.write(4)


async def test_positions_in_a_topic_of_its_own_wait_for_no_transaction_of_others(labs: Labs) -> None:
    cluster = labs(1)
    with install_lab(cluster.lab):
        async with started(cluster) as task:
            await task.write(1)
        async with aio.Producer(
            ",".join(cluster.bootstrap_servers), transactional_id="other", transaction_timeout_ms=900_000
        ) as other:
            await other.init_transactions()
            await other.begin_transaction()
            for partition in range(25):
                await other.send("connect-offsets", b"{}", key=b"other", partition=partition)
            await other.flush()
            async with started(cluster, 6, "shop-offsets") as task:
                began_ms = SystemClock().monotonic_ms()
                await task.write(1)
                assert SystemClock().monotonic_ms() - began_ms < 10_000
            await other.abort_transaction()


async def test_records_leave_when_they_are_handed_over_and_wait_for_no_others(labs: Labs) -> None:
    """Without transactions nothing holds them up: neither the linger of a producer nor the commit of positions."""
    cluster = labs(1)
    servers, clock = ",".join(cluster.bootstrap_servers), SystemClock()
    place = SourcePlace("shop", 0, 5, "connect-offsets", True, exactly_once=False, timeout_ms=11_000)
    with install_lab(cluster.lab):
        async with aio.AdminClient(servers) as admin:
            writer = await SdkSourceLog(RunConfig(servers, "c"), place, SdkTopics(admin, clock), clock).claim()
            took_ms = []
            for _ in range(5):
                began_ms = clock.monotonic_ms()
                await writer.send(Outgoing(TOPIC, pa.table({"value": pa.array([b"1"], pa.binary())})))
                assert isinstance(writer, _Writer)
                await writer._sent[-1]
                took_ms.append(clock.monotonic_ms() - began_ms)
            await writer.close()
    assert min(took_ms) < ProducerSettings().linger_ms


async def test_a_record_that_is_too_large_is_a_dead_letter_of_the_same_transaction(labs: Labs) -> None:
    """For its topic, or for any: what is left of it follows the good records, and nothing holds the transaction up."""
    cluster = labs(1)
    servers, clock = ",".join(cluster.bootstrap_servers), SystemClock()
    place = SourcePlace("shop", 0, 5, "connect-offsets", True, True, 11_000)
    given = [b"0", b"1" * (2 << 20), b"2", b"3" * (17 << 20), b"4"]
    with install_lab(cluster.lab):
        async with aio.AdminClient(servers) as admin:
            await admin.create_topic("dead", 1, configs={"max.message.bytes": 8 << 20})
            writer = await SdkSourceLog(RunConfig(servers, "c"), place, SdkTopics(admin, clock), clock).claim()
            sending = Sending("shop.Source", BadRecords("shop", 0, tolerates=True, topic="dead"))
            await writer.begin()
            table = pa.table({"value": pa.array(given, pa.binary()), "key": pa.array([b"k"] * 5, pa.binary())})
            outbox = Outbox("all", [Outgoing(TOPIC, table, np.arange(5))])
            sent = await sending.send(writer, outbox)
            await writer.send_positions({"all": {"at": 5}})
            await writer.commit()
            assert [row for records, _ in sent for row in records.rows.tolist()] == [0, 2, 4]
            assert [len((await one.places())[0]) for _, one in sent] == [len(records.table) for records, _ in sent]
            await writer.close()
        assert await committed(cluster, 3) == [b"0", b"2", b"4"]
        assert [len(one or b"") for one in await committed(cluster, 2, "dead")] == [2 << 20, 0]
    first, second = (one.refusal.message for one in outbox.too_large)
    assert "row 1 of a chunk of split all: " in first
    assert "the topic's max.message.bytes is 1048588" in first
    assert "row 3 of a chunk of split all: " in second


class Slow(Source[NoSettings]):
    """Ten numbers, one each two seconds; a transaction of the source ends behind the last one."""

    reads = 0

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        self.reads += 1
        for at in range(after["at"] if after else 0, 10):
            await asyncio.sleep(2)
            yield Chunk([str(at)], {"at": at + 1}, boundary=at == 9)
        while True:
            yield Chunk([], {"at": 10}, boundary=True, drained=True)
            await asyncio.sleep(1)


@asynccontextmanager
async def running(
    cluster: LabCluster, source: Source[NoSettings], generation: int, settings: SourceTaskSettings, steps: KillAt
) -> AsyncIterator[tuple[SourceTask, asyncio.Task[object]]]:
    """A task over the cluster, and what it ends with."""
    servers, clock = ",".join(cluster.bootstrap_servers), SystemClock()
    timeout_ms = 11_000 if settings.rules.open_ms_max == inf else round(settings.rules.open_ms_max)
    place = SourcePlace("shop", 0, generation, "connect-offsets", True, True, timeout_ms)
    async with aio.AdminClient(servers) as admin, TaskRunner() as runner:
        log = SdkSourceLog(RunConfig(servers, "c"), place, SdkTopics(admin, clock), clock)
        task = SourceTask(source, [SPLIT], SourceOutside(log, RawPipeline(), clock, steps), settings)
        yield task, runner.start(_failure(task.run()), name="task")


async def _failure(run: Awaitable[None]) -> object:
    try:
        await run
    except (TaskFailed, Killed) as failed:
        return failed
    return None


@pytest.mark.parametrize("open_ms", [11_000, 30_000])
async def test_a_transaction_of_the_source_that_takes_longer_than_ours_may(labs: Labs, open_ms: int) -> None:
    """It works, or ends in an error that says what to do; it is not begun again for ever."""
    cluster, source = labs(1), Slow(NoSettings())
    settings = SourceTaskSettings(Rules(Boundary.CONNECTOR, open_ms_max=open_ms))
    with install_lab(cluster.lab):
        async with running(cluster, source, 5, settings, KillAt()) as (task, ended):
            await until(lambda: ended.done() or task.is_idle)
            task.ask(CloseAsked())
            failed = await ended
        if open_ms == 30_000:
            assert failed is None
            assert await committed(cluster, 10) == [b"%d" % n for n in range(10)]
        else:
            assert isinstance(failed, TaskFailed)
            assert (failed.fault, source.reads) == (Fault.CONFIG, 2)
            for part in (
                "within 11 s",
                "raise producer.override.transaction.timeout.ms",
                "transaction.boundary=interval",
            ):
                assert part in str(failed)


class Whole(Source[NoSettings]):
    """All in one chunk."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        if after is None:
            yield Chunk([b"%d" % n for n in range(20)], {"at": 20})
        while True:
            yield Chunk([], {"at": 20}, drained=True)
            await asyncio.sleep(0.01)


async def test_a_chunk_of_which_a_part_was_sent_when_the_task_died_is_there_once(labs: Labs) -> None:
    cluster, steps = labs(1), KillAt(5)
    settings = SourceTaskSettings(Rules(interval_ms=10), slice_bytes=8)
    with install_lab(cluster.lab):
        async with running(cluster, Whole(NoSettings()), 5, settings, steps) as (_, ended):
            assert isinstance(await ended, Killed)
        assert steps.reached[2:] == ["connect.source.sent"] * 3
        async with running(cluster, Whole(NoSettings()), 6, settings, KillAt()) as (task, ended):
            await until(lambda: ended.done() or task.is_idle)
            task.ask(CloseAsked())
            assert await ended is None
        assert await committed(cluster, 20) == [b"%d" % n for n in range(20)]
