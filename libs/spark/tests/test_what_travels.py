"""
What Spark hands to tasks, made by the very functions of PySpark that make it on the driver: never the driver's key.

Each of them reads what the JVM sends, and writes pickles that the JVM sends on: to another process of the driver, or to
the executors. So these tests fail where a later PySpark pickles something else, or at another time.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pickle import PicklingError
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.serializers import read_int, write_int, write_with_length
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructType
from pyspark.sql.worker import (
    commit_data_source_write,
    create_data_source,
    plan_data_source_read,
    python_streaming_sink_runner,
    write_into_data_source,
)
from pyspark.worker_util import pickleSer

from headrace_common.core.errors import ClusterAuthorizationFailed, CredentialsExpired, NetworkFailed
from headrace_common.core.ids import TopicPartition
from headrace_common.core.secret import Secret
from headrace_spark import batch_reader
from headrace_spark.adapters import sdk_rows, sdk_writing
from headrace_spark.core.offsets import Bound, Snapshot
from headrace_spark.core.units import CommitUnit, Owned
from headrace_spark.source import HeadraceDataSource

from .keys import Keyring, install_keyring

TOKEN = "hrk_own"
TASKS = Secret("hrk_k1")
VALUE = StructType().add("value", BinaryType())
READS = {"kafka.bootstrap.servers": "b:1", "subscribe": "a", "startingOffsets": "earliest", "Headrace.Token": TOKEN}
WRITES = {"kafka.bootstrap.servers": "b:1", "topic": "a", "transactionalId": "q", "Headrace.Token": TOKEN}


class Logs:
    """One partition with ten records."""

    def snapshot(self, *_: Any, **__: Any) -> Snapshot:
        return Snapshot({TopicPartition("a", 0): Bound(0, 10)}, {"a": "01"})

    def offsets_for_times(self, _: Any) -> dict[Any, Any]:
        return {}

    def record_bytes(self, _: Any) -> dict[Any, Any]:
        return {}

    def show(self, *_: Any, **__: Any) -> None:
        pass


class Rows:
    """None."""

    def __iter__(self) -> Iterator[pa.Table]:
        return iter(())

    def close(self) -> None:
        pass


class Sink:
    """What the SDK does, of which those who ask are written down."""

    asked: list[tuple[str, Secret | None]]

    def __init__(self, cluster: Any, client: Any) -> None:
        self._shows = cluster.api_key

    def _ask(self, call: str) -> None:
        self.asked.append((call, self._shows))

    def fresh(self) -> bytes:
        return bytes(16)

    def claim(self, owner: str, claim: int) -> Owned:
        self._ask(f"claim {owner}")
        return Owned(owner, 1, -1)

    def open(self, transactional_id: str | None, owner_epoch: int | None) -> Sink:
        return self

    def write(self, topic: str, table: pa.Table) -> None:
        self._ask(f"write {topic}")

    def prepare(self) -> str:
        return "T"

    def abort(self) -> None:
        raise AssertionError("it goes well")

    def close(self) -> None:
        pass

    def commit(self, unit: CommitUnit) -> bool:
        self._ask(f"commit {unit.owner}")
        return True

    def sweep(self, owner: str, claim: int) -> None:
        self._ask(f"sweep {owner}")


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    monkeypatch.setattr(batch_reader.HeadraceBatchReader, "_logs", lambda _: Logs())
    monkeypatch.setattr("headrace_spark.adapters.sdk_logs.SdkLogs", lambda *_: Logs())
    monkeypatch.setattr("headrace_spark.adapters.sdk_logs.SdkOnlookers", lambda *_: Logs())
    monkeypatch.setattr(sdk_writing, "SdkSink", Sink)
    monkeypatch.setattr(Sink, "asked", [], raising=False)
    return install_keyring(monkeypatch)


# --- Spark's side -------------------------------------------------------------------------------------------------


class Jvm:
    """Speaks to one worker of PySpark."""

    def __init__(self) -> None:
        self._sent = io.BytesIO()

    def pickle(self, pickled: bytes) -> Jvm:
        write_with_length(pickled, self._sent)
        return self

    def text(self, *texts: str) -> Jvm:
        for each in texts:
            self.pickle(each.encode())
        return self

    def number(self, number: int) -> Jvm:
        write_int(number, self._sent)
        return self

    def long(self, number: int) -> Jvm:
        self._sent.write(struct.pack("!q", number))
        return self

    def flags(self, *flags: bool) -> Jvm:
        self._sent.write(struct.pack(f"!{len(flags)}?", *flags))
        return self

    def options(self, options: dict[str, str]) -> Jvm:
        self.number(len(options))
        return self.text(*(text for pair in options.items() for text in pair))

    def ask(self, worker: Callable[[Any, Any], None]) -> io.BytesIO:
        answer = io.BytesIO()
        self._sent.seek(0)
        worker(self._sent, answer)
        answer.seek(0)
        return answer


def pickled(answer: io.BytesIO) -> bytes:
    return answer.read(read_int(answer))


def source(options: dict[str, str]) -> bytes:
    """What the JVM keeps of ``load()`` and ``start()``, and sends to processes of the driver."""
    jvm = Jvm().pickle(pickleSer.dumps(HeadraceDataSource)).text("headrace")
    jvm.flags(True).text(VALUE.json()).options(options)
    return pickled(jvm.ask(create_data_source._main))


def plan(options: dict[str, str], *, streaming: bool) -> tuple[bytes, list[bytes]]:
    """The function that tasks run, and their partitions."""
    jvm = Jvm().pickle(source(options)).text(VALUE.json(), VALUE.json()).number(10_000)
    answer = jvm.flags(True, streaming, False).ask(plan_data_source_read._main)
    return pickled(answer), [pickled(answer) for _ in range(read_int(answer))]


def read(function: bytes, partition: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A task. What it shows."""
    shown: list[Any] = []

    def open_rows(reading: sdk_rows.Reading, *_: Any) -> Rows:
        shown.append(reading.cluster.api_key)
        return Rows()

    monkeypatch.setattr(sdk_rows, "open_rows", open_rows)
    run, _ = pickleSer.loads(function)
    assert list(run(iter([pa.record_batch([pa.array([partition], pa.binary())], names=["value"])]))) == []
    return shown


def write(options: dict[str, str], *, streaming: bool) -> tuple[bytes, bytes]:
    """The function that tasks run, and the writer that is to commit."""
    schema = StructType().add("value", StringType())
    jvm = Jvm().pickle(pickleSer.dumps(HeadraceDataSource)).text("headrace", schema.json(), VALUE.json())
    answer = jvm.options(options).flags(False, streaming, False).ask(write_into_data_source._main)
    return pickled(answer), pickled(answer)


def run_write(function: bytes) -> bytes:
    """A task. What it tells the driver."""
    run, _ = pickleSer.loads(function)
    TaskContext._setTaskContext(None)
    (answer,) = run(iter([pa.record_batch([pa.array(["v"], pa.string())], names=["value"])]))
    message: bytes = answer.column(0)[0].as_py()
    return message


def has_token(sent: bytes) -> bool:
    return TOKEN.encode() in sent


# --- what it gets -------------------------------------------------------------------------------------------------


def test_processes_of_the_driver_have_its_key(ring: Keyring) -> None:
    assert has_token(source(READS))
    assert pickleSer.loads(source(READS)).options["Headrace.Token".lower()] == TOKEN


def test_tasks_of_a_batch_query_are_given_a_key_with_their_partition(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, partitions = plan(READS, streaming=False)
    assert len(partitions) == 1
    assert not any(map(has_token, [function, *partitions]))
    assert TASKS.reveal().encode() not in function, "it was pickled before there was one"
    assert [list(map(str, grants)) for grants in ring.made] == [["allow READ TOPIC a"]]
    assert read(function, partitions[0], monkeypatch) == [TASKS]
    assert "hrk_" not in repr(pickleSer.loads(partitions[0]))


def test_tasks_of_a_stream_are_given_a_key_with_each_batch(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    function, none = plan(READS, streaming=True)
    assert none == []
    assert ring.made == []
    assert not has_token(function)
    reader = pickleSer.loads(source(READS)).streamReader(VALUE)
    start = reader.initialOffset()
    reader.latestOffset(start, ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    sent = [pickleSer.dumps(partition) for partition in reader.partitions(start, end)]
    assert not any(map(has_token, sent))
    assert read(function, sent[0], monkeypatch) == [TASKS]
    assert not has_token(pickleSer.dumps(reader)), "also while it is in use"
    reader.stop()
    assert ring.deleted == [["k1"]]


@pytest.mark.parametrize("streaming", [False, True])
def test_tasks_that_write_have_a_key_in_their_writer(ring: Keyring, streaming: bool) -> None:
    function, writer = write(WRITES, streaming=streaming)
    assert not has_token(function)
    assert not has_token(writer)
    (grants,) = ring.made
    assert list(map(str, grants)) == [
        "allow WRITE TOPIC a",
        "allow WRITE TRANSACTIONAL_ID q",
        "allow WRITE TRANSACTIONAL_ID q.*",
        "allow WRITE TRANSACTIONAL_ID q/*",
    ]
    assert pickleSer.dumps(pickleSer.loads(writer)).count(TASKS.reveal().encode()) == 1, "it is sent on as it came"
    message = run_write(function)
    assert not has_token(message)
    assert TASKS.reveal().encode() not in message
    assert Sink.asked == [("claim q", TASKS), ("write a", TASKS)]
    Sink.asked.clear()
    if streaming:  # whoever commits makes a writer of its own, on the driver
        jvm = Jvm().pickle(source(WRITES)).text(StructType().add("value", StringType()).json()).flags(False)
        jvm.number(1).pickle(message).long(7).flags(False).ask(python_streaming_sink_runner._main)
        assert Sink.asked[0] == ("commit q", Secret(TOKEN))
    else:
        Jvm().pickle(writer).number(1).pickle(message).flags(False).ask(commit_data_source_write._main)
        assert Sink.asked == [("commit q", TASKS), ("sweep q", TASKS)]
    assert len(ring.made) == 1, "nobody but tasks needs one"


def test_where_there_is_no_secret_nothing_is_asked(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    by_file = {name: value for name, value in READS.items() if name != "Headrace.Token"} | {"headrace.tokenFile": "/k"}
    function, partitions = plan(by_file, streaming=False)
    assert read(function, partitions[0], monkeypatch) == [None]
    write({name: value for name, value in WRITES.items() if name != "Headrace.Token"}, streaming=False)
    assert ring.shown == []


def test_where_no_key_can_be_made_the_drivers_travels_as_it_must(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.fails["create_key"] = ClusterAuthorizationFailed("not you")
    function, partitions = plan(READS, streaming=False)
    assert not has_token(function)
    assert read(function, partitions[0], monkeypatch) == [Secret(TOKEN)]
    run_write(write(WRITES, streaming=True)[0])
    assert Sink.asked[-1] == ("write a", Secret(TOKEN))


def test_a_task_whose_key_is_over_says_what_to_set(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(*_: Any) -> Any:
        raise CredentialsExpired("API key k1 is over")

    monkeypatch.setattr(sdk_rows, "open_rows", over)
    function, partitions = plan(READS, streaming=False)
    run, _ = pickleSer.loads(function)
    with pytest.raises(CredentialsExpired, match=r"k1 is over\. The driver gave it to this task"):
        list(run(iter([pa.record_batch([pa.array(partitions, pa.binary())], names=["value"])])))
    monkeypatch.setattr(Sink, "claim", over)
    with pytest.raises(CredentialsExpired, match="taskKeyLifetime"):
        run_write(write(WRITES, streaming=False)[0])


def test_a_cluster_that_does_not_answer_fails_the_query(ring: Keyring) -> None:
    ring.fails["who_am_i"] = NetworkFailed("nobody is there")
    with pytest.raises(NetworkFailed, match="nobody is there"):
        plan(READS, streaming=False)
    with pytest.raises(PicklingError, match=r"^nobody is there$"):
        write(WRITES, streaming=False)
    del ring.fails["who_am_i"]
    write(WRITES, streaming=False)
    assert len(ring.made) == 1
