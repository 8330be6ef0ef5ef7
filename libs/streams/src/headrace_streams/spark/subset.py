"""
What of a program Spark can do with the same result. Pure: no Spark is needed to ask.

A program is walked node by node, with the operators that its nodes make. What is not known here is refused, so an
operator that is added elsewhere is too, until somebody says here what it is on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import parse_schema, type_text
from headrace_streams.core.formats.json_format import JsonFormat
from headrace_streams.core.formats.plain import Plain
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators.aggregate import Aggregate, Aggregated, Emit, WindowedAggregate
from headrace_streams.core.operators.base import LATE, Operator
from headrace_streams.core.operators.columns import (
    Compute,
    DropNullKeys,
    DropNulls,
    Explode,
    Filter,
    KeyBy,
    Merge,
    Pad,
    Rename,
    Select,
    Split,
)
from headrace_streams.core.operators.combine import Combine
from headrace_streams.core.operators.ends import Sink, Source
from headrace_streams.core.operators.hop import HopOut
from headrace_streams.core.operators.sessions import SessionAggregate
from headrace_streams.core.operators.stream_join import LATE_OF, StreamJoin
from headrace_streams.core.operators.table_joins import RIGHT, JoinTable
from headrace_streams.core.operators.tables import Keep
from headrace_streams.core.rows import RECORD, empty, user_schema
from headrace_streams.core.task import FAIL, SKIP
from headrace_streams.dsl.app import App, Named
from headrace_streams.plan.nodes import Making, Node
from headrace_streams.spark.expressions import differences

OfColumns = Filter | Compute | Select | Rename | DropNulls | Explode
Windowed = WindowedAggregate | SessionAggregate
AGGREGATES: Final = ("count", "sum", "mean", "var", "min", "max", "any", "all", "distinct")
"""Those whose result does not depend on the order of the rows."""
_KNOWN: Final = (
    Filter,
    Compute,
    Select,
    Rename,
    DropNulls,
    Explode,
    Split,
    Merge,
    Pad,
    KeyBy,
    DropNullKeys,
    HopOut,
    Combine,
    Aggregate,
    WindowedAggregate,
    SessionAggregate,
    StreamJoin,
    JoinTable,
    Keep,
    Source,
    Sink,
)
_STATEFUL: Final = (Aggregate, WindowedAggregate, SessionAggregate, StreamJoin)


_CHANGES: Final = "how results change with each commit"


@dataclass(frozen=True, slots=True)
class Step:
    """A node that Spark can do."""

    node: Node
    operator: Operator
    schemas: tuple[pa.Schema, ...]
    """The user's columns of its inputs."""
    schema: pa.Schema
    """And of its rows."""
    on_error: str


def steps_of(app: App, *, history: bool = False) -> list[Step]:
    """
    The nodes of a program, inputs before what uses them.

    Args:
        history: only aggregates keep anything, those without a window too, and ``emit="changes"`` is possible.

    Raises:
        NotAllowed: Spark cannot do all of it with the same result; tells each node that it cannot, and where it is.
    """
    walk = _Walk(app, history)
    steps = [walk.step(node) for node in app.graph.nodes]
    if not any(node.topics and node.inputs for node in app.graph.nodes):
        walk.wrong.append("it writes no topic")
    if walk.wrong:
        listed = "\n".join(f"- {reason}" for reason in dict.fromkeys(walk.wrong))
        raise NotAllowed(f"the program {app.name} cannot run on Spark with the same result:\n{listed}")
    return [step for step in steps if step is not None]


class _Walk:
    def __init__(self, app: App, history: bool) -> None:
        self._app = app
        self._history = history
        self._made: dict[int, Operator] = {}
        self._schemas: dict[int, pa.Schema] = {}
        self._stateful: dict[int, Node] = {}
        """By node: the one with state on the way to it."""
        self._tables: set[int] = set()
        self.wrong: list[str] = []

    def step(self, node: Node) -> Step | None:
        """None: it is wrong, or hangs on what is."""
        on_error = node.on_error or self._app.on_error
        making = Making(0, lambda output: None, self._app.name, 1, self._made, on_error)
        operator = self._made[node.id] = node.make(making)
        if any(i.node not in self._schemas for i in node.inputs):
            return None
        before = tuple(self._schemas[i.node] for i in node.inputs)
        reasons = [*self._inputs(node, operator)]
        if not _is_known(operator):
            self._tell(node, [*reasons, "Spark cannot do this with the same result"])
            return None
        schema = self._schemas[node.id] = _schema_after(operator, before, node)
        self._tell(node, [*reasons, *self._why_not(node, operator, before, on_error), *_names(schema)])
        return Step(node, operator, before, schema, on_error)

    def _tell(self, node: Node, reasons: Sequence[str]) -> None:
        self.wrong += [f"{node.label}: {reason}" for reason in reasons]

    def _inputs(self, node: Node, operator: Operator) -> Iterator[str]:
        for i in node.inputs:
            if i.edge in (LATE, *LATE_OF) and not isinstance(self._made[i.node], Split):
                of = self._app.graph.nodes[i.node].label
                yield f"Spark drops the late rows of {of}: say late='drop' there"
            if i.node in self._stateful:
                before = self._stateful[node.id] = self._stateful[i.node]
                if isinstance(operator, _STATEFUL):
                    yield f"it stands behind {before.label}; a query has one step with state on the way to each topic"
            if i.node in self._tables and not isinstance(operator, Filter | Compute | Select):
                if not (isinstance(operator, JoinTable) and i.port == RIGHT):
                    yield "on Spark a table can only be joined to a stream, after filter(), select(), with_columns()"
            elif i.node in self._tables and not isinstance(operator, JoinTable):
                self._tables.add(node.id)
        if isinstance(operator, _STATEFUL):
            self._stateful[node.id] = node
        if isinstance(operator, Keep):
            self._tables.add(node.id)
            source = self._source(node)
            if not (isinstance(source, Source) and source.deletes):
                yield "on Spark a table is read from a topic: app.table(…)"

    def _source(self, node: Node) -> Operator:
        while node.inputs:
            node = self._app.graph.nodes[node.inputs[0].node]
        return self._made[node.id]

    def _why_not(self, node: Node, operator: Operator, before: Sequence[pa.Schema], on_error: str) -> Iterator[str]:
        if on_error not in (FAIL, SKIP):
            yield f"Spark writes no dead letters to {on_error!r}: say on_error='fail' or 'skip'"
        match operator:
            case Source():
                if node.pattern is not None:
                    yield "on Spark topics are named one by one"
                if operator.metadata:
                    yield "on Spark rows have no columns of their records: leave metadata= out"
                yield from _format(node.value)
                if node.key is not None:
                    yield from _format(node.key)
            case Sink():
                if operator.headers is not None:
                    yield "on Spark records have no headers: leave headers= out"
                yield from _format(node.value)
            case Aggregate() if not self._history:
                yield "aggregates without a window change with each row: say window(…) and emit='final'"
            case Aggregate() | WindowedAggregate() | SessionAggregate():
                if operator.emit == Emit.EVERY or (operator.emit == Emit.CHANGES and not self._history):
                    does = "how results change with each row" if operator.emit == Emit.EVERY else _CHANGES
                    yield f"emit={operator.emit.value!r} tells {does}: say emit='final'"
                yield from _aggregates(operator.groups.columns)
            case Keep() | StreamJoin() if self._history:
                yield "of history only the state of aggregates is computed"
            case _:
                for expression in expressions_of(operator):
                    yield from differences(expression, before[0])


def _is_known(operator: Operator) -> bool:
    return type(operator) in _KNOWN  # what extends one does something else


def expressions_of(operator: Operator) -> list[nw.Expr]:
    """Those that it evaluates."""
    match operator:
        case Filter():
            return [operator.condition]
        case Compute() | Select():
            return list(operator.columns.values())
        case Split():
            return list(operator.branches.values())
    return []


def _format(format_: Format | None) -> Iterator[str]:
    of = format_.format if isinstance(format_, Named) else format_
    if not isinstance(of, JsonFormat | Plain):
        yield "on Spark values and keys are json, struct, string or bytes"


def _aggregates(columns: Sequence[Aggregated]) -> Iterator[str]:
    for column in columns:
        if column.kind not in AGGREGATES:
            yield (
                f"{column.name}={column.kind}(…) depends on the order of the rows or is computed otherwise on Spark; "
                f"there are {', '.join(AGGREGATES)}"
            )


def _names(schema: pa.Schema) -> Iterator[str]:
    if RECORD in schema.names:
        yield "its rows have no columns"
        return
    for field in schema:
        if set(field.name) & set(".`"):
            yield f"the name {field.name!r} cannot be that of a column on Spark: rename() it"
        text = type_text(field.type)
        try:
            parse_schema(f"value {text}")
        except InvalidConfig:
            yield f"{field.name!r} is {text}, which Spark does not have: cast it"


def _schema_after(operator: Operator, before: Sequence[pa.Schema], node: Node) -> pa.Schema:
    match operator:
        case Source():
            return pa.schema([field for of in (node.value, node.key) if of is not None for field in of.schema or ()])
        case Merge() | HopOut() | KeyBy() | DropNullKeys() | Split() | Keep():
            return before[0]
        case Sink():
            return before[0]
        case Combine() | Aggregate():
            return operator.groups.schema(windowed=False)
        case WindowedAggregate() | SessionAggregate():
            return operator.groups.schema(windowed=True)
        case StreamJoin():
            return joined_schema(operator.sides.columns, before)
        case JoinTable():
            left = {name: name for name in before[0].names}
            return joined_schema((left, operator.columns), before)
        case _:
            (emitted,) = operator.feed(empty(before[0]), 0, _never)
            return user_schema(emitted.rows.schema)


def joined_schema(columns: Sequence[Mapping[str, str]], before: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of both sides, as they are called in the result."""
    return pa.schema(
        [
            of.field(name).with_name(out)
            for named, of in zip(columns, before, strict=True)
            for name, out in named.items()
        ]
    )


def _never(rows: pa.Table, error: BaseException) -> None:
    raise error
