"""Many partitions on one broker, a cold start, and reading a long log at its start, middle and tail."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import psutil

import headrace
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare
from headrace_cli.local import LocalCluster


def cold_start(runs: int) -> list[Row]:
    """From nothing to the first record produced and read, default flush, one broker."""
    seconds: list[float] = []
    for _ in range(runs):
        folder = Path(tempfile.mkdtemp(prefix="bench-cold-"))
        start = time.perf_counter()
        cluster = LocalCluster(folder, brokers=1, restart=False, closed=False)
        try:
            cluster.start()
            bootstrap = ",".join(cluster.bootstrap_servers)
            with headrace.AdminClient(bootstrap) as admin:
                admin.create_topic("first", 1, 1)
            with headrace.Producer(bootstrap) as producer:
                producer.send("first", b"hello").result(30)
            with headrace.Consumer("first", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
                assert consumer.poll(30_000)[0].value == b"hello"
            seconds.append(time.perf_counter() - start)
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
    return [compare("up to the first record read", "s", seconds, target="≤ 6 (Kafka: 9-10)")]


def partitions(runs: int, count: int = 1000) -> list[Row]:
    """Restart to the first ack, after SIGTERM and after kill -9; idle CPU and memory; throughput over all."""
    rows: list[Row] = []
    limit = 3 if count <= 1000 else 8
    with HeadraceSide.running(flush="os") as cluster:
        wide, narrow = cluster.topic(count), cluster.topic(6)
        spread = [cluster.client("produce", topic=wide, records=1_000_000, mode="many") for _ in range(runs)]
        six = [cluster.client("produce", topic=narrow, records=1_000_000, mode="many") for _ in range(runs)]
        name = f"{count:,} partitions"
        rates = [r["rec_s"] for r in spread], [r["rec_s"] for r in six]
        rows.append(compare(f"{name}: produce / 6 partitions", "records/s", *rates, target="≥ 0.50"))
        broker = psutil.Process(cluster.pid("broker-1"))
        rows.append(compare(f"{name}: idle CPU", "% of a core", [_idle_percent(broker)], target="≤ 3"))
        rows.append(compare(f"{name}: memory after load", "MB", [broker.memory_info().rss / 1e6]))
        for hard in (False, True):
            seconds = [_restart(cluster, wide, hard=hard) for _ in range(runs)]
            how = "kill -9" if hard else "restart"
            rows.append(compare(f"{name}: {how} to first ack", "s", seconds, target=f"≤ {limit}"))
        broker = psutil.Process(cluster.pid("broker-1"))
        rows.append(compare(f"{name}: memory", "MB", [broker.memory_info().rss / 1e6], target="≤ 300 (Kafka: 430)"))
    return rows


def _idle_percent(process: psutil.Process) -> float:
    process.cpu_percent()
    return process.cpu_percent(interval=5)


def _restart(cluster: HeadraceSide, topic: str, *, hard: bool) -> float:
    """Seconds from starting the stopped broker to the first acknowledged record."""
    cluster.cluster.kill("broker-1", hard=hard)
    start = time.perf_counter()
    cluster.cluster.restart("broker-1")
    with headrace.Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"back").result(60)
    return time.perf_counter() - start


def long_log(runs: int, gigabytes: float = 0.5) -> list[Row]:
    """Reading from the start, the middle and the tail of one partition."""
    with HeadraceSide.running(flush="os") as cluster:
        topic = cluster.topic(1)
        records = int(gigabytes * 1e6)
        cluster.client("produce", topic=topic, records=records, size=1000, mode="many")
        part = min(records // 8, 200_000)
        rates: dict[str, list[float]] = {"start": [], "middle": [], "tail": []}
        for _ in range(runs):
            for place, at in (("start", 0), ("middle", records // 2), ("tail", records - part)):
                rates[place].append(_read(cluster.bootstrap, topic, at, part))
    return [
        compare(
            f"{gigabytes:g} GB log: read at the {place} / tail",
            "records/s",
            rates[place],
            rates["tail"],
            target="≥ 0.5",
        )
        for place in ("start", "middle")
    ]


def _read(bootstrap: str, topic: str, offset: int, count: int) -> float:
    with headrace.Consumer(bootstrap_servers=bootstrap) as consumer:
        partition = headrace.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        got = consumer.poll_table(30_000, max_records=1).num_rows
        start = time.perf_counter()
        while got < count:
            got += consumer.poll_table(10_000, max_records=100_000).num_rows
        return got / (time.perf_counter() - start)
