"""Values of Arrow without Spark: damage is told and never believed, whatever bytes come."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_jobs.topic_to_lake.arrow_values import ROWS_AT_ONCE, decoder

FIELDS = pa.struct([pa.field("id", pa.int64()), pa.field("name", pa.string())])
SOURCE = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
]
TARGET = pa.schema([*SOURCE, ("_fields", FIELDS), ("_row", pa.int32()), ("_reason", pa.string())])


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        [[None] * count, values, ["t"] * count, [0] * count, list(range(count)), [0] * count],
        schema=pa.schema(SOURCE),
    )


def decoded(values: list[bytes | None], required: frozenset[str] = frozenset()) -> pa.Table:
    batches = list(decoder(TARGET, required)(iter([batch_of(values)])))
    for batch in batches:
        assert batch.schema == TARGET
        batch.validate(full=True)
    return pa.Table.from_batches(batches, TARGET)


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


GOOD = stream_of(pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]}))


@settings(max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8), st.booleans())
def test_damaged_bytes_are_one_bad_row_or_rows_that_hold_together(at: int, other: bytes, cut: bool) -> None:
    damaged = GOOD[:at] if cut else GOOD[:at] + other + GOOD[at + len(other) :]
    found = decoded([GOOD, damaged, GOOD])
    assert found.slice(0, 2).column("_reason").to_pylist() == [None, None]
    assert found.column("offset").to_pylist()[-2:] == [2, 2]
    bad = found.filter(pa.compute.is_valid(found.column("_reason")))
    assert len(bad) <= 1
    assert bad.column("_row").to_pylist() == [None] * len(bad)


def test_columns_that_must_be_there() -> None:
    without = stream_of(pa.table({"name": ["a"]}))
    assert decoded([without]).column("_reason").to_pylist() == [None]
    told = decoded([without, GOOD], frozenset({"id"})).column("_reason").to_pylist()
    assert "column id is missing" in told[0]
    assert told[1:] == [None, None]


def test_numbers_that_do_not_fit_are_not_bent() -> None:
    target_too_small = stream_of(pa.table({"id": pa.array([2.5])}))
    assert "not a stream of Arrow that fits" in decoded([target_too_small]).column("_reason").to_pylist()[0]


def test_two_columns_of_one_name_are_told() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    assert "twice" in decoded([stream_of(twice)]).column("_reason").to_pylist()[0]


def test_many_rows_go_on_in_parts() -> None:
    large = stream_of(pa.table({"id": pa.array(range(ROWS_AT_ONCE)), "name": pa.nulls(ROWS_AT_ONCE, pa.string())}))
    batches = list(decoder(TARGET, frozenset())(iter([batch_of([large, large, b"x"])])))
    assert [len(batch) for batch in batches] == [ROWS_AT_ONCE, ROWS_AT_ONCE, 1]
    assert [batch.column("offset")[0].as_py() for batch in batches] == [0, 1, 2]


def test_nothing_in_nothing_out() -> None:
    assert len(decoded([])) == 0
