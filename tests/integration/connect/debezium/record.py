"""
Keeps what Debezium's connector makes of the changes, in ``debezium.json``.

    python -m tests.integration.connect.debezium.record

Needs Java 17, Maven and PostgreSQL, and some minutes; so a test compares ours with what was kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.kafka_connect import JSON, KafkaConnect
from bench.kafka_side import KafkaSide
from confluent_kafka import Consumer
from tests.integration.connect.debezium.changes import LAST, PREFIX, TABLES, VARIANTS, changes_of
from tests.integration.connect.debezium.shapes import Table
from tests.integration.connect.shop import Shop, started_shop

KEPT: Final = Path(__file__).with_name("debezium.json")
VERSION: Final = "3.6.1.Final"
_WAIT_S: Final = 120.0


def main() -> int:
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="debezium-") as folder,
        KafkaSide.running(warm=False) as kafka,
        KafkaConnect.running(Path(folder), kafka.bootstrap, "debezium") as worker,
    ):
        for number, name in enumerate(VARIANTS):
            with started_shop() as shop:
                found[name] = _record(shop, kafka, worker, f"v{number}", name)
    KEPT.write_text(json.dumps({"version": VERSION, "records": found}, ensure_ascii=False) + "\n")
    return 0


def _record(shop: Shop, kafka: KafkaSide, worker: KafkaConnect, name: str, variant: str) -> Any:
    shop.do(*TABLES)
    parts = dict(part.split("=", 1) for part in shop.conninfo.split())
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": name,
        "database.hostname": parts["host"],
        "database.port": parts["port"],
        "database.dbname": parts["dbname"],
        "database.user": parts["user"],
        "plugin.name": "pgoutput",
        "snapshot.mode": "no_data",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "all_tables",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        "header.converter": JSON,
        "header.converter.schemas.enable": "false",
        **VARIANTS[variant],
    }
    worker.start(name, config)
    while not shop.rows(f"select 1 from pg_replication_slots where slot_name = '{name}' and active"):
        time.sleep(0.2)
    shop.do(*changes_of(variant))
    try:
        return _read(kafka, name)
    finally:
        worker.call("DELETE", f"/connectors/{name}")
        while shop.rows("select 1 from pg_replication_slots where active"):
            time.sleep(0.2)


def _read(kafka: KafkaSide, prefix: str) -> dict[str, Any]:
    """Records by table, until the last one is there."""
    found: dict[str, Table] = {}
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": prefix, "auto.offset.reset": "earliest"}
        | {"topic.metadata.refresh.interval.ms": 1_000}
    )
    consumer.subscribe([f"^{prefix}[.]public[.].*"])
    until = time.monotonic() + _WAIT_S
    while LAST not in found:
        assert time.monotonic() < until, f"only {sorted(found)} came"
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                headers = {key: json.loads(value) for key, value in message.headers() or () if value}
                headers = {
                    key: one for key, one in headers.items() if key in ("__debezium.newkey", "__debezium.oldkey")
                }
                text = [
                    None if part is None else part.replace(b'"%s' % prefix.encode(), b'"%s' % PREFIX.encode())
                    for part in (message.key(), message.value())
                ]
                found.setdefault(message.topic().rpartition(".")[2], Table()).add(*text, headers)
    consumer.close()
    return {name: table.shown for name, table in found.items()}


if __name__ == "__main__":
    sys.exit(main())
