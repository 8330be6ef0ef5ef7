"""Columns and groups: what a stream can do by itself. A plan is built; nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace_streams.core import expressions
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.formats.framing import of_topic
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators import columns
from headrace_streams.core.operators.aggregate import BOUNDS, Aggregate, Aggregated, Emit, Groups, WindowedAggregate
from headrace_streams.core.operators.aggregates import REMOVABLE, Function, function
from headrace_streams.core.operators.base import LATE, OUT, Emitted, Operator
from headrace_streams.core.operators.combine import Combine, adds_up, behind
from headrace_streams.core.operators.counted import HIDDEN, CountedAggregate
from headrace_streams.core.operators.ends import Sink
from headrace_streams.core.operators.fold import Fold
from headrace_streams.core.operators.functions import RECORDS
from headrace_streams.core.operators.hop import HopOut
from headrace_streams.core.operators.sessions import SessionAggregate
from headrace_streams.core.operators.sliding import SlidingAggregate
from headrace_streams.core.operators.suppress import Suppress
from headrace_streams.core.operators.tables import Regroup
from headrace_streams.core.operators.unique import Unique
from headrace_streams.core.operators.windows import Counting, Hopping, Session, Sliding
from headrace_streams.core.rows import RECORD, TIMESTAMP, empty, user_schema
from headrace_streams.core.task import FAIL, SKIP
from headrace_streams.dsl.agg import Agg
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.headers import Headers, headers_of
from headrace_streams.dsl.names import check_format, check_function, check_names, columns_text, is_count
from headrace_streams.dsl.record_calls import Added, RecordCalls, hint
from headrace_streams.dsl.where import where
from headrace_streams.dsl.windows import AtMostEvery
from headrace_streams.plan.nodes import REPARTITION, SINK, Input, Making, Plan, schema_text

Column = nw.Expr | str
Window = Hopping | Session | Sliding | Counting
S = TypeVar("S", bound="Columns")
DROP: Final = "drop"
"""What ``late=`` says where rows that come too late are dropped, and counted."""


@dataclass(frozen=True, slots=True)
class Columns(RecordCalls):
    """What streams of one kind can do by themselves: each method gives another, and leaves this one as it is."""

    _plan: Plan
    _input: Input
    _schema: pa.Schema
    _keyed_by: tuple[str, ...] | None
    """The columns that the record's key is made of; None: it is no column."""
    _json: Format
    """The format in which ``to`` writes unless told otherwise."""
    _placed: bool = True
    """Each row is in the partition that its key belongs to."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def _next(
        self,
        kind: str,
        make: Callable[[], Operator],
        settings: Mapping[str, Any],
        *,
        keyed_by: tuple[str, ...] | None = None,
        schema: pa.Schema | None = None,
    ) -> Self:
        """One more operator of columns; what it makes of no rows tells its schema."""
        at = where()
        what = f"{kind} ({at})"
        if schema is None:
            schema = _schema_after(make(), self._schema, what)
        return self._added(Added(kind, at, make, settings), schema, keyed_by)

    def _added(self, added: Added, schema: pa.Schema, keyed_by: tuple[str, ...] | None) -> Self:
        if schema != RECORDS:
            check_names(schema.names, f"{added.kind} ({added.where})")
        node = self._plan.add(
            added.kind,
            added.where,
            [self._input],
            lambda making: added.make(),
            settings=added.settings,
            name=added.name,
            form=added.form,
            on_error=added.on_error,
            keys=self._keys,
        )
        return replace(self, _input=Input(node.id), _schema=schema, _keyed_by=keyed_by)

    @property
    def _keys(self) -> tuple[pa.Field[Any], ...]:
        names = self._keyed_by or ()
        return tuple(self._schema.field(name) for name in names if {*names} <= {*self._schema.names})

    def _kept_key(self, changed: Sequence[str]) -> tuple[str, ...] | None:
        return None if self._keyed_by is None or set(self._keyed_by) & set(changed) else self._keyed_by

    def _expression(self, value: Column, what: str) -> nw.Expr:
        expression = expressions.expression_of(value)
        expressions.check(expression, f"{what} ({where()})")
        return expression

    def filter(self, *conditions: Column) -> Self:
        """The rows for which every condition is true; null counts as false."""
        if not conditions:
            raise NotAllowed(f"filter ({where()}) needs a condition")
        found = [self._expression(condition, "filter") for condition in conditions]
        one = found[0] if len(found) == 1 else nw.all_horizontal(*found, ignore_nulls=False)
        return self._next("filter", partial(columns.Filter, one), {"condition": str(one)}, keyed_by=self._keyed_by)

    def with_columns(self, **made: Column) -> Self:
        """More columns, or others in place of those of the same names."""
        check_names(list(made), f"with_columns ({where()})")
        found = {name: self._expression(value, "with_columns") for name, value in made.items()}
        settings = {name: str(value) for name, value in found.items()}
        keyed_by = self._kept_key(list(made))
        return self._next("with_columns", partial(columns.Compute, found), settings, keyed_by=keyed_by)

    def select(self, *names: str, **made: Column) -> Self:
        """These columns only; ``made`` computes more."""
        if not (names or made):
            raise NotAllowed(f"select ({where()}) needs a column")
        check_names(list(made), f"select ({where()})")
        found = {name: self._expression(name, "select") for name in names}
        found |= {name: self._expression(value, "select") for name, value in made.items()}
        settings = {name: str(value) for name, value in found.items()}
        keyed_by = self._kept_key(list(made))
        return self._next("select", partial(columns.Select, found), settings, keyed_by=keyed_by)

    def rename(self, **names: str) -> Self:
        """``rename(amount="total")``: the column ``amount`` is called ``total``."""
        self._check_columns("rename", names)
        check_names(list(names.values()), f"rename ({where()})")
        keyed_by = self._keyed_by and tuple(names.get(name, name) for name in self._keyed_by)
        return self._next("rename", partial(columns.Rename, names), dict(names), keyed_by=keyed_by)

    def drop_nulls(self, *names: str) -> Self:
        """The rows that have a value in each of these columns; in every column if none is named."""
        chosen = list(names) or self._schema.names
        self._check_columns("drop_nulls", chosen)
        make = partial(columns.DropNulls, chosen)
        return self._next("drop_nulls", make, {"columns": chosen}, keyed_by=self._keyed_by)

    def explode(self, name: str) -> Self:
        """One row for each element of a list; rows whose list is empty or null are left out."""
        self._check_columns("explode", [name])
        type_ = self._schema.field(name).type
        if not (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
            raise NotAllowed(f"explode ({where()}): {name!r} is {type_}, and only a list can be exploded")
        return self._next("explode", partial(columns.Explode, name), {"column": name}, keyed_by=self._kept_key([name]))

    def map_batches(self, function: Callable[[pa.Table], pa.Table], *, schema: str | pa.Schema) -> Self:
        """
        A function over Arrow tables of the user's columns.

        A stream is cut into batches anywhere, so what it makes of a row must not depend on the rows beside it; it must
        keep their number and order.
        """
        parsed = parse_schema(schema)
        what = f"map_batches ({where()})"
        check_function(function, what)
        name = getattr(function, "__qualname__", repr(function))
        settings = {"function": name, "schema": schema_text(parsed)}
        make = partial(columns.MapBatches, function, parsed, what)
        return self._next("map_batches", make, settings, schema=parsed)

    def foreach_batch(self, function: Callable[[pa.Table], object], *, on_error: str = "") -> None:
        """
        Call a function with Arrow tables of the rows, to write them elsewhere. **At least once**: after a failure rows
        come again, in tables that are cut in another way, so what it writes must stand being written twice.

        Args:
            on_error: of rows with which it raises, when it is called with them alone.
        """
        what = f"foreach_batch ({where()})"
        check_function(function, what)
        if RECORD in self._schema.names:
            raise NotAllowed(f"{what}: {hint(self._schema)}")
        settings = {"function": getattr(function, "__qualname__", type(function).__qualname__)}
        make = partial(columns.ForeachBatch, function)
        self._added(Added("foreach_batch", where(), make, settings, on_error=on_error), self._schema, None)

    def key_by(self, *names: str) -> Self:
        """The key is made of these columns. Rows stay where they are until something needs them by key."""
        self._check_columns("key_by", names)
        if not names:
            raise NotAllowed(f"key_by ({where()}) needs a column")
        make = partial(columns.KeyBy, names)
        _tried(make(), self._schema, f"key_by ({where()})")
        keyed = self._next("key_by", make, {"columns": list(names)}, schema=self._schema, keyed_by=names)
        return replace(keyed, _placed=False)

    def repartition(self, partitions: int | None = None, *, name: str) -> Self:
        """
        Move the rows to the tasks of their keys, through a topic of ``partitions`` partitions (as many as the input).
        """
        if partitions is not None and not (is_count(partitions) and partitions <= 10_000):
            raise NotAllowed(f"repartition ({where()}): {partitions} partitions are not possible; choose 1 to 10,000")
        return self._moved(name, partitions, self._keyed_by)

    def _moved(
        self, name: str, partitions: int | None, keyed_by: tuple[str, ...] | None, *, answers: bool = False
    ) -> Self:
        at = where()
        if not name:
            raise NotAllowed(
                f"the rows at {at} move to the tasks of their new keys through a topic, which needs a name: say name="
            )

        def make(making: Making) -> Operator:
            return HopOut(making.topic(name), making.partitions, making.partition, making.write, making.interval_ms)

        settings = {"columns": schema_text(self._schema)}
        node = self._plan.add(
            REPARTITION,
            at,
            [self._input],
            make,
            name=name,
            settings=settings,
            partitions=partitions,
            answers=answers,
        )
        return type(self)(self._plan, Input(node.id), self._schema, keyed_by, self._json)

    def _dropping_null_keys(self, *, buries: bool = True) -> Self:
        def make(making: Making) -> Operator:
            return columns.DropNullKeys(buries=buries and making.on_error not in (FAIL, SKIP))

        node = self._plan.add("drop_null_keys", where(), [self._input], make, keys=self._keys)
        return replace(self, _input=Input(node.id))

    def unique(self, *names: str, within: Duration, name: str) -> Self:
        """
        The rows whose values in these columns (without any, whose key) did not come before, until event time is
        ``within`` beyond the one that passed. A row whose only value is null always passes.

        Equal values must be in one partition, so the columns of the record's key must be among them.

        Args:
            name: of the state: what was seen in the last ``within``.
        """
        what = f"unique ({where()})"
        self._check_columns("unique", names)
        if not name:
            raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
        if names and not (self._keyed_by and self._placed and set(self._keyed_by) <= set(names)):
            listed = ", ".join(map(repr, names))
            raise NotAllowed(
                f"{what}: rows with the same values may be in different partitions; put "
                f"key_by({listed}).repartition(name=…) before it, and compare keys: unique(within=…)"
            )
        ms = to_ms(within, f"{what}: within", least=1)
        _tried(Unique(names, ms), self._schema, what)
        settings = {"columns": list(names), "within_ms": ms}
        form = {"": f"values of ({columns_text([self._schema.field(of) for of in names])}) that came"}
        added = Added("unique", where(), partial(Unique, names, ms), settings, name, form=form)
        return self._added(added, self._schema, self._keyed_by)

    def _suppressed(self, make: Callable[[], Suppress], name: str, emit: AtMostEvery) -> Self:
        """At most one row of each key (and window) in an interval, of the aggregate of that name."""
        make()
        form = {"": f"rows of ({columns_text(self._schema)}) that wait"}
        added = Added("at_most_every", where(), make, {"interval_ms": emit.ms}, f"{name}.waiting", form=form)
        return self._added(added, self._schema, self._keyed_by)

    def group_by(self, *names: str, name: str = "", combine: bool = True) -> Grouped[Self]:
        """
        Groups of rows with the same values in these columns; without any, with the same key.

        Args:
            name: of the repartition topic; needed unless the columns are the record's key already.
            combine: aggregate before the repartition topic too, where that is not seen in the result, so that fewer
                rows go through it.
        """
        self._check_columns("group_by", names)
        if names and names != self._keyed_by:
            _tried(columns.KeyBy(names), self._schema, f"group_by ({where()})")
        return Grouped(self, tuple(names), name, combine)

    def split(self, **branches: Column) -> dict[str, Self]:
        """``split(big=col("n") > 9, rest=lit(True))``: each row goes to the first branch whose condition is true."""
        found = {name: self._expression(condition, "split") for name, condition in branches.items()}
        if not found:
            raise NotAllowed(f"split ({where()}) needs branches: name=condition")
        _tried(columns.Split(found), self._schema, f"split ({where()})")
        settings = {name: str(value) for name, value in found.items()}
        node = self._plan.add("split", where(), [self._input], lambda making: columns.Split(found), settings=settings)
        return {name: replace(self, _input=Input(node.id, name)) for name in found}

    def merge(self, *others: Self) -> Self:
        """The rows of all of them, in the order in which they come; all have the same columns."""
        at = where()
        for other in others:
            if other._plan is not self._plan:
                raise NotAllowed(f"merge ({at}): the streams belong to different apps")
            if other._schema != self._schema:
                raise NotAllowed(
                    f"merge ({at}): the columns differ: {schema_text(self._schema)} and {schema_text(other._schema)}; "
                    "select() the same ones on both sides"
                )
        inputs = [self._input, *(other._input for other in others)]
        node = self._plan.add("merge", at, inputs, lambda making: columns.Merge())
        same = all(other._keyed_by == self._keyed_by for other in others)
        placed = all(one._placed for one in (self, *others))
        keyed_by = self._keyed_by if same else None
        return replace(self, _input=Input(node.id), _keyed_by=keyed_by, _placed=placed)

    def _padded(self, others: Sequence[Self], schema: pa.Schema) -> Self:
        """The rows of all of them, which have some of the columns each; equal keys are in one partition."""
        inputs = [replace(one._input, port=port) for port, one in enumerate([self, *others])]
        settings = {"columns": schema_text(schema)}
        node = self._plan.add("cogroup", where(), inputs, lambda making: columns.Pad(schema), settings=settings)
        return replace(self, _input=Input(node.id), _schema=schema)

    def to(self, topic: str, value: Format | None = None, *, headers: Headers | None = None) -> None:
        """
        Write the rows to a topic; the record's key is the stream's, its timestamp the event time if not far ahead.

        Args:
            value: the format; JSON with all columns if not told.
            headers: of the records: ``{"trace": "trace_id"}`` gives the header ``trace``, left out where the column is
                null; a column of all headers of a record, as ``metadata=["headers"]`` has it; or a list of these. A
                column that is named is no part of the value then; as an expression, ``col("trace_id")``, it is.
        """
        self._written(Sink, topic, value, headers)

    def _written(self, sink: type[Sink], topic: str, value: Format | None, headers: Headers | None = None) -> None:
        at = where()
        what = f"to {topic!r} ({at})"
        if value is not None:
            check_format(value, f"{what}: value")
        format_ = of_topic(value or self._json, topic, "value")
        schema, made, without = self._schema, None, list[str]()
        settings: dict[str, Any] = {"topic": topic}
        if headers is not None:
            made, without, settings["headers"] = headers_of(headers, schema, what)
            schema = pa.schema([field for field in schema if field.name not in without])
            if not len(schema):
                raise NotAllowed(f"{what}: all columns are headers, and none is left for the value")
        settings["columns"] = schema_text(schema)
        _check_encodable(format_, schema, what)

        def make(making: Making) -> Operator:
            return sink(topic, format_, making.write, making.limits.get(topic), made, without)

        self._plan.add(SINK, at, [self._input], make, settings=settings, topics=(topic,), value=format_)

    def _check_columns(self, kind: str, names: Sequence[str] | Mapping[str, Any]) -> None:
        for name in names:
            if name not in self._schema.names:
                raise NotAllowed(f"{kind} ({where()}): there is no column {name!r}; {hint(self._schema)}")


def _tried(operator: Operator, schema: pa.Schema, what: str) -> list[Emitted]:
    """What an operator makes of no rows."""
    try:
        return list(operator.feed(empty(schema), 0, _never))
    except Exception as error:
        said = str(error).split("\n", 1)[0]  # what follows lists system columns too
        raise NotAllowed(f"{what}: {said}; {hint(schema)}") from error


def _schema_after(operator: Operator, schema: pa.Schema, what: str) -> pa.Schema:
    (emitted,) = _tried(operator, schema, what)
    return RECORDS if RECORD in emitted.rows.column_names else user_schema(emitted.rows.schema)


def _check_encodable(format_: Format, schema: pa.Schema, what: str) -> None:
    if RECORD in schema.names:
        return
    try:
        format_.encode(schema.empty_table())
    except Exception as error:
        raise NotAllowed(f"{what}: {error}") from error


def _never(rows: pa.Table, error: BaseException) -> None:
    raise error


@dataclass(frozen=True, slots=True)
class Grouped(Generic[S]):
    """Rows by key, before they are aggregated."""

    _stream: S
    _columns: tuple[str, ...]
    _name: str
    _combine: bool = True
    _window: Window | None = None
    _late: str = ""
    _table: bool = False
    """The rows are changes of a table."""

    def window(self, window: Window, *, late: str = "") -> Grouped[S]:
        """
        Aggregates by key and window.

        Args:
            late: the topic that gets rows which come after their window closed, or ``"drop"``; not for ``counting``.
        """
        if not isinstance(window, Window):
            raise NotAllowed(f"window ({where()}): {window!r} is no window; write for example tumbling('10s')")
        if self._window is not None:
            raise NotAllowed(f"window ({where()}): these groups have a window already")
        if self._table:
            raise NotAllowed(f"window ({where()}): rows of a table have no window; say to_stream() before group_by()")
        if isinstance(window, Counting):
            if late:
                raise NotAllowed(f"window ({where()}): no row is late for windows of so many rows; leave late= out")
            late = DROP
        if not late:
            raise NotAllowed(
                f"window ({where()}): say what becomes of rows that come after their window closed: late=TOPIC keeps "
                "them, late='drop' drops and counts them"
            )
        return replace(self, _window=window, _late=late)

    def agg(self, *, name: str = "", emit: str | AtMostEvery = "changes", **aggregates: Agg) -> S:
        """
        One row for each group, or for each group and window.

        Args:
            name: of the state; needed.
            emit: ``"changes"``: what a commit changed, one row for each key; ``"every"``: one for each row that comes;
                ``"final"``: one when the window has closed; ``at_most_every("10s")``: one in so much event time.
        """
        at = where()
        what = f"agg {name!r} ({at})" if name else f"agg ({at})"
        mode = self._check(name, emit, aggregates, what)
        prepared, inputs = self._prepared(aggregates, what)
        keys = [prepared.schema.field(column) for column in self._columns]
        listed = [
            Aggregated(out, _function(one, _type_of(prepared, inputs[out]), what), inputs[out], one.kind)
            for out, one in aggregates.items()
        ]
        if self._combines(mode, aggregates, listed, prepared):
            keyed = self._combined(prepared, Groups(keys, listed, what))
            listed = behind(listed, [one.kind for one in aggregates.values()], what)
        else:
            keyed = self._keyed(prepared)
        window = self._window

        def make(making: Making) -> Operator:
            groups = Groups(keys, listed, what, HIDDEN if isinstance(window, Counting) else ())
            if window is None:
                return Aggregate(groups, mode)
            if isinstance(window, Counting):
                return CountedAggregate(groups, window.rows, mode)
            if isinstance(window, Session):
                return SessionAggregate(groups, window, mode)
            if isinstance(window, Sliding):
                return SlidingAggregate(groups, window, mode)
            return WindowedAggregate(groups, window, mode)

        settings: dict[str, Any] = {out: str(one) for out, one in aggregates.items()}
        settings |= {"keys": list(self._columns), "emit": mode.value}
        if window is not None:
            settings |= {"window": str(window), "late": self._late}
        plan = keyed._plan
        form = {"": _form(keys, aggregates, listed, window)}
        kept_by = tuple(keys) or self._stream._keys
        node = plan.add("agg", at, [keyed._input], make, name=name, settings=settings, form=form, keys=kept_by)
        schema = Groups(keys, listed).schema(windowed=window is not None)
        result = replace(keyed, _input=Input(node.id, OUT), _schema=schema, _keyed_by=self._columns or None)
        if window is not None and self._late != DROP:
            late = type(keyed)(plan, Input(node.id, LATE), _late_schema(prepared.schema, what), None, keyed._json)
            late.to(self._late)
        if not isinstance(emit, AtMostEvery):
            return result
        return result._suppressed(partial(Suppress, schema, emit.ms, what, windowed=window is not None), name, emit)

    def count(self, *, name: str = "", emit: str | AtMostEvery = "changes") -> S:
        """The number of rows, as the column ``count``."""
        return self.agg(name=name, emit=emit, count=Agg("count"))

    def _check(self, name: str, emit: str | AtMostEvery, aggregates: Mapping[str, Agg], what: str) -> Emit:
        if not name:
            raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
        if not aggregates:
            raise NotAllowed(f"{what}: say what to compute, for example n=agg.count()")
        for out, one in aggregates.items():
            if not isinstance(one, Agg):
                raise NotAllowed(f"{what}: {out} is {one!r}; write for example {out}=agg.sum('amount')")
            if self._table and one.kind not in REMOVABLE and not (one.folding and one.folding.remove):
                raise NotAllowed(
                    f"{what}: {one.kind}() cannot take a row out again that the table replaces; "
                    f"use {', '.join(REMOVABLE)}, fold() with remove=, or to_stream() before group_by()"
                )
            if isinstance(self._window, Session | Sliding) and one.folding and not one.folding.merge:
                raise NotAllowed(f"{what}: what such windows hold is merged, so fold() needs merge= here")
            if out.startswith("_") or out in self._columns or out in BOUNDS:
                raise NotAllowed(f"{what}: a result cannot be called {out!r}")
        if isinstance(emit, AtMostEvery):
            if isinstance(self._window, Session | Counting):
                raise NotAllowed(
                    f"{what}: at_most_every() does not know which results of such windows replace each other; "
                    "choose 'changes', 'every' or 'final'"
                )
            return Emit.EVERY
        if emit not in set(Emit):
            raise NotAllowed(f"{what}: emit is {emit!r}; choose 'changes', 'every', 'final' or at_most_every('10s')")
        if emit == Emit.FINAL and self._window is None:
            raise NotAllowed(f"{what}: emit='final' needs a window: groups without one are never done")
        return Emit(emit)

    def _prepared(self, aggregates: Mapping[str, Agg], what: str) -> tuple[S, dict[str, str | None]]:
        """The stream with each aggregate's input as a column, and which column that is."""
        stream = self._stream
        inputs: dict[str, str | None] = {}
        made: dict[str, nw.Expr] = {}
        for out, one in aggregates.items():
            if one.column is None or isinstance(one.column, str):
                if isinstance(one.column, str):
                    stream._check_columns(f"agg {one.kind}", [one.column])
                inputs[out] = one.column
                continue
            expressions.check(one.column, what)
            inputs[out] = f"{out}__in"
            made[f"{out}__in"] = one.column
        if self._late not in ("", DROP):
            return (stream.with_columns(**made) if made else stream), inputs
        needed = dict.fromkeys([*self._columns, *(c for c in inputs.values() if c is not None and c not in made)])
        return (stream.select(*needed, **made) if needed or made else stream), inputs

    def _inputs(self, aggregates: Mapping[str, Agg], what: str) -> S:
        """The key and the input of each aggregate, as a column of its name; rows of equal keys are together."""
        made: dict[str, nw.Expr] = {}
        for out, one in aggregates.items():
            if isinstance(one.column, str):
                self._stream._check_columns(f"agg {one.kind}", [one.column])
            made[out] = nw.lit(True) if one.column is None else expressions.expression_of(one.column)
            expressions.check(made[out], what)
        return self._keyed(self._stream.select(*self._columns, **made))

    def _combines(self, mode: Emit, aggregates: Mapping[str, Agg], listed: Sequence[Aggregated], prepared: S) -> bool:
        """Whether rows are aggregated before they move too."""
        window = self._window
        fits = window is None or (isinstance(window, Hopping) and window.size_ms == window.advance_ms)
        if not self._combine or self._stays(prepared) or mode == Emit.EVERY or not fits or self._late not in ("", DROP):
            return False
        kinds = (one.kind for one in aggregates.values())
        types = (_type_of(prepared, column.column) for column in listed)
        return all(adds_up(kind, of) for kind, of in zip(kinds, types, strict=True))

    def _combined(self, stream: S, groups: Groups) -> S:
        keyed = stream.key_by(*self._columns)._dropping_null_keys()
        window = self._window
        assert window is None or isinstance(window, Hopping)
        schema = groups.schema(windowed=False)
        held = keyed._next("combine", lambda: Combine(groups, window), {"columns": schema_text(schema)}, schema=schema)
        return held._moved(self._name, None, self._columns)._dropping_null_keys()

    def _stays(self, stream: S) -> bool:
        """Whether rows are where their key belongs already."""
        return not self._columns or (stream._keyed_by == self._columns and stream._placed)

    def _keyed(self, stream: S) -> S:
        if self._stays(stream):
            moved = stream
        else:
            keyed = self._regrouped(stream) if self._table else stream.key_by(*self._columns)
            moved = keyed._dropping_null_keys()._moved(self._name, None, self._columns)
        return moved._dropping_null_keys()

    def _regrouped(self, stream: S) -> S:
        make = partial(Regroup, self._columns)
        return stream._next("key_by", make, {"columns": list(self._columns)}, schema=stream.schema)

    def __repr__(self) -> str:
        return f"Grouped by {', '.join(self._columns) or 'key'}"


def _late_schema(schema: pa.Schema, what: str) -> pa.Schema:
    """The window that a late row came for, and the row."""
    for name in BOUNDS:
        if name in schema.names:
            raise NotAllowed(f"{what}: the rows have a column {name!r} already; rename() it, or say late='drop'")
    return pa.schema([*(pa.field(name, TIMESTAMP) for name in BOUNDS), *schema])


def _function(one: Agg, of: pa.DataType | None, what: str) -> Function:
    if one.folding is not None:
        return Fold(one.folding, what)
    return function(one.kind, of, what, one.argument)


def _type_of(stream: Columns, column: str | None) -> pa.DataType | None:
    return None if column is None else stream.schema.field(column).type


def _form(
    keys: Sequence[pa.Field[Any]], aggregates: Mapping[str, Agg], listed: Sequence[Aggregated], window: Window | None
) -> str:
    """Of the state of an aggregate. Expressions are no part of it: what they gave before stays counted."""
    made = []
    for one in listed:
        asked = aggregates[one.name]
        kinds = " ".join(str(field.dtype) for field in one.function.fields)
        made.append(f"{one.name}={asked.kind}({'' if asked.argument is None else asked.argument}) as {kinds}")
    return f"{', '.join(made)} by ({columns_text(keys)})" + ("" if window is None else f" in {window}")
