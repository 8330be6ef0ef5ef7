"""Beside a real Kafka on the same machine in the same minutes: each run of ours is followed by one of theirs."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from bench import stream
from bench.headrace_side import HeadraceSide
from bench.kafka_side import KafkaSide
from bench.machine import cpu_seconds
from bench.rows import Row, interleaved, paired
from bench.sizes import sized

RECORDS = 2_000_000
READ_RECORDS = 5_000_000


class Load(NamedTuple):
    """What both sides write in one comparison."""

    size: int
    """Of a record's value, in bytes."""
    mine: str
    """The mode of our client."""
    theirs: str
    """That of confluent-kafka's."""
    warm: bool
    """Whether the clients have written as much before the clock starts; else their processes have just started."""
    target: str

    @property
    def records(self) -> int:
        return sized(RECORDS if self.size <= 100 else RECORDS * 3 // 20, 5_000)

    @property
    def name(self) -> str:
        state = "warm" if self.warm else "just started"
        return f"produce {self.size} B {self.mine} / confluent {self.theirs}, {state}"


LOADS = (
    Load(1000, "many", "batch", True, "≥ 1.0"),
    Load(1000, "many", "batch", False, "≥ 0.8"),
    Load(1000, "send", "callback", True, ""),
    Load(100, "send", "callback", True, "≥ 1.6"),
    Load(100, "handles", "callback", True, "≥ 1.6"),
    Load(100, "send", "plain", True, ""),
    Load(100, "many", "batch", True, "≥ 2.0"),
    Load(100, "many", "batch", False, ""),
)


def produce(runs: int) -> list[Row]:
    """Six partitions, acks=all, random values, no compression; flush ``os``. The first pair of each load warms both."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as ours, KafkaSide.running() as kafka:
        for load in LOADS:
            left, right = interleaved(
                runs + 1, partial(_write, ours, load, load.mine), partial(_write, kafka, load, load.theirs, tuned=True)
            )
            rows += _compare_costs(load, left[1:], right[1:])
    return rows


def _write(side: HeadraceSide | KafkaSide, load: Load, mode: str, **more: Any) -> dict[str, float]:
    """One client process on a new topic, and what the broker spent meanwhile on a record."""
    warm = load.records // 2 if load.warm else 0
    topic, before = side.topic(6), cpu_seconds(side.brokers())
    run = side.client("produce", topic=topic, records=load.records, size=load.size, mode=mode, warm=warm, **more)
    broker_us = (cpu_seconds(side.brokers()) - before) / (load.records + warm) * 1e6
    return {**run, "both_us": run["cpu_us"] + broker_us}


def _compare_costs(load: Load, ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> list[Row]:
    return [
        _compare(load.name, ours, theirs, "rec_s", "records/s", load.target),
        _compare(f"{load.name}: client CPU", ours, theirs, "cpu_us", "µs/record", ""),
        _compare(f"{load.name}: client and broker CPU", ours, theirs, "both_us", "µs/record", "≤ 1.0"),
    ]


def produce_synced(runs: int) -> list[Row]:
    """Flush ``group`` beside the same confluent client on a Kafka that syncs each write."""
    with HeadraceSide.running(flush="group") as ours, KafkaSide.running(flush_each=True) as kafka:
        left, right = interleaved(
            runs,
            lambda: ours.client("produce", topic=ours.topic(6), records=RECORDS, mode="send"),
            lambda: kafka.client("produce", topic=kafka.topic(6), records=RECORDS, mode="callback", tuned=True),
        )
    return [_compare("produce synced send / confluent callback", left, right, "rec_s", "records/s", "≥ 1.0")]


def consume(runs: int) -> list[Row]:
    """Iteration beside the best Python client, tuned; tables beside Kafka's Java tool."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as ours, KafkaSide.running() as kafka:
        mine, theirs, records = ours.topic(6), kafka.topic(6), sized(READ_RECORDS, 20_000)
        ours.client("produce", topic=mine, records=records, mode="many")
        kafka.client("produce", topic=theirs, records=records, mode="batch", tuned=True)
        one, table, confluent, aiokafka, java = interleaved(
            runs,
            lambda: ours.client("consume", topic=mine, records=records, mode="one"),
            lambda: ours.client("consume", topic=mine, records=records, mode="table"),
            lambda: kafka.client("consume", topic=theirs, records=records, tuned=True),
            lambda: kafka.client("consume", topic=theirs, records=records, lib="aiokafka"),
            lambda: {"rec_s": kafka.java_consumer(theirs, records)},
        )
        rows.append(_compare("consume iteration / confluent tuned", one, confluent, "rec_s", "records/s", "≥ 1.3"))
        rows.append(_compare("consume iteration / aiokafka", one, aiokafka, "rec_s", "records/s", "≥ 1.3"))
        rows.append(_compare("consume iteration: client CPU / confluent", one, confluent, "cpu_us", "µs/record", ""))
        rows.append(_compare("consume poll_table / Java tool", table, java, "rec_s", "records/s", "≥ 2.0"))
    return rows


def latency(runs: int) -> list[Row]:
    """One record at a time, no linger: ack beside both Python clients and a bare stream, produce-to-consume; ``os``."""
    rows: list[Row] = []
    records = sized(2_000, 200)
    with HeadraceSide.running(flush="os") as ours, KafkaSide.running() as kafka:

        def mine(test: str) -> dict[str, float]:
            return ours.client(test, topic=ours.topic(1), records=records, mode="aio")

        def theirs(test: str, lib: str) -> dict[str, float]:
            return kafka.client(test, topic=kafka.topic(1), partitions=1, records=records, lib=lib)

        ack, confluent, aiokafka, bare = interleaved(
            runs,
            partial(mine, "rtt"),
            partial(theirs, "rtt", "confluent"),
            partial(theirs, "rtt", "aiokafka"),
            partial(stream.echo, records),
        )
        read, read_aiokafka = interleaved(runs, partial(mine, "e2e"), partial(theirs, "e2e", "aiokafka"))
    targets = {("rtt", "p99_ms"): "≤ 1 ms", ("e2e", "p50_ms"): "≤ 0.65 ms", ("e2e", "p99_ms"): "≤ 2 ms"}
    for test, left, right, lib in (
        ("rtt", ack, confluent, "confluent"),
        ("rtt", ack, aiokafka, "aiokafka"),
        ("rtt", ack, bare, "a bare stream's echo"),
        ("e2e", read, read_aiokafka, "aiokafka"),
    ):
        for point in ("p50_ms", "p99_ms"):
            target = targets.get((test, point), "")
            rows.append(_compare(f"{test} {point[:3]} / {lib}", left, right, point, "ms", target))
    return rows


def _compare(
    name: str, ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str, unit: str, target: str
) -> Row:
    return paired(name, unit, [r[key] for r in ours], [r[key] for r in theirs], target=target)
