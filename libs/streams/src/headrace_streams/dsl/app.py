"""The app: where a program begins."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_streams.core import expressions
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats import json, string
from headrace_streams.core.formats.arrow_format import ArrowFormat
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.formats.framing import of_topic
from headrace_streams.core.formats.port import Decoded, Format
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.ends import METADATA, Source
from headrace_streams.core.operators.global_join import GlobalRows
from headrace_streams.core.rows import empty
from headrace_streams.core.task import FAIL, SKIP
from headrace_streams.dsl.durations import Duration
from headrace_streams.dsl.global_table import GlobalTable
from headrace_streams.dsl.names import check_format, check_names
from headrace_streams.dsl.record_calls import hint
from headrace_streams.dsl.stream import Stream
from headrace_streams.dsl.table import Table, table_of
from headrace_streams.dsl.where import where
from headrace_streams.plan.compare import Change
from headrace_streams.plan.describe import as_mermaid
from headrace_streams.plan.nodes import NO_NAMES, SOURCE, Global, Input, Making, Plan, check_on_error, schema_text

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,120}")
LOADING: Final = ContextVar("LOADING", default=False)
"""Set while somebody else reads the program, to run it or to show what it does."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a program asks of a topic that it reads."""

    kind: str
    topics: tuple[str, ...]
    value: Format
    key: str | Format | None
    timestamp: nw.Expr | str | None
    on_error: str
    name: str = ""
    pattern: re.Pattern[str] | None = None
    metadata: tuple[str, ...] = ()


class App:
    """
    A program: its plan, and the name under which its copies share the work.

    The name is the group's, and begins the names of its internal topics.
    """

    def __init__(self, name: str, *, on_error: str = FAIL) -> None:
        """
        Args:
            on_error: what becomes of a record that cannot be processed: ``"fail"`` stops, ``"skip"`` leaves it out and
                counts it, any other text is the dead letter topic that gets it as it came.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in NO_NAMES:
            raise NotAllowed(f"an app cannot be called {name!r}: use 1 to 120 letters, digits, '.', '_' and '-'")
        check_on_error(on_error, f"app {name!r}")
        self.name = name
        self.on_error = on_error
        self.graph = Plan()
        """What the program does."""

    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        value: Format,
        key: str | Format | None = None,
        name: str = "",
        timestamp: nw.Expr | str | None = None,
        metadata: Sequence[str] = (),
        on_error: str = "",
    ) -> Stream:
        """
        The records of one or more topics.

        Args:
            topics: their names; or ``re.compile("orders-.*")``, which is held against whole names: a topic that is made
                later is read too, from its beginning, after ``metadata_max_age_ms``. All have equally many partitions.
            name: with a pattern: what stands for its topics in the names of the app's own topics.
            value: the format, with its columns.
            key: the name of a column for keys that are text, or a format whose columns are added.
            timestamp: event time, as a time or in ms since 1970; the record's timestamp if not told.
            metadata: what to know of the records too, as columns: ``topic``, ``partition``, ``offset``, ``timestamp``
                and ``headers``, a list of structs of ``key`` and ``value``.
        """
        of_record = _metadata(metadata)
        if isinstance(topics, re.Pattern):
            if not name:
                raise NotAllowed(f"stream ({where()}): topics by a pattern need a name for all of them: say name=")
            return self._source(_Source("stream", (), value, key, timestamp, on_error, name, topics, of_record))
        if name:
            raise NotAllowed(f"stream ({where()}): name= is for topics by a pattern; leave it out")
        if not isinstance(topics, Sequence):
            raise NotAllowed(f"stream ({where()}): {topics!r:.100} is no topic; give a name, several, or a pattern")
        listed = (topics,) if isinstance(topics, str) else tuple(topics)
        return self._source(_Source("stream", listed, value, key, timestamp, on_error, metadata=of_record))

    def table(
        self,
        topic: str,
        *,
        value: Format,
        key: str | Format | None = None,
        name: str,
        timestamp: nw.Expr | str | None = None,
        versions: Duration | None = None,
        on_error: str = "",
    ) -> Table[Stream]:
        """
        The latest record of each key of a topic; one without a value deletes its key, one without a key is dropped.

        Args:
            value: the format, with its columns.
            key: the name of a column for keys that are text, or a format whose columns are added.
            name: of the state.
            timestamp: as for ``stream``; of a record without a value its timestamp.
            versions: ``"1h"`` keeps what rows were for so much event time: a stream then finds the row of its own
                row's time, and records may come out of order. What is further behind is late, and dropped.
        """
        source = _Source("table", (topic,), value, key, timestamp, on_error)
        return table_of(self._source(source), name, f"table ({where()})", versions)

    def global_table(
        self, topic: str, *, value: Format, key: str | Format | None = None, on_error: str = ""
    ) -> GlobalTable:
        """
        The latest record of each key of a topic, whole in the memory of each worker: streams are joined with it on any
        column, whatever the partitions. It is read from the beginning at each start, before tasks run, and then on and
        on; it is no state, and has no part in event time and in commits.

        Args:
            value: the format, with its columns.
            key: the name of a column for keys that are text, or a format whose columns are added.
            on_error: ``"fail"`` or ``"skip"``, of records that cannot be read.
        """
        at = where()
        what = f"global_table ({at})"
        policy = on_error or (self.on_error if self.on_error in (FAIL, SKIP) else FAIL)
        if policy not in (FAIL, SKIP):
            raise NotAllowed(f"{what}: on_error is {on_error!r}; choose 'fail' or 'skip': it writes no dead letters")
        check_format(value, f"{what}: value")
        values = of_topic(value, topic, "value")
        if values.schema is None:
            raise NotAllowed(f"{what}: the format of the values has no schema; write json('name string, …')")
        keys = _key_format(key, topic, what)
        schema = _columns(values, keys, what)
        check_names(schema.names, what)

        def rows() -> GlobalRows:
            return GlobalRows(Source(values, keys, None, deletes=True), schema, what, skips=policy == SKIP)

        rows()
        table = Global(topic, at, rows, values, keys)
        self.graph.add_global(table)
        keyed_by = (key,) if isinstance(key, str) else None
        return GlobalTable(table, Stream(self.graph, Input(-1), schema, keyed_by, json))

    def _source(self, asked: _Source) -> Stream:
        at = where()
        what = f"{asked.kind} ({at})"
        timestamp, deletes = asked.timestamp, asked.kind == "table"
        if not (asked.topics or asked.pattern):
            raise NotAllowed(f"{what} needs a topic")
        of = asked.name or asked.topics[0]
        check_format(asked.value, f"{what}: value")
        value = of_topic(asked.value, of, "value")
        if value.schema is None:
            raise NotAllowed(f"{what}: the format of the values has no schema; write json('name string, …')")
        keys = _key_format(asked.key, of, what)
        expression = None if timestamp is None else expressions.expression_of(timestamp)
        schema = _columns(value, keys, what, asked.metadata)
        check_names(schema.names, what)
        if expression is not None:
            _check_time(expression, schema, what)

        def make(making: Making) -> Operator:
            return Source(value, keys, expression, metadata=asked.metadata, deletes=deletes)

        topics = asked.pattern.pattern if asked.pattern is not None else list(asked.topics)
        settings = {"topics": topics, "columns": schema_text(schema), "timestamp": str(expression)}
        if asked.metadata:
            settings |= {"metadata": list(asked.metadata)}
        node = self.graph.add(
            SOURCE,
            at,
            [],
            make,
            settings={**settings, "deletes": True} if deletes else settings,
            name=asked.name,
            topics=asked.topics,
            pattern=asked.pattern,
            on_error=asked.on_error,
            value=value,
            key=keys,
        )
        keyed_by = (asked.key,) if isinstance(asked.key, str) else None
        return Stream(self.graph, Input(node.id), schema, keyed_by, json)

    def run(self, **settings: Any) -> None:
        """
        Work until SIGTERM or SIGINT; what was read is committed then. ``headrace streams run`` does the same, and
        starts a worker that dies again.

        Args:
            settings: of ``headrace_streams.config.StreamsConfig``, such as ``bootstrap_servers`` and ``state_dir``.

        Raises:
            RowFailed: a record cannot be processed, and ``on_error`` is "fail".
            Fenced: the app was started elsewhere.
            NotAllowed: the program is being loaded, as by ``headrace streams run``, which runs the app itself.
        """
        if LOADING.get():
            raise NotAllowed(
                f"{where()} runs {self.name} as soon as the program is loaded; put run() below "
                "if __name__ == '__main__':, where only `python PROGRAM` comes"
            )
        importlib.import_module("headrace_streams.main").run(self, **settings)

    def describe(self) -> str:
        """The topology as a Mermaid flow chart."""
        return as_mermaid(self.name, self.graph)

    def plan(self, bootstrap_servers: str | None = None) -> list[Change]:
        """
        What differs from what a cluster has of the app, the worst first, as ``headrace streams plan`` shows it. Empty
        where it is the same program. Blocks for some seconds, and changes nothing.

        Raises:
            UnknownTopicOrPartition: a topic that it reads or writes does not exist.
        """
        found: list[Change] = importlib.import_module("headrace_streams.upkeep").compared(self, bootstrap_servers)
        return found


def _key_format(key: str | Format | None, topic: str, what: str) -> Format | None:
    if isinstance(key, str):
        if _is_schema(key):
            raise NotAllowed(f"{what}: key={key!r} is a schema, where a column's name is expected; write json({key!r})")
        return Named(string, key)
    if isinstance(key, ArrowFormat):
        raise NotAllowed("a key is one row, and a value of arrow may be many; take another format for keys")
    if key is None:
        return None
    check_format(key, f"{what}: key")
    return of_topic(key, topic, "key")


def _is_schema(text: str) -> bool:
    try:
        parse_schema(text)
    except InvalidConfig:
        return False
    return True


class Named:
    """A format of one column, under another name; satisfies ``Format``."""

    def __init__(self, format_: Format, name: str) -> None:
        assert format_.schema is not None
        self.format = self._format = format_
        self._was = format_.schema.names[0]
        self._schema = pa.schema([format_.schema.field(0).with_name(name)])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode(self, values: pa.Array[Any]) -> Decoded:
        decoded = self._format.decode(values)
        return Decoded(decoded.table.rename_columns(self._schema.names), decoded.problems)

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        return self._format.encode(table.rename_columns([self._was]))


def _metadata(names: Sequence[str]) -> tuple[str, ...]:
    wanted = (names,) if isinstance(names, str) or not isinstance(names, Sequence) else tuple(names)
    for name in wanted:
        if name not in list(METADATA):
            raise NotAllowed(f"stream ({where()}): metadata {name!r:.60} is not there; choose of {', '.join(METADATA)}")
    return wanted


def _columns(value: Format, key: Format | None, what: str, metadata: Sequence[str] = ()) -> pa.Schema:
    assert value.schema is not None
    more = [] if key is None or key.schema is None else list(key.schema)
    for field in more:
        if field.name in value.schema.names:
            raise NotAllowed(f"{what}: key and value both have a column {field.name!r}; give the key another name")
    for name in metadata:
        if name in value.schema.names or name in [field.name for field in more]:
            raise NotAllowed(f"{what}: metadata {name!r} would be a second column of that name; give the other another")
    return pa.schema([*value.schema, *more, *((name, METADATA[name]) for name in metadata)])


def _check_time(expression: nw.Expr, schema: pa.Schema, what: str) -> None:
    expressions.check(expression, f"{what}: timestamp")
    try:
        found = expressions.evaluated(empty(schema), expression)
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        raise NotAllowed(f"{what}: the timestamp cannot be computed: {said}; {hint(schema)}") from error
    if not (pa.types.is_timestamp(found.type) or pa.types.is_integer(found.type)):
        raise NotAllowed(
            f"{what}: the timestamp is {found.type}; it must be a time, or a whole number of ms since 1970"
        )
