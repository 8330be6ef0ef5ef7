"""Settings of the source ``postgres-cdc``; names are Debezium's where it has one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from headrace_connect.core.drift import SourceDrift
from headrace_connect.core.envelope import FlatField, Form
from headrace_connect.core.values import ValueModes
from headrace_connect.core.values.modes import Arrays, Bytes, Decimals, Times
from headrace_connect.settings import Secret, setting
from headrace_connect.version import package_version

_OBJECT_CHARS_MAX: Final = 63
_TOPIC_CHARS_MAX: Final = 249
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")
"""What names of topics do not have."""
_PREFIX: Final = "${prefix}"
_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of the source ``postgres-cdc``."""

    name: str
    """The connector's name: by it, a task that reads the slot is told from one of another connector."""
    topic_prefix: str
    """Records of a table go to the topic ``PREFIX.SCHEMA.TABLE``."""
    database_hostname: str
    """Where PostgreSQL listens; a path that begins with ``/`` is the directory of its socket."""
    database_dbname: str
    """The database: a connector reads one."""
    database_user: str
    """Needs the attribute REPLICATION, and SELECT on the tables."""
    database_password: Secret | None = None
    """Of that user."""
    database_port: int = setting(5432, low=1, high=65535)
    """Of the server."""
    database_sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = "prefer"
    """TLS, as libpq has it. Only ``verify-full`` makes sure that it is the right server."""
    database_sslrootcert: str = ""
    """File with the certificates of authorities that are trusted, as an absolute path; ``system``: those of the
    machine."""
    database_sslcert: str = ""
    """File with the certificate of this client, as an absolute path."""
    database_sslkey: str = ""
    """File with its key, as an absolute path."""
    table_include_list: tuple[str, ...] = ()
    """Tables that are captured: regular expressions for the whole of ``SCHEMA.TABLE``. Empty: all."""
    table_exclude_list: tuple[str, ...] = ()
    """Tables that are left out, in the same form."""
    plugin_name: Literal["pgoutput"] = "pgoutput"
    """What decodes the WAL; it is part of PostgreSQL."""
    publication_name: str = ""
    """Empty: ``headrace_`` and ``topic.prefix``."""
    publication_autocreate_mode: Literal["filtered", "all_tables", "disabled"] = "filtered"
    """``filtered``: the publication is made for the tables that are captured, and new ones are added. ``all_tables``:
    it is made for all tables, which needs a superuser. ``disabled``: it must be there."""
    slot_name: str = ""
    """Empty: ``headrace_`` and ``topic.prefix``. It is made if it is not there, and never dropped."""
    slot_failover: bool = False
    """The slot is made so that standbys have it too; PostgreSQL 17 and newer."""
    on_slot_lost: Literal["fail", "resnapshot"] = "fail"
    """The slot was dropped, invalidated, or read by somebody else: changes are lost. ``resnapshot``: all tables are
    read again; rows that were deleted meanwhile stay in the topics."""
    snapshot_mode: Literal["initial", "no_data"] = "initial"
    """``initial``: rows that are there are read, of each table once. ``no_data``: only changes from now on."""
    snapshot_engine: Literal["connector", "spark"] = "connector"
    """Who reads the rows that are there at the beginning. ``spark``: the job ``table_snapshot``, which a worker starts
    on Kubernetes, and whose command it logs elsewhere; it is for large tables."""
    snapshot_include_collection_list: tuple[str, ...] = ()
    """Of the captured tables, those whose rows are read; regular expressions. Empty: all."""
    incremental_snapshot_chunk_size: int = setting(10_000, low=1, high=1_000_000)
    """Rows that are read at once."""
    snapshot_unkeyed_rows_max: int = setting(100_000, low=0, high=10_000_000)
    """A table without a primary key is read at once, and so it may not have more rows."""
    decimal_handling_mode: Decimals = "precise"
    """Decimals as such, as doubles (which rounds), or as text."""
    time_precision_mode: Times = "adaptive"
    """Times in ms or µs after their column's precision; times of day always in µs; all in ms; as text."""
    binary_handling_mode: Bytes = "bytes"
    """``bytea`` as it is, or as text."""
    array_handling_mode: Arrays = "list"
    """Arrays as lists, which have one dimension; or as PostgreSQL's text, which has any."""
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    """What is made of it, in the type of the column, is in the place of a large value that an update did not touch: the
    server does not send it."""
    reselect_unavailable_values: bool = False
    """Such values are read from the table, by its key: the row's of now, which may be newer than the change."""
    reselect_error_handling_mode: Literal["warn", "fail"] = "warn"
    """Their row is not there any more. ``warn``: the placeholder stays. ``fail``: the change cannot be represented."""
    value_form: Literal["debezium", "flat"] = "debezium"
    """``debezium``: an envelope with the row before and after. ``flat``: the row."""
    value_form_fields: tuple[str, ...] = ()
    """With ``flat``: fields beside the row's, with ``__`` before them: ``op``, ``schema``, ``table``, ``lsn``,
    ``commit_lsn``, ``index``, ``txId``, ``ts_ms``."""
    tombstones_on_delete: bool = True
    """A delete is followed by a record without a value, so that a compacted topic forgets the row."""
    truncate_handling_mode: Literal["skip", "include"] = "skip"
    """Whether a truncation is a record, with ``op`` ``t``."""
    message_prefix_include_list: tuple[str, ...] = ()
    """Messages of ``pg_logical_emit_message`` that are records, with ``op`` ``m``: regular expressions for the whole
    prefix. Empty: none."""
    message_topic: str = ""
    """Where they go; ``${prefix}`` is the prefix of the message. Empty: ``PREFIX.message``."""
    provide_transaction_metadata: bool = False
    """Fills ``transaction`` of the envelope."""
    heartbeat_interval_ms: int = setting(10_000, low=100, high=3_600_000)
    """How often the position and the slot are moved while none of the captured tables changes, so that the server can
    remove WAL; and how often there is a look for new tables, but not more than once in 10 s."""
    heartbeat_action_query: str = ""
    """A statement that is executed in the database every ``heartbeat.interval.ms``, and when reading begins. Names
    without a schema are looked for in that of the user, and in ``public``."""
    drift: SourceDrift = SourceDrift.ADD
    """Columns that come, go, or get another type. ``add``: records have the columns that the table had when the change
    was made. ``fail``: the task fails before the first record with other columns than before."""
    max_batch_size: int = setting(10_000, low=1, high=100_000)
    """Changes that are converted at once."""
    spool_directory: str = ""
    """Where transactions wait that are large and not committed yet. Empty: the system's directory for temporary
    files."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", self.topic_prefix):
            raise ValueError("topic.prefix has letters, digits, dots, _ and -: it is the beginning of topics' names")
        if not _SLOT_NAME.fullmatch(self.slot):
            raise ValueError("slot.name has 1 to 63 lower case letters, digits and _")
        if len(self.publication.encode()) > _OBJECT_CHARS_MAX:
            raise ValueError(f"publication.name has at most {_OBJECT_CHARS_MAX} bytes")
        for key, patterns in (
            ("table.include.list", self.table_include_list),
            ("table.exclude.list", self.table_exclude_list),
            ("snapshot.include.collection.list", self.snapshot_include_collection_list),
            ("message.prefix.include.list", self.message_prefix_include_list),
        ):
            _check_patterns(key, patterns)
        # Workers decide by its first character whether a value is a path that may be reached.
        for key, path in (
            ("database.sslrootcert", self.database_sslrootcert if self.database_sslrootcert != "system" else ""),
            ("database.sslcert", self.database_sslcert),
            ("database.sslkey", self.database_sslkey),
            ("spool.directory", self.spool_directory),
        ):
            if path and not path.startswith("/"):
                raise ValueError(f"{key} is an absolute path, not {path[:80]!r}")
        if self.snapshot_engine == "spark" and self.snapshot_mode == "no_data":
            raise ValueError("snapshot.engine=spark reads rows, and with snapshot.mode=no_data none are wanted")
        if self.truncate_handling_mode == "include" and self.value_form == "flat":
            raise ValueError(
                "truncate.handling.mode=include needs value.form=debezium: a flat value is a row, and there is none"
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]*", self.message_topic.replace(_PREFIX, "")):
            raise ValueError(
                f"message.topic has letters, digits, dots, _ and -, and {_PREFIX} for the message's prefix"
            )
        if not self.unavailable_value_placeholder:
            raise ValueError("unavailable.value.placeholder is empty, and nothing else would tell such a value")
        self.form()

    @property
    def slot(self) -> str:
        """Its name."""
        return self.slot_name or _object_name(self.topic_prefix)

    @property
    def publication(self) -> str:
        """Its name."""
        return self.publication_name or _object_name(self.topic_prefix)

    @property
    def modes(self) -> ValueModes:
        """How values are represented."""
        return ValueModes(
            self.decimal_handling_mode,
            self.time_precision_mode,
            self.binary_handling_mode,
            self.array_handling_mode,
            None
            if self.reselect_unavailable_values and self.reselect_error_handling_mode == "fail"
            else self.unavailable_value_placeholder,
        )

    def form(self) -> Form:
        """
        What records look like.

        Raises:
            InvalidConfig: ``value.form.fields`` has one that there is not, or flat has no tombstones.
        """
        fields: tuple[FlatField, ...] = self.value_form_fields  # type: ignore[assignment]
        return Form(
            self.topic_prefix,
            self.database_dbname,
            self.value_form,
            self.tombstones_on_delete,
            self.truncate_handling_mode == "include",
            self.provide_transaction_metadata,
            fields,
            package_version(),
        )

    def captures(self, schema: str, table: str) -> bool:
        """Whether changes of a table are wanted."""
        name = f"{schema}.{table}"
        included = not self.table_include_list or _matches(self.table_include_list, name)
        return included and not _matches(self.table_exclude_list, name)

    def reads_rows(self, schema: str, table: str) -> bool:
        """Whether the rows of a captured table are wanted that are there."""
        wanted = self.snapshot_include_collection_list
        return self.snapshot_mode == "initial" and (not wanted or _matches(wanted, f"{schema}.{table}"))

    def captures_messages(self, prefix: str) -> bool:
        """Whether messages with a prefix are wanted."""
        return _matches(self.message_prefix_include_list, prefix)

    def topic_of_messages(self, prefix: str) -> str:
        """Where messages with a prefix go. What no name of a topic has is ``_``, and what is too long is cut."""
        topic = (self.message_topic or f"{self.topic_prefix}.message").replace(_PREFIX, prefix)
        return _FOREIGN.sub("_", topic)[:_TOPIC_CHARS_MAX]

    def topic_of(self, schema: str, table: str) -> str:
        """
        Where its records go. What no name of a topic has is ``_``.

        Raises:
            ValueError: the name is too long.
        """
        topic = _FOREIGN.sub("_", f"{self.topic_prefix}.{schema}.{table}")
        if len(topic) > _TOPIC_CHARS_MAX:
            raise ValueError(
                f"the topic of {schema}.{table} would have {len(topic)} characters; {_TOPIC_CHARS_MAX} fit"
            )
        return topic


def matches(pattern: str, name: str) -> bool:
    """As Debezium compares: the whole name, whatever the case."""
    return re.fullmatch(pattern.strip(), name, re.IGNORECASE) is not None


def _object_name(prefix: str) -> str:
    """Of a slot or publication; different for each prefix."""
    name = "headrace_" + re.sub(r"[^a-z0-9_]", "_", prefix)
    if name == f"headrace_{prefix}" and len(name) <= _OBJECT_CHARS_MAX:
        return name
    digest = blake2b(prefix.encode(), digest_size=4).hexdigest()
    return f"{name[: _OBJECT_CHARS_MAX - len(digest) - 1]}_{digest}"


def _check_patterns(key: str, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{key}: {pattern!r} is no regular expression: {error}") from error


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
