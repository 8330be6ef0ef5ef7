"""The methods of a stream that take functions over single records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.functions import EVENT, RECORDS, WALL, Apply, Choose, Functions, Process
from headrace_streams.core.rows import RECORD
from headrace_streams.core.state.objects import Value
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.lifting import Versioned
from headrace_streams.dsl.names import check_function
from headrace_streams.dsl.where import where
from headrace_streams.plan.compare import OF_FUNCTION
from headrace_streams.plan.nodes import schema_text

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Added:
    """One more operator behind a stream."""

    kind: str
    where: str
    make: Callable[[], Operator]
    settings: Mapping[str, Any]
    name: str = ""
    """Of its state."""
    on_error: str = ""
    form: Mapping[str, str] = field(default_factory=dict)
    """Of its state, as a node has it."""


class RecordCalls:
    """A part of ``Stream``."""

    __slots__ = ()

    _schema: pa.Schema
    _keyed_by: tuple[str, ...] | None

    def _added(self, added: Added, schema: pa.Schema, keyed_by: tuple[str, ...] | None) -> Self:
        raise NotImplementedError

    def _dropping_null_keys(self) -> Self:
        raise NotImplementedError

    def map(self, function: Function, *, schema: str | pa.Schema | None = None, on_error: str = "") -> Self:
        """
        One row for each: ``function(row)`` or ``function(row, context)`` returns a dict; None leaves the record out.

        Args:
            schema: the columns of what it returns; without one the rows are JSON, which only functions and ``to`` take.
        """
        return self._applied("map", function, _one, schema, on_error)

    def flat_map(self, function: Function, *, schema: str | pa.Schema | None = None, on_error: str = "") -> Self:
        """Any number of rows for each: ``function`` returns or yields dicts."""
        return self._applied("flat_map", function, _many, schema, on_error)

    def filter_records(self, function: Function, *, on_error: str = "") -> Self:
        """The records for which ``function(row)`` is true."""
        return self._chosen("filter_records", function, on_error, keep_all=False)

    def peek(self, function: Function, *, on_error: str = "") -> Self:
        """
        Call ``function(row)`` for each record, and pass it on. After a failure a record may be seen again: what it does
        outside is done at least once.
        """
        return self._chosen("peek", function, on_error, keep_all=True)

    def process(
        self,
        function: Function | None = None,
        *,
        name: str,
        state: Mapping[str, Value] | Versioned | None = None,
        on_timer: Function | None = None,
        schedule: Mapping[Duration, Function] | None = None,
        wall_schedule: Mapping[Duration, Function] | None = None,
        schema: str | pa.Schema | None = None,
        on_error: str = "",
    ) -> Any:
        """
        A function with state by key: ``function(row, state, context)`` returns or yields rows, or nothing.

        As a decorator without ``function``: the name then stands for the stream of what it yields.

        Args:
            name: of the state.
            state: what is kept for each key: ``{"seen": value(int)}`` is ``state.seen``; ``ttl(int, "1h")`` ends, and
                ``versioned`` takes values of earlier versions of the program over.
            on_timer: ``on_timer(timer's name, state, context)``, for what ``context.timer`` asked for.
            schedule: ``{"1m": function}``: each time that event time passes a full minute, ``function(state, context)``
                is called for each key that has state, in the order of their bytes. Minutes that event time jumps
                over are not made up for: they are one call.
            wall_schedule: the same by the wall clock. What it yields has the time at which it was due.
        """
        if function is None:
            return partial(
                self.process,
                name=name,
                state=state,
                on_timer=on_timer,
                schedule=schedule,
                wall_schedule=wall_schedule,
                schema=schema,
                on_error=on_error,
            )
        what = _what("process", function)
        if not name:
            raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
        if on_timer is not None:
            check_function(on_timer, f"{what}: on_timer=")
        kept = state if isinstance(state, Versioned) else Versioned(state or {})
        if not isinstance(kept.values, Mapping):
            raise NotAllowed(f"{what}: state is {kept.values!r:.100}; write for example state={{'seen': value(int)}}")
        declared = dict(kept.values)
        for of, one in declared.items():
            if not of.isidentifier() or of.startswith("_"):
                raise NotAllowed(f"{what}: {of!r} cannot be the name of a value; use letters, digits and '_' inside")
            if not isinstance(one, Value):
                raise NotAllowed(f"{what}: state {of!r} is {one!r}; write for example {of}=value(int)")
        parsed = _parsed(schema)
        given = {EVENT: ("schedule", schedule or {}), WALL: ("wall_schedule", wall_schedule or {})}
        schedules = {clock: _by_interval(of, f"{what}: {kind}=") for clock, (kind, of) in given.items()}
        if any(schedules.values()) and not declared:
            raise NotAllowed(f"{what}: a schedule is called for each key that has state, and there is none: say state=")
        functions = Functions(function, on_timer, declared, parsed, what, schedules, kept.lifting(what))
        settings = {
            "function": _name_of(function),
            "state": {of: _described(one) for of, one in declared.items()},
            "columns": schema_text(parsed or RECORDS),
            **{kind: list(schedules[clock]) for clock, (kind, _) in given.items() if schedules[clock]},
            **({"version": kept.version} if kept.version != 1 else {}),
        }
        form = {f".{of}": f"{one.type.__name__}, {one.default!r} at first" for of, one in declared.items()}
        form |= {"": OF_FUNCTION, **kept.form}
        added = Added("process", where(), partial(Process, functions), settings, name, on_error, form)
        stream = self._dropping_null_keys()
        return stream._added(added, parsed or RECORDS, None)

    def _applied(
        self,
        kind: str,
        function: Function,
        many: Callable[[Any, Any], Iterable[Any]],
        schema: str | pa.Schema | None,
        on_error: str,
    ) -> Self:
        parsed = _parsed(schema)
        make = partial(Apply, function, many, parsed, _what(kind, function))
        settings = {"function": _name_of(function), "columns": schema_text(parsed or RECORDS)}
        return self._added(Added(kind, where(), make, settings, on_error=on_error), parsed or RECORDS, None)

    def _chosen(self, kind: str, function: Function, on_error: str, *, keep_all: bool) -> Self:
        _what(kind, function)
        make = partial(Choose, function, keep_all=keep_all)
        added = Added(kind, where(), make, {"function": _name_of(function)}, on_error=on_error)
        return self._added(added, self._schema, self._keyed_by)


def value(type_: type, default: Any = None) -> Value:
    """
    A value that ``process`` keeps for each key.

    Args:
        type_: int, float, str, bytes, bool, list or dict; lists and dicts may hold what JSON can, and bytes.
        default: what a key begins with; ``type_()`` if not told.
    """
    if type_ not in (int, float, str, bytes, bool, list, dict):
        raise NotAllowed(f"state cannot keep {type_!r}; use int, float, str, bytes, bool, list or dict")
    made = Value(type_, type_())
    try:
        return made if default is None else Value(type_, made.kept("the default of a value", default))
    except TypeError as error:
        raise NotAllowed(f"value ({where()}): {error}") from error


def ttl(type_: type, after: Duration, default: Any = None) -> Value:
    """
    A value that ``process`` keeps for each key until event time is ``after`` past the last time that it was written;
    then it is what a key begins with.

    Args:
        type_, default: as of ``value``.
    """
    return replace(value(type_, default), ttl_ms=to_ms(after, f"ttl ({where()})", least=1))


def _described(one: Value) -> str:
    return one.type.__name__ if one.ttl_ms is None else f"{one.type.__name__} for {one.ttl_ms} ms"


def hint(schema: pa.Schema) -> str:
    """Which columns there are."""
    if RECORD in schema.names:
        return "the function before gave no columns: say schema='name type, …' there"
    return "the columns are: " + ", ".join(f"{name} {type_}" for name, type_ in schema_text(schema).items())


def _parsed(schema: str | pa.Schema | None) -> pa.Schema | None:
    return None if schema is None else parse_schema(schema)


def _by_interval(schedule: Mapping[Duration, Function], what: str) -> dict[int, Function]:
    """
    The functions by their intervals, ms.

    Raises:
        NotAllowed: an interval is none, or is there twice; or what is called is no function.
    """
    if not isinstance(schedule, Mapping):
        raise NotAllowed(f"{what} is {schedule!r:.100}; write for example {{'1m': FUNCTION}}")
    found: dict[int, Function] = {}
    for interval, function in schedule.items():
        ms = to_ms(interval, f"{what}: the interval", least=1)
        if ms in found:
            raise NotAllowed(f"{what} has an interval of {ms} ms twice; call both functions in one")
        check_function(function, what)
        found[ms] = function
    return found


def _name_of(function: Function) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _what(kind: str, function: Function) -> str:
    at = where()
    check_function(function, f"{kind} ({at})")
    return f"{kind} {_name_of(function)} ({at})"


def _one(made: Any, row: Any) -> Iterable[Any]:
    return () if made is None else (made,)


def _many(made: Any, row: Any) -> Iterable[Any]:
    return () if made is None else made
