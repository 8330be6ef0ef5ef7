"""Compaction through the engine: what readers see after it, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.plan import DirtyRange
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.partition_events import Compacted, Followed, Truncated
from headrace_broker.core.rows import IndexRow, LogId, LogWrite
from headrace_broker.core.time_search import Floor
from headrace_broker.engine import cleaner, compacting
from headrace_broker.engine.broker import Trimmed
from headrace_broker.engine.cleaner import STUCK_MS, Compaction
from headrace_broker.engine.describing import oldest_ms
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.markers import MarkerAsk
from headrace_broker.engine.rebuilding import rebuild
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.storage_queue import Posting
from headrace_broker.rpc import encode_logs
from headrace_common.core.batch import HEADER_SIZE, Codec, RecordColumns, build_batch, decode_batch, read_header
from headrace_common.core.errors import NotLeader, StorageFailed
from headrace_common.core.ids import NodeId, Offset, PartitionId

T0 = PartitionId(topic_id_of("t"), 0)
DAY_MS = 86_400_000
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1024"}
Pairs = Sequence[tuple[bytes | None, bytes | None]]


def of(pairs: Pairs, at_ms: int, *, producer: int = -1, sequence: int = -1, codec: Codec = Codec.NONE) -> bytes:
    columns = RecordColumns([value for _, value in pairs], [key for key, _ in pairs], timestamps_ms=at_ms)
    epoch = -1 if producer < 0 else 0
    return build_batch(columns, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def put(engine: Engine, pairs: Pairs, **more: int) -> int:
    [result] = await engine.produce(of(pairs, engine.clock.now_ms(), **more))
    assert result.error is None
    return result.base_offset


async def rewrite(engine: Engine, rounds: int = 20, keys: int = 4) -> dict[bytes, bytes | None]:
    """Every key anew in each round, each with one record in a batch of its own; what is there in the end."""
    table: dict[bytes, bytes | None] = {}
    for at in range(rounds):
        for key in range(keys):
            name, value = b"key-%d" % key, b"%d-%d" % (key, at)
            table[name] = value
            await put(engine, [(name, value)])
    return table


async def read(
    engine: Engine, offset: int = 0, *, committed: bool = False
) -> list[tuple[int, bytes | None, bytes | None]]:
    """All records from there on, as a consumer has them."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    core = log(engine).core
    end = core.last_stable if committed else core.high_watermark
    while offset < end:
        fetched = await engine.fetch(offset, committed=committed)
        assert fetched.error is None
        assert fetched.batches
        for batch in map(decode_batch, fetched.batches):
            if not batch.is_control:
                each = zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
                found += [record for record in each if record[0] >= offset]
            end_of_batch = batch.header.next_offset
        offset = end_of_batch
    return found


def log(engine: Engine) -> Replica:
    found = engine.broker.replicas.get(T0)
    assert found is not None
    return found


def table(records: Sequence[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, bytes | None]:
    return {key: value for _, key, value in records if key is not None}


def batches(engine: Engine) -> list[IndexRow]:
    core = log(engine).core
    return list(engine.store.index(core.log, Offset(0), core.log_end))


def running(
    configs: Mapping[str, str] | None = None, store: MemoryLogs | None = None
) -> AbstractAsyncContextManager[Engine]:
    return running_engine({"t": 1}, configs={"t": {**CONFIGS, **(configs or {})}}, store=store)


def said(engine: Engine) -> Compaction:
    told = engine.broker.compaction(log(engine))
    assert told is not None
    return told


async def test_the_last_value_of_each_key_is_left_at_its_offset() -> None:
    async with running() as engine:
        wanted = await rewrite(engine)
        before, size = await read(engine), log(engine).core.segments.size
        assert await engine.broker.cleaner.look()
        after = await read(engine)
        assert table(after) == wanted
        assert set(after) <= set(before)
        assert len(after) < len(before) / 2
        assert log(engine).core.segments.size < size / 2
        assert log(engine).core.cleaned_to == log(engine).core.segments.active.base_offset
        assert not await engine.broker.cleaner.look(), "nothing is dirty any more"
        measures = engine.broker.measures
        assert (measures.cleaner_runs, measures.cleaner_records_removed) == (1, len(before) - len(after))
        assert measures.cleaner_bytes_removed == size - log(engine).core.segments.size
        for offset in range(log(engine).core.log_end):
            assert table(await read(engine, offset)).items() <= wanted.items()


async def test_the_task_does_it_by_the_clock_and_as_it_is_set() -> None:
    async with running() as engine:
        await rewrite(engine)
        enabled = replace(engine.cluster.image, cluster_configs={"log.cleaner.backoff.ms": "500"})
        engine.cluster.show(replace(enabled, cluster_configs={"log.cleaner.enable": "false"}))
        await engine.settle()
        await engine.clock.advance(60_000)
        assert log(engine).core.cleaned_to == 0
        told = said(engine)
        assert told.waits_for == "log.cleaner.enable is false"
        engine.cluster.show(enabled)
        await engine.settle()
        await engine.clock.advance(1_000)
        async with asyncio.timeout(10):
            while log(engine).core.cleaned_to == 0:
                await asyncio.sleep(0.001)


async def test_what_a_restart_finds_is_what_was_there() -> None:
    async with running() as engine:
        wanted = await rewrite(engine)
        await engine.broker.cleaner.look()
        seen, core = await read(engine), log(engine).core
    async with running(store=engine.store.reopen()) as again:
        assert table(seen) == wanted
        assert await read(again) == seen
        restarted = log(again).core
        assert (restarted.cleaned_to, restarted.clean_points) == (core.cleaned_to, core.clean_points)
        assert restarted.segments == replace(core.segments, roll_jitter=restarted.segments.roll_jitter)


async def test_after_each_step_every_key_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.core.compaction.cleaning.STEP_WRITES_MAX", 3)
    monkeypatch.setattr(compacting, "STEPS_UNDER_WAY_MAX", 1)  # none is written together with another
    async with running() as engine:
        wanted = await rewrite(engine, rounds=12)
        written: list[Sequence[LogWrite]] = []
        store, write = engine.store, engine.store.write

        def noted(writes: Sequence[LogWrite]) -> None:
            write(writes)
            written.append(writes)
            copy = store.reopen()
            [found] = copy.list_recovered()
            core = restore(copy, found, log(engine).core.config, engine.clock.now_ms())
            rows = list(copy.index(found.log, Offset(0), found.log_end))
            ends = [row.next_offset for row in rows]
            assert [row.base_offset for row in rows] == [0, *ends[:-1]], "dense"
            sizes = {row.base_offset: 0 for row in core.segments.sealed}
            held: dict[bytes, bytes | None] = {}
            for row in rows:
                batch = decode_batch(copy._live[found.log].batches[row.base_offset])
                held |= dict(zip(batch.keys(), batch.values(), strict=True))
                if row.segment_base in sizes:
                    sizes[row.segment_base] += row.size
            assert held == wanted
            assert sizes == {row.base_offset: row.size for row in core.segments.sealed}

        store.write = noted
        assert await engine.broker.cleaner.look()
        assert len(written) > 5


async def test_a_map_that_is_full_goes_on_with_the_rest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.core.compaction.offset_map.KEY_BYTES", 1 << 17)  # 5 keys in a MiB
    async with running() as engine:
        engine.cluster.show(
            replace(engine.cluster.image, cluster_configs={"log.cleaner.dedupe.buffer.size": str(1 << 20)})
        )
        await engine.settle()
        wanted = await rewrite(engine, rounds=6, keys=12)
        cleaned: list[int] = []
        while await engine.broker.cleaner.look():
            cleaned.append(log(engine).core.cleaned_to)
        assert len(cleaned) > 3
        assert cleaned == sorted(set(cleaned))
        assert table(await read(engine)) == wanted
        assert log(engine).core.cleaned_to == log(engine).core.segments.active.base_offset


async def test_deletions_are_to_be_read_for_their_time() -> None:
    async with running({"delete.retention.ms": "60000"}) as engine:
        await put(engine, [(b"k", b"v"), (b"other", b"v")])
        await put(engine, [(b"k", None)])
        await rewrite(engine, keys=1)
        await engine.broker.cleaner.look()
        assert table(await read(engine))[b"k"] is None
        engine.cluster.show(replace(engine.cluster.image, cluster_configs={"log.cleaner.enable": "false"}))
        await engine.settle()
        await engine.clock.advance(60_000)
        engine.cluster.show(replace(engine.cluster.image, cluster_configs={"log.cleaner.backoff.ms": str(DAY_MS)}))
        await engine.settle()
        await rewrite(engine, keys=1)
        await engine.broker.cleaner.look()
        seen = table(await read(engine))
        assert b"k" not in seen
        assert seen[b"other"] == b"v"


async def test_what_producers_sent_last_is_still_known_after_a_restart() -> None:
    async with running() as engine:
        for sequence in range(30):
            await put(engine, [(b"k", b"%d" % sequence)], producer=5, sequence=sequence)
        await rewrite(engine)
        await engine.broker.cleaner.look()
    async with running(store=engine.store.reopen()) as again:
        repeated = of([(b"k", b"29")], again.clock.now_ms(), producer=5, sequence=29)
        [result] = await again.produce(repeated)
        assert (result.error, result.base_offset) == (None, 29)
        assert again.broker.measures.duplicate_batches == 1


async def test_a_batch_that_cannot_be_read_is_named_and_left_aside() -> None:
    async with running() as engine:
        await rewrite(engine)
        lost: list[Exception] = []
        engine.broker.cleaner.on_lost = lambda _replica, error: lost.append(error)
        core = log(engine).core
        kept = engine.store._live[core.log].batches
        good = kept[5]
        kept[5] = good[:-1]
        assert await engine.broker.cleaner.look(), "others are looked at at once"
        assert [type(error).__name__ for error in lost] == ["BytesLost"]
        told = said(engine)
        assert told.stuck
        assert "offset 5" in (told.waits_for or "")
        assert engine.broker.gauges()["cleaner_stuck_logs"]() == 1
        assert core.cleaned_to == 0
        assert not await engine.broker.cleaner.look()
        kept[5] = good
        assert not await engine.broker.cleaner.look(), "not before its time"
        await engine.clock.advance(STUCK_MS)
        async with asyncio.timeout(10):
            while core.cleaned_to == 0:
                await asyncio.sleep(0.001)
        told = said(engine)
        assert not told.stuck


async def test_a_batch_that_is_not_one_does_not_stop_the_others() -> None:
    async with running_engine({"t": 2}, configs={"t": CONFIGS}) as engine:
        await rewrite(engine)
        other = engine.broker.replicas.get(PartitionId(T0.topic_id, 1))
        assert other is not None
        for _ in range(40):
            await engine.produce({1: of([(b"k", b"v" * 50)], engine.clock.now_ms())})
        kept = engine.store._live[log(engine).core.log].batches
        kept[5] = kept[5][:61] + bytes(len(kept[5]) - 61)
        while await engine.broker.cleaner.look():
            pass
        told = said(engine)
        assert told.stuck
        assert "t-0@5" in (told.waits_for or "")
        assert other.core.cleaned_to == other.core.segments.active.base_offset > 0
        await engine.broker.trim([(T0, 6)])
        assert await engine.broker.cleaner.look(), "what was bad of it has gone"
        assert log(engine).core.cleaned_to > 0


@pytest.mark.parametrize("place", ["take", "look"])
async def test_an_error_that_nobody_expected_spares_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    take, look = Cleaning.take, cleaner.dirty_range

    def taken(self: Cleaning, row: IndexRow, batch: bytes | None) -> Step | None:
        step = take(self, row, batch)
        if self._name == "t-0" and row.base_offset == 5:
            raise TypeError("a bug")
        return step

    def looked(core: LocalLog, floor: Floor, lag_ms_min: int, now_ms: int) -> DirtyRange:
        if core.id == T0:
            raise TypeError("a bug")
        return look(core, floor, lag_ms_min, now_ms)

    if place == "take":
        monkeypatch.setattr(Cleaning, "take", taken)
    else:
        monkeypatch.setattr(cleaner, "dirty_range", looked)
    async with running_engine({"t": 2}, configs={"t": CONFIGS}) as engine:
        await rewrite(engine)
        other = engine.broker.replicas.get(PartitionId(T0.topic_id, 1))
        assert other is not None
        for _ in range(40):
            await engine.produce({1: of([(b"k", b"v" * 50)], engine.clock.now_ms())})
        while await engine.broker.cleaner.look():
            pass
        assert other.core.cleaned_to == other.core.segments.active.base_offset > 0
        told = said(engine)
        assert told.stuck
        assert "TypeError: a bug" in (told.waits_for or "")
        assert ("at offset 5 or before" in (told.waits_for or "")) == (place == "take")
        assert engine.broker.gauges()["cleaner_stuck_logs"]() == 1
        assert engine.broker.measures.cleaner_crashes > 0
        [record] = [each for each in caplog.records if "cannot be compacted" in each.message]
        assert record.exc_info is not None, "with its traceback"
        engine.broker.measures.cleaner_crashes = 0
        if place == "take":
            await engine.broker.trim([(T0, 6)])
            assert await engine.broker.cleaner.look(), "what was bad of it has gone"
            assert log(engine).core.cleaned_to > 0


async def test_a_store_that_has_failed_is_no_error_of_one_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        await rewrite(engine)

        def refused(*_: object) -> asyncio.Future[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_exception(StorageFailed("no more writes"))
            return done

        monkeypatch.setattr(engine.broker.loop, "post", refused)
        with pytest.raises(StorageFailed):
            await engine.broker.cleaner.look()
        assert engine.broker.cleaner.stuck_logs == 0


class Interrupted:
    """Does something when a step of a compaction is about to be posted."""

    def __init__(self, engine: Engine, at: int, act: Callable[[], object]) -> None:
        self.left = at
        post = engine.broker.loop.post

        def posted(replica: Replica, event: Posting, size: int = 0) -> asyncio.Future[None]:
            if isinstance(event, Compacted):
                self.left -= 1
                if self.left == 0:
                    act()
            return post(replica, event, size)

        engine.broker.loop.post = posted


async def test_a_log_start_that_moves_makes_it_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.core.compaction.cleaning.STEP_WRITES_MAX", 3)
    async with running() as engine:
        wanted = await rewrite(engine)
        trims: list[asyncio.Task[list[Trimmed]]] = []
        core = log(engine).core
        trim = engine.broker.trim
        Interrupted(engine, 2, lambda: trims.append(engine.tasks.start(trim([(T0, 55)]), name="trim")))
        await engine.broker.cleaner.look()
        assert trims
        assert trims[0].done()
        assert core.log_start == 55
        assert table(await read(engine, 55)) == wanted
        assert core.cleaned_to == core.segments.active.base_offset
        rows = batches(engine)
        assert [row.base_offset for row in rows][1:] == [row.next_offset for row in rows][:-1]
        assert rows[0].base_offset <= 55 < rows[0].next_offset


async def test_a_log_start_that_passes_what_is_read_ahead_leaves_no_key_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "ROWS_MAX", 2)
    async with running() as engine:
        for number in range(40):
            await put(engine, [(b"key-%d" % number, b"v" * 100)])
        core, plain, reads = log(engine).core, engine.store.read, list[int]()

        async def read_behind_a_trim(of: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
            reads.extend(row.base_offset for row in rows[:1])
            if len(reads) == 2:
                await engine.broker.trim([(T0, 5)])
            return await plain(of, rows)

        monkeypatch.setattr(engine.store, "read", read_behind_a_trim)
        assert await engine.broker.cleaner.look()
        assert reads[:2] == [0, 2]
        assert core.cleaned_to == core.segments.active.base_offset > 5
        monkeypatch.setattr(engine.store, "read", plain)
        assert [offset for offset, _, _ in await read(engine, 5)] == list(range(5, 40))


async def test_a_cut_ends_it_and_the_next_look_begins_with_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.core.compaction.cleaning.STEP_WRITES_MAX", 3)
    async with running() as engine:
        await rewrite(engine)
        replica = log(engine)
        core, cut = replica.core, Offset(70)

        def act() -> None:
            core.handle(Followed(NodeId(2), 9, NotLeader("")))
            engine.broker.loop.post(replica, Truncated(9, cut, rebuild(engine.store, core, cut, engine.clock.now_ms())))

        Interrupted(engine, 2, act)
        assert not await engine.broker.cleaner.look()
        assert core.log_end == cut
        assert core.cleaned_to == 0
        assert await engine.broker.cleaner.look()
        rows = batches(engine)
        assert [row.base_offset for row in rows] == [0, *(row.next_offset for row in rows[:-1])]


async def test_a_replica_that_goes_ends_it_without_noise() -> None:
    async with running() as engine:
        await rewrite(engine)
        replica, before = log(engine), batches(engine)

        def act() -> None:
            replica.standing = Standing.DELETING

        Interrupted(engine, 1, act)
        assert not await engine.broker.cleaner.look()
        assert batches(engine) == before
        assert engine.broker.measures.cleaner_failures == 0
        assert engine.broker.compaction(replica) is None


async def test_shutting_down_ends_it() -> None:
    async with running() as engine:
        await rewrite(engine)
        Interrupted(engine, 1, engine.broker.drain)
        await engine.broker.cleaner.look()
        assert not await engine.broker.cleaner.look()


async def test_reads_and_writes_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "CHUNK_BYTES", 1024)
    async with running() as engine:
        rate = {"log.cleaner.io.max.bytes.per.second": "1024.0", "log.cleaner.backoff.ms": str(DAY_MS)}
        engine.cluster.show(replace(engine.cluster.image, cluster_configs=rate))
        await engine.settle()
        await rewrite(engine)
        looking = engine.tasks.start(engine.broker.cleaner.look(), name="look")
        measures = engine.broker.measures

        def moved() -> int:
            return measures.cleaner_bytes_read + measures.cleaner_bytes_written

        async with asyncio.timeout(30):
            for _ in range(100):  # the clock stands still
                await asyncio.sleep(0.001)
            assert moved() <= 2 * 1024
            unlimited = {"log.cleaner.backoff.ms": str(DAY_MS)}
            engine.cluster.show(replace(engine.cluster.image, cluster_configs=unlimited))
            await engine.settle()
            await engine.clock.advance(1_000)  # the longest sleep before it looks at the rate again
            assert await looking
        assert moved() > 6 * 1024


async def test_a_follower_compacts_what_it_knows_to_be_committed() -> None:
    async with running() as engine:
        wanted = await rewrite(engine)
        core = log(engine).core
        core.handle(Followed(NodeId(2), 9, NotLeader("")))
        assert await engine.broker.cleaner.look()
        assert core.cleaned_to == core.segments.active.base_offset
        assert table(await read_stored(engine, core.log)) == wanted


async def read_stored(engine: Engine, number: LogId) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for row in batches(engine):
        [data] = await engine.store.read(number, [row])
        batch = decode_batch(data)
        found += zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
    return found


async def test_the_active_segment_is_sealed_when_it_has_to_be_compacted() -> None:
    configs = {"segment.bytes": str(1 << 20), "max.compaction.lag.ms": "60000"}
    async with running(configs) as engine:
        wanted = await rewrite(engine, rounds=5)
        assert not await engine.broker.cleaner.look()
        told = said(engine)
        assert "active segment" in (told.waits_for or "")
        await engine.clock.advance(61_000)
        async with asyncio.timeout(10):
            while log(engine).core.cleaned_to < 20:
                await asyncio.sleep(0.001)
        assert table(await read(engine)) == wanted
        assert len(await read(engine)) == 4


async def test_compaction_and_retention_go_together() -> None:
    async with running({"cleanup.policy": "compact,delete", "retention.ms": "600000"}) as engine:
        await rewrite(engine)
        await engine.broker.cleaner.look()
        size = log(engine).core.segments.size
        await engine.clock.advance(1_200_000)
        assert log(engine).core.segments.size < size
        assert log(engine).core.log_start == log(engine).core.log_end


async def test_a_disk_without_room_is_not_worked_on() -> None:
    async with running() as engine:
        await rewrite(engine)
        engine.store.free = (1, 1 << 40)
        engine.broker.upkeep.check_disk()
        assert not await engine.broker.cleaner.look()
        told = said(engine)
        assert "too little room" in (told.waits_for or "")
        engine.store.free = (4 << 30, 1 << 40)  # below the reserve, and above its fourth part
        engine.broker.upkeep.check_disk()
        assert engine.broker.loop.disk_full is not None
        assert await engine.broker.cleaner.look()


async def test_all_codecs_are_written_anew_as_they_were() -> None:
    async with running() as engine:
        at_ms = engine.clock.now_ms()
        for codec in Codec:
            for at in range(3):
                await engine.produce(of([(b"%d" % key, b"%d" % at * 50) for key in range(9)], at_ms, codec=codec))
            await engine.produce(
                of([(b"same", b"%d" % codec.value), (b"own-%d" % codec.value, b"v")], at_ms, codec=codec)
            )
        await rewrite(engine)
        await engine.broker.cleaner.look()
        seen = table(await read(engine))
        assert {b"own-%d" % codec.value for codec in Codec} <= seen.keys()
        for row in batches(engine):
            [data] = await engine.store.read(log(engine).core.log, [row])
            assert read_header(data).codec == row.attributes & 7


async def test_how_far_it_is_is_told() -> None:
    async with running() as engine:
        wrote_ms = engine.clock.now_ms()
        await rewrite(engine)
        await engine.broker.cleaner.look()
        replica = log(engine)
        told = encode_logs.log_description(replica, None, engine.broker.compaction(replica))
        end = replica.core.segments.active.base_offset
        assert (told.compaction.cleaned_to, told.compaction.cleanable_to) == (end, end)
        assert told.compaction.last_ms == engine.clock.now_ms()
        assert not told.compaction.stuck
        assert told.oldest_timestamp_ms == wrote_ms
        await engine.clock.advance(2_000)
        [gauge] = engine.broker.topic_gauges()
        assert (gauge.topic, gauge.log_bytes, gauge.oldest_age_s) == ("t", replica.core.segments.size, 2.0)
    async with running_engine({"t": 1}) as engine:
        told = encode_logs.log_description(log(engine), None, engine.broker.compaction(log(engine)))
        assert not told.HasField("compaction")
        assert not told.HasField("oldest_timestamp_ms")


async def test_segments_without_records_do_not_tell_an_age() -> None:
    async with running() as engine:
        wrote_ms = engine.clock.now_ms()
        began_ms = wrote_ms - 50_000
        for _ in range(80):
            await engine.produce(of([(b"key-0", b"v")], began_ms))
        await rewrite(engine)
        replica = log(engine)
        assert oldest_ms(replica.core) == began_ms
        assert await engine.broker.cleaner.look()
        first, *_ = engine.broker.segments(replica)
        assert (first.min_timestamp, first.size) == (began_ms, HEADER_SIZE)
        assert oldest_ms(replica.core) == wrote_ms


async def test_a_log_of_which_all_was_trimmed_has_no_bytes() -> None:
    async with running({"segment.bytes": str(1 << 20)}) as engine:
        await rewrite(engine)
        replica = log(engine)
        assert encode_logs.log_description(replica, None).size_bytes == replica.core.segments.size > 0
        await engine.broker.trim([(T0, replica.core.log_end)])
        assert replica.core.segments.size > 0, "retention goes by the segments as they were written"
        told = encode_logs.log_description(replica, engine.broker.segments(replica))
        assert (told.size_bytes, [segment.size_bytes for segment in told.segments]) == (0, [0])
        [gauge] = engine.broker.topic_gauges()
        assert (gauge.log_bytes, gauge.oldest_age_s) == (0, 0)


async def test_too_many_topics_are_published_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.engine.describing.GAUGES_PER_TOPIC_MAX", 1)
    async with running_engine({"t": 1, "u": 1}) as engine:
        await put(engine, [(b"k", b"v")])
        [gauge] = engine.broker.topic_gauges()
        assert (gauge.topic, gauge.log_bytes) == ("", log(engine).core.segments.size)


async def transact(engine: Engine, epoch: int, pairs: Pairs, *, commit: bool | None) -> None:
    """One transaction of producer 7; None: it stays open."""
    columns = RecordColumns([v for _, v in pairs], [k for k, _ in pairs], timestamps_ms=engine.clock.now_ms())
    batch = build_batch(columns, producer_id=7, producer_epoch=epoch, base_sequence=0, transactional=True)
    [result] = await engine.produce(batch, transactional_id="id")
    assert result.error is None
    if commit is not None:
        assert await engine.broker.markers.write([MarkerAsk(7, epoch + 1, commit, [T0])]) == [[None]]


async def test_what_was_aborted_has_no_say_and_what_is_open_is_not_passed() -> None:
    configs = {"t": {**CONFIGS, "delete.retention.ms": "0"}}
    async with running_engine({"t": 1}, configs=configs, coordinator=True) as engine:
        wanted = await rewrite(engine, rounds=2)
        for epoch in range(0, 12, 2):
            kept = {b"key-0": b"kept-%d" % epoch, b"txn-%d" % epoch: b"v"}
            await transact(engine, epoch, list(kept.items()), commit=True)
            await transact(engine, epoch + 1, [(b"key-0", b"never"), (b"key-1", b"never")], commit=False)
            wanted |= kept
        await transact(engine, 12, [(b"key-2", b"not yet")], commit=None)
        last_stable = log(engine).core.last_stable
        await rewrite(engine, rounds=4)
        while await engine.broker.cleaner.look():
            pass
        core = log(engine).core
        assert 0 < core.cleaned_to <= last_stable == core.last_stable
        assert "has to end first" in (said(engine).waits_for or "")
        assert table(await read(engine, committed=True)) == wanted
        seen = await read(engine, committed=True)
        assert len(seen) < last_stable
        await engine.broker.markers.write([MarkerAsk(7, 13, True, [T0])])
        for _ in range(4):  # markers go once more than one pass has seen nothing of their transactions
            wanted |= {**await rewrite(engine, rounds=6), b"key-2": b"2-5"}
            while await engine.broker.cleaner.look():
                await engine.clock.advance(10)
        assert table(await read(engine, committed=True)) == wanted
        assert core.aborted.rows() == []
    async with running_engine({"t": 1}, configs=configs, store=engine.store.reopen(), coordinator=True) as again:
        assert table(await read(again, committed=True)) == wanted
