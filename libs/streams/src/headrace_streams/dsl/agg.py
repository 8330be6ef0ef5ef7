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
    argument: float | None = None
    """A limit, or which quantile."""

    def __str__(self) -> str:
        argument = "" if self.argument is None else f", {self.argument}"
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
    if limit < 1:
        raise NotAllowed("collect() needs a limit of at least 1: what it keeps is read and written as one value")
    return Agg("collect", column, limit)
