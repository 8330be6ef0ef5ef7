"""Tables that each worker has whole. A plan is built; nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.global_join import JoinGlobal
from headrace_streams.core.operators.table_joins import LEFT, RIGHT
from headrace_streams.core.rows import RECORD
from headrace_streams.dsl.columns import Columns, S
from headrace_streams.dsl.record_calls import hint
from headrace_streams.dsl.table import STAYS, columns_of_both, stays_of
from headrace_streams.dsl.where import where
from headrace_streams.plan.nodes import Global, Input, Making


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """The latest record of each key of a topic, whole on each worker, for streams to be joined with."""

    _topic: Global
    _rows: Columns
    """Of its columns; they belong to no stream."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._rows.schema


def join_global(stream: S, table: GlobalTable, on: str, how: str, suffix: str) -> S:
    """The rows of a stream with those of a global table, as ``Stream.join`` says it."""
    at = where()
    what = f"join ({at})"
    stays = stays_of(how, {name: stays for name, stays in STAYS.items() if not stays[RIGHT]}, what)
    if RECORD in stream.schema.names:
        raise NotAllowed(f"{what}: {hint(stream.schema)}")
    if on:
        stream._check_columns("join", [on])
    asking = replace(stream, _keyed_by=(on,)) if on else stream
    columns, _ = columns_of_both(asking, table._rows, suffix, what)
    topic = table._topic

    def make(making: Making) -> Operator:
        rows = making.globals.get(topic.topic) or topic.rows()
        return JoinGlobal(rows, on, columns[RIGHT], left=stays[LEFT])

    settings = {"global": topic.topic, "on": on, "how": how, "columns": list(columns[RIGHT].values())}
    added = stream._plan.add("join_global", at, [stream._input], make, settings=settings)
    found = [table.schema.field(name).with_name(out).with_nullable(True) for name, out in columns[RIGHT].items()]
    return replace(stream, _input=Input(added.id), _schema=pa.schema([*stream.schema, *found]))
