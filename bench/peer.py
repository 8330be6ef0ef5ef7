"""Beside a real Kafka on the same machine in the same minutes: each run of ours is followed by one of theirs."""

from __future__ import annotations

from bench.headrace_side import HeadraceSide
from bench.kafka_side import KafkaSide
from bench.rows import Row, compare, interleaved

RECORDS = 2_000_000


def produce(runs: int) -> list[Row]:
    """100-byte and 1 KB records, six partitions, acks=all, random values, no compression; flush ``os``."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as ours, KafkaSide.running() as kafka:
        for size, records in ((100, RECORDS), (1000, RECORDS // 4)):
            for mine, theirs, target in (("send", "callback", "≥ 1.0"), ("many", "batch", "≥ 1.5")):
                if size == 1000 and mine == "many":
                    continue

                def ours_run(mine: str = mine, size: int = size, records: int = records) -> dict[str, float]:
                    return ours.client("produce", topic=ours.topic(6), records=records, size=size, mode=mine)

                def theirs_run(theirs: str = theirs, size: int = size, records: int = records) -> dict[str, float]:
                    topic = kafka.topic(6)
                    return kafka.client("produce", topic=topic, records=records, size=size, mode=theirs, tuned=True)

                left, right = interleaved(runs, ours_run, theirs_run)
                name = f"produce {size} B {mine} / confluent {theirs}"
                rows.append(_compare(name, left, right, "rec_s", "records/s", target))
                rows.append(_compare(f"{name}: client CPU", left, right, "cpu_us", "µs/record", "< 1.0"))
    return rows


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
        mine, theirs = ours.topic(6), kafka.topic(6)
        ours.client("produce", topic=mine, records=RECORDS, mode="many")
        kafka.client("produce", topic=theirs, records=RECORDS, mode="batch", tuned=True)
        one, table, confluent, aiokafka, java = interleaved(
            runs,
            lambda: ours.client("consume", topic=mine, records=RECORDS, mode="one"),
            lambda: ours.client("consume", topic=mine, records=RECORDS, mode="table"),
            lambda: kafka.client("consume", topic=theirs, records=RECORDS, tuned=True),
            lambda: kafka.client("consume", topic=theirs, records=RECORDS, lib="aiokafka"),
            lambda: {"rec_s": kafka.java_consumer(theirs, RECORDS)},
        )
        rows.append(_compare("consume iteration / confluent tuned", one, confluent, "rec_s", "records/s", "≥ 1.3"))
        rows.append(_compare("consume iteration / aiokafka", one, aiokafka, "rec_s", "records/s", "≥ 1.3"))
        rows.append(_compare("consume iteration: client CPU / confluent", one, confluent, "cpu_us", "µs/record", ""))
        rows.append(_compare("consume poll_table / Java tool", table, java, "rec_s", "records/s", "≥ 2.0"))
    return rows


def latency(runs: int) -> list[Row]:
    """One record at a time, no linger: ack and produce-to-consume, flush ``os``."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as ours, KafkaSide.running() as kafka:
        for test in ("rtt", "e2e"):
            left, right = interleaved(
                runs,
                lambda test=test: ours.client(test, topic=ours.topic(1), records=2000, mode="aio"),
                lambda test=test: kafka.client(test, topic=kafka.topic(1), partitions=1, records=2000, lib="aiokafka"),
            )
            targets = {"rtt": ("≤ 3.0 of aiokafka", "≤ 4 ms"), "e2e": ("≤ 1.5 ms", "≤ 5 ms")}[test]
            for point, target in zip(("p50_ms", "p99_ms"), targets, strict=True):
                rows.append(_compare(f"{test} {point[:3]} / aiokafka", left, right, point, "ms", target))
    return rows


def _compare(
    name: str, ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str, unit: str, target: str
) -> Row:
    return compare(name, unit, [r[key] for r in ours], [r[key] for r in theirs], target=target)
