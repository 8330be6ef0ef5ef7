"""Aggregate functions as programs write them: ``agg.sum("amount")``, ``agg.max(col("a") - col("b"))``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.operators.fold import Folding
from headrace_streams.core.state.objects import as_kept
from headrace_streams.dsl.names import is_count

Input = nw.Expr | str


@dataclass(frozen=True, slots=True)
class Agg:
    """One aggregate over rows of a group."""

    kind: str
    column: Input | None = None
    argument: float | None = None
    """A limit, or which quantile."""
    folding: Folding | None = None
    """Functions of the user's."""

    def __str__(self) -> str:
        argument = "" if self.argument is None else f", {self.argument}"
        if self.folding is not None:
            argument = f", {getattr(self.folding.add, '__qualname__', repr(self.folding.add))}"
        return f"{self.kind}({'' if self.column is None else self.column}{argument})"


def count(column: Input | None = None) -> Agg:
    """Rows; with a column, those where it is not null."""
    return Agg("count", column)


def sum(column: Input) -> Agg:  # the name that everybody knows
    """Sum; null where every value is."""
    return Agg("sum", column)


def mean(column: Input) -> Agg:
    """Arithmetic mean."""
    return Agg("mean", column)


def var(column: Input) -> Agg:
    """Variance of a sample; null below two values."""
    return Agg("var", column)


def min(column: Input) -> Agg:
    """Least value."""
    return Agg("min", column)


def max(column: Input) -> Agg:
    """Greatest value."""
    return Agg("max", column)


def first(column: Input) -> Agg:
    """The value that came first and is not null."""
    return Agg("first", column)


def last(column: Input) -> Agg:
    """The value that came last and is not null."""
    return Agg("last", column)


def any(condition: Input) -> Agg:
    """Whether it was true once."""
    return Agg("any", condition)


def all(condition: Input) -> Agg:
    """Whether it was always true."""
    return Agg("all", condition)


def distinct(column: Input, *, approx: bool = False) -> Agg:
    """
    How many different values; each is kept.

    Args:
        approx: exactly up to 256; beyond, mostly within 3 %, in 4 KiB for each group.
    """
    return Agg("distinct_approx" if approx else "distinct", column)


def quantile(column: Input, q: float) -> Agg:
    """
    The value that a share ``q`` of the values is not above, within 1 % of itself: ``quantile("ms", 0.99)``.

    NaN is left out.
    """
    if not 0 <= q <= 1:
        raise NotAllowed(f"quantile() of {q} is not possible; q is a share from 0 to 1, as 0.5 for the median")
    return Agg("quantile", column, q)


def collect(column: Input, limit: int) -> Agg:
    """The first ``limit`` values as a list."""
    if not is_count(limit):
        raise NotAllowed(
            f"collect() needs a limit of at least 1, not {limit!r}: what it keeps is read and written as one value"
        )
    return Agg("collect", column, limit)


def fold(
    column: Input,
    init: Any,
    add: Callable[[Any, Any], Any],
    *,
    type: str,
    merge: Callable[[Any, Any], Any] | None = None,
    remove: Callable[[Any, Any], Any] | None = None,
    result: Callable[[Any], Any] | None = None,
) -> Agg:
    """
    An aggregate of your own: ``add(state, value)`` returns the next state, for each value that is not null, in order.
    It is called once for each row, so what ``sum``, ``max`` and the like can do costs far less there.

    A function that raises stops the app, as nothing says what the group would be without the row.

    Args:
        init: the state of a group without rows; numbers, text, bytes, booleans, lists and dicts can be kept.
        type: of the result, as ``"double"`` or ``"array<string>"``.
        merge: ``merge(state, later)``, the state of the rows of both; session windows need it, as they become one.
        remove: ``remove(state, value)`` takes a value out again; aggregates of a table need it.
        result: what is told of a state; the state itself if not given.
    """
    for name, function in (("add", add), ("merge", merge), ("remove", remove), ("result", result)):
        if not (callable(function) or (function is None and name != "add")):
            raise NotAllowed(f"fold() needs a function for {name}=, not {function!r:.60}")
    try:
        kept = as_kept("init", init)
    except TypeError as error:
        raise NotAllowed(f"fold(): {error}") from error
    if not isinstance(type, str):
        raise NotAllowed(f"fold(): type= is {type!r:.60}; write for example 'double' or 'array<string>'")
    kind = parse_schema(f"value {type}").field(0).type
    return Agg("fold", column, folding=Folding(kept, add, kind, merge, remove, result))
