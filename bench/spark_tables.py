"""Batch queries: topics to nothing and to Parquet, and DataFrames to topics, each beside the same of Kafka's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from bench.rows import Row, compare, interleaved
from bench.sizes import sized
from bench.spark_side import Bench, Broker, Took

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Side = tuple[Callable[[], object], Broker | None]


def reading(bench: Bench) -> list[Row]:
    """All columns to ``noop``, beside Kafka and beside the same rows in Parquet."""
    topics = {broker: _filled(bench, broker) for broker in bench.brokers}
    records = _records() + 1
    parquet = str(bench.folder / "all")
    bench.headrace.read(bench.spark, topics[bench.headrace]).write.parquet(parquet)
    files = bench.spark.read.parquet(parquet)
    for found in (files, *(broker.read(bench.spark, topic) for broker, topic in topics.items())):
        assert found.count() == records, f"{found.count()} rows of {records}"
    sides: list[Side] = [(partial(_read_all, bench, broker, topics[broker]), broker) for broker in bench.brokers]
    *brokers, plain = _measured(bench, [*sides, (partial(_noop, files), None)])
    return [
        *_beside_kafka("Spark: read to noop", records, brokers, "≥ 2.5"),
        _rates("Spark: read to noop / Spark's Parquet reader", records, brokers[0], plain, "≥ 0.35"),
    ]


def to_parquet(bench: Bench) -> list[Row]:
    """value, offset, timestamp to Parquet files."""
    topics = {broker: _filled(bench, broker) for broker in bench.brokers}

    def copy(broker: Broker) -> None:
        rows = broker.read(bench.spark, topics[broker]).select("value", "offset", "timestamp")
        rows.write.mode("overwrite").parquet(str(bench.folder / "some"))

    sides: list[Side] = [(partial(copy, broker), broker) for broker in bench.brokers]
    return _beside_kafka("Spark: topic to Parquet", _records(), _measured(bench, sides), "≥ 1.5")


def writing(bench: Bench) -> list[Row]:
    """A batch job into a topic: exactly once and at least once, beside Kafka's sink (at least once)."""
    from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

    records = sized(3_000_000, 100_000)
    text = F.concat(F.lpad(F.col("id").cast("string"), 12, "0"), F.lit("x" * 88))
    rows = bench.spark.range(records, numPartitions=2).select(text.alias("value"))
    ours = bench.headrace
    targets = [(ours, ours.topic(), "true"), (ours, ours.topic(), "false")]
    if bench.kafka:
        targets.append((bench.kafka, bench.kafka.topic(), ""))

    def write(broker: Broker, topic: str, transactional: str) -> None:
        mine = {"transactional": transactional} if transactional else {}
        options = broker.options(topic=topic, **mine)
        rows.write.format(broker.format).options(**options).mode("append").save()

    sides: list[Side] = [(partial(write, *target), target[0]) for target in targets]
    took = _measured(bench, sides)
    for broker, topic, _ in targets:
        committed = {"kafka.isolation.level": "read_committed"}
        found = broker.read(bench.spark, topic, **committed).count()
        assert found == records * (bench.runs + 1), f"{broker.format} has {found} rows of {records} × {bench.runs + 1}"
    once, least, *theirs = took
    return [
        *_beside_kafka("Spark: exactly-once sink", records, [once, *theirs], "≥ 0.9"),
        *_beside_kafka("Spark: sink, transactional=false", records, [least, *theirs], "≥ 1.2"),
    ]


def large(bench: Bench) -> list[Row]:
    """Records of 1 KB to ``noop``."""
    records = sized(600_000, 50_000)
    topics = {broker: broker.topic() for broker in bench.brokers}
    for broker, topic in topics.items():
        broker.fill(topic, records, 1000)
    sides: list[Side] = [(partial(_read_all, bench, broker, topics[broker]), broker) for broker in bench.brokers]
    ours, *theirs = ([records * 1000 / 1e6 / one.wall for one in side] for side in _measured(bench, sides))
    return [compare("Spark: 1 KB records to noop", "MB/s", ours, *theirs, target="≥ 400 MB/s")]


def _records() -> int:
    return sized(6_000_000, 200_000)


@cache
def _filled(bench: Bench, broker: Broker) -> str:
    """A topic with the 100-byte records that several suites read."""
    topic = broker.topic()
    broker.fill(topic, _records(), 100)  # and one more, before the client's clock starts
    return topic


def _read_all(bench: Bench, broker: Broker, topic: str) -> None:
    _noop(broker.read(bench.spark, topic))


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _measured(bench: Bench, sides: Sequence[Side]) -> list[list[Took]]:
    """Each side's runs; the first round of all is to warm up."""
    rounds = interleaved(bench.runs + 1, *(partial(bench.took, *side) for side in sides))
    return [each[1:] for each in rounds]


def _beside_kafka(name: str, records: int, took: Sequence[Sequence[Took]], target: str) -> list[Row]:
    """Rows a second, and CPU; ``took`` is ours, and theirs where there is one."""
    ours, *rest = took
    theirs = rest[0] if rest else ()
    split = f"of ours {_micros([t.spark for t in ours], records):.2f} Spark's"
    if theirs:
        split += f", of Kafka's {_micros([t.spark for t in theirs], records):.2f}"
    cpu = compare(
        f"{name}: CPU of Spark and cluster",
        "µs/row",
        [t.cpu / records * 1e6 for t in ours],
        [t.cpu / records * 1e6 for t in theirs],
        note=split,
    )
    return [_rates(f"{name} / Kafka" if theirs else name, records, ours, theirs, target), cpu]


def _rates(name: str, records: int, ours: Sequence[Took], theirs: Sequence[Took], target: str) -> Row:
    return compare(name, "rows/s", [records / t.wall for t in ours], [records / t.wall for t in theirs], target=target)


def _micros(seconds: Sequence[float], records: int) -> float:
    return statistics.median(seconds) / records * 1e6
