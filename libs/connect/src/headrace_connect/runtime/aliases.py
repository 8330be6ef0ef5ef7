"""
Classes of Kafka Connect that a connector of ours stands in for: its keys that mean the same are taken, and what to do
instead is said of others. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_connect.core.options import Problem

_CLASS: Final = "connector.class"


@dataclass(frozen=True, slots=True)
class Alias:
    """What a class of Kafka Connect is here. Keys that are not named mean what they mean there."""

    name: str
    """Of the connector."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Those that have another name here."""
    idle: tuple[str, ...] = ()
    """Those that nothing depends on here; all that begin so where it ends with a dot."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Those that have no place here, and what to do; ``false`` of them is taken, for it asks for nothing."""
    defaults: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda given: {}
    """Keys of ours that follow from what is given, and are not given."""

    def is_idle(self, key: str) -> bool:
        """Whether ``key`` changes nothing."""
        return any(key == one or (one.endswith(".") and key.startswith(one)) for one in self.idle)


def _mirror_defaults(given: Mapping[str, str]) -> Mapping[str, str]:
    if given.get("replication.policy.class", "").endswith("IdentityReplicationPolicy"):
        return {}
    separator = given.get("replication.policy.separator", ".")
    return {"topic.prefix": f"{given.get('source.cluster.alias', '')}{separator}"}


_RETRIES: Final = "errors.retry.timeout has it here, in milliseconds"
ALIASES: Final[Mapping[str, Alias]] = {
    "io.debezium.connector.postgresql.PostgresConnector": Alias(
        "postgres-cdc",
        keys={"database.server.name": "topic.prefix"},
        idle=(
            "max.queue.size",
            "max.queue.size.in.bytes",
            "status.update.interval.ms",
            "database.tcpKeepAlive",
            "slot.max.retries",
            "slot.retry.delay.ms",
            "snapshot.fetch.size",
            "snapshot.locking.mode",
            "snapshot.max.threads",
            "schema.refresh.mode",
            "xmin.fetch.interval.ms",
            "topic.heartbeat.prefix",
            "heartbeat.topics.prefix",
            "incremental.snapshot.allow.schema.changes",
        ),
        advice={
            "schema.include.list": r"write it as table.include.list=SCHEMA\..*",
            "schema.exclude.list": r"write it as table.exclude.list=SCHEMA\..*",
            "column.include.list": "the transform ReplaceField$Value with include does it",
            "column.exclude.list": "the transform ReplaceField$Value with exclude does it",
            "signal.data.collection": "a table that is added to table.include.list is read, without a signal",
            "slot.drop.on.stop": "the slot stays until SELECT pg_drop_replication_slot('NAME')",
            "message.key.columns": "the transform ValueToKey does it, with value.form=flat",
            "skipped.operations": "the transform Filter with expr leaves them out; truncations are left out unless "
            "truncate.handling.mode=include",
            "event.processing.failure.handling.mode": "errors.tolerance=all has it here, with dead letters",
            "errors.max.retries": _RETRIES,
            "retriable.restart.connector.wait.ms": "failed tasks start again by themselves, after 1 s and ever later",
            "snapshot.select.statement.overrides": "all rows are read; the transform Filter with expr leaves some out",
            "snapshot.delay.ms": "start the connector later, or leave it out",
            "interval.handling.mode": "leave it out: intervals are text",
            "topic.naming.strategy": "the transform RegexRouter renames topics",
            "topic.delimiter": "the transform RegexRouter renames topics",
            "message.prefix.exclude.list": "write those that are wanted as message.prefix.include.list",
            "replica.identity.autoset.values": "type ALTER TABLE … REPLICA IDENTITY … in the database",
            "include.unknown.datatypes": "leave it out: types that are not known are text",
            "signal.enabled.channels": "`headrace connect snapshot` has a table read again",
            "notification.enabled.channels": "`headrace connect events` shows what it tells",
            "read.only": "marks are written with pg_logical_emit_message, so a standby cannot be read",
        },
    ),
    "io.confluent.connect.jdbc.JdbcSinkConnector": Alias(
        "sql-sink",
        idle=("dialect.name", "table.types", "quote.sql.identifiers", "trim.sensitive.log"),
        advice={
            "max.retries": _RETRIES,
            "retry.backoff.ms": _RETRIES,
            "connection.attempts": _RETRIES,
            "connection.backoff.ms": _RETRIES,
            "db.timezone": "times are written in UTC",
            "date.timezone": "times are written in UTC",
            "timestamp.precision.mode": "leave it out: times are as fine as their column",
        },
    ),
    "io.confluent.connect.jdbc.JdbcSourceConnector": Alias(
        "sql-source",
        keys={"table.blacklist": "table.exclude.list", "table.poll.interval.ms": "rescan.interval.ms"},
        idle=("dialect.name", "quote.sql.identifiers"),
        advice={
            "connection.attempts": _RETRIES,
            "connection.backoff.ms": _RETRIES,
            "catalog.pattern": "a connection has one database",
            "schema.pattern": "write the schema into table.include.list, as shop.orders",
            "numeric.mapping": "the transform Cast$Value does it",
            "timestamp.initial": "a query with a condition does it",
            "query.suffix": "write it into query",
            "query.retry.attempts": _RETRIES,
            "numeric.precision.mapping": "the transform Cast$Value does it",
            "timestamp.granularity": "leave it out: times are as fine as their column",
            "transaction.isolation.mode": "leave it out: rows are read when all that may come before them is committed",
        },
    ),
    "org.apache.kafka.connect.mirror.MirrorSourceConnector": Alias(
        "kafka-import",
        keys={"topics.blacklist": "topics.exclude", "config.properties.blacklist": "config.properties.exclude"},
        idle=(
            "target.cluster.",
            "groups",
            "groups.exclude",
            "offset.lag.max",
            "offset-syncs.topic.replication.factor",
            "replication.policy.class",
            "replication.policy.separator",
            "refresh.topics.enabled",
        ),
        advice={
            "refresh.topics.interval.seconds": "rescan.interval.ms has it here, in milliseconds",
            "replication.factor": "new topics have the replication factor that is the target's default",
            "offset-syncs.topic.location": "it is at the target",
            "sync.topic.acls.enabled": "ACLs are not copied",
            "add.source.alias.to.metrics": "metrics have the connector's name",
            "consumer.poll.timeout.ms": "timeout.ms says how long the source may be silent",
            "source.admin.bootstrap.servers": "source.cluster.bootstrap.servers has it for all clients",
        },
        defaults=_mirror_defaults,
    ),
    "org.apache.kafka.connect.file.FileStreamSourceConnector": Alias(
        "files", keys={"file": "path"}, idle=("batch.size",), defaults=lambda given: {"format": "lines"}
    ),
}
_NO_LOG: Final = "sql-source reads what is new or has changed in tables of MariaDB; logs are read of PostgreSQL alone"
REFUSED: Final[Mapping[str, str]] = {
    "io.debezium.connector.jdbc.JdbcSinkConnector": "sql-sink does it, with value.form=debezium where records are "
    "envelopes; see its settings",
    "io.debezium.connector.mysql.MySqlConnector": _NO_LOG,
    "io.debezium.connector.mariadb.MariaDbConnector": _NO_LOG,
    "io.confluent.connect.s3.S3SinkConnector": "lake-sink and files-sink write to buckets: path=s3://BUCKET/PREFIX",
    "io.confluent.connect.http.HttpSinkConnector": "http-sink sends records to a URL; see its settings",
    "org.apache.kafka.connect.file.FileStreamSinkConnector": "files-sink writes a directory of files, each once",
    "org.apache.kafka.connect.mirror.MirrorCheckpointConnector": "`headrace connect cutover` translates positions of "
    "groups exactly when they are moved, and needs no connector",
    "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector": "headrace_connect_source_delay_seconds, a metric of "
    "kafka-import, says how late copies are",
}
"""Classes that nothing stands in for, and what to do instead."""


def translate(given: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """
    A configuration under the names that it has here, and what of it has no place here. Without an alias it is as it
    was.
    """
    alias = ALIASES.get(given.get(_CLASS, ""))
    if alias is None:
        return dict(given), []
    config = dict(alias.defaults(given))
    problems: list[Problem] = []
    for key, value in given.items():
        if alias.is_idle(key):
            continue
        if key in alias.advice:
            if value.lower() != "false":
                problems.append(Problem(key, f"{key} is not a setting of {alias.name}: {alias.advice[key]}"))
            continue
        config[alias.keys.get(key, key)] = value
    return {**config, _CLASS: alias.name}, problems
