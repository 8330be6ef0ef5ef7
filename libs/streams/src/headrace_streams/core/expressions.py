"""
Expressions of columns: Narwhals' ``col`` and what it leads to, evaluated on Arrow tables.

A batch is cut where fetches and commits happen to cut, so an expression may look at its own row only: ``mean``,
``cum_sum``, ``shift`` and the like are refused when the program is built. What an expression is made of is read from
Narwhals' nodes, which are not public: ``tests/test_expressions.py`` guards them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import narwhals
import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace_streams.core.errors import NotAllowed

Expr = nw.Expr
_OF_ONE_ROW: Final = {"LITERAL", "ELEMENTWISE", "COL"}
_NOT_NAMED: Final = {"ALL", "NTH", "EXCLUDE", "SELECTOR"}


def check(expression: Expr, what: str) -> None:
    """
    Raises:
        NotAllowed: it looks at other rows, or is no expression; ``what`` begins the message.
    """
    if not isinstance(expression, narwhals.Expr):
        raise NotAllowed(f"{what}: {expression!r:.60} is no expression; write col(NAME), or lit(VALUE)")
    for node in expression._nodes:
        kind = node.kind.name
        if kind in _NOT_NAMED:
            raise NotAllowed(f"{what}: {node.name}() does not name its columns; write col(NAME) for each")
        if kind not in _OF_ONE_ROW:
            raise NotAllowed(
                f"{what}: {node.name}() needs other rows than its own, and a stream is cut into batches anywhere; "
                "use group_by(…).agg(…), or process() with state"
            )
        for part in parts_of(node):
            check(part, what)


def columns_of(expression: Expr) -> set[str]:
    """The columns that it reads."""
    names: set[str] = set()
    for node in expression._nodes:
        if node.kind.name == "COL":
            names.update(node.kwargs["names"])
        for part in parts_of(node):
            names |= columns_of(part)
    return names


def parts_of(node: Any) -> list[Any]:
    """The expressions that a node is made of; some are not of the stable interface."""
    return [part for part in node.exprs if isinstance(part, narwhals.Expr)]


def expression_of(value: Expr | str) -> Expr:
    """A name is its column."""
    return nw.col(value) if isinstance(value, str) else value


def filtered(rows: pa.Table, condition: Expr) -> pa.Table:
    """The rows for which it is true; null counts as false."""
    return nw.from_native(rows, eager_only=True).filter(condition).to_native()


def computed(rows: pa.Table, columns: Mapping[str, Expr]) -> pa.Table:
    """With these columns more, or in place of those of the same names."""
    return nw.from_native(rows, eager_only=True).with_columns(**columns).to_native()


def selected(rows: pa.Table, columns: Mapping[str, Expr], also: Sequence[str]) -> pa.Table:
    """These columns, and ``also`` as they are."""
    return nw.from_native(rows, eager_only=True).select(**columns, **{name: nw.col(name) for name in also}).to_native()


def evaluated(rows: pa.Table, expression: Expr) -> pa.ChunkedArray[Any]:
    """One column, with a value for each row."""
    return computed(rows, {"_value": expression})["_value"]
