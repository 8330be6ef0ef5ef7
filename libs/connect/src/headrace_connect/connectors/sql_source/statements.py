"""The statements that are asked of a database, as text. Pure; a dialect writes names and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from headrace_connect.connectors.sql.session import TableName, show_table
from headrace_connect.connectors.sql_source.position import Value, Values

Quote: TypeAlias = Callable[[str], str]
Write: TypeAlias = Callable[[Value], str]
"""A value as statements have it: a literal, or a place for a parameter."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is read as one: a table or a query."""

    table: TableName | None
    """Schema and name; None: it is the query."""
    query: str = ""

    @property
    def name(self) -> str:
        """As positions and messages have it."""
        return "query" if self.table is None else show_table(self.table)

    def source(self, quote: Quote) -> str:
        """Behind ``from``; its columns are those of ``t``."""
        if self.table is None:
            return f"({self.query.strip().rstrip(';')}\n) t"
        return f"{'.'.join(map(quote, self.table))} t"


@dataclass(frozen=True, slots=True)
class Order:
    """By what rows are read: those behind the last one, in this order."""

    columns: tuple[tuple[str, ...], ...] = ()
    """Each of them one or more columns, of which the first one counts that is not null. Empty: there is no order."""
    unique: bool = True
    """Whether no two rows have the same values. If not, rows with equal values are read together."""

    @property
    def names(self) -> tuple[str, ...]:
        """As positions have them."""
        return tuple(",".join(names) for names in self.columns)

    def expressions(self, quote: Quote) -> tuple[str, ...]:
        """As statements have them."""
        return tuple(_expression([f"t.{quote(name)}" for name in names]) for names in self.columns)


def _expression(columns: list[str]) -> str:
    return columns[0] if len(columns) == 1 else f"coalesce({', '.join(columns)})"


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows behind a place, up to a bound, in order."""

    subject: Subject
    order: Order
    after: Values | None = None
    upto: Value | None = None
    """The largest value of the first column; None: no bound."""
    limit: int | None = None
    expanded: bool = False
    """Compare column by column: of rows, the database would not use an index."""

    def statement(self, quote: Quote, write: Write, more: str = "") -> str:
        """
        All columns, and behind them those of the order once more.

        Args:
            more: expressions behind those.
        """
        expressions = self.order.expressions(quote)
        listed = ", ".join(["t.*", *expressions]) + more
        text = f"select {listed} from {self.subject.source(quote)}{self.where(quote, write)}"
        if expressions:
            text += f" order by {', '.join(expressions)}"
        return text if self.limit is None else f"{text} limit {self.limit}"

    def where(self, quote: Quote, write: Write, *also: str) -> str:
        """
        Args:
            also: conditions beside those of the place and the bound.
        """
        expressions = self.order.expressions(quote)
        conditions = [f"{one} is not null" for one in expressions[1:]] + list(also)
        if self.after is not None:
            values = tuple(map(write, self.after))
            if self.expanded:
                conditions.insert(0, _behind(expressions, values))
            else:
                left, right = ", ".join(expressions), ", ".join(values)
                conditions.insert(0, f"({left}) > ({right})" if len(expressions) > 1 else f"{left} > {right}")
        if self.upto is not None:
            conditions.append(f"{expressions[0]} <= {write(self.upto)}")
        return f" where {' and '.join(conditions)}" if conditions else ""

    def nth(self, quote: Quote, write: Write, number: int) -> str:
        """The first column's value of the row with this number, from 0, if there are so many."""
        first = self.order.expressions(quote)[0]
        where = self.where(quote, write)
        return f"select {first} from {self.subject.source(quote)}{where} order by {first} limit 1 offset {number}"

    def largest(self, quote: Quote, write: Write, *also: str) -> str:
        """The first column's largest value; null: there are no rows."""
        first = self.order.expressions(quote)[0]
        return f"select max({first}) from {self.subject.source(quote)}{self.where(quote, write, *also)}"

    def nulls(self, quote: Quote) -> str:
        """A row in which a column of the order is null, if there is one."""
        wrong = " or ".join(f"{one} is null" for one in self.order.expressions(quote))
        return f"select 1 from {self.subject.source(quote)} where {wrong} limit 1"


def _behind(expressions: tuple[str, ...], values: tuple[str, ...]) -> str:
    """That a row is behind another one, column by column."""
    condition = f"{expressions[-1]} > {values[-1]}"
    for expression, value in zip(expressions[-2::-1], values[-2::-1], strict=True):
        condition = f"{expression} >= {value} and ({expression} > {value} or {condition})"
    return condition
