"""The producer for threads, on a real broker, and its life in a process: forks, exit, Ctrl+C."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

import headrace
from headrace import Producer
from headrace.errors import (
    BufferExhausted,
    ClientClosed,
    DeliveryTimedOut,
    Internal,
    NetworkFailed,
    RecordTooLarge,
    SerializationFailed,
    UnknownTopicOrPartition,
    WaitTimedOut,
)
from headrace_common.core.murmur2 import partition_for


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread({"t": 3, "one": 1, "threads": 3})
    yield thread
    thread.stop()


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=2)
    made.create_topic("one", 1)
    return made


def test_records_are_acknowledged_by_a_real_broker(broker: BrokerThread) -> None:
    with Producer(broker.address) as producer:
        delivery = producer.send("t", b"value", key=b"key")
        assert delivery.result(10).partition == partition_for(b"key", 3)
        assert delivery.done()
        assert delivery.exception() is None
        assert "done" in repr(delivery)
        deliveries = [producer.send("t", b"%d" % n, key=b"%d" % (n % 9)) for n in range(10_000)]
        producer.flush(30)
        assert all(each.done() for each in deliveries)
        assert producer.partitions_for("t") == 3


def test_bulk(broker: BrokerThread) -> None:
    with Producer(broker.address, compression_type="zstd") as producer:
        first = producer.send_many("one", [b"x" * 100] * 50_000).result(30)[0].offset
        assert producer.send_table("one", pa.table({"value": [b"a", b"b"]})).result(10)[1].offset == first + 50_001


def test_many_threads_share_a_producer(broker: BrokerThread) -> None:
    deliveries: dict[int, list[headrace.Delivery]] = {}
    with Producer(broker.address, linger_ms=1) as producer:

        def work(me: int) -> None:
            deliveries[me] = [producer.send("threads", b"%d" % n, key=b"%d" % me) for n in range(5_000)]

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(30)
    taken = set()
    for mine in deliveries.values():
        metadata = [each.result() for each in mine]
        assert len({m.partition for m in metadata}) == 1
        offsets = [m.offset for m in metadata]
        assert offsets == sorted(offsets), "each thread's records are in its order"
        taken.update((m.partition, m.offset) for m in metadata)
    assert len(taken) == 20_000


def test_wrong_use_is_told(broker: BrokerThread) -> None:
    with Producer(broker.address) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send("t", b"x" * (1 << 20))
        with pytest.raises(UnknownTopicOrPartition):
            producer.send("t", b"x", partition=7)
        with pytest.raises(SerializationFailed):
            producer.send("t", 1.5)
    for call in (lambda: producer.send("t", b"x"), producer.flush, lambda: producer.send_many("t", [b"x"])):
        with pytest.raises(ClientClosed):
            call()
    producer.close()


def test_no_cluster_is_told_after_max_block_ms() -> None:
    with Producer("127.0.0.1:1", max_block_ms=100) as producer, pytest.raises(NetworkFailed, match=r"127\.0\.0\.1:1"):
        producer.send("t", b"x")


def test_the_environment_names_the_cluster(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.address)
    with Producer() as producer:
        assert producer.partitions_for("t") == 3


def test_waiting_has_a_bound(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport(), linger_ms=0, request_timeout_ms=50, retry_backoff_ms=1) as producer:
        producer.send("one", b"a").result(10)
        cluster.inject("produce", Fault(Does.SILENCE))
        delivery = producer.send("one", b"b")
        with pytest.raises(WaitTimedOut):
            delivery.result(0.001)
        with pytest.raises(WaitTimedOut):
            delivery.exception(0.001)
        with pytest.raises(TimeoutError):
            producer.flush(0.001)
        assert delivery.result(10).offset == 1


def test_a_topic_that_is_deleted_while_a_call_waits_for_room_harms_no_other(cluster: LabCluster) -> None:
    cluster.create_topic("two", 1)
    settings = {"linger_ms": 0, "request_timeout_ms": 50, "delivery_timeout_ms": 100}
    with Producer(_transport=cluster.transport(), **settings) as producer:
        intake, view = producer._intake, producer._view("two")
        row = intake.rules.row(view, b"a", None, None, None, None)
        cluster.delete_topic("two")
        producer._thread.call(producer._engine.cluster.await_refresh("it was deleted"))
        assert "two" not in intake.topics
        late = intake.within(partial(intake.add, view, row))
        assert late is not None
        assert isinstance(late.exception(10), DeliveryTimedOut)
        assert producer.send("one", b"b").result(10).offset == 0


def test_a_bug_leaves_no_record_without_an_answer(cluster: LabCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_view(topic: str) -> None:
        raise KeyError(topic)

    with Producer(_transport=cluster.transport()) as producer:
        assert producer.send("one", b"a").result(10).offset == 0
        monkeypatch.setattr(producer._engine.cluster, "find_view", find_view)
        assert isinstance(producer.send("one", b"b").exception(10), Internal)
        with pytest.raises(Internal, match="met a bug"):
            producer.send("one", b"c")


def test_what_ended_a_producer_is_raised_anew_each_time(cluster: LabCluster) -> None:
    """One exception that is raised again and again grows: it keeps the frames of all its calls."""
    producer = Producer(_transport=cluster.transport())
    producer.close()
    for _ in range(9):
        with pytest.raises(ClientClosed) as raised:
            producer.send("one", b"a")
    assert len(raised.traceback) < 9


def test_a_full_buffer_waits_for_room(cluster: LabCluster) -> None:
    settings = {"buffer_memory": 1 << 16, "max_request_size": 1 << 15}
    with Producer(_transport=cluster.transport(), **settings) as producer:
        deliveries = [producer.send("one", b"x" * 1_000) for _ in range(2_000)]
        producer.flush(30)
        assert [d.result().offset for d in deliveries] == list(range(2_000))
    cluster.create_topic("stuck", on=[[2]])
    with Producer(_transport=cluster.transport(), max_block_ms=50, delivery_timeout_ms=40_000, **settings) as producer:
        producer.partitions_for("stuck")
        cluster.stop(2)
        with pytest.raises(BufferExhausted):
            _fill(producer)
        cluster.restart(2)


def _fill(producer: Producer) -> None:
    for _ in range(100):
        producer.send("stuck", b"x" * 1_000)


def test_callbacks_run_on_the_clients_thread(cluster: LabCluster) -> None:
    called = threading.Event()
    where: list[str] = []

    def callback(delivery: headrace.Delivery) -> None:
        where.append(threading.current_thread().name)
        called.set()

    with Producer(_transport=cluster.transport(), linger_ms=10) as producer:
        producer.send("one", b"x").add_done_callback(callback)
        assert called.wait(10)
    assert where == ["headrace"]


def test_closing_in_no_time_says_what_became_of_the_rest(cluster: LabCluster) -> None:
    producer = Producer(_transport=cluster.transport(), linger_ms=0)
    producer.send("one", b"a").result(10)
    cluster.inject("produce", *[Fault(Does.SILENCE)] * 9)
    delivery = producer.send("one", b"b")
    with pytest.raises(WaitTimedOut, match="failed with the close"):
        producer.close(0)
    assert isinstance(delivery.exception(), ClientClosed)


def test_forgetting_to_close_warns(cluster: LabCluster) -> None:
    holders = [Producer(_transport=cluster.transport(), linger_ms=1)]
    delivery = holders[0].send("one", b"x")
    with pytest.warns(ResourceWarning, match="never closed"):
        _forget(holders)
    assert delivery.result(10).offset == 0


def _forget(holders: list[Producer]) -> None:
    holders.clear()
    gc.collect()


def test_a_fork_leaves_the_producer_behind(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport()) as producer:
        producer.send("one", b"x").result(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, in newer Pythons
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                producer.send("one", b"child")
            except ClientClosed:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert producer.send("one", b"parent").result(10).offset == 1


def run(code: str, *, interrupt_at: str | None = None) -> subprocess.CompletedProcess[str]:
    """A Python program; Ctrl+C is pressed when it has written a line ``interrupt_at``."""
    prelude = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
    prelude += "from headrace import Producer\nfrom libs.sdk.tests.kit.cluster import *\nc = LabCluster()\n"
    program = prelude + "c.create_topic('one', 1)\n" + textwrap.dedent(code)
    args = [sys.executable, "-W", "always::ResourceWarning", "-u", "-c", program]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = ""
    if interrupt_at is not None:
        while interrupt_at not in seen:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            seen += line
        process.send_signal(2)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(args, process.returncode, seen + out, err)


def test_the_end_of_the_process_flushes_and_warns() -> None:
    done = run(
        """
        import atexit
        p = Producer(_transport=c.transport(), linger_ms=50_000, delivery_timeout_ms=100_000)
        p.send("one", b"x", ).add_done_callback(lambda d: print("written", d.result().offset))
        """
    )
    assert "written 0" in done.stdout
    assert "never closed" in done.stderr
    assert done.returncode == 0


def test_ctrl_c_ends_a_wait() -> None:
    done = run(
        """
        p = Producer(_transport=c.transport(), linger_ms=0)
        p.send("one", b"x").result()
        c.inject("produce", Fault(Does.SILENCE))
        d = p.send("one", b"y")
        try:
            print("waiting")
            d.result()
        except KeyboardInterrupt:
            print("interrupted")
        try:
            p.close(timeout=0.1)
        except TimeoutError:
            print("closed")
        """,
        interrupt_at="waiting",
    )
    assert done.stdout.split() == ["waiting", "interrupted", "closed"], done.stderr


def test_ctrl_c_leaves_a_with_block() -> None:
    done = run(
        """
        import headrace.producer
        headrace.producer.INTERRUPTED_SECONDS = 0.05
        try:
            with Producer(_transport=c.transport(), linger_ms=0) as p:
                p.send("one", b"x").result()
                c.inject("produce", *[Fault(Does.SILENCE)] * 9)  # also when it is sent again
                d = p.send("one", b"y")
                try:
                    print("waiting")
                    d.result()
                finally:
                    print("leaving")
        except KeyboardInterrupt:
            print("left", type(d.exception()).__name__)
        """,
        interrupt_at="waiting",
    )
    assert done.stdout.split() == ["waiting", "leaving", "left", "ClientClosed"], done.stderr


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, headrace; print([m for m in ('grpc', 'numpy', 'pyarrow', 'asyncio') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import sys; from headrace import Producer; print([m for m in ('numpy', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_can_be_had() -> None:
    assert set(dir(headrace)) == set(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    for name in headrace.aio.__all__:
        assert getattr(headrace.aio, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = headrace.nothing_like_it


LEFT = """
import headrace, sys, time
producer = headrace.Producer(sys.argv[1], linger_ms=10_000)
for number in range(100):
    producer.send("left", b"%d" % number)
"""


def test_records_that_nobody_flushed_are_sent_at_the_end_of_the_process() -> None:
    """More than a few: what sorts them is loaded then, when no thread is given out any more."""
    broker = BrokerThread({"left": 1})
    try:
        subprocess.run([sys.executable, "-W", "ignore", "-c", LEFT, broker.address], timeout=100, check=True)
        with Producer(broker.address) as producer:
            assert producer.send("left", b"last").result(20).offset == 100
    finally:
        broker.stop()
