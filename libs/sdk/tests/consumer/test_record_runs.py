"""Records and tables against the plainest way to make them, for any batch, position and way to take them."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from headrace import Record, TimestampType, TopicPartition
from headrace._core.fetch_partition import PartitionFetch
from headrace._core.record_runs import Deserializers, run_of
from headrace._core.record_tables import TableParts
from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch, decode_batch

TP = TopicPartition("t", 3)
BYTES = st.one_of(st.none(), st.binary(max_size=20))
HEADERS = st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, list[Record]]:
    """A batch from offset 100 on, and its records."""
    count = draw(st.integers(1, 40))
    rows = st.lists(BYTES, min_size=count, max_size=count)
    values, keys = draw(rows), draw(st.one_of(st.none(), rows))
    headers = draw(st.one_of(st.none(), st.lists(HEADERS, min_size=count, max_size=count)))
    times = draw(st.one_of(st.just(7), st.lists(st.integers(0, 10**6), min_size=count, max_size=count)))
    steps = draw(st.one_of(st.none(), st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    deltas = list(range(count)) if steps is None else [sum(steps[:n]) for n in range(count)]
    build = draw(st.sampled_from([build_batch, build_row_batch]))
    columns = RecordColumns(values=values, keys=keys, headers=headers, timestamps_ms=times)
    if steps is not None:  # as compaction leaves them
        columns.offset_deltas = deltas
        columns.last_offset_delta = sum(steps)
    codec = draw(st.sampled_from([Codec.NONE, Codec.ZSTD]))
    records = [
        Record(
            "t", 3, 100 + deltas[n], keys[n] if keys else None, values[n], list(headers[n]) if headers else [],
            times if isinstance(times, int) else times[n], TimestampType.CREATE_TIME, 5,
        )
        for n in range(count)
    ]  # fmt: skip
    return build(columns, base_offset=100, leader_epoch=5, codec=codec), records


def partition_at(position: int) -> PartitionFetch:
    partition = PartitionFetch(TP, None)
    partition.move_to(position)
    return partition


def plain(records: list[Record]) -> list[Record]:
    return [record._replace(headers=list(record.headers)) for record in records]


@given(batches(), st.integers(0, 45), st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=6))
def test_a_run_gives_the_records_from_the_position_on(
    made: tuple[bytes, list[Record]], ahead: int, takes: list[tuple[bool, int]]
) -> None:
    batch, records = made
    position = min(100 + ahead - 3, records[-1].offset)
    expected = [record for record in records if record.offset >= position]
    run = run_of(partition_at(position), decode_batch(batch), Deserializers())
    end = decode_batch(batch).header.next_offset
    got: list[Record] = []
    for by_loop, count in takes:
        got += list(islice(run.iterator, count)) if by_loop else run.take(count)
        assert run.position == (expected[len(got)].offset if len(got) < len(expected) else end)
        assert run.finished == (len(got) == len(expected))
    assert plain(got) == expected[: len(got)]
    rest = run.take(1000)
    assert plain(rest) == expected[len(got) :]
    assert run.position == run.end == end


@given(batches(), st.integers(0, 40))
def test_a_run_that_was_cut_has_no_more(made: tuple[bytes, list[Record]], count: int) -> None:
    batch, records = made
    run = run_of(partition_at(100), decode_batch(batch), Deserializers())
    walked = list(islice(run.iterator, count))
    run.cut()
    assert list(run.iterator) == []
    assert run.finished
    assert plain(walked) == records[:count]


@given(batches(), st.integers(0, 45), st.integers(1, 50))
def test_a_table_has_the_same_rows(made: tuple[bytes, list[Record]], ahead: int, rows_max: int) -> None:
    batch, records = made
    position = min(100 + ahead - 3, records[-1].offset)
    expected = [record for record in records if record.offset >= position][:rows_max]
    parts = TableParts()
    after = parts.add(TP, decode_batch(batch), position, rows_max)
    whole = expected[-1] == records[-1]
    assert after == (decode_batch(batch).header.next_offset if whole else expected[-1].offset + 1)
    for row, record in zip(parts.table().to_pylist(), expected, strict=True):
        headers = [{"key": key, "value": value} for key, value in record.headers]
        assert (row["topic"], row["partition"], row["offset"]) == record[:3]
        assert (row["key"], row["value"], row["timestamp_ms"]) == (record.key, record.value, record.timestamp_ms)
        assert (row["headers"] or []) == headers


@given(batches(), st.integers(0, 39))
def test_a_deserializer_that_raises_stops_the_run_at_that_record(made: tuple[bytes, list[Record]], bad: int) -> None:
    batch, records = made
    present = [n for n, record in enumerate(records) if record.value is not None]
    if not present:
        return
    index = present[bad % len(present)]
    calls = 0

    def fail_there(value: bytes) -> str:
        nonlocal calls
        calls += 1
        if calls == present.index(index) + 1:
            raise ValueError("no")
        return value.hex()

    if index == 0:
        return
    run = run_of(partition_at(100), decode_batch(batch), Deserializers(value=fail_there))
    good = run.take(1000)
    assert [r.value for r in good] == [None if r.value is None else r.value.hex() for r in records[:index]]
    assert run.position == records[index].offset
    assert run.failure is not None
    assert f"t-3@{records[index].offset}" in str(run.failure)


@given(st.lists(st.tuples(st.integers(0, 2), batches()), max_size=5))
def test_a_table_of_many_batches_keeps_their_order(parts: list[tuple[int, tuple[bytes, list[Record]]]]) -> None:
    gathered, expected = TableParts(), []
    for partition, (batch, records) in parts:
        gathered.add(TopicPartition(f"topic-{partition}", partition), decode_batch(batch), 0, 1000)
        expected += [(f"topic-{partition}", partition, r.offset, r.key, r.value) for r in records]
    table = gathered.table()
    assert len(table) == gathered.rows == len(expected)
    names = ["topic", "partition", "offset", "key", "value"]
    assert [tuple(row[name] for name in names) for row in table.to_pylist()] == expected
