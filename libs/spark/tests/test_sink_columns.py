"""DataFrames into tables for the producer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import lab
from headrace_common.core.errors import InvalidConfig, InvalidTopic, Rejected
from headrace_spark.core.columns import SPARK_TYPES, FieldGiven, arrow_types
from headrace_spark.core.sink_columns import SinkColumns, check_sink_schema, tables_by_topic

VALUE = FieldGiven("value", "binary")


def test_a_dataframe_like_the_kafka_sinks() -> None:
    given_ = [
        FieldGiven("Topic", "string"),
        FieldGiven("KEY", "string"),
        FieldGiven("value", "string"),
        FieldGiven("partition", "int"),
        FieldGiven("headers", SPARK_TYPES["headers"]),
        FieldGiven("something", "double"),
    ]
    columns = check_sink_schema(given_, None)
    assert columns == SinkColumns(
        ("value", "KEY", "partition", "headers"), ("value", "key", "partition", "headers"), None, "Topic"
    )
    assert check_sink_schema(given_, "t").topic_column is None, "the option wins"


@pytest.mark.parametrize(
    ("given_", "topic", "told"),
    [
        ([FieldGiven("key", "string")], "t", "a column 'value' of type string or binary is needed"),
        ([VALUE], None, "set the option 'topic', or add a column 'topic'"),
        ([FieldGiven("value", "double")], "t", "column value is of type double, it must be string or binary"),
        ([VALUE, FieldGiven("partition", "bigint")], "t", "column partition is of type bigint, it must be int"),
        ([VALUE, FieldGiven("headers", "map<string,binary>")], "t", "column headers is of type map<string,binary>"),
        ([VALUE, FieldGiven("Value", "binary")], "t", "column value stands there twice"),
    ],
)
def test_dataframes_that_cannot_be_written(given_: list[FieldGiven], topic: str | None, told: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        check_sink_schema(given_, topic)
    assert told in str(refused.value)


BY_ROW = check_sink_schema([FieldGiven("topic", "string"), FieldGiven("value", "string")], None)


def batch(rows: list[tuple[str | None, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([t for t, _ in rows], pa.string()), pa.array([v for _, v in rows], pa.string())],
        names=["topic", "value"],
    )


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c.d"]), st.text("xyz", max_size=3)), max_size=30))
def test_each_topic_gets_its_rows_in_order(rows: list[tuple[str | None, str]]) -> None:
    made = dict(tables_by_topic(batch(rows), BY_ROW))
    assert {topic: table.column("value").to_pylist() for topic, table in made.items()} == {
        topic: [v.encode() for t, v in rows if t == topic] for topic, _ in rows
    }


def test_rows_without_a_topic_are_refused_before_any_is_written() -> None:
    with pytest.raises(Rejected, match="1 rows have no topic"):
        next(tables_by_topic(batch([("a", "1"), (None, "2")]), BY_ROW))
    with pytest.raises(InvalidTopic, match="the column 'topic' names no topic"):
        next(tables_by_topic(batch([("a", "1"), ("b c", "2")]), BY_ROW))
    assert list(tables_by_topic(batch([]), BY_ROW)) == []


async def test_the_producer_takes_what_comes_out() -> None:
    given_ = [FieldGiven(name, SPARK_TYPES[name]) for name in ("value", "key", "partition", "headers", "topic")]
    columns = check_sink_schema(given_, None)
    made = pa.RecordBatch.from_arrays(
        [
            pa.array([b"1", None, b"3"], pa.binary()),
            pa.array([None, b"k", b"k"], pa.binary()),
            pa.array([1, 0, None], pa.int32()),
            pa.array([[{"key": "h", "value": b"x"}], None, []], arrow_types()["headers"]),
            pa.array(["t", "u", "t"]),
        ],
        names=[*columns.names, "topic"],
    )
    async with lab(seed=1) as cluster:
        for topic in "tu":
            await cluster.create_topic(topic, 2)
        async with cluster.producer() as producer:
            for topic, table in tables_by_topic(made, columns):
                await (await producer.send_table(topic, table))
        async with cluster.consumer() as consumer:
            await consumer.assign([(topic, number) for topic in "tu" for number in range(2)])
            records = []
            while len(records) < 3:
                records += await consumer.poll()
    read = {(r.topic, r.partition, r.key, r.value, tuple(r.headers)) for r in records if r.value != b"3"}
    assert read == {("t", 1, None, b"1", (("h", b"x"),)), ("u", 0, b"k", None, ())}
    assert [(r.topic, r.key) for r in records if r.value == b"3"] == [("t", b"k")], "wherever its key belongs"
