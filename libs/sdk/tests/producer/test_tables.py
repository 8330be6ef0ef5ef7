"""``send_table``: whatever the columns are, each record arrives as the row says, in its partition and in order."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace.errors import HeadraceError, InvalidPartitions, RecordTooLarge, Rejected, UnknownTopicOrPartition
from headrace.records import Span
from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch, decode_batch
from headrace_common.core.murmur2 import partition_for

PARTITIONS = 3
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(PAIR)

headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.one_of(st.none(), st.binary(max_size=3))}),
    max_size=3,
)
rows = st.fixed_dictionaries(
    {
        "value": st.one_of(st.none(), st.binary(max_size=5)),
        "key": st.one_of(st.none(), st.binary(min_size=1, max_size=3)),
        "partition": st.one_of(st.none(), st.integers(-1, PARTITIONS - 1)),
        "timestamp_ms": st.integers(0, 10**12),  # a broker refuses what is too far ahead of its clock
        "headers": st.one_of(st.none(), headers),
    }
)
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "partition": pa.int32(),
    "timestamp_ms": pa.int64(),
    "headers": HEADERS,
}


def arrived(memory: LabCluster, topic: str) -> list[list[dict[str, Any]]]:
    """Each partition's records, in order."""
    found: list[list[dict[str, Any]]] = []
    for number in range(PARTITIONS):
        log = memory.log(topic, number)
        part: list[dict[str, Any]] = []
        for batch in map(decode_batch, log.batches):
            part += batch.to_arrow().drop_columns("offset").to_pylist()
        found.append(part)
    return found


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", PARTITIONS)
    return backend


NUMBERS = count(1)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    tables=st.lists(st.lists(rows, max_size=40), min_size=1, max_size=3),
    names=st.sets(st.sampled_from(["key", "partition", "timestamp_ms", "headers"])),
    chunks=st.integers(1, 3),
    single=st.booleans(),
)
def test_rows_arrive_as_they_are(
    memory: LabCluster, tables: list[list[dict[str, Any]]], names: set[str], chunks: int, single: bool
) -> None:
    topic = f"t-{next(NUMBERS)}"
    memory.create_topic(topic, PARTITIONS)
    wanted: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
    columns = ["value", *sorted(names)]
    with memory.producer(batch_size=200) as producer:
        if single:
            producer.send(topic, b"before", partition=1, timestamp_ms=5, headers=[("h", b"x")])
            wanted[1].append(record({"value": b"before", "timestamp_ms": 5, "headers": [{"key": "h", "value": b"x"}]}))
        for table in tables:
            schema = pa.schema([(name, TYPES[name]) for name in columns])
            made = pa.Table.from_pylist([{name: row[name] for name in columns} for row in table], schema=schema)
            step = max(1, len(made) // chunks)
            made = pa.concat_tables([made.slice(at, step) for at in range(0, max(1, len(made)), step)])
            delivered = producer.send_table(topic, made)
            assert len(delivered.result(timeout=20)) == len(table)
            spans = [(one.partition, one.offset + n) for one in delivered.spans() for n in range(one.records)]
            assert spans == [(told.partition, told.offset) for told in delivered.result(timeout=20)]
            for row, told in zip(table, delivered.result(timeout=20), strict=True):
                assert told.partition == place(row, names) or place(row, names) is None
                wanted[told.partition].append(record({name: row[name] for name in columns}))
    found = arrived(memory, topic)
    if "timestamp_ms" not in names:
        for part in [*found, *wanted]:
            for each in part:
                each.pop("timestamp_ms", None)
    assert found == wanted


def test_spans_are_few_and_only_of_what_is_done(memory: LabCluster) -> None:
    table = pa.table({"value": [b"x"] * 9, "partition": pa.array([1] * 4 + [2] * 5, pa.int32())})
    with memory.producer(linger_ms=60_000) as producer:
        delivered = producer.send_table("t", table)
        with pytest.raises(Rejected, match="call flush"):
            delivered.spans()
        producer.flush()
        assert delivered.spans() == [Span(1, 0, 4), Span(2, 0, 5)]
        again = producer.send_table("t", table.slice(0, 2))
        producer.flush()
        assert again.spans() == [Span(1, 4, 2)]


def place(row: dict[str, Any], names: set[str]) -> int | None:
    """Where the row has to go; None: that is the producer's to choose."""
    named = row["partition"] if "partition" in names else None
    if named is not None and named >= 0:
        return int(named)
    key = row["key"] if "key" in names else None
    return None if key is None else partition_for(key, PARTITIONS)


def record(row: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp_ms": 0, "key": None, "value": None} | {
        **{name: value for name, value in row.items() if name != "partition"},
        "headers": row.get("headers") or [],
    }


def test_other_types_that_say_the_same_are_taken(memory: LabCluster) -> None:
    names = pa.array(["a", "b"]).dictionary_encode()
    pairs = pa.StructArray.from_arrays([pa.array(["x", "y"], pa.large_string()), names], names=["value", "key"])
    headers = pa.LargeListArray.from_arrays(pa.array([0, 0, 2], pa.int64()), pairs)
    table = pa.table({"value": ["v", "w"], "headers": headers, "partition": pa.array([2, 2], pa.uint8())})
    with memory.producer() as producer:
        producer.send_table("t", table).result(timeout=10)
        producer.send_table("t", pa.table({"value": ["z"], "headers": pa.nulls(1), "partition": pa.nulls(1)})).result(
            10
        )
    rows_of_two = arrived(memory, "t")[2]
    assert [row["headers"] for row in rows_of_two][:2] == [
        [],
        [{"key": "a", "value": b"x"}, {"key": "b", "value": b"y"}],
    ]


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_timestamps_of_any_unit_are_milliseconds(memory: LabCluster, unit: str, second: int) -> None:
    stamps = pa.array([7 * second, 9 * second], pa.timestamp(unit))
    with memory.producer() as producer:
        table = pa.table({"value": ["v", "w"], "timestamp_ms": stamps, "partition": [0, 0]})
        producer.send_table("t", table).result(timeout=10)
    assert [row["timestamp_ms"] for row in arrived(memory, "t")[0]] == [7_000, 9_000]


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"headers": pa.array([b"x"])}, Rejected, "takes list<struct<key: string, value: binary>>, not binary"),
        ({"headers": pa.array([["x"]])}, Rejected, "takes list<struct<key: string, value: binary>>"),
        ({"headers": pa.array([[{"key": "x"}]])}, Rejected, "takes list<struct<key: string, value: binary>>"),
        ({"headers": pa.array([[{"key": None, "value": b""}]], HEADERS)}, Rejected, "a header without a name"),
        ({"headers": pa.array([[None]], HEADERS)}, Rejected, "a header without a name"),
        ({"headers": pa.array([[{"key": b"x", "value": b""}]])}, Rejected, "the name of a header is text, not binary"),
        ({"headers": pa.array([[{"key": "x", "value": 1.5}]])}, Rejected, "the column headers"),
        ({"partition": pa.array([1.0])}, Rejected, "takes whole numbers, not double"),
        ({"partition": pa.array([1 << 40])}, Rejected, "the column partition"),
        ({"partition": pa.array([3])}, UnknownTopicOrPartition, "there is no 3"),
        ({"partition": pa.array([-2])}, UnknownTopicOrPartition, "there is no -2"),
        ({"timestamp_ms": pa.array([-1])}, Rejected, "0 or more, not -1"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_anything_is_sent(
    memory: LabCluster, columns: dict[str, Any], error: type[HeadraceError], text: str
) -> None:
    with memory.producer() as producer:
        with pytest.raises(error, match=text):
            producer.send_table("t", pa.table({"value": [b"v"], **columns}))
        producer.flush(10)
    assert arrived(memory, "t") == [[], [], []]


def test_headers_count_for_the_size_of_a_record(memory: LabCluster) -> None:
    big = pa.array([[{"key": "h", "value": b"x" * 2000}]], HEADERS)
    with (
        memory.producer(max_request_size=1500) as producer,
        pytest.raises(RecordTooLarge, match=r"the record has 20\d\d bytes"),
    ):
        producer.send_table("t", pa.table({"value": [b"v"], "headers": big}))


def test_a_partitioner_that_names_no_partition_of_the_topic_is_refused_before_anything_is_sent(
    memory: LabCluster,
) -> None:
    def beyond(topic: str, key: bytes | None, partitions: int) -> int:
        return partitions

    with memory.producer(partitioner=beyond) as producer:
        for send in (lambda: producer.send("t", b"v"), lambda: producer.send_many("t", [b"v"] * 2)):
            with pytest.raises(InvalidPartitions, match="the partitioner gave 3; t has 3 partitions"):
                send()
        producer.flush(10)
    assert arrived(memory, "t") == [[], [], []]


def test_serializers_and_headers_in_a_table_go_together(memory: LabCluster) -> None:
    table = pa.table(
        {
            "value": ["v"],
            "headers": pa.array([[{"key": "h", "value": None}]], HEADERS),
            "partition": pa.array([1]),
        }
    )
    with memory.producer(value_serializer="json") as producer:
        producer.send_table("t", table).result(timeout=10)
    [[row]] = [part for part in arrived(memory, "t") if part]
    assert (row["value"], row["headers"]) == (b'"v"', [{"key": "h", "value": None}])


@pytest.mark.parametrize("codec", list(Codec))
def test_headers_in_arrow_are_written_as_those_in_lists(codec: Codec) -> None:
    listed = [[("a", b"1"), ("b", None)], [], [("", b"")]]
    column = pa.array([[{"key": k, "value": v} for k, v in each] for each in listed], HEADERS)
    for build in (build_batch, build_row_batch):
        whole = build(RecordColumns([b"x"] * 3, headers=listed), codec=codec)
        assert decode_batch(build(RecordColumns([b"x"] * 3, headers=column), codec=codec)).headers() == listed
        assert decode_batch(whole).headers() == listed
        cut = build(RecordColumns([b"x"] * 2, headers=column[1:]), codec=codec)
        assert decode_batch(cut).headers() == listed[1:]
