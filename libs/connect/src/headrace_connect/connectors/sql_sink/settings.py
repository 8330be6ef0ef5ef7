"""Settings of the sink ``sql-sink``; names are those of the JDBC sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from headrace_connect.connectors.sql.url import DatabaseUrl
from headrace_connect.core.drift import Drift
from headrace_connect.settings import Secret, setting

KAFKA_KEY: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
_TOPIC: Final = "${topic}"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of the sink ``sql-sink``."""

    name: str
    """The connector's name: the target keeps positions under it."""
    connection_url: str
    """The database: ``sqlite:////var/lib/shop.db``, ``postgresql://HOST:5432/DATABASE``,
    ``mariadb://HOST:3306/DATABASE``. ``jdbc:`` before it is left out."""
    connection_user: str = ""
    """Who writes; empty: what the URL says, else as the database's library decides."""
    connection_password: Secret | None = None
    """Of that user."""
    value_form: Literal["flat", "debezium"] = "flat"
    """``flat``: a value is a row. ``debezium``: it is an envelope; its row is in ``after``, and ``op`` says whether the
    row or all rows are deleted."""
    insert_mode: Literal["insert", "upsert", "update"] = "insert"
    """``insert``: a row for each record. ``upsert``: a row for each key, with the values of its last record.
    ``update``: as upsert, for keys that are there."""
    delete_enabled: bool = False
    """A record without a value deletes the row of its key, as does an envelope with the op ``d``. Needs
    ``pk.mode=record_key``. Else such a record is bad."""
    truncate_enabled: bool = False
    """An envelope with the op ``t`` deletes all rows of the table. Needs ``value.form=debezium``, and a topic of one
    partition. Else such a record does nothing."""
    pk_mode: Literal["none", "kafka", "record_key", "record_value"] = "none"
    """Where the primary key comes from: nowhere, topic and partition and offset, the record's key, its value."""
    pk_fields: tuple[str, ...] = ()
    """The columns of the primary key. Empty: with ``kafka``, ``__connect_topic``, ``__connect_partition`` and
    ``__connect_offset``; else all fields. A key without fields needs one name here."""
    table_name_format: str = _TOPIC
    """Which table: ``${topic}`` is the topic's name, dots and all. What is before a dot of the setting itself is the
    schema: ``shop.${topic}``."""
    fields_whitelist: tuple[str, ...] = ()
    """Fields of the value that are written, beside the key. Empty: all."""
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    """What the source has in the place of a value that an update did not touch: the column stays as it is. With
    ``insert.mode=insert``, in a key, and where there is no row yet, the record is refused. Empty: it is a text as
    others are."""
    auto_create: bool = False
    """Makes a table that is not there."""
    auto_evolve: bool = False
    """Adds columns that are not there, and widens those that are too narrow for a value: int, bigint, numeric. The same
    as ``drift=add``."""
    drift: Drift | None = None
    """A field that the table does not have, or a value that its column does not take. ``add``: as ``auto.evolve`` says.
    ``strict``: the record is refused. ``fail``: the task fails. ``ignore``: the field is left out; the value is
    refused. Empty: ``add`` with ``auto.evolve``, else ``strict``."""
    batch_size: int = setting(3_000, low=1, high=100_000)
    """Rows that are sent to the database at once."""
    timeout_ms: int = setting(30_000, low=100, high=3_600_000)
    """How long to wait for a connection, or for others who have locked a row or the database."""
    dead_table: str = ""
    """Rows that are refused go into this table, in the transaction of the others, instead of to
    ``errors.deadletterqueue.topic.name``. It is made if it is not there. Empty: there is none."""

    def __post_init__(self) -> None:
        DatabaseUrl.parse(self.connection_url)
        if self.insert_mode != "insert" and self.pk_mode == "none":
            raise ValueError(f"insert.mode={self.insert_mode} needs a key: set pk.mode to record_key or record_value")
        if self.delete_enabled and self.pk_mode != "record_key":
            raise ValueError("delete.enabled needs pk.mode=record_key: the value is not there to say the key")
        if self.auto_evolve and self.drift not in (None, Drift.ADD):
            raise ValueError(f"auto.evolve=true is drift=add, and drift is {self.drift}; leave one of them out")
        if self.truncate_enabled and self.value_form != "debezium":
            raise ValueError("truncate.enabled needs value.form=debezium: a row does not say that all rows are deleted")
        if self.pk_mode == "kafka" and len(self.pk_fields) not in (0, 3):
            raise ValueError("with pk.mode=kafka, pk.fields has three names: for topic, partition and offset")
        if self.pk_mode == "none" and self.pk_fields:
            raise ValueError("pk.fields needs a pk.mode")
        if len(set(self.pk_fields)) < len(self.pk_fields):
            raise ValueError("pk.fields has a column twice")
        if not self.table_name_format.strip():
            raise ValueError("table.name.format is empty")

    @property
    def drifts(self) -> Drift:
        """``drift``, or what ``auto.evolve`` says."""
        return self.drift or (Drift.ADD if self.auto_evolve else Drift.STRICT)

    @property
    def url(self) -> DatabaseUrl:
        """Where the database is."""
        return DatabaseUrl.parse(self.connection_url)

    @property
    def kafka_key(self) -> tuple[str, str, str]:
        """Columns of topic, partition and offset."""
        topic, partition, offset = self.pk_fields or KAFKA_KEY
        return topic, partition, offset

    def table_of(self, topic: str) -> tuple[str, ...]:
        """Schema, if one is said, and name of the table for a topic."""
        schema, dot, name = self.table_name_format.partition(".")
        parts = (schema, name) if dot and _TOPIC not in schema else (self.table_name_format,)
        return tuple(part.replace(_TOPIC, topic) for part in parts)
