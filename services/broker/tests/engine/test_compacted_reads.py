"""Fetches and positions in a log that compaction has rewritten, against a plain list of what was produced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.batches import NOW_MS
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.compacting import batches_of, compact
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.fetch import FetchAsk, Fetched, FetchEntry
from headrace_broker.engine.markers import MarkerAsk
from headrace_broker.engine.offsets import EARLIEST, MAX_TIMESTAMP, OffsetAsk
from headrace_broker.engine.replicas import Replica
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import Offset, PartitionId

ID = PartitionId(topic_id_of("t"), 0)
DAY_MS = 86_400_000
KeyAndTime = tuple[bytes, int]


class Log:
    """What was produced, and what of it is left: the last of each key, as of the last compaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.written: list[KeyAndTime] = []
        self.left: dict[int, KeyAndTime] = {}

    @property
    def replica(self) -> Replica:
        found = self.engine.broker.replicas.get(ID)
        assert found is not None
        return found

    async def append(self, *records: KeyAndTime, producer: int = -1, transactional: bool = False) -> None:
        """One batch."""
        epoch, sequence = self.next_of(producer)
        columns = RecordColumns([b"v"] * len(records), [key for key, _ in records], [at for _, at in records])
        batch = build_batch(
            columns,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        [result] = await self.engine.produce(batch, transactional_id="x" if transactional else None)
        assert result.error is None
        for offset, record in enumerate(records, result.base_offset):
            self.left[offset] = record
        self.written += records

    def next_of(self, producer: int) -> tuple[int, int]:
        """Epoch and sequence of the producer's next batch."""
        if producer < 0:
            return -1, -1
        known = {row.producer_id: row for row in self.replica.core.producers.snapshot()}.get(producer)
        if known is None:
            return 0, 0
        return known.epoch, known.batches[-1].last_sequence + 1 if known.batches else 0

    async def compact(self, now_ms: int = NOW_MS) -> None:
        await compact(self.engine.broker, self.engine.store, ID, now_ms=now_ms)
        newest = {key: offset for offset, (key, _) in self.left.items()}
        self.left = {offset: record for offset, record in self.left.items() if newest[record[0]] == offset}

    async def fetch(self, offset: int, bytes_max: int = 1 << 20, **options: int | bool) -> Fetched:
        entry = FetchEntry(ID, Offset(offset), bytes_max, None)
        committed = bool(options.get("committed", False))
        ask = FetchAsk([entry], int(options.get("bytes_min", 1)), 1 << 20, 5_000, None, committed)
        [result] = await asyncio.wait_for(self.engine.broker.fetches.fetch(ask), 10)
        return result

    async def read(self, offset: int, bytes_max: int = 1 << 20, **options: int | bool) -> list[int]:
        """Offsets that a reader gets from there to the end, as it moves on by what it is answered."""
        found: list[int] = []
        while offset < len(self.written):
            result = await self.fetch(offset, bytes_max, **options)
            assert result.error is None
            assert result.batches, "a reader that is not at the end moves on"
            for batch in map(decode_batch, result.batches):
                assert batch.header.base_offset <= offset < batch.header.next_offset, "no offset is passed over"
                found += [o for o in batch.offsets() if o >= offset and not batch.is_control]
                offset = batch.header.next_offset
        return found

    async def find(self, timestamp_ms: int) -> tuple[int, int]:
        [found] = await self.engine.broker.offsets.find([OffsetAsk(ID, timestamp_ms, None, None)], 0)
        assert found.error is None
        return found.offset, found.timestamp_ms


@asynccontextmanager
async def compacted_log(tail_bytes: int = 0, **configs: str) -> AsyncIterator[Log]:
    engine_settings = EngineSettings(flush=Flush.OS, tail_cache_bytes=tail_bytes)
    config = {"t": {"cleanup.policy": "compact", "message.timestamp.before.max.ms": str(2**62), **configs}}
    async with running_engine({"t": 1}, configs=config, settings=engine_settings, coordinator=True) as engine:
        yield Log(engine)


def at(*times: int, key: bytes = b"k") -> list[KeyAndTime]:
    return [(key, time) for time in times]


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20], ids=["cold", "cached"])
@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
async def test_a_reader_comes_through_a_gap_from_any_offset_in_it(tail_bytes: int, bytes_max: int) -> None:
    async with compacted_log(tail_bytes) as log:
        await log.append((b"a", 1), (b"b", 1))
        for _ in range(10):
            await log.append(*at(2, 2, 2))
        await log.append((b"c", 3))
        await log.append((b"d", 4))
        await log.compact()
        assert batches_of(log.engine.store, log.replica) == [
            (0, 2, 2),
            (2, 29, 0),
            (29, 32, 1),
            (32, 33, 1),
            (33, 34, 1),
        ]
        for offset in range(34):
            assert await log.read(offset, bytes_max) == [o for o in (0, 1, 31, 32, 33) if o >= offset]


async def test_headers_alone_are_answered_at_once_however_much_is_asked_for() -> None:
    async with compacted_log() as log:
        for producer in range(1, 8):
            await log.append(*at(1), producer=producer)
        await log.append(*at(1))
        await log.append((b"last", 1))
        await log.compact()
        assert [count for _, _, count in batches_of(log.engine.store, log.replica)] == [0] * 7 + [1, 1]
        result = await asyncio.wait_for(log.fetch(0, 64, bytes_min=1 << 20), 1)
        assert [read_header(batch).base_offset for batch in result.batches] == [0]
        assert await log.read(0, 64, bytes_min=1 << 20) == [7, 8], "each answer is one of five seconds if it waits"


async def test_a_fetch_that_is_cut_short_does_not_wait_for_what_has_no_room() -> None:
    async with compacted_log() as log:
        for _ in range(3):
            await log.append(*at(1))
        assert len((await asyncio.wait_for(log.fetch(0, 1, bytes_min=1 << 20), 1)).batches) == 1


async def test_headers_alone_at_the_end_are_answered_and_then_records_are_waited_for() -> None:
    async with compacted_log() as log:
        await log.append((b"gone", 1), producer=1)
        await end_of_life(log, b"gone")
        assert [count for _, _, count in batches_of(log.engine.store, log.replica)] == [0, 0]
        assert [read_header(b).record_count for b in (await log.fetch(0, 1, bytes_min=1 << 20)).batches] == [0]
        result = await log.fetch(1, bytes_min=1 << 20)
        assert [read_header(b).next_offset for b in result.batches] == [2]
        waiting = asyncio.ensure_future(log.fetch(2))
        await log.engine.settle()
        assert not waiting.done()
        await log.append(*at(1))
        assert len((await waiting).batches) == 1


records = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9)), min_size=1, max_size=4)


@given(st.lists(st.one_of(records, st.none()), max_size=14), st.integers(0, 8), st.sampled_from([1, 150, 1 << 20]))
@settings(max_examples=60, deadline=None)
async def test_any_log_is_read_and_searched_as_a_list_of_what_is_left(
    steps: Sequence[list[KeyAndTime] | None], trim: int, bytes_max: int
) -> None:
    async with compacted_log() as log:
        for number, step in enumerate([*steps, None]):
            if step is None:
                await log.compact(NOW_MS + number * DAY_MS)
            else:
                await log.append(*step)
        if trim and trim <= len(log.written):
            await log.engine.broker.trim([(ID, trim)])
        start = log.replica.core.log_start
        left = sorted((offset, time) for offset, (_, time) in log.left.items() if offset >= start)
        for offset in range(start, len(log.written) + 1):
            assert await log.read(offset, bytes_max) == [o for o, _ in left if o >= offset]
        assert await log.find(EARLIEST) == (start, -1)
        for time in range(11):
            assert await log.find(time) == next(((o, t) for o, t in left if t >= time), (-1, -1))
        assert await log.find(MAX_TIMESTAMP) == max(left, key=lambda pair: (pair[1], -pair[0]), default=(-1, -1))


async def test_a_search_by_time_ends_and_answers_where_it_got_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_broker.engine.offsets.SEARCH_BYTES_MAX", 300)
    monkeypatch.setattr("headrace_broker.engine.offsets.CHUNK_BYTES_MAX", 1)
    async with compacted_log() as log:
        await log.append((b"young", 9))
        for number in range(20):
            await log.append((b"%d" % number, 1))
        await log.append((b"young", 2))
        found, time = await log.find(5)
        assert (found, time) == (0, 9)
        await log.engine.broker.trim([(ID, 1)])
        found, time = await log.find(5)
        assert 1 < found < 21, "nothing before is as young, which is all that a reader must know"
        assert time == -1


async def test_transactions_in_compacted_logs_are_read_as_decided() -> None:
    async with compacted_log() as log:
        engine = log.engine
        await log.append((b"k", 1), (b"x", 1), producer=7, transactional=True)
        await end(log, 7, commit=False)
        await log.append((b"k", 2), producer=7, transactional=True)
        await end(log, 7, commit=True)
        await log.append((b"last", 3))
        for number in range(3):
            await compact(engine.broker, engine.store, ID, now_ms=NOW_MS + number * DAY_MS)
            await log.append((b"%d" % number, 1))
            result = await log.fetch(0, committed=True)
            visible = [
                offset
                for batch in map(decode_batch, result.batches)
                if not batch.is_control
                and not any(
                    r.producer_id == 7 and r.first <= batch.header.base_offset <= r.last for r in result.aborted
                )
                for offset in batch.offsets()
            ]
            assert visible == [3, 5, 6, 7, 8][: 3 + number]
            if number:
                assert result.aborted == [], "neither records nor marker are left"


async def test_a_committed_read_under_which_the_log_is_rewritten_is_done_again() -> None:
    async with compacted_log() as log:
        await log.append((b"k", 1), producer=7, transactional=True)
        await end(log, 7, commit=False)
        await log.append((b"last", 3))
        core = log.replica.core
        reads = []
        read = log.engine.store.read

        async def slow(*args: object) -> list[bytes]:
            found = await read(*args)
            if not reads:  # the marker goes between the read and its answer
                core.aborted.remove([1])
                core.rewrites += 1
            reads.append(args)
            return found

        log.engine.store.read = slow
        result = await log.fetch(0, committed=True)
        assert len(reads) == 2
        assert result.error is None


async def test_who_never_gets_a_quiet_moment_is_told_to_ask_again() -> None:
    async with compacted_log() as log:
        await log.append((b"k", 1))
        read = log.engine.store.read

        async def rewritten(*args: object) -> list[bytes]:
            log.replica.core.rewrites += 1
            return await read(*args)

        log.engine.store.read = rewritten
        result = await log.fetch(0, committed=True)
        assert result.error is not None
        assert result.error.code is ErrorCode.OFFSET_NOT_AVAILABLE


async def end_of_life(log: Log, key: bytes) -> None:
    """A record that says that the key is gone, compacted so often that nothing of either is left."""
    for number, value in enumerate([None, None]):
        columns = RecordColumns([value], [key], NOW_MS)
        if not number:
            await log.engine.produce(build_batch(columns))
            log.written.append((key, NOW_MS))
        await compact(log.engine.broker, log.engine.store, ID, now_ms=NOW_MS + number * DAY_MS)
    log.left = {}


async def end(log: Log, producer: int, *, commit: bool) -> None:
    """The marker, as a coordinator has it written."""
    epoch, _ = log.next_of(producer)
    [[error]] = await log.engine.broker.markers.write([MarkerAsk(producer, epoch + 1, commit, [ID])])
    assert error is None
