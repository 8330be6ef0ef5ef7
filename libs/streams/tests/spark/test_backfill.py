"""History by Spark, and then live: what is written is what one pass writes, without a seam."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from libs.streams.tests.spark.test_engines import FLIGHTS, PARTITIONS, flights
from pyspark.sql import SparkSession

from headrace.records import TopicPartition
from headrace.testing import TestCluster
from headrace_common.core.errors import Rejected
from headrace_streams import App, NotAllowed, agg, col, hopping, session, tumbling
from headrace_streams.adapters.headrace_upkeep import SdkUpkeep
from headrace_streams.config import StreamsConfig
from headrace_streams.main import serve
from headrace_streams.spark import backfill
from headrace_streams.testing import Driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
COLUMNS = {"n": agg.count(), "delays": agg.sum("delay"), "least": agg.min("at"), "most": agg.max("carrier")}
MORE = {"mean": agg.mean("delay"), "var": agg.var("day_n"), "different": agg.distinct("delay"), "any": agg.any("late")}
Record = tuple[bytes | None, bytes, int]


def source(app: App, topic: str) -> Any:
    return app.stream(topic, value=FLIGHTS, timestamp="at", key="id").with_columns(day_n=col("delay") / 4)


def moved(app: App, topic: str, out: str) -> None:
    groups = source(app, topic).group_by("carrier", name="by").window(tumbling("10s", grace="5s"), late="drop")
    groups.agg(**COLUMNS, name="flights", emit="final").with_columns(twice=col("n") * 2).to(out)


def in_place(app: App, topic: str, out: str) -> None:
    groups = source(app, topic).group_by("id").window(hopping("10s", "3s", grace="5s"), late="drop")
    groups.agg(**COLUMNS, **MORE, name="flights", emit="final").to(out)


def sessions(app: App, topic: str, out: str) -> None:
    groups = source(app, topic).group_by("carrier", "late", name="by").window(session("1s", grace="5s"), late="drop")
    groups.agg(**COLUMNS, **MORE, name="flights", emit="final").to(out)


def without_windows(app: App, topic: str, out: str) -> None:
    source(app, topic).group_by("carrier", name="by").agg(**COLUMNS, **MORE, name="flights").to(out)


def rounded(value: bytes | None) -> bytes:
    """Without the last digits of floats, which depend on the order of rows."""
    row = orjson.loads(value or b"")
    return orjson.dumps({name: round(one, 9) if isinstance(one, float) else one for name, one in row.items()})


class Live:
    """An app and its topics."""

    def __init__(self, cluster: TestCluster, home: Path, program: Any) -> None:
        self.cluster = cluster
        self.home = home
        # Without an end of retention: the times are of 1970.
        self.topic, self.out = (
            cluster.unique_topic(name, PARTITIONS, retention_ms="-1") for name in ("flights", "out")
        )
        self.app = App(f"filled-{self.topic}")
        program(self.app, self.topic, self.out)
        self.servers = ",".join(cluster.bootstrap_servers)
        self.driver = Driver(self.app, partitions=PARTITIONS, seed=5)
        self.sent = [0] * PARTITIONS
        self.expected: Counter[Record] = Counter()

    def send(self, rows: list[dict[str, Any]]) -> None:
        """To the topic, and to a driver, which says what one pass writes."""
        self.driver.pipe(self.topic, rows)
        self.expected.update((r["key"], rounded(r["value"]), r["timestamp_ms"]) for r in self.driver.read_raw(self.out))
        for partition in range(PARTITIONS):
            records = self.driver._log(self.topic, partition).records
            new = records.slice(self.sent[partition]).select(["key", "value", "timestamp_ms"])
            self.sent[partition] = records.num_rows
            with self.cluster.producer() as producer:
                of = pa.array([partition] * new.num_rows, pa.int32())
                producer.send_table(self.topic, new.append_column("partition", of)).result(timeout=30)

    @contextmanager
    def running(self) -> Iterator[None]:
        config = StreamsConfig(bootstrap_servers=self.servers, state_dir=self.home / "state")
        begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        started = threading.Event()

        async def run() -> None:
            begun.append((asyncio.get_running_loop(), asyncio.Event()))
            started.set()
            await serve(self.app, config, begun[0][1])

        worker = threading.Thread(target=asyncio.run, args=(run(),))
        worker.start()
        started.wait()
        try:
            yield
        finally:
            loop, stop = begun[0]
            if worker.is_alive():
                loop.call_soon_threadsafe(stop.set)
            worker.join()

    def read(self, wanted: int) -> list[Record]:
        """What is committed, once there is so much."""
        found: list[Any] = []
        with self.cluster.consumer(self.out, isolation_level="read_committed") as consumer:
            while len(found) < wanted and (polled := consumer.poll(timeout_ms=30_000)):
                found += polled
            found += consumer.poll(timeout_ms=500)
        return [(record.key, rounded(record.value), record.timestamp_ms) for record in found]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first unit is not committed."""
    commit = SdkUpkeep.commit

    async def fail(self: SdkUpkeep) -> None:
        monkeypatch.setattr(SdkUpkeep, "commit", commit)
        raise KeyboardInterrupt

    monkeypatch.setattr(SdkUpkeep, "commit", fail)


@pytest.mark.parametrize("program", [moved, in_place, sessions])
def test_windows_of_history_and_live_ones_come_once_each(
    spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path, broken: None, program: Any
) -> None:
    live = Live(headrace_cluster, tmp_path, program)
    rows = flights()
    if program is in_place:  # a task reads one partition, so which rows are late is certain
        rows[50::17] = [row | {"at": max(0, row["at"] - 20_000)} for row in rows[50::17]]
    history, later = rows[:250], rows[250:]
    live.send(history)
    with pytest.raises(KeyboardInterrupt):
        backfill(live.app, spark, bootstrap_servers=live.servers)
    assert live.read(0) == []
    backfill(live.app, spark, bootstrap_servers=live.servers)
    by_spark = Counter(live.read(1))
    assert by_spark <= live.expected
    assert by_spark.total() > 10
    with pytest.raises(Rejected, match="has begun already; only an app without positions and state"):
        backfill(live.app, spark, bootstrap_servers=live.servers)
    live.send(later)
    with live.running():
        found = Counter(live.read(live.expected.total()))
    assert (found - live.expected, live.expected - found) == (Counter(), Counter())


def test_aggregates_without_a_window_go_on(spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path) -> None:
    live = Live(headrace_cluster, tmp_path, without_windows)
    rows = flights()
    live.send(rows[:200])
    until = {TopicPartition(live.topic, number): count // 2 for number, count in enumerate(live.sent)}
    backfill(live.app, spark, until=until, bootstrap_servers=live.servers)
    told = len(live.read(1))
    live.send(rows[200:])
    wanted = {key: orjson.loads(value) for key, value, _ in live.expected}
    assert told == len({key for key, *_ in live.expected} - {b"end"})
    with live.running():
        newest: dict[Any, Any] = {}
        for _ in range(20):
            newest |= {key: orjson.loads(value) for key, value, _ in live.read(told)}
            if newest == wanted:
                break
    assert newest == wanted


def test_rows_of_which_nobody_knows_the_session_are_refused(
    spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path
) -> None:
    live = Live(headrace_cluster, tmp_path, sessions)
    live.send([{"_key": "AA", "carrier": "AA", "at": at} for at in (1_000, 20_000, 14_999, 15_000)])
    with pytest.raises(NotAllowed, match=r"agg 'flights' \(.*\): 1 rows are further behind .* than the grace"):
        backfill(live.app, spark, bootstrap_servers=live.servers)
    assert live.read(0) == []
