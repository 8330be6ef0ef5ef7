"""Both writers against a real cluster, called as Spark calls them; the sessions are in ``spark/test_writing.py``."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, IntegerType, StringType, StructType

from headrace import PreparedTransactions, Record
from headrace.testing import TestCluster
from headrace_common.core.errors import FencedOwner, HeadraceError, InvalidConfig, Rejected, UnknownTopicOrPartition
from headrace_spark.batch_writer import HeadraceBatchWriter
from headrace_spark.stream_writer import HeadraceStreamWriter
from headrace_spark.writing import BATCH_ID, QUERY_ID

VALUE = StructType().add("value", StringType())
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_task() -> Iterator[None]:
    yield
    TaskContext._setTaskContext(None)


@pytest.fixture
def cluster(headrace_cluster: TestCluster) -> TestCluster:
    return headrace_cluster


@pytest.fixture
def topic(cluster: TestCluster) -> str:
    return cluster.unique_topic("sink", 2)


class Query:
    """A streaming query, as its sink sees it."""

    def __init__(self, cluster: TestCluster | None, topic: str | None, query_id: str = "", **options: str) -> None:
        self.id = query_id or f"query-{topic}"
        bootstrap = NOBODY if cluster is None else ",".join(cluster.bootstrap_servers)
        self.options = {"kafka.bootstrap.servers": bootstrap, **options}
        if topic is not None:
            self.options["topic"] = topic

    def plan(self, schema: StructType = VALUE) -> HeadraceStreamWriter:
        """What Spark does before a batch."""
        made: HeadraceStreamWriter = pickle.loads(pickle.dumps(HeadraceStreamWriter(self.options, schema)))
        return made

    def task(self, writer: Any, batch_id: int, *values: str | None, attempt: int = 0) -> Any:
        """One attempt of a task of a planned batch."""
        return self.run(writer, batch_id, [rows(*values)] if values else [], attempt)

    def run(self, writer: Any, batch_id: int | None, batches: Any, attempt: int = 0) -> Any:
        properties = {} if batch_id is None else {QUERY_ID: self.id, BATCH_ID: str(batch_id)}
        context = object.__new__(TaskContext)
        context._localProperties, context._attemptNumber = properties, attempt
        TaskContext._setTaskContext(context)
        try:
            return pickle.loads(pickle.dumps(writer.write(iter(batches))))
        finally:
            TaskContext._setTaskContext(None)

    def commit(self, messages: list[Any], batch_id: int, schema: StructType = VALUE) -> None:
        """In another process, with another writer."""
        HeadraceStreamWriter(self.options, schema).commit(messages, batch_id)

    def batch(self, batch_id: int, *values: str) -> None:
        """A whole batch, of one task."""
        writer = self.plan()
        self.commit([self.task(writer, batch_id, *values)], batch_id)

    def job(self, *values: str, batch_id: int | None = None) -> None:
        """``df.write``; with a batch id within ``foreachBatch``."""
        writer = HeadraceBatchWriter(self.options, VALUE, False)
        message = self.run(pickle.loads(pickle.dumps(writer)), batch_id, [rows(*values)])
        writer.commit([message])


def rows(*values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])


def records(cluster: TestCluster, topic: str, count: int) -> list[Record]:
    """``count`` committed records, and a moment for more."""
    found: list[Record] = []
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout_ms=15_000)
            assert polled, f"{len(found)} of {count} came"
            found += polled
        found += consumer.poll(timeout_ms=200)
    return found


def values(cluster: TestCluster, topic: str, count: int) -> list[str]:
    return sorted(record.value.decode() for record in records(cluster, topic, count) if record.value is not None)


def mark(cluster: TestCluster, topic: str) -> None:
    """A record in each partition behind all there is: who reads it has seen the rest, unless it is still held up."""
    with cluster.producer() as producer:
        for partition in range(producer.partitions_for(topic)):
            producer.send(topic, b"~", partition=partition)


# --- columns -----------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.integration
WIDE = (
    StructType()
    .add("topic", StringType())
    .add("key", StringType())
    .add("value", BinaryType())
    .add("partition", IntegerType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    .add("other", DoubleType())
)


def wide(given: list[tuple[Any, ...]]) -> pa.RecordBatch:
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = [pa.string(), pa.string(), pa.binary(), pa.int32(), pa.list_(pa.field("element", pair)), pa.float64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*given, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[each.name for each in WIDE.fields])


def test_all_columns_reach_the_topics_that_rows_name(cluster: TestCluster) -> None:
    one, other = cluster.unique_topic("sink", 3), cluster.unique_topic("sink", 1)
    query = Query(cluster, None, f"q-{one}")
    headers = [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}]
    given = [
        (one, "k", b"\x00\xff", 2, headers, 1.0),
        (other, None, b"plain", None, None, 1.0),
        (one, "gone", None, 1, [], 1.0),
    ]
    writer = query.plan(WIDE)
    message = query.run(writer, 0, [wide(given[:1]), wide(given[1:])])
    query.commit([message], 0, WIDE)
    first, second = sorted(records(cluster, one, 2), key=lambda record: record.partition)
    assert (first.partition, first.key, first.value, list(first.headers)) == (1, b"gone", None, [])
    assert (second.partition, second.key, second.value) == (2, b"k", b"\x00\xff")
    assert list(second.headers) == [("trace", b"\x01"), ("trace", None)]
    (plain,) = records(cluster, other, 1)
    assert (plain.key, plain.value, list(plain.headers)) == (None, b"plain", [])


@pytest.mark.parametrize(
    ("row", "error", "told"),
    [
        ((None, "k", b"v", None, None, 1.0), Rejected, "1 rows have no topic"),
        (("no such!", "k", b"v", None, None, 1.0), HeadraceError, "the column 'topic' names no topic"),
        (("never-created", "k", b"v", None, None, 1.0), UnknownTopicOrPartition, "never-created"),
        (("TOPIC", "k", b"v", 7, None, 1.0), UnknownTopicOrPartition, "there is no 7"),
        (("TOPIC", "k", b"v", None, [{"key": None, "value": b""}], 1.0), HeadraceError, "header"),
        (("TOPIC", "k", b"v" * (2 << 20), None, None, 1.0), HeadraceError, "max_request_size"),
    ],
)
def test_rows_that_cannot_be_written(
    cluster: TestCluster, topic: str, row: tuple[Any, ...], error: type[HeadraceError], told: str
) -> None:
    query = Query(cluster, None, f"q-{topic}")
    row = (topic if row[0] == "TOPIC" else row[0], *row[1:])
    good = (topic, "k", b"good", None, None, 1.0)
    with pytest.raises(error) as refused:
        query.run(query.plan(WIDE), 0, [wide([good]), wide([row])])
    assert told in str(refused.value)
    mark(cluster, topic)
    assert values(cluster, topic, 2) == ["~", "~"], "nothing of the task is seen, and nobody waits for it"


def test_what_cannot_be_planned() -> None:
    with pytest.raises(InvalidConfig, match="append"):
        HeadraceBatchWriter(Query(None, "t").options, VALUE, True)
    with pytest.raises(InvalidConfig, match="a column 'value'") as refused:
        HeadraceStreamWriter(Query(None, None).options, StructType().add("key", StringType()))
    assert "set the option 'topic'" in str(refused.value)
    with pytest.raises(InvalidConfig, match="did you mean 'topic'"):
        HeadraceStreamWriter({**Query(None, "t").options, "topik": "t"}, VALUE)
    for name, value, told in (
        ("kafka.buffer.memory", "70000", "above buffer_memory"),
        ("kafka.delivery.timeout.ms", "100", "delivery_timeout_ms"),
        ("kafka.max.in.flight.requests.per.connection", "6", "enable_idempotence"),
    ):
        with pytest.raises(InvalidConfig, match=told):
            HeadraceStreamWriter(Query(None, "t", **{name: value}).options, VALUE)
    HeadraceStreamWriter(Query(None, "t", transactional="false", **{"kafka.acks": "1"}).options, VALUE)


# --- micro-batches -----------------------------------------------------------------------------------------------


def test_a_batch_becomes_visible_as_one(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    writer = query.plan()
    messages = [query.task(writer, 0, "a", "b"), query.task(writer, 0), query.task(writer, 0, "c")]
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        assert consumer.poll(timeout_ms=300) == []
    query.commit(messages, 0)
    assert values(cluster, topic, 3) == ["a", "b", "c"]


def test_batches_without_rows_ask_nobody() -> None:
    query = Query(None, "t")
    writer = query.plan()
    query.commit([query.task(writer, 0), query.run(writer, 0, [rows(), rows()])], 0)
    query.commit([], 1)


def test_of_two_attempts_one_counts(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    writer = query.plan()
    query.task(writer, 0, "lost")
    told = query.task(writer, 0, "told", attempt=1)
    query.commit([told], 0)
    mark(cluster, topic)
    assert values(cluster, topic, 3) == ["told", "~", "~"]


def test_a_repeated_batch_is_dropped(cluster: TestCluster, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(cluster, topic)
    query.batch(3, "first")
    with caplog.at_level(logging.WARNING):
        query.batch(3, "again", "and again")
    assert "repeated: batch 3 was committed before, 2 rows dropped" in caplog.text
    query.batch(4, "next")
    assert values(cluster, topic, 2) == ["first", "next"]


def test_a_commit_that_is_repeated_changes_nothing(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    messages = [query.task(query.plan(), 0, "once")]
    query.commit(messages, 0)
    query.commit(messages, 0)
    query.batch(1, "next")
    assert values(cluster, topic, 2) == ["next", "once"]


def test_an_older_batch_than_the_last_one_fails(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    query.batch(5, "five")
    with pytest.raises(FencedOwner, match=r"batch 4 .* batch 5 was committed before"):
        query.task(query.plan(), 4, "four")


def test_of_two_drivers_the_later_one_writes(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    old = query.plan()
    prepared = query.task(old, 0, "old")
    new = query.plan()
    messages = [query.task(new, 0, "new")]
    with pytest.raises(FencedOwner):
        query.task(old, 0, "old")
    with pytest.raises(FencedOwner):
        query.commit([prepared], 0)
    query.commit(messages, 0)
    assert values(cluster, topic, 1) == ["new"]


def test_a_zombie_that_still_writes_cannot_prepare(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows("zombie")
        query.batch(0, "new")
        yield rows("zombie")

    with pytest.raises(HeadraceError):
        query.run(query.plan(), 0, slow())
    mark(cluster, topic)
    assert values(cluster, topic, 3) == ["new", "~", "~"]


def test_an_aborted_batch_holds_nobody_up(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    message = query.task(query.plan(), 0, *map(str, range(20)))
    query.plan().abort([None, message], 0)
    mark(cluster, topic)
    assert values(cluster, topic, 2) == ["~", "~"]


def test_a_driver_that_was_replaced_gives_up_only_its_own(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    old = query.task(query.plan(), 0, "old")
    new = query.task(query.plan(), 0, "new")
    query.plan().abort([old], 0)
    query.commit([new], 0)
    assert values(cluster, topic, 1) == ["new"]


def test_a_task_whose_rows_fail_aborts_what_it_wrote(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(*map(str, range(100)))
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError):
        query.run(query.plan(), 0, failing())
    mark(cluster, topic)
    assert values(cluster, topic, 2) == ["~", "~"]


def test_a_unit_of_which_a_part_is_gone_is_not_committed(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    writer = query.plan()
    messages = [query.task(writer, 0, "a"), query.task(writer, 0, "b")]
    with PreparedTransactions(cluster.bootstrap_servers) as prepared:
        prepared.abort_prepared(messages[0].told.token)
    with pytest.raises(HeadraceError, match="Nothing of batch 0 was committed"):
        query.commit(messages, 0)
    writer.abort(messages, 0)
    query.batch(0, "a", "b")
    assert values(cluster, topic, 2) == ["a", "b"]


def test_a_buffer_that_is_too_small_for_a_batch_only_slows_it(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic, **{"kafka.buffer.memory": "300000", "kafka.max.request.size": "100000"})
    batches = [rows(*("x" * 1_000 for _ in range(500))) for _ in range(4)]
    query.commit([query.run(query.plan(), 0, iter(batches))], 0)
    assert len(records(cluster, topic, 2_000)) == 2_000


def test_at_least_once_is_visible_at_once_and_whole(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic, transactional="false")
    writer = query.plan()
    query.task(writer, 0, "a", "b")
    assert values(cluster, topic, 2) == ["a", "b"]
    query.commit([query.task(writer, 0, "a", "b", attempt=1)], 0)
    assert values(cluster, topic, 4) == ["a", "a", "b", "b"], "twice, and never not at all"


def test_at_least_once_does_not_hide_what_was_not_written(cluster: TestCluster) -> None:
    topic = cluster.unique_topic("sink", 1, max_message_bytes="2000")
    query = Query(cluster, topic, transactional="false")
    with pytest.raises(HeadraceError):
        query.task(query.plan(), 0, "x" * 5_000)


# --- jobs --------------------------------------------------------------------------------------------------------


def test_a_job_is_one_unit(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    writer = HeadraceBatchWriter(query.options, VALUE, False)
    messages = [query.run(writer, None, [rows("a")]), query.run(writer, None, []), query.run(writer, None, [rows("b")])]
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        assert consumer.poll(timeout_ms=300) == []
    writer.commit(messages)
    query.job("c")
    assert values(cluster, topic, 3) == ["a", "b", "c"]


def test_jobs_under_a_name_follow_each_other_and_the_later_fences(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic, transactionalId=f"job-{topic}")
    query.job("one")
    query.job("two")
    old = HeadraceBatchWriter(query.options, VALUE, False)
    message = query.run(old, None, [rows("old")])
    query.job("three")
    with pytest.raises(FencedOwner):
        old.commit([message])
    assert values(cluster, topic, 3) == ["one", "three", "two"]


def test_an_attempt_that_was_killed_holds_nobody_up_after_its_job(cluster: TestCluster, topic: str) -> None:
    query = Query(cluster, topic)
    writer = HeadraceBatchWriter(query.options, VALUE, False)

    def killed() -> Iterator[pa.RecordBatch]:
        yield rows("left open")
        writer.commit([query.run(writer, None, [rows("told")])])
        mark(cluster, topic)
        assert values(cluster, topic, 3) == ["told", "~", "~"], "while the other still writes"
        yield rows("left open")

    with pytest.raises(HeadraceError):
        query.run(writer, None, killed())


def test_in_foreach_batch_a_name_makes_it_exactly_once(cluster: TestCluster, topic: str) -> None:
    named, plain = Query(cluster, topic, transactionalId="board"), Query(cluster, topic)
    for query, value in ((plain, "plain"), (named, "named")):
        query.job(value, batch_id=0)
        query.job(value, batch_id=0)
        query.job(value, batch_id=1)
    assert values(cluster, topic, 5) == ["named", "named", "plain", "plain", "plain"]
