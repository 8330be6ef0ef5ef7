"""Configurations of Kafka Connect's Java classes, as connectors here understand them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InvalidConfig
from headrace_connect.connectors.kafka_import import KafkaSource
from headrace_connect.runtime.aliases import ALIASES, REFUSED, translate
from headrace_connect.runtime.catalog import SHIPPED, find_connector
from headrace_connect.runtime.configuring import configure, describe_plugin, find_config_problems
from headrace_connect.settings import Secrets

DEBEZIUM = {
    "name": "shop",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "database.dbname": "shop",
    "database.user": "headrace",
    "database.server.name": "shop",
    "table.include.list": "public.orders",
    "plugin.name": "pgoutput",
    "max.queue.size": "8192",
    "slot.drop.on.stop": "false",
}
JDBC_SINK = {
    "name": "sink",
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:postgresql://db/shop",
    "topics": "orders",
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "id",
    "auto.create": "true",
    "dialect.name": "PostgreSqlDatabaseDialect",
}
JDBC_SOURCE = {
    "name": "source",
    "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
    "connection.url": "jdbc:postgresql://db/shop",
    "topic.prefix": "shop-",
    "mode": "incrementing",
    "incrementing.column.name": "id",
    "table.blacklist": "logs",
    "table.poll.interval.ms": "5000",
}
MIRROR = {
    "name": "mm",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "source.cluster.alias": "eu",
    "source.cluster.bootstrap.servers": "eu:9092",
    "source.cluster.security.protocol": "SSL",
    "source.consumer.fetch.min.bytes": "1",
    "target.cluster.alias": "us",
    "target.cluster.bootstrap.servers": "us:9092",
    "topics": "orders,shop.*",
    "groups": ".*",
    "sync.topic.acls.enabled": "false",
}
FILES = {
    "name": "lines",
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "file": "/srv/a.txt",
    "topic": "lines",
}


@pytest.mark.parametrize(
    ("given", "name", "key", "value"),
    [
        (DEBEZIUM, "postgres-cdc", "topic.prefix", "shop"),
        (JDBC_SINK, "sql-sink", "pk.fields", "id"),
        (JDBC_SOURCE, "sql-source", "table.exclude.list", "logs"),
        (JDBC_SOURCE, "sql-source", "rescan.interval.ms", "5000"),
        (MIRROR, "kafka-import", "topic.prefix", "eu."),
        (MIRROR | {"topic.prefix": "x."}, "kafka-import", "topic.prefix", "x."),
        (MIRROR | {"replication.policy.separator": "_"}, "kafka-import", "topic.prefix", "eu_"),
        (MIRROR | {"replication.policy.class": "a.b.IdentityReplicationPolicy"}, "kafka-import", "topic.prefix", None),
        (FILES, "files", "path", "/srv/a.txt"),
        (FILES, "files", "format", "lines"),
    ],
)
def test_what_means_the_same_is_taken(given: dict[str, str], name: str, key: str, value: str | None) -> None:
    assert find_config_problems(given) == ()
    config, problems = translate(given)
    assert (config["connector.class"], config.get(key), problems) == (name, value, [])
    assert configure(given, Secrets()).config.connector_class == name


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (
            DEBEZIUM,
            {"schema.include.list": "public"},
            "schema.include.list is not a setting of postgres-cdc: write it as",
        ),
        (DEBEZIUM, {"slot.drop.on.stop": "true"}, "the slot stays"),
        (DEBEZIUM, {"skipped.operations": "t"}, "truncate.handling.mode=include"),
        (DEBEZIUM, {"event.processing.failure.handling.mode": "skip"}, "errors.tolerance=all has it here"),
        (DEBEZIUM, {"nobody.knows": "it"}, "nobody.knows is not a setting of postgres-cdc"),
        (JDBC_SINK, {"max.retries": "3"}, "max.retries is not a setting of sql-sink: errors.retry.timeout"),
        (MIRROR, {"refresh.topics.interval.seconds": "9"}, "rescan.interval.ms has it here, in milliseconds"),
    ],
)
def test_of_other_keys_it_is_said_what_to_do(given: dict[str, str], more: dict[str, str], said: str) -> None:
    [problem] = find_config_problems(given | more)
    assert problem.key in more
    assert said in problem.message
    with pytest.raises(InvalidConfig, match=said):
        configure(given | more, Secrets())


def test_a_class_is_found_by_its_name_in_java() -> None:
    found: Any = find_connector(MIRROR["connector.class"])
    assert found is KafkaSource


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_nothing_stands_in_for_is_refused_with_what_to_do(name: str) -> None:
    [problem] = find_config_problems({"name": "x", "connector.class": name})
    assert f"nothing stands in for {name}: {REFUSED[name]}" in problem.message


@pytest.mark.parametrize("java", ALIASES)
def test_what_keys_are_renamed_to_are_settings(java: str) -> None:
    alias = ALIASES[java]
    assert alias.name in SHIPPED
    definitions = describe_plugin(find_connector(alias.name))
    keys = {one.key for one in definitions if not one.family}
    assert {*alias.keys.values(), *alias.defaults({})} <= keys
    assert not keys & {*alias.keys, *alias.advice}
    assert not any(map(alias.is_idle, keys))


@pytest.mark.parametrize("name", [*ALIASES, *REFUSED])
def test_the_page_has_each_class(name: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "connect.md").read_text(encoding="utf-8")
    assert f".{name.rpartition('.')[2]}`" in text or f"…{name.rpartition('.')[2]}`" in text
