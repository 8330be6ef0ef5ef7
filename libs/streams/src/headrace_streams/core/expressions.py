"""
Expressions of columns: Narwhals' ``col`` and what it leads to, evaluated on Arrow tables.

A batch is cut where fetches and commits happen to cut, so an expression may look at its own row only: ``mean``,
``cum_sum``, ``shift`` and the like are refused when the program is built. What an expression is made of, and how it is
evaluated, is not public in Narwhals: ``tests/test_expressions.py`` guards it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import narwhals
import narwhals.stable.v2 as nw
import pyarrow as pa
from narwhals._expression_parsing import is_scalar_like

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


class Expressions:
    """
    What expressions come to, on Arrow tables. Narwhals takes them apart once and not for each batch: that costs more
    than to compute them for few rows.
    """

    def __init__(self, *expressions: Expr) -> None:
        self._expressions = expressions
        self._prepared: tuple[Any, list[Any]] | None = None

    def of(self, rows: pa.Table) -> list[pa.ChunkedArray[Any]]:
        """A column for each expression, with a value for each row."""
        if self._prepared is None:
            self._prepared = _prepared(self._expressions)
        empty, parts = self._prepared
        frame = empty._with_native(rows, validate_column_names=False)
        return [frame._extract_comparand(one) for one in frame._evaluate_exprs(*parts)]


def _prepared(expressions: Sequence[Expr]) -> tuple[Any, list[Any]]:
    """A frame of Narwhals without rows, and its form of the expressions."""
    frame: Any = nw.from_native(pa.table({}), eager_only=True)
    parts = frame._flatten_and_extract(*expressions)
    return frame._compliant_frame, [part.broadcast() if is_scalar_like(part) else part for part in parts]


def computed(rows: pa.Table, columns: Mapping[str, Expr]) -> pa.Table:
    """With these columns more, or in place of those of the same names; for once, else see ``Expressions``."""
    return nw.from_native(rows, eager_only=True).with_columns(**columns).to_native()


def evaluated(rows: pa.Table, expression: Expr) -> pa.ChunkedArray[Any]:
    """One column, with a value for each row; for once."""
    return computed(rows, {"_value": expression})["_value"]
