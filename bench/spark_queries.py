"""Streaming queries with little to do: how long a micro-batch takes at 100 records a second, what idle ones cost."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from bench.machine import cpu_seconds
from bench.rows import Row, compare, interleaved
from bench.sizes import sized
from bench.spark_side import Bench, Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RATE = 100
_STARTS_WITHIN = 60.0
_WARM_BATCHES = 3


def micro_batches(bench: Bench) -> list[Row]:
    """The median ``batchDuration`` beside that of Spark's rate source, which only counts; also into a topic."""
    seconds = sized(8, 3)
    sides: dict[str, Callable[[], float]] = {"rate": partial(_counting, bench, seconds)}
    for broker in bench.brokers:
        for sink in (False, True):
            sides[f"{broker.format} {sink}"] = partial(_trickle, bench, broker, seconds, sink=sink)
    found = dict(zip(sides, interleaved(bench.runs, *sides.values()), strict=True))
    what = "Spark: micro-batch p50, topic to"
    rows = [
        compare(f"{what} noop / rate source", "ms", found["headrace False"], found["rate"], target="≤ 2.5"),
        compare(f"{what} topic, exactly once / rate to noop", "ms", found["headrace True"], found["rate"]),
    ]
    if bench.kafka:
        rows += [
            compare(f"{what} noop / Kafka", "ms", found["headrace False"], found["kafka False"]),
            compare(f"{what} topic / Kafka", "ms", found["headrace True"], found["kafka True"]),
        ]
    return rows


def idle(bench: Bench) -> list[Row]:
    """CPU of a query whose topic gets nothing: of the JVM with its Python processes, and of the brokers."""
    seconds = sized(10, 2)
    without = {broker: _cpu_percent(broker.pids, seconds) for broker in bench.brokers}
    session = _cpu_percent([bench.jvm], seconds)
    rows: list[Row] = []
    found = dict(
        zip(
            bench.brokers,
            interleaved(bench.runs, *(partial(_idle, bench, broker, seconds) for broker in bench.brokers)),
            strict=True,
        )
    )
    ours = found[bench.headrace]
    theirs = found[bench.kafka] if bench.kafka else []
    for index, name, before in ((0, "Spark", session), (1, "the cluster", without[bench.headrace])):
        mine, other = [run[index] for run in ours], [run[index] for run in theirs]
        note = f"without a query {before:.1f}"
        title = f"Spark: idle query, CPU of {name}" + (" / Kafka" if theirs else "")
        rows.append(compare(title, "% of a core", mine, other, target="≤ 5 %", note=note))
    return rows


def _counting(bench: Bench, seconds: float) -> float:
    rows = bench.spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
    with _query(bench, rows) as query:
        return _p50_of_batches(query, seconds)


def _trickle(bench: Bench, broker: Broker, seconds: float, *, sink: bool) -> float:
    source = broker.topic(2)
    rows = broker.stream(bench.spark, source)
    target = broker.options(topic=broker.topic(2)) if sink else None
    with _query(bench, rows.select("value"), broker, target) as query, _producing(broker, source):
        return _p50_of_batches(query, seconds)


@contextlib.contextmanager
def _query(
    bench: Bench, rows: DataFrame, broker: Broker | None = None, target: dict[str, str] | None = None
) -> Iterator[StreamingQuery]:
    """Runs meanwhile; its error is raised in the end."""
    writer = rows.writeStream.format(broker.format if broker and target else "noop").options(**(target or {}))
    query = writer.option("checkpointLocation", str(bench.folder / f"checkpoint-{uuid.uuid4().hex}")).start()
    try:
        yield query
        if failed := query.exception():
            raise failed
    finally:
        query.stop()


def _p50_of_batches(query: StreamingQuery, seconds: float) -> float:
    """Of those with rows, after the first ones."""
    deadline = time.monotonic() + _STARTS_WITHIN
    while len(_durations(query)) < _WARM_BATCHES:
        if failed := query.exception():
            raise failed
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {_WARM_BATCHES} micro-batches within {_STARTS_WITHIN:g} s: {query.status}")
        time.sleep(0.05)
    time.sleep(seconds)
    return statistics.median(_durations(query)[_WARM_BATCHES:])


def _durations(query: StreamingQuery) -> list[float]:
    return [float(batch["batchDuration"]) for batch in query.recentProgress if batch["numInputRows"]]


@contextlib.contextmanager
def _producing(broker: Broker, topic: str) -> Iterator[None]:
    """``RATE`` records a second, one at a time, from a thread."""
    stopped = threading.Event()

    def pace(send: Callable[[bytes], object]) -> None:
        start = time.perf_counter()
        sent = 0
        while not stopped.wait(max(0.0, start + sent / RATE - time.perf_counter())):
            send(b"%d" % sent)
            sent += 1

    def produce() -> None:
        if broker.format == "headrace":
            with headrace.Producer(broker.bootstrap, linger_ms=0) as ours:
                pace(lambda value: ours.send(topic, value))
        else:
            from confluent_kafka import Producer

            theirs: Any = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
            pace(lambda value: (theirs.produce(topic, value), theirs.poll(0)))
            theirs.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _idle(bench: Bench, broker: Broker, seconds: float) -> tuple[float, float]:
    """% of a core, of Spark and of the cluster."""
    with _query(bench, broker.stream(bench.spark, broker.topic(6))) as query:
        deadline = time.monotonic() + _STARTS_WITHIN
        while query.lastProgress is None:
            if failed := query.exception():
                raise failed
            if time.monotonic() > deadline:
                raise TimeoutError(f"the query had no first batch within {_STARTS_WITHIN:g} s: {query.status}")
            time.sleep(0.1)
        time.sleep(5)  # what starting it left to do
        spark, cluster, start = cpu_seconds([bench.jvm]), cpu_seconds(broker.pids), time.perf_counter()
        time.sleep(seconds)
        wall = time.perf_counter() - start
        return (cpu_seconds([bench.jvm]) - spark) / wall * 100, (cpu_seconds(broker.pids) - cluster) / wall * 100


def _cpu_percent(pids: tuple[int, ...] | list[int], seconds: float) -> float:
    before, start = cpu_seconds(pids), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / (time.perf_counter() - start) * 100
