"""
Connectors beside Kafka Connect on a real Kafka: Debezium's for PostgreSQL, and its JDBC sink (Confluent's is not in
Maven). Both sides have one database, one partition, one task, and the same guarantee.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition
from tests.integration.connect.shop import Shop, started_shop

from bench.connect import (
    CHANGES,
    EACH_S,
    UPSERTS,
    Changes,
    Rows,
    await_slot,
    delays,
    fresh,
    keyed_rows,
    run_changes,
    run_delays,
    run_upserts,
    until,
)
from bench.connect_sides import Rate, measure_growth
from bench.headrace_side import HeadraceSide
from bench.kafka_connect import KafkaConnect
from bench.kafka_side import KafkaSide
from bench.rows import Row, interleaved, paired, percentile
from bench.sizes import sized
from bench.streams_peer import fill_kafka

DEBEZIUM: Final = "io.debezium.connector.postgresql.PostgresConnector"
JDBC: Final = "io.debezium.connector.jdbc.JdbcSinkConnector"


def changes(runs: int) -> list[Row]:
    """Inserts that wait in the WAL while the connector is stopped, exactly once on both sides."""
    count = sized(CHANGES, 20_000)

    def theirs() -> Rate:
        with Changes.of(shop) as made, _captured(worker, made), _ends(kafka, made.topic) as ends:
            made.insert_evenly(EACH_S, 1)
            until(lambda: ends() >= EACH_S)
            worker.call("PUT", f"/connectors/{made.table}/stop")
            worker.wait_for(f"/connectors/{made.table}/status", lambda told: not told["tasks"])
            begun = ends()
            made.insert(count)
            worker.call("PUT", f"/connectors/{made.table}/resume")
            return measure_growth(lambda: ends() - begun, count, [worker.pid], lambda: None)

    with _sides("debezium", exactly_once=True) as (cluster, shop, root, kafka, worker):
        mine, other = interleaved(runs + 1, partial(run_changes, cluster, shop, root, count), theirs)
    return _compare(f"postgres-cdc, {count:,} inserts of 100 B / Debezium", mine, other, "≥ 1.0")


def delay(runs: int) -> list[Row]:
    """From before a row is inserted until a reader has its change, at 100 a second, exactly once on both sides."""

    def theirs() -> list[float]:
        with Changes.of(shop) as made, _captured(worker, made), _consumer(kafka) as consumer:
            consumer.assign([TopicPartition(made.topic, 0, 0)])
            return delays(made, lambda: [m.value() for m in consumer.consume(1_000, 0.1) if m.error() is None])

    with _sides("debezium", exactly_once=True) as (cluster, shop, root, kafka, worker):
        mine, other = interleaved(runs + 1, partial(run_delays, cluster, shop, root, "true"), theirs)
    return [
        paired(
            f"postgres-cdc, delay at {EACH_S}/s, exactly once, p{share * 100:.0f} / Debezium",
            "ms",
            [percentile(times, share) for times in mine[1:]],
            [percentile(times, share) for times in other[1:]],
        )
        for share in (0.5, 0.99)
    ]


def upserts(runs: int) -> list[Row]:
    """New keys, JSON with a schema in each record, as their sink wants it; batches of 3,000 on both sides."""
    count = sized(UPSERTS, 10_000)

    def theirs() -> Rate:
        source = kafka.topic(1)
        fill_kafka(kafka, source, records)
        with Rows.into(shop) as made:
            parts = dict(part.split("=", 1) for part in shop.conninfo.split())
            config = {
                "connector.class": JDBC,
                "topics": source,
                "collection.name.format": made.name,
                "connection.url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
                "connection.username": parts["user"],
                "connection.password": "unused",
                "insert.mode": "upsert",
                "primary.key.mode": "record_key",
                "batch.size": "3000",
                "consumer.override.max.poll.records": "3000",
            }
            with _connector(worker, made.name, config):
                return measure_growth(made.count, count, [worker.pid], lambda: None)

    with _sides("jdbc-sink") as (cluster, shop, root, kafka, worker):
        records = keyed_rows(count, schemas=True)
        mine, other = interleaved(runs + 1, partial(run_upserts, cluster, shop, root, records), theirs)
    return _compare(f"sql-sink into PostgreSQL, {count:,} upserts / Debezium's JDBC sink", mine, other, "≥ 3")


def _compare(name: str, ours: list[Rate], theirs: list[Rate], target: str) -> list[Row]:
    """The first pair warms both."""
    ours, theirs = ours[1:], theirs[1:]
    return [
        paired(f"{name}: rate", "rows/s", [one.rows_s for one in ours], [one.rows_s for one in theirs], target=target),
        paired(f"{name}: CPU", "µs/record", [one.cpu_us for one in ours], [one.cpu_us for one in theirs]),
    ]


@contextmanager
def _sides(
    plugin: str, *, exactly_once: bool = False
) -> Iterator[tuple[HeadraceSide, Shop, Path, KafkaSide, KafkaConnect]]:
    with (
        HeadraceSide.running(flush="os") as cluster,
        started_shop() as shop,
        tempfile.TemporaryDirectory(prefix="bench-connect-") as root,
        KafkaSide.running() as kafka,
        KafkaConnect.running(
            Path(root),
            kafka.bootstrap,
            plugin,
            exactly_once_source_support="enabled" if exactly_once else "disabled",
            connector_client_config_override_policy="All",
        ) as worker,
    ):
        yield cluster, shop, Path(root), kafka, worker


@contextmanager
def _connector(worker: KafkaConnect, name: str, config: dict[str, str]) -> Iterator[None]:
    worker.start(name, config)
    try:
        yield
    finally:
        worker.call("DELETE", f"/connectors/{name}")


@contextmanager
def _captured(worker: KafkaConnect, made: Changes) -> Iterator[None]:
    parts = dict(part.split("=", 1) for part in made.shop.conninfo.split())
    config = {
        "connector.class": DEBEZIUM,
        "topic.prefix": made.table,
        "database.hostname": parts["host"],
        "database.port": parts["port"],
        "database.dbname": parts["dbname"],
        "database.user": parts["user"],
        "table.include.list": f"public.{made.table}",
        "plugin.name": "pgoutput",
        "snapshot.mode": "no_data",
        "slot.name": made.table,
        "publication.name": made.table,
        "publication.autocreate.mode": "filtered",
        "exactly.once.support": "required",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    with _connector(worker, made.table, config):
        await_slot(made, made.table)
        yield


@contextmanager
def _consumer(kafka: KafkaSide) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": fresh("bench"), "isolation.level": "read_committed"}
    )
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def _ends(kafka: KafkaSide, topic: str) -> Iterator[Callable[[], int]]:
    """How many records are committed in a topic of one partition, markers of transactions too; 0 until it is there."""
    with _consumer(kafka) as consumer:

        def count() -> int:
            if topic not in consumer.list_topics(timeout=10).topics:
                return 0
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])

        yield count


SUITES: Final[dict[str, Callable[[int], list[Row]]]] = {
    "peer-connect-changes": changes,
    "peer-connect-delay": delay,
    "peer-connect-upserts": upserts,
}
