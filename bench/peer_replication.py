"""Three replicas beside three brokers of a real Kafka: min.insync.replicas=2, acks=all; flush ``os`` is its default."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import gaps, replication
from bench.headrace_side import HeadraceSide
from bench.kafka_side import KafkaSide
from bench.rows import Row, compare, interleaved
from bench.sizes import sized

REPLICAS = 3
SIZE = 100


def produce(runs: int) -> list[Row]:
    """100-byte records over six partitions; beside Kafka's own producer tool and the C client, both tuned."""
    records = sized(5_000_000, 100_000)  # enough for the tool's JIT
    with HeadraceSide.running(flush="os", brokers=3) as ours, KafkaSide.running(brokers=3) as kafka:
        ours.client("produce", topic=ours.topic(6, REPLICAS), records=sized(1_000_000, 50_000), mode="many")

        def mine(mode: str) -> dict[str, float]:
            return ours.client("produce", topic=ours.topic(6, REPLICAS), records=records, size=SIZE, mode=mode)

        def theirs(mode: str) -> dict[str, float]:
            options = {"records": records, "size": SIZE, "mode": mode, "tuned": True}
            return kafka.client("produce", topic=kafka.topic(6, REPLICAS), **options)

        send, callback, many, batch, java = interleaved(
            runs,
            partial(mine, "send"),
            partial(theirs, "callback"),
            partial(mine, "many"),
            partial(theirs, "batch"),
            lambda: kafka.java_producer(kafka.topic(6, REPLICAS), records, SIZE),
        )
    return [
        _rates("RF 3: produce many / Kafka's producer tool", many, java, "≥ 1.0"),
        _rates("RF 3: produce send / Kafka's producer tool", send, java, "≥ 1.0"),
        _rates("RF 3: produce many / confluent batch", many, batch, ""),
        _rates("RF 3: produce send / confluent callback", send, callback, ""),
    ]


def latency(runs: int) -> list[Row]:
    """One record in flight until its ack, no linger."""
    rows: list[Row] = []
    records = sized(2000, 200)
    with HeadraceSide.running(flush="os", brokers=3) as ours, KafkaSide.running(brokers=3) as kafka:

        def theirs(lib: str) -> dict[str, float]:
            return kafka.client("rtt", topic=kafka.topic(1, REPLICAS), partitions=1, records=records, lib=lib)

        mine, confluent, aiokafka = interleaved(
            runs,
            lambda: ours.client("rtt", topic=ours.topic(1, REPLICAS), records=records, mode="aio"),
            partial(theirs, "confluent"),
            partial(theirs, "aiokafka"),
        )
    for name, other in (("confluent", confluent), ("aiokafka", aiokafka)):
        for point in ("p50_ms", "p99_ms"):
            figures = [r[point] for r in mine], [r[point] for r in other]
            rows.append(compare(f"RF 3: rtt {point[:3]} / {name}", "ms", *figures))
    return rows


Fault = Callable[[KafkaSide, int], int]


def _end(side: KafkaSide, broker: int, signum: signal.Signals) -> int:
    side.end(broker, signum)
    return broker


FAULTS: dict[str, Fault] = {
    "kill -9 of a broker": lambda side, broker: _end(side, broker, signal.SIGKILL),
    "controlled stop of a broker": lambda side, broker: _end(side, broker, signal.SIGTERM),
    "kill -9 of the active controller": lambda side, broker: _end(side, broker, signal.SIGKILL),
}


def gap(runs: int) -> list[Row]:
    """
    The longest time without an ack on any of 24 partitions.

    Kafka's controllers are in its brokers here, so that the death of the active one is a broker's too; the other two
    faults hit brokers that are not the active controller.
    """
    ours: dict[str, list[gaps.Gap]] = {name: [] for name in FAULTS}
    theirs: dict[str, list[gaps.Gap]] = {name: [] for name in FAULTS}
    with (
        HeadraceSide.running(flush="os", brokers=3, controllers=3) as headrace,
        KafkaSide.running(brokers=3) as kafka,
    ):
        mine, other = headrace.topic(gaps.PARTITIONS, REPLICAS), kafka.topic(gaps.PARTITIONS, REPLICAS)
        for run in range(runs):
            for name in FAULTS:
                ours[name].append(replication.one_gap(headrace, mine, name, run % 3 + 1))
                theirs[name].append(_one_gap(kafka, other, name, run))
    rows: list[Row] = []
    for name in FAULTS:
        target = replication.FAULTS[name][1]
        figures = [g.seconds for g in ours[name]], [g.seconds for g in theirs[name]]
        rows.append(compare(f"RF 3 gap: {name} / Kafka", "s", *figures, target=target))
    return rows


def _one_gap(kafka: KafkaSide, topic: str, name: str, run: int) -> gaps.Gap:
    kafka.wait_whole(topic)
    active = kafka.active_controller()
    others = [number for number in kafka.ports if number != active]
    victim = active if "controller" in name else others[run % len(others)]
    led = {number for number, (leader, _) in kafka.leaders(topic).items() if leader == victim}
    act = FAULTS[name]
    found = gaps.measure("confluent", kafka.bootstrap, topic, led, lambda: act(kafka, victim), sized(25, 15))
    kafka.start(victim)
    return found


def _rates(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], target: str) -> Row:
    return compare(name, "records/s", [r["rec_s"] for r in ours], [r["rec_s"] for r in theirs], target=target)
