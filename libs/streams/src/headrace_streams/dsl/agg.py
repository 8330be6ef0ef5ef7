"""Aggregate functions as programs write them: ``agg.sum("amount")``, ``agg.max(col("a") - col("b"))``."""

from __future__ import annotations

from dataclasses import dataclass

import narwhals.stable.v2 as nw

from headrace_streams.core.errors import NotAllowed

Input = nw.Expr | str


@dataclass(frozen=True, slots=True)
class Agg:
    """One aggregate over rows of a group."""

    kind: str
    column: Input | None = None
    limit: int = 0

    def __str__(self) -> str:
        limit = f", {self.limit}" if self.limit else ""
        return f"{self.kind}({'' if self.column is None else self.column}{limit})"


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


def distinct(column: Input) -> Agg:
    """How many different values; each is kept."""
    return Agg("distinct", column)


def collect(column: Input, limit: int) -> Agg:
    """The first ``limit`` values as a list."""
    if limit < 1:
        raise NotAllowed("collect() needs a limit of at least 1: what it keeps is read and written as one value")
    return Agg("collect", column, limit)
