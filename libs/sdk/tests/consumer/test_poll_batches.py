"""``poll_batches``: each record once beside all other ways to read, a table for each partition, and where that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import PartitionTable, TopicPartition, aio
from headrace._core.fetch_answers import Answer
from headrace._core.record_runs import Deserializers
from headrace.aio import _hand_out
from headrace.aio._hand_out import HandOut
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import Rejected
from headrace_common.core.batch import Codec, DecodedBatch, RecordColumns, build_batch, build_row_batch
from headrace_common.core.batch.header import stamp
from headrace_common.runtime.clock import SystemClock

from .fetching import T0, T1, TOPIC_ID, A, PlainLog, answer_for
from .transactions import TransactionalHand, plain

COLUMNS = ["offset", "timestamp_ms", "key", "value", "headers", "timestamp_type"]
PATIENCE_S = 20


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


def offsets(parts: Iterable[PartitionTable], partition: int = 0) -> list[int]:
    return [o for part in parts if part.partition == partition for o in part.table["offset"].to_pylist()]


# --- without a broker -------------------------------------------------------------------------------------------------


class Feed:
    """What applications take from, and logs that answer its fetches."""

    def __init__(self, *tps: TopicPartition, committed: bool = False, **given: Any) -> None:
        level = "read_committed" if committed else "read_uncommitted"
        settings = ConsumerSettings(isolation_level=level, **given)
        self.out = HandOut(settings, SystemClock(), Deserializers(), lambda: None)
        self.committed = committed
        self.logs = {tp: PlainLog() for tp in tps}
        for tp in tps:
            self.out.core.add(tp, 0)
            self.out.core.placed(tp, TOPIC_ID, A, 0, 0.0)

    def fetch(self, bytes_max: int = 1 << 20) -> None:
        """As brokers do, which tell of an end also where no batch comes."""
        plan = self.out.core.fetch(A)
        if plan is None:
            return
        answers = []
        for key, entry in plan.entries.items():
            log = self.logs[entry.partition.tp]
            found = answer_for(plan, key, log, bytes_max=bytes_max, committed=self.committed)
            found = found or Answer(entry, 0, "", log.end, log.start, [])
            answers.append(found._replace(last_stable=log.last_stable))
        self.out.core.answers.take(plan, answers, 0.0)

    def bring(self, batch: bytes, end: int) -> None:
        """One batch, of the first partition."""
        plan = self.out.core.fetch(A)
        assert plan is not None
        self.out.core.answers.take(plan, [Answer(plan.entries[(TOPIC_ID, 0)], 0, "", end, 0, [batch])], 0.0)

    def end(self, tp: TopicPartition) -> int:
        return self.logs[tp].last_stable if self.committed else self.logs[tp].end

    def visible(self, tp: TopicPartition) -> list[int]:
        return self.logs[tp].committed() if self.committed else self.logs[tp].visible()


WRITES = st.tuples(
    st.just("write"),
    st.sampled_from([T0, T1]),
    st.sampled_from(["plain", "hole", "transaction", "commit", "abort", "marker"]),
    st.integers(1, 5),
)
TAKES = st.tuples(st.just("take"), st.sampled_from(["batches", "batches", "table", "poll"]), st.integers(1, 7))
OTHERS = st.one_of(
    st.tuples(st.just("fetch"), st.integers(1, 400)),
    st.tuples(st.sampled_from(["pause", "resume"]), st.sampled_from([T0, T1])),
    st.tuples(st.just("seek"), st.sampled_from([T0, T1]), st.floats(0, 1)),
)


class Reader:
    """Does what it is told, and holds all that it gets against what is in the logs."""

    def __init__(self, committed: bool) -> None:
        self.feed = Feed(T0, T1, committed=committed)
        self.at = {T0: 0, T1: 0}
        """Up to where an application knows that it has read."""
        self.ends = {T0: -1, T1: -1}

    def write(self, tp: TopicPartition, what: str, count: int) -> None:
        log = self.feed.logs[tp]
        match what:
            case "plain":
                log.append(count)
            case "hole":
                log.append(1, hole=count)
            case "transaction":
                log.append(count, transaction_of=count)
            case "marker":
                log.append_control()
            case _ if log.open:
                log.decide(min(log.open), commit=what == "commit")

    def take(self, way: str, count: int) -> None:
        out = self.feed.out
        match way:
            case "poll":
                for record in out.take(count):
                    self.get(TopicPartition(record.topic, record.partition), [record.offset])
            case "table":
                table = out.take_table(count)
                for row in table.select(["topic", "partition", "offset"]).to_pylist():
                    self.get(TopicPartition(row["topic"], row["partition"]), [row["offset"]])
            case _:
                self.take_batches(count)

    def take_batches(self, count: int) -> None:
        out = self.feed.out
        parts = out.take_batches(count)
        assert sum(len(part.table) for part in parts) <= count
        assert len({part.partition for part in parts}) == len(parts), "one of each partition"
        for part in parts:
            tp = TopicPartition(part.topic, part.partition)
            assert not out.core.partitions[tp].paused
            assert [int(value) for value in part.table["value"].to_pylist()] == offsets([part], part.partition)
            self.get(tp, offsets([part], part.partition))
            assert self.at[tp] <= part.next_offset == out.position_now(tp)
            self.at[tp], self.ends[tp] = part.next_offset, part.end_offset
            assert part.lag == max(0, part.end_offset - part.next_offset)

    def get(self, tp: TopicPartition, got: list[int]) -> None:
        for offset in got:
            between = [o for o in self.feed.visible(tp) if self.at[tp] <= o <= offset]
            assert between == [offset], "neither lost nor twice"
            self.at[tp] = offset + 1

    def seek(self, tp: TopicPartition, share: float) -> None:
        self.at[tp] = round(self.feed.end(tp) * share)
        self.feed.out.seek({tp: self.at[tp]})


@settings(max_examples=200, deadline=None)
@given(committed=st.booleans(), steps=st.lists(st.one_of(WRITES, TAKES, OTHERS), max_size=40))
def test_each_record_comes_once_in_whatever_way_and_the_position_always_gets_to_the_end(
    committed: bool, steps: list[tuple[Any, ...]]
) -> None:
    reader = Reader(committed)
    for kind, *given_ in steps:
        match kind:
            case "write" | "take" | "seek":
                getattr(reader, kind)(*given_)
            case "fetch":
                reader.feed.fetch(*given_)
            case _:
                reader.feed.out.pause(given_, paused=kind == "pause")
    reader.feed.out.pause((T0, T1), paused=False)
    for _ in range(60):
        reader.feed.fetch(200)  # about one batch, so that ends are known before positions get there
        reader.take_batches(5)
    for tp in (T0, T1):
        assert reader.at[tp] == reader.ends[tp] == reader.feed.end(tp)


def test_keys_and_values_stay_where_they_are_and_a_batch_that_is_cut_is_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []
    decode = _hand_out.decode_batch
    monkeypatch.setattr(_hand_out, "decode_batch", lambda b, **how: decoded.append(b) or decode(b, **how))
    feed, count = Feed(T0), 100
    batch = build_batch(RecordColumns(values=numbered(0, count), keys=numbered(0, count)), codec=Codec.NONE)
    feed.bring(batch, count)
    whole = pa.py_buffer(batch)
    got: list[int] = []
    while len(got) < count:
        [part] = feed.out.take_batches(30)
        got += offsets([part])
        assert part.next_offset == got[-1] + 1
        for name in ("key", "value"):
            for chunk in part.table[name].chunks:
                data = chunk.buffers()[2]
                assert whole.address <= data.address < whole.address + whole.size
    assert got == list(range(count))
    assert len(decoded) == 1


def add(feed: Feed, batch: bytes, count: int) -> None:
    """To the log of the first partition."""
    log = feed.logs[T0]
    log.batches.append(stamp(batch, log.end, 0))
    log.end += count


@pytest.mark.parametrize("rows", [3, 100], ids=["small batches", "large ones"])
@pytest.mark.parametrize("build", [build_batch, build_row_batch])
def test_no_batch_follows_one_that_reaches_the_bytes_that_are_wanted(build: Any, rows: int) -> None:
    feed = Feed(T0, T1)
    for _ in range(4):
        add(feed, build(RecordColumns(values=[b"x" * 900] * rows, keys=[b"k" * 100] * rows)), rows)
    feed.fetch()
    for bytes_max, batches in ((1, 1), (1_000 * rows, 1), (1_150 * rows, 2), (None, 0)):
        assert sum(len(part.table) for part in feed.out.take_batches(None, bytes_max)) == batches * rows


def test_a_batch_that_is_cut_by_rows_counts_with_what_was_taken_of_it() -> None:
    feed = Feed(T0)
    for _ in range(2):
        add(feed, build_batch(RecordColumns(values=[b"x" * 1_000] * 40)), 40)
    feed.fetch()
    assert len(feed.out.take_batches(35, 1 << 30)[0].table) == 35
    assert len(feed.out.take_batches(None, 10_000)[0].table) == 45, "5 of the first one are not enough"


async def test_bounds_are_whole_numbers_from_1() -> None:
    async with aio.Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        for name in ("max_rows", "max_bytes"):
            for wrong in (0, -1, True, 1.0):
                with pytest.raises(Rejected, match=name):
                    await consumer.poll_batches(0, **{name: wrong})


def test_what_is_read_again_comes_in_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may move a position while a batch is decoded, as when the topic was made anew."""
    feed = Feed(T0)
    feed.logs[T0].append(3)
    feed.logs[T0].append(2)
    feed.fetch()
    decode = _hand_out.decode_batch

    def decode_and_move(batch: bytes, **how: bool) -> DecodedBatch:
        monkeypatch.undo()
        feed.out.core.seek(T0, 0)
        feed.fetch()
        return decode(batch, **how)

    monkeypatch.setattr(_hand_out, "decode_batch", decode_and_move)
    [before], [after] = feed.out.take_batches(None), feed.out.take_batches(None)
    assert (offsets([before]), before.next_offset) == ([0, 1, 2], 3)
    assert (offsets([after]), after.next_offset) == ([0, 1, 2, 3, 4], 5)


def test_rows_of_kafka_are_made_columns() -> None:
    feed = Feed(T0)
    feed.bring(build_row_batch(RecordColumns(values=numbered(0, 50), keys=[None, b"k"] * 25)), 50)
    [part] = feed.out.take_batches(None)
    assert part.table.schema.names == COLUMNS
    assert part.table["value"].to_pylist() == numbered(0, 50)
    assert part.table["key"].to_pylist() == [None, b"k"] * 25
    assert (part.next_offset, part.high_watermark, part.lag) == (50, 50, 0)


def test_what_is_not_known_of_an_end_is_not_taken_for_one() -> None:
    nothing = pa.table({})
    assert PartitionTable("t", 0, nothing, 5, -1, -1, -1).lag is None
    assert PartitionTable("t", 0, nothing, 5, -1, 3, 3).lag == 0, "sought above the end"


# --- both twins -------------------------------------------------------------------------------------------------------


def open_consumer(broker: BrokerThread, *topics: str, **given: Any) -> headrace.Consumer:
    return headrace.Consumer(*topics, bootstrap_servers=broker.address, auto_offset_reset="earliest", **given)


def test_each_partition_has_a_table_with_the_rows_of_poll_table(broker: BrokerThread) -> None:
    broker.append("t", 0, numbered(0, 9), keys=[b"k"] * 9, headers=[[("h", b"x")]] * 9, timestamps_ms=7)
    broker.append("t", 1, numbered(0, 4))
    got: dict[int, list[pa.Table]] = {0: [], 1: []}
    with open_consumer(broker, "t") as consumer, open_consumer(broker, "t") as other:
        while sum(len(table) for tables in got.values() for table in tables) < 13:
            for part in consumer.poll_batches(timeout_ms=1000):
                assert (part.topic, part.table.schema.names) == ("t", COLUMNS)
                assert part.next_offset == consumer.position(("t", part.partition))
                got[part.partition].append(part.table)
        tables = []
        while sum(map(len, tables)) < 13:
            tables.append(other.poll_table(timeout_ms=1000))
    expected = pa.concat_tables(tables)
    for number, found in got.items():
        rows = [row for row in expected.to_pylist() if row.pop("partition") == number and row.pop("topic") == "t"]
        assert pa.concat_tables(found).to_pylist() == rows


def test_where_an_empty_partition_ends_is_told(broker: BrokerThread) -> None:
    with open_consumer(broker, "one", fetch_max_wait_ms=10) as consumer:
        [part] = consumer.poll_batches(timeout_ms=10_000)
        assert (len(part.table), part.next_offset, part.end_offset, part.lag) == (0, 0, 0, 0)
        assert consumer.poll_batches(timeout_ms=30) == [], "it is told once"
        broker.append("one", 0, numbered(0, 3))
        [part] = consumer.poll_batches(timeout_ms=10_000)
        assert (offsets([part]), part.next_offset, part.lag) == ([0, 1, 2], 3, 0)


def test_all_ways_to_read_share_a_position(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 100))
    with open_consumer(broker, "one", value_deserializer=int) as consumer:
        for record in consumer:
            if record.offset == 9:
                break
        [part] = consumer.poll_batches(max_rows=5)
        assert part.table["value"].to_pylist() == numbered(10, 15), "deserializers are for records"
        assert [record.value for record in consumer.poll(max_records=2)] == [15, 16]
        assert consumer.poll_table(max_records=1)["offset"].to_pylist() == [17]
        consumer.pause()
        assert consumer.poll_batches(timeout_ms=20) == []
        consumer.resume()
        assert offsets(consumer.poll_batches(max_rows=2)) == [18, 19], "what was left of the batch is not lost"
        consumer.seek(("one", 0), 90)
        found = consumer.poll_batches(timeout_ms=10_000)
        while not (got := offsets(found)):
            assert [part.next_offset for part in found] == [90]
            found = consumer.poll_batches(timeout_ms=10_000)
        assert got == list(range(90, 100))


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, "10"])
def test_a_number_of_rows_that_is_none_is_refused(broker: BrokerThread, rows: Any) -> None:
    with open_consumer(broker, "one") as consumer, pytest.raises(Rejected, match="max_rows is a whole number from 1"):
        consumer.poll_batches(max_rows=rows)


async def test_the_asyncio_consumer_reads_the_same(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 10))
    async with aio.Consumer("one", bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        got: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < 10:
                parts = await consumer.poll_batches(timeout_ms=1000, max_rows=4)
                assert len(offsets(parts)) <= 4
                got += offsets(parts)
        assert got == list(range(10))
        with pytest.raises(Rejected):
            await consumer.poll_batches(max_rows=0)


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 1)
    return backend


def read_until(offset: int, consumer: headrace.Consumer) -> list[bytes]:
    """As a restore does: by what ``poll_batches`` tells alone."""
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    at = -1
    while at < offset:
        for part in consumer.poll_batches(timeout_ms=500):
            values += part.table["value"].to_pylist()
            at = part.next_offset
        assert time.monotonic() < deadline, (at, consumer.health())
    return values


@pytest.mark.parametrize("commit", [False, True])
def test_a_wait_for_the_high_watermark_ends_when_all_transactions_below_have(memory: LabCluster, commit: bool) -> None:
    hand = TransactionalHand(memory, 7)
    plain(memory, b"a")
    hand.write(b"x", b"y")
    with memory.consumer("t") as uncommitted:
        end = uncommitted.end_offsets([T0])[T0]
    with memory.consumer("t", isolation_level="read_committed") as consumer:
        assert read_until(1, consumer) == [b"a"]
        part: PartitionTable | None = None
        for part in consumer.poll_batches(timeout_ms=100):
            assert (part.next_offset, part.end_offset) == (1, 1)
        assert consumer.poll_batches(timeout_ms=20) == []
        hand.end(commit=commit)
        assert read_until(end, consumer) == ([b"x", b"y"] if commit else [])
        assert consumer.position(T0) == end + 1, "behind the marker"


def test_a_log_in_which_nothing_is_left_is_read_to_its_end(memory: LabCluster) -> None:
    plain(memory, *numbered(0, 10))
    memory.trim("t", 0, 10)
    with memory.consumer("t") as consumer:
        assert read_until(10, consumer) == []
    with memory.consumer() as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 4)
        assert read_until(10, consumer) == [], "the position was gone"
