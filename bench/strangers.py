"""A busy producer on three brokers beside a thousand connections of strangers: its latency, and the brokers' memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psutil
from libs.common.tests.kit.strangers import Strangers

from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved
from bench.sizes import sized

CONNECTIONS = 1_000
REPLICAS = 3
STAY_SECONDS = 2.0


def beside(runs: int) -> list[Row]:
    """
    One record in flight, three replicas, flush ``os``; the baseline is without strangers, on the same brokers.

    A third of the connections says nothing, a third only that it speaks HTTP/2, a third opens a call and sends nothing.
    All of them leave and come again every two seconds.
    """
    with HeadraceSide.running(flush="os", brokers=REPLICAS) as cluster:

        def measure() -> dict[str, float]:
            return cluster.client("rtt", topic=cluster.topic(1, REPLICAS), records=sized(10_000, 200), mode="aio")

        def measure_beside() -> dict[str, float]:
            with _strangers(cluster):
                return measure()

        measure()
        brokers = [psutil.Process(cluster.pid(f"broker-{number}")) for number in range(1, REPLICAS + 1)]
        before = [broker.memory_info().rss for broker in brokers]
        crowded, alone = interleaved(runs, measure_beside, measure)
        grown = [(broker.memory_info().rss - rss) / (1 << 20) for broker, rss in zip(brokers, before, strict=True)]
    rows = [
        compare(f"strangers: rtt {p[:3]} / alone", "ms", [r[p] for r in crowded], [r[p] for r in alone], target=target)
        for p, target in {"p50_ms": "", "p99_ms": "≤ 2"}.items()
    ]
    return [*rows, compare("strangers: memory of a broker, most grown", "MB", [max(grown)], target="≤ 128")]


@contextlib.contextmanager
def _strangers(cluster: HeadraceSide) -> Iterator[None]:
    addresses = cluster.cluster.bootstrap_servers
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with Strangers() as strangers:
                strangers.come(addresses, sized(CONNECTIONS, 30) // len(addresses))
                over.wait(STAY_SECONDS)

    thread = threading.Thread(target=come_and_go, name="strangers")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
