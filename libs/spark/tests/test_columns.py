"""From the SDK's tables to Spark's batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core.record_tables import table_schema
from headrace_common.core.errors import InvalidConfig
from headrace_spark.core.columns import (
    BATCH_BYTES,
    BATCH_BYTES_MAX,
    Column,
    FieldGiven,
    arrow_schema,
    batches,
    check_schema,
    ddl,
    default_columns,
)

ALL = default_columns(headers=True)


def table(rows: Sequence[tuple[str, int, int]], *, value: bytes = b"v", stamp: int = 1_700_000_000_123) -> pa.Table:
    """Topic, partition and offset of each row, as ``poll_table`` gives them."""
    names = list(dict.fromkeys(topic for topic, _, _ in rows))
    topics = pa.array([names.index(topic) for topic, _, _ in rows], pa.int32())
    count = len(rows)
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(topics, pa.array(names, pa.string())),
            pa.array([partition for _, partition, _ in rows], pa.int32()),
            pa.array([offset for _, _, offset in rows], pa.int64()),
            pa.array([stamp] * count, pa.int64()),
            pa.array([None, b"k"] * count, pa.binary())[:count],
            pa.array([value] * count, pa.binary()),
            pa.array([[], [{"key": "h", "value": None}]] * count, table_schema().field("headers").type)[:count],
            pa.array([1, 0] * count, pa.int32())[:count],
        ],
        schema=table_schema(),
    )


def of(partition: int, first: int, end: int, topic: str = "t") -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(first, end)]


# --- what Spark gets ---------------------------------------------------------------------------------------------


def test_all_columns_as_in_sparks_kafka_source() -> None:
    assert ddl(ALL) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
        "headers array<struct<key:string,value:binary>>"
    )
    (batch,) = batches(table(of(3, 7, 9)), ALL)
    assert batch.schema.equals(arrow_schema(ALL), check_metadata=True)
    rows = batch.to_pylist()
    assert rows[1] | {"timestamp": None} == {
        "key": b"k",
        "value": b"v",
        "topic": "t",
        "partition": 3,
        "offset": 8,
        "timestamp": None,
        "timestampType": 0,
        "headers": [{"key": "h", "value": None}],
    }
    assert rows[0]["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert rows[0]["headers"] is None


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_record_without_headers_has_null_there(count: int) -> None:
    kind = table_schema().field("headers").type
    made = table(of(0, 0, 5))
    lists = pa.array([[{"key": "h", "value": b"v"}] if n < count else [] for n in range(5)], kind)
    made = made.set_column(made.schema.get_field_index("headers"), "headers", lists)
    (batch,) = batches(made.slice(1), default_columns(headers=True))
    batch.validate(full=True)
    wanted = [[{"key": "h", "value": b"v"}] if n < count else None for n in range(1, 5)]
    assert batch.column("headers").to_pylist() == wanted


def test_the_types_are_those_that_spark_checks() -> None:
    expected = {
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
    schema = arrow_schema(ALL)
    assert {name: schema.field(name).type for name in expected} == expected
    assert all(field.nullable for field in schema), "as Spark makes its schema of the text above"
    headers = schema.field("headers").type
    assert headers.value_field.name == "element"
    assert headers.value_type.field("key").nullable


def test_timestamp_types_alone() -> None:
    (batch,) = batches(table(of(0, 0, 3)), (Column("timestampType", "timestampType"),))
    assert batch.column(0).to_pylist() == [1, 0, 1]
    assert batch.column(0).type == pa.int32()


def test_some_columns_in_another_order() -> None:
    columns = check_schema([FieldGiven("Offset", "bigint", False), FieldGiven("value", "binary")])
    (batch,) = batches(table(of(0, 5, 7)), columns)
    assert batch.to_pydict() == {"Offset": [5, 6], "value": [b"v", b"v"]}
    assert not batch.schema.field("Offset").nullable


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ([], "at least one column"),
        ([FieldGiven("valu", "binary")], "there is no column 'valu'; did you mean value?"),
        ([FieldGiven("x" * 500, "binary")], "Columns: key, value,"),
        ([FieldGiven("value", "string")], "column value is of type binary, not string"),
        ([FieldGiven("timestamp", "timestamp_ntz")], "column timestamp is of type timestamp, not timestamp_ntz"),
        ([FieldGiven("headers", "array<struct<key:string,value:string>>")], "column headers is of type"),
        ([FieldGiven("value", "binary", False)], "column value may be null"),
        ([FieldGiven("value", "binary"), FieldGiven("VALUE", "binary")], "column value stands in the schema twice"),
    ],
)
def test_schemas_that_cannot_be(given_: list[FieldGiven], told: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        check_schema(given_)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 500


def test_spark_writes_types_with_or_without_spaces() -> None:
    check_schema([FieldGiven("headers", "array<struct<key: string, value: binary>>")])


# --- times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "micros"),
    [(0, 0), (-1, -1_000), (2**63 - 1, (2**63 - 1) // 1_000 * 1_000), (-(2**63), -((2**63 - 1) // 1_000 * 1_000))],
)
def test_times_that_spark_cannot_say_become_the_nearest(ms: int, micros: int) -> None:
    (batch,) = batches(table(of(0, 0, 1), stamp=ms), (Column("timestamp", "timestamp"),))
    assert batch.column(0).cast(pa.int64()).to_pylist() == [micros]


# --- sizes -------------------------------------------------------------------------------------------------------


def test_small_chunks_are_put_together() -> None:
    many = pa.concat_tables([table(of(0, n * 10, n * 10 + 10)) for n in range(200)])
    made = list(batches(many, ALL))
    assert len(made) == 1
    assert made[0].column(4).to_pylist() == list(range(2_000))


def test_large_ones_are_cut() -> None:
    big = table(of(0, 0, 300), value=bytes(100_000))
    made = list(batches(big, (Column("value", "value"),)))
    assert all(batch.nbytes <= BATCH_BYTES_MAX for batch in made)
    assert all(batch.nbytes >= BATCH_BYTES // 2 for batch in made)
    assert sum(map(len, made)) == 300


def test_a_record_larger_than_a_batch_stands_alone() -> None:
    made = list(batches(table(of(0, 0, 3), value=bytes(6 << 20)), (Column("value", "value"),)))
    assert [len(batch) for batch in made] == [1, 1, 1]


def test_without_rows_there_is_no_batch() -> None:
    assert list(batches(table([]), ALL)) == []
    assert list(batches(table_schema().empty_table(), ALL)) == []


def test_values_of_one_chunk_are_not_copied() -> None:
    source = table(of(0, 0, 1_000), value=bytes(100))
    (batch,) = batches(source, ALL)
    assert batch.column("value").buffers()[2].address == source.column("value").chunk(0).buffers()[2].address


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([0, 10, 5_000])), max_size=8), st.booleans())
def test_every_row_comes_once_and_in_order(chunks: list[tuple[int, int]], headers: bool) -> None:
    made_of, first = [table([])], 0
    for rows, size in chunks:
        made_of.append(table(of(0, first, first + rows), value=bytes(size)))
        first += rows
    whole = pa.concat_tables(made_of)
    columns = default_columns(headers=headers)
    made = list(batches(whole, columns))
    assert [n for batch in made for n in batch.column(4).to_pylist()] == list(range(first))
    assert all(batch.schema == arrow_schema(columns) for batch in made)
    assert all(len(batch) for batch in made)
    assert all(batch.nbytes >= BATCH_BYTES // 2 for batch in made[:-1]), "only the last one is small"
    for batch in made:
        batch.validate(full=True)
