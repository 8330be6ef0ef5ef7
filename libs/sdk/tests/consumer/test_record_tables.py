"""Tables of any batches, cut anywhere, against the records told one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._core.record_tables import TABLE_COLUMNS, TableParts, table_schema
from headrace_common.core.batch import (
    Codec,
    DecodedBatch,
    RecordColumns,
    build_batch,
    build_row_batch,
    decode_batch,
    filter_records,
    read_header,
    stamp_log_append_time,
    strip_records,
)
from headrace_common.core.ids import TopicPartition

TPS = (TopicPartition("a", 0), TopicPartition("b", 3))
SIZES = st.sampled_from([1, 2, 31, 32, 40])


@st.composite
def batches(draw: st.DrawFn) -> tuple[TopicPartition, list[bytes]]:
    """Some of one partition: columns and rows, dense and sparse, with one timestamp or many, keys or none."""
    made, base = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        count = draw(SIZES)
        columns = RecordColumns(
            values=[None if draw(st.booleans()) and n % 3 == 0 else b"%d" % (base + n) for n in range(count)],
            keys=[b"k%d" % n for n in range(count)] if draw(st.booleans()) else None,
            headers=[[("h", b"%d" % n)] if n % 2 else [] for n in range(count)] if draw(st.booleans()) else None,
            timestamps_ms=7 if draw(st.booleans()) else list(range(100, 100 + count)),
        )
        build = draw(st.sampled_from([build_batch, build_row_batch]))
        one = build(columns, base_offset=base, codec=draw(st.sampled_from([Codec.NONE, Codec.LZ4])))
        base += count + draw(st.integers(0, 3))
        match draw(st.sampled_from(["", "", "sparse", "empty", "broker's time"])):
            case "sparse" if count > 2:
                one = filter_records(one, [n % 3 == 0 for n in range(count)])
            case "empty":
                one = strip_records(one)
            case "broker's time":
                one = stamp_log_append_time(one, read_header(one).base_offset, 0, 99)
        made.append(one)
    return draw(st.sampled_from(TPS)), made


def rows_of(tp: TopicPartition, batch: DecodedBatch) -> list[dict[str, Any]]:
    columns = zip(batch.offsets(), batch.timestamps(), batch.keys(), batch.values(), batch.headers(), strict=True)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "timestamp_ms": stamp,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": data} for name, data in headers],
            "timestamp_type": int(batch.header.timestamp_type),
        }
        for offset, stamp, key, value, headers in columns
    ]


@settings(max_examples=300)
@given(
    runs=st.lists(batches(), min_size=1, max_size=4),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    names=st.lists(st.sampled_from(TABLE_COLUMNS), min_size=1, unique=True),
    rows_max=st.integers(1, 200),
)
def test_a_table_has_the_wanted_rows_and_columns(
    runs: list[tuple[TopicPartition, list[bytes]]], bounds: tuple[float, float], names: list[str], rows_max: int
) -> None:
    parts, wanted = TableParts(tuple(names)), []
    for tp, made in runs:
        decoded = [decode_batch(one) for one in made]
        first, behind = decoded[0].header.base_offset, decoded[-1].header.next_offset
        start, stop = sorted(first + round(share * (behind - first)) for share in bounds)
        position = start
        for batch in decoded:
            if position >= stop or parts.rows == rows_max:
                break
            if batch.header.next_offset <= position:
                continue
            rows = [row for row in rows_of(tp, batch) if position <= row["offset"] < stop]
            taken = rows[: rows_max - parts.rows]
            position = parts.add(tp, batch, position, rows_max - parts.rows, stop)
            assert position == (batch.header.next_offset if taken == rows else taken[-1]["offset"] + 1)
            wanted += taken
    table = parts.table()
    assert table.schema == table_schema(tuple(names))
    table.validate(full=True)
    assert parts.rows == len(table) == len(wanted)
    assert table.to_pylist() == [{name: row[name] for name in names} for row in wanted]


def test_what_is_alike_is_one_chunk_over_many_batches() -> None:
    parts = TableParts()
    for number in range(10):
        columns = RecordColumns(values=[b"%d" % n for n in range(100)], timestamps_ms=number)
        parts.add(TPS[0], decode_batch(build_batch(columns, base_offset=1000 * number)), 0, 10_000)
    table = parts.table()
    assert {name: table.column(name).num_chunks for name in TABLE_COLUMNS if name != "value"} == dict.fromkeys(
        [name for name in TABLE_COLUMNS if name != "value"], 1
    )
    assert table.column("value").num_chunks == 10, "values stay where they are"


@pytest.mark.parametrize("names", [TABLE_COLUMNS, ("value",), ("topic", "timestamp_type")])
def test_no_rows_have_columns_too(names: tuple[str, ...]) -> None:
    assert TableParts(names).table().schema == table_schema(names)
