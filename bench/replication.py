"""Three replicas beside one: throughput, latency, what followed partitions cost at rest, and what a fail-over costs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc

import headrace
from bench import gaps
from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.rows import Row, compare, interleaved
from bench.sizes import sized

REPLICAS = 3
IDLE_SECONDS = 10.0
LOOK_SECONDS = 0.03
FAILOVER_SECONDS = 30.0


def produce(runs: int) -> list[Row]:
    """
    100-byte records over six partitions, acks=all, three replicas.

    The baseline is one replica on the same three brokers; a second row is beside one broker alone.
    """
    rows: list[Row] = []
    for flush in ("os", "group"):
        with HeadraceSide.running(flush=flush, brokers=3) as three, HeadraceSide.running(flush=flush) as one:
            _write(three, REPLICAS, "many", sized(200_000, 20_000))
            _write(one, 1, "many", sized(200_000, 20_000))
            for mode in ("send", "many"):
                records = sized(2_000_000, 50_000)
                copied, single, alone = interleaved(
                    runs,
                    partial(_write, three, REPLICAS, mode, records),
                    partial(_write, three, 1, mode, records),
                    partial(_write, one, 1, mode, records),
                )
                name = f"RF 3 {flush}: produce {mode}"
                rates = [[run["rec_s"] for run in side] for side in (copied, single, alone)]
                rows.append(compare(f"{name} / RF 1, same brokers", "records/s", *rates[:2], target="≥ 0.30"))
                rows.append(compare(f"{name} / RF 1, one broker alone", "records/s", rates[0], rates[2]))
                rows.append(compare(f"{name}: broker CPU, all three", "µs/record", [r["broker_us"] for r in copied]))
    return rows


def _write(cluster: HeadraceSide, replicas: int, mode: str, records: int) -> dict[str, float]:
    """One run of the client on a new topic, and what the brokers spent on a record meanwhile."""
    topic = cluster.topic(6, replicas)
    before = cpu_seconds(cluster.brokers())
    result = cluster.client("produce", topic=topic, records=records, mode=mode)
    return {**result, "broker_us": (cpu_seconds(cluster.brokers()) - before) / records * 1e6}


def latency(runs: int) -> list[Row]:
    """One record in flight, no linger, flush ``os``: three replicas beside one on the same brokers."""
    with HeadraceSide.running(flush="os", brokers=3) as cluster:

        def side(replicas: int) -> dict[str, float]:
            records = sized(2000, 200)
            return cluster.client("rtt", topic=cluster.topic(1, replicas), records=records, mode="aio")

        copied, single = interleaved(runs, partial(side, REPLICAS), partial(side, 1))
    targets = {"p50_ms": "≤ RF 1 + 3 ms", "p99_ms": ""}
    return [
        compare(f"RF 3 os: rtt {p[:3]} / RF 1", "ms", [r[p] for r in copied], [r[p] for r in single], target=target)
        for p, target in targets.items()
    ]


def idle(runs: int) -> list[Row]:
    """CPU of each broker at rest when it follows 1,000 partitions and leads 500, beside the same brokers without."""
    followed = sized(1000, 60)
    with HeadraceSide.running(flush="os", brokers=3) as cluster:
        brokers = cluster.brokers()
        empty = [share for _ in range(runs) for share in _idle_percents(brokers)]
        topic = cluster.topic(followed * 3 // 2, REPLICAS)
        _write_each(cluster.bootstrap, topic, followed * 3 // 2)
        time.sleep(5)  # the last high watermark is told, memtables are at rest
        busy = [_idle_percents(brokers) for _ in range(runs)]
    name = f"RF 3: idle CPU of a broker that follows {followed:,} partitions"
    return [
        compare(name, "% of a core", [sum(run) / len(run) for run in busy], [sum(empty) / len(empty)], target="≤ 5"),
        compare(f"{name}: the busiest of three", "% of a core", [max(run) for run in busy], target="≤ 5"),
    ]


def _idle_percents(brokers: list[int]) -> list[float]:
    """Percent of a core, per broker, over the same seconds."""
    began, before = time.monotonic(), [cpu_seconds([broker]) for broker in brokers]
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - began
    return [(cpu_seconds([broker]) - was) / seconds * 100 for broker, was in zip(brokers, before, strict=True)]


def _write_each(bootstrap: str, topic: str, partitions: int) -> None:
    with headrace.Producer(bootstrap) as producer:
        deliveries = [producer.send(topic, b"x", partition=number) for number in range(partitions)]
        for delivery in deliveries:
            delivery.result(60)


def failover(runs: int) -> list[Row]:
    """kill -9 of one broker of three: until all partitions are led again, and until each has acknowledged a write."""
    count = sized(1000, 60)
    led: list[float] = []
    fresh: list[float] = []
    known: list[float] = []
    with HeadraceSide.running(flush="os", brokers=3) as cluster:
        topic = cluster.topic(count, REPLICAS)
        _write_each(cluster.bootstrap, topic, count)
        for run in range(runs):
            cluster.wait_whole(topic)
            found = _fail_over(cluster, topic, count, victim=run % 3 + 1)
            for value, into in zip(found, (led, fresh, known), strict=True):
                into.append(value)
            cluster.cluster.restart(f"broker-{run % 3 + 1}")
    name = f"RF 3: {count:,} partitions, kill -9 of a broker"
    return [
        compare(f"{name}: all led again", "s", led, target="≤ 3"),
        compare(f"{name}: each acked a write, producer that wrote before", "s", known),
        compare(f"{name}: each acked a write, new producer once all are led", "s", fresh),
    ]


def _fail_over(cluster: HeadraceSide, topic: str, count: int, victim: int) -> tuple[float, float, float]:
    """Seconds since the kill: led as both survivors see it, acked to a new producer, acked to one that was there."""
    survivors = [number for number in (1, 2, 3) if number != victim]
    assert cluster.led_by(victim, topic), "the victim leads nothing, so that its death would show nothing"
    known: list[float] = []
    with headrace.Producer(cluster.bootstrap, linger_ms=5) as producer:
        for delivery in [producer.send(topic, b"before", partition=number) for number in range(count)]:
            delivery.result(60)
        began = time.perf_counter()
        cluster.cluster.signal(f"broker-{victim}", signal.SIGKILL)

        def write() -> None:
            for delivery in [producer.send(topic, b"after", partition=number) for number in range(count)]:
                delivery.result(60)
            known.append(time.perf_counter() - began)

        writing = threading.Thread(target=write)
        writing.start()
        while any(_orphans(cluster, broker, topic, victim) for broker in survivors):
            assert time.perf_counter() - began < FAILOVER_SECONDS, "not led again in time"
            time.sleep(LOOK_SECONDS)
        led = time.perf_counter() - began
        addresses = [cluster.cluster.bootstrap_servers[number - 1] for number in survivors]
        _write_each(",".join(addresses), topic, count)
        fresh = time.perf_counter() - began
        writing.join()
    assert known, "a write failed after the broker was killed"
    return led, fresh, known[0]


def _orphans(cluster: HeadraceSide, broker: int, topic: str, victim: int) -> int:
    """Partitions that nobody leads, or only the dead one, as this broker sees it."""
    try:
        partitions = cluster.seen_by(broker, topic).topics[0].partitions
    except grpc.RpcError:
        return 1
    return sum(p.leader in (-1, victim) for p in partitions)


Fault = Callable[[HeadraceSide, int], str]
FAULTS: dict[str, tuple[Fault, str]] = {
    "kill -9 of a broker": (lambda side, broker: side.end(f"broker-{broker}"), "≤ 2"),
    "controlled stop of a broker": (lambda side, broker: side.end(f"broker-{broker}", hard=False), "≤ 0.5"),
    "kill -9 of the active controller": (lambda side, broker: side.end(side.active_controller()), "≤ 2"),
}


def gap(runs: int) -> list[Row]:
    """24 partitions, three controllers: the longest time without an ack on any partition; RF 3, acks=all, ``os``."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os", brokers=3, controllers=3) as cluster:
        topic = cluster.topic(gaps.PARTITIONS, REPLICAS)
        found: dict[str, list[gaps.Gap]] = {name: [] for name in FAULTS}
        for run in range(runs):
            for name in FAULTS:
                found[name].append(one_gap(cluster, topic, name, run % 3 + 1))
    for name, (_, target) in FAULTS.items():
        seconds = [one.seconds for one in found[name]]
        note = f"{sum(one.errors for one in found[name])} errors seen"
        rows.append(compare(f"RF 3 gap: {name}", "s", seconds, target=target, note=note))
        if "controller" not in name:
            others = [one.others_seconds for one in found[name]]
            rows.append(compare(f"RF 3 gap: {name}: other leaders' partitions", "s", others))
    every = [one.before_seconds for results in found.values() for one in results]
    rows.append(compare("RF 3 gap: without a fault", "s", every))
    return rows


def one_gap(cluster: HeadraceSide, topic: str, name: str, victim: int) -> gaps.Gap:
    """One fault; everything is whole again afterwards."""
    cluster.wait_whole(topic)
    act = FAULTS[name][0]
    ended: list[str] = []
    found = gaps.measure(
        "headrace",
        cluster.bootstrap,
        topic,
        cluster.led_by(victim, topic),
        lambda: ended.append(act(cluster, victim)),
        sized(12, 4),  # longer than a session, so that a second harm would show
    )
    cluster.cluster.restart(ended[0])
    return found
