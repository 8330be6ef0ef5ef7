"""Tables: what a program builds its plan with where the latest row of each key counts. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic

import pyarrow as pa

from headrace_streams.core import expressions
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.foreign_join import Answer, Ask, JoinAnswers
from headrace_streams.core.operators.table_joins import LEFT, RIGHT, Joined, JoinTable, JoinTables, Sides
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.operators.tables import Derived, Keep, Latest, Rows, TableSink, View
from headrace_streams.core.operators.versions import VALID_FROM, VERSIONS, AsOf, History, JoinVersions
from headrace_streams.core.rows import RECORD
from headrace_streams.core.task import FAIL
from headrace_streams.dsl.columns import Column, Columns, Grouped, S
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.names import check_names, columns_text
from headrace_streams.dsl.record_calls import hint
from headrace_streams.dsl.where import where
from headrace_streams.plan.nodes import JOIN, Input, Making, More, schema_text

STAYS: Final[dict[str, tuple[bool, bool]]] = {"inner": (False, False), "left": (True, False), "outer": (True, True)}
"""Which side's rows stay that find none on the other."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a node that joins says of itself."""

    where: str
    settings: Mapping[str, Any]
    name: str = ""
    form: Mapping[str, str] = field(default_factory=dict)
    kind: str = JOIN


@dataclass(frozen=True, slots=True)
class Reference:
    """How the rows of a table refer to those of another, as ``Table.join`` says it."""

    on: str
    how: str
    suffix: str
    name: str


@dataclass(frozen=True, slots=True)
class Versions:
    """How a table's rows are found as they were."""

    node: int
    """That keeps them."""
    view: Callable[[Making, View], View]
    """What has become of them since, row by row."""


@dataclass(frozen=True, slots=True)
class Table(Generic[S]):
    """The latest row of each key: each method gives another table, and leaves this one as it is."""

    _changes: S
    """Of its rows."""
    _view: Callable[[Making], View]
    """How a task looks into it."""
    _versions: Versions | None = None
    """None: it has only the latest rows."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._changes.schema

    def _derived(self, changes: S, of: Mapping[str, Column]) -> Table[S]:
        """What one more operator makes of each row, whether it changes or is looked up."""
        node = changes._plan.nodes[changes._input.node]
        for value in of.values():
            system = [name for name in expressions.columns_of(expressions.expression_of(value)) if name.startswith("_")]
            if system:
                raise NotAllowed(f"{node.label}: a row of a table has no {system[0]!r}; it is looked up at any time")

        def derived(making: Making, view: View) -> View:
            return Derived(view, node.make(making), skips=making.on_error != FAIL)

        def view(making: Making) -> View:
            return derived(making, self._view(making))

        versions = self._versions
        if versions is not None:
            before = versions.view
            versions = replace(versions, view=lambda making, view: derived(making, before(making, view)))
        return Table(changes, view, versions)

    def filter(self, *conditions: Column) -> Table[S]:
        """The rows for which every condition is true; null counts as false."""
        return self._derived(self._changes.filter(*conditions), dict(enumerate(conditions)))  # type: ignore[arg-type]

    def select(self, *names: str, **made: Column) -> Table[S]:
        """These columns only; ``made`` computes more."""
        return self._derived(self._changes.select(*names, **made), made)

    def with_columns(self, **made: Column) -> Table[S]:
        """More columns, or others in place of those of the same names."""
        return self._derived(self._changes.with_columns(**made), made)

    def group_by(self, *names: str, name: str = "") -> Grouped[S]:
        """
        The rows in groups by these columns, to be aggregated. A row that changes is taken out of its group, and put
        into that of its new values.

        Args:
            name: of the repartition topic; needed unless the columns are the record's key already.
        """
        return replace(self._changes.group_by(*names, name=name, combine=False), _table=True)

    def join(self, other: Table[S], *, on: str = "", how: str = "inner", suffix: str = "", name: str = "") -> Table[S]:
        """
        Rows of two tables with the same key, side by side; or, with ``on``, each row here with the row there whose key
        it has in a column.

        Args:
            on: the column here that has the key of the other table, which may be that of many rows.
            how: ``"inner"``: rows that find one; ``"left"``: all rows here; ``"outer"``: all of both, without ``on``.
            suffix: of columns of the other one whose names this one has too.
            name: of the state and the topics of a join with ``on``.
        """
        at = where()
        what = f"join {name!r} ({at})" if name else f"join ({at})"
        if not isinstance(other, Table):
            raise NotAllowed(f"{what}: a table is joined with a table; this is {other!r:.60}")
        if on:
            return _join_on(self, other, Reference(on, how, suffix, name), what)
        if name:
            raise NotAllowed(f"{what}: a join by key keeps nothing of its own; leave name= out")
        left, right = self._changes, other._changes
        stays = stays_of(how, STAYS, what)
        columns, keys = columns_of_both(left, right, suffix, what)
        sides = Sides(columns, keys, stays)

        def make(making: Making) -> Operator:
            return JoinTables(self._view(making), other._view(making), sides)

        def view(making: Making) -> View:
            return Joined(self._view(making), other._view(making), sides)

        changes = joined(
            left, right, columns, make, Joining(at, {"how": how, "columns": list(columns[RIGHT].values())})
        )
        keyed_by = left._keyed_by if keys or not stays[RIGHT] else None
        return Table(replace(changes, _keyed_by=keyed_by), view)

    def to_stream(self, *, emit: str = "changes") -> S:
        """
        Its new rows; deleted ones are not told.

        Args:
            emit: ``"changes"``: what a commit changed, one row for each key; ``"every"``: each change.
        """
        told = self._told(emit, "to_stream")
        return told._next("rows", Rows, {}, keyed_by=told._keyed_by, schema=told.schema)

    def to(self, topic: str, value: Format | None = None, *, emit: str = "changes") -> None:
        """
        Write its rows to a topic, and a null value for each key that is deleted; the record's key is the table's.

        Args:
            value: the format; JSON with all columns if not told.
            emit: as for ``to_stream``.
        """
        self._told(emit, "to")._written(TableSink, topic, value)

    def _told(self, emit: str, kind: str) -> S:
        if emit not in ("changes", "every"):
            raise NotAllowed(f"{kind} ({where()}): emit is {emit!r}; choose 'changes' or 'every'")
        changes = self._changes
        if emit == "every":
            return changes
        return changes._next("latest", Latest, {}, keyed_by=changes._keyed_by, schema=changes.schema)


def table_of(rows: S, name: str, what: str, versions: Duration | None = None) -> Table[S]:
    """
    The table whose rows come by a stream, each in place of the one of its key before.

    Args:
        versions: how far back it keeps what a row was; a row then replaces only what is not newer than itself.

    Raises:
        NotAllowed: they are no rows that a table can keep.
    """
    if not name:
        raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
    check_side(rows, what)
    keyed = rows._dropping_null_keys()
    schema = TableRows(rows.schema, what).schema
    text = f"rows of ({columns_text(schema)})"
    settings = {"columns": schema_text(schema)}
    past = None
    if versions is not None:
        keep_ms = to_ms(versions, f"{what}: versions=", least=1)
        past = Versions(_history(keyed, name, keep_ms, {"": f"{text} at their times"}, what), lambda making, view: view)
        keyed = replace(keyed, _input=Input(past.node))
        text += " with versions"
    node = rows._plan.add(
        "table",
        where(),
        [keyed._input],
        lambda making: Keep(TableRows(schema)),
        name=name,
        settings=settings,
        form={"": text},
        keys=keyed._keys,
    )

    def view(making: Making) -> View:
        keep = making.operators[node.id]
        assert isinstance(keep, Keep), node.label
        return keep

    return Table(replace(keyed, _input=Input(node.id), _schema=schema), view, past)


def _history(rows: S, name: str, keep_ms: int, form: Mapping[str, str], what: str) -> int:
    schema = rows.schema
    if VALID_FROM in schema.names:
        raise NotAllowed(f"{what}: with versions= a column cannot be called {VALID_FROM!r}; rename() it")
    added = rows._plan.add(
        "versions",
        where(),
        [rows._input],
        lambda making: History(schema, keep_ms, what),
        name=f"{name}.versions",
        settings={"keep_ms": keep_ms},
        form=form,
        keys=rows._keys,
    )
    return added.id


def join_table(stream: S, table: Table[S], how: str, suffix: str) -> S:
    """The rows of a stream with those of a table, as ``Stream.join`` says it."""
    at = where()
    what = f"join ({at})"
    stays = stays_of(how, {name: stays for name, stays in STAYS.items() if not stays[RIGHT]}, what)
    check_side(stream, what)
    columns, _ = columns_of_both(stream, table._changes, suffix, what)

    settings = {"how": how, "columns": list(columns[RIGHT].values())}
    versions = table._versions
    if versions is None:

        def make(making: Making) -> Operator:
            return JoinTable(table._view(making), columns[RIGHT], left=stays[LEFT])

        return joined(stream, table._changes, columns, make, Joining(at, settings))

    def make_as_of(making: Making) -> Operator:
        history = making.operators[versions.node]
        assert isinstance(history, History), "the node keeps versions"
        as_of = AsOf(history)
        return JoinVersions(as_of, versions.view(making, as_of), columns[RIGHT], left=stays[LEFT])

    came = replace(table._changes, _input=Input(versions.node, VERSIONS))
    return joined(stream, came, columns, make_as_of, Joining(at, settings))


def _join_on(table: Table[S], other: Table[S], asked: Reference, what: str) -> Table[S]:
    """
    Rows of a table with those of another to whose keys they refer.

    Raises:
        NotAllowed: something is not said, or the tables cannot be joined.
    """
    left, right, name = table._changes, other._changes, asked.name
    stays = stays_of(asked.how, {how: stays for how, stays in STAYS.items() if not stays[RIGHT]}, what)
    if not name:
        raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
    left._check_columns("join", [asked.on])
    columns, _ = columns_of_both(left, right, asked.suffix, what, by_key=False)
    sides = Sides(columns, (), stays)

    def answer(making: Making) -> Operator:
        return Answer(other._view(making), right.schema.names)

    def join(making: Making) -> Operator:
        return JoinAnswers(table._view(making), asked.on, sides, right.schema)

    asks = left._next("ask", partial(Ask, asked.on), {"on": asked.on})
    asks = asks._dropping_null_keys(buries=not stays[LEFT])._moved(f"{name}.asks", None, None, answers=True)
    form = {"": f"who asks for the key in {asked.on!r}"}
    same: tuple[dict[str, str], dict[str, str]] = ({}, {column: column for column in right.schema.names})
    answers = joined(asks, right, same, answer, Joining(where(), {}, f"{name}.asked", form, "answer"))
    answers = answers._moved(f"{name}.answers", None, None, answers=True)
    settings = {"how": asked.how, "on": asked.on, "columns": list(columns[RIGHT].values())}
    return table_of(joined(left, answers, columns, join, Joining(where(), settings, kind="join_on")), name, what)


def joined(
    left: S,
    right: S,
    columns: tuple[Mapping[str, str], Mapping[str, str]],
    make: Callable[[Making], Operator],
    node: Joining,
) -> S:
    """Rows with the columns of both sides, of a node that has these as its inputs."""
    inputs = [replace(left._input, port=LEFT), replace(right._input, port=RIGHT)]
    more: More = {"settings": node.settings, "name": node.name, "form": node.form, "keys": left._keys}
    added = left._plan.add(node.kind, node.where, inputs, make, **more)
    fields = [
        side.schema.field(name).with_name(out).with_nullable(True)
        for side, of in zip((left, right), columns, strict=True)
        for name, out in of.items()
    ]
    return replace(left, _input=Input(added.id), _schema=pa.schema(fields))


def stays_of(how: str, known: Mapping[str, tuple[bool, bool]], what: str) -> tuple[bool, bool]:
    """
    Which side's rows stay that find none on the other.

    Raises:
        NotAllowed: ``how`` is none of those that are known.
    """
    if how not in known:
        raise NotAllowed(f"{what}: how is {how!r}; choose {', '.join(map(repr, known))}")
    return known[how]


def check_side(rows: Columns, what: str) -> None:
    """
    Raises:
        NotAllowed: rows have no columns, or are not in the partitions of their keys.
    """
    if RECORD in rows.schema.names:
        raise NotAllowed(f"{what}: {hint(rows.schema)}")
    if not rows._placed:
        raise NotAllowed(
            f"{what}: rows of equal keys are in different partitions since key_by(); put repartition(name=…) behind it"
        )


def columns_of_both(
    left: Columns, right: Columns, suffix: str, what: str, *, by_key: bool = True
) -> tuple[tuple[dict[str, str], dict[str, str]], tuple[str, ...]]:
    """
    The columns of both sides and what they are called; and those of the key, which both have and are there once.

    Raises:
        NotAllowed: the sides cannot be side by side.
    """
    if left._plan is not right._plan:
        raise NotAllowed(f"{what}: the two belong to different apps")
    names = left.schema.names
    same = (
        by_key and left._keyed_by == right._keyed_by and {*(left._keyed_by or ())} <= {*names} & {*right.schema.names}
    )
    keys = (left._keyed_by or ()) if same else ()
    for key in keys:
        types = [side.schema.field(key).type for side in (left, right)]
        if types[0] != types[1]:
            raise NotAllowed(f"{what}: the key {key!r} is {types[0]} here and {types[1]} there; cast one of them")
    others = [name for name in right.schema.names if name not in keys]
    twice = [name for name in others if name in names]
    if twice and not suffix:
        raise NotAllowed(
            f"{what}: both sides have a column {twice[0]!r}; rename() it, select() it away, or say suffix='_2' for "
            "the columns of the other side"
        )
    found = {name: name + suffix if name in twice else name for name in others}
    check_names([*names, *found.values()], what)
    return ({name: name for name in names}, found), keys
