"""What Narwhals' nodes say of an expression: their form is not public, so a change of it must show here."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw
import pyarrow as pa
import pytest

from headrace_streams import NotAllowed, all_horizontal, any_horizontal, coalesce, col, concat_str, lit, when
from headrace_streams.core.expressions import Expressions, check, columns_of

OF_ONE_ROW: dict[str, tuple[Any, set[str]]] = {
    "col": (col("a"), {"a"}),
    "arithmetic": (col("a") * 2 + col("b") - lit(1), {"a", "b"}),
    "condition": ((col("a") > 1) & ~col("b").is_null() | (col("c") == "x"), {"a", "b", "c"}),
    "text": (col("a").str.to_uppercase().str.slice(0, 2), {"a"}),
    "time": (col("a").dt.truncate("1h"), {"a"}),
    "cast and fill": (col("a").fill_null(0).abs().round(2), {"a"}),
    "is_in": (col("a").is_in([1, 2]), {"a"}),
    "when": (when(col("a") > 1).then(col("b")).otherwise(col("c")), {"a", "b", "c"}),
    "when inside": (when(when(col("a")).then(col("b"))).then(1), {"a", "b"}),
    "horizontal": (
        all_horizontal(col("a"), any_horizontal(col("b"), ignore_nulls=True), ignore_nulls=True),
        {"a", "b"},
    ),
    "coalesce": (coalesce(col("a"), concat_str(col("b"), col("c"))), {"a", "b", "c"}),
}
OF_OTHERS: dict[str, Any] = {
    "mean": col("a").mean(),
    "count": col("a").count(),
    "shift": col("a").shift(1),
    "diff": col("a").diff(),
    "cum_sum": col("a").cum_sum(),
    "rolling": col("a").rolling_mean(3),
    "rank": col("a").rank(),
    "over": col("a").over("b"),
    "unique": col("a").is_unique(),
    "first distinct": col("a").is_first_distinct(),
    "drop_nulls": col("a").drop_nulls(),
    "fill from before": col("a").fill_null(strategy="forward"),
    "in an operand": lit(1) + col("a").max(),
    "in when": when(col("a").max() > 1).then(1),
    "in otherwise": when(col("a") > 1).then(1).otherwise(col("a").max()),
    "in coalesce": coalesce(col("a"), col("b").max()),
    "in horizontal": any_horizontal(col("a"), col("b").any(), ignore_nulls=True),
}


@pytest.mark.parametrize("name", OF_ONE_ROW)
def test_an_expression_of_one_row_and_its_columns(name: str) -> None:
    expression, columns = OF_ONE_ROW[name]
    check(expression, "here")
    assert columns_of(expression) == columns


@pytest.mark.parametrize("name", OF_OTHERS)
def test_an_expression_of_other_rows_is_refused(name: str) -> None:
    with pytest.raises(NotAllowed, match=r"here: \w+\(\) needs other rows than its own"):
        check(OF_OTHERS[name], "here")


ROWS = pa.table(
    {
        "a": pa.chunked_array([pa.array([1, None, 3], pa.int64()), pa.array([-4], pa.int64())]),
        "b": pa.array([2.5, None, float("nan"), 0.0]),
        "c": pa.array(["x", "Y", None, ""]),
        "d": pa.array([True, False, None, True]),
        "e": pa.array([0, 1_700_000_000_123, None, 86_400_000], pa.timestamp("ms", "UTC")),
    }
)
COMPUTED: dict[str, Any] = {
    "column": col("a"),
    "arithmetic": col("a") * 2 + col("b") - lit(1),
    "condition": (col("a") > 1) & ~col("b").is_null() | (col("c") == "x"),
    "nothing but a value": lit(7),
    "a value of another type": lit("text").str.to_uppercase(),
    "text": col("c").str.to_uppercase().str.slice(0, 1),
    "time": col("e").dt.truncate("1h"),
    "cast and fill": col("a").fill_null(0).abs().cast(nw.String),
    "is_in": col("a").is_in([1, 3]),
    "when": when(col("a") > 1).then(col("b")).otherwise(lit(0.5)),
    "when alone": when(col("d")).then(lit(1)),
    "horizontal": any_horizontal(col("d"), col("a") > 2, ignore_nulls=True),
    "coalesce": coalesce(col("c"), lit("none")),
    "concatenated": concat_str(col("c"), lit("-"), col("c")),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_an_expression_comes_to_is_what_narwhals_says(name: str, count: int) -> None:
    """Prepared once, for whatever rows come."""
    expressions = Expressions(COMPUTED[name], col("a"))
    for rows in (ROWS, ROWS.slice(0, count), ROWS.slice(0, 0)):
        expected = nw.from_native(rows, eager_only=True).with_columns(_value=COMPUTED[name]).to_native()["_value"]
        found, beside = expressions.of(rows)
        assert (found.type, str(found.to_pylist())) == (expected.type, str(expected.to_pylist()))
        assert beside.to_pylist() == rows["a"].to_pylist()


def test_columns_and_types_are_those_of_the_rows_that_come() -> None:
    """Not of those that it was prepared with."""
    expressions = Expressions(col("a") + 1)
    assert expressions.of(pa.table({"a": [1]}))[0].to_pylist() == [2]
    assert expressions.of(pa.table({"z": ["x"], "a": [1.5]}))[0].to_pylist() == [2.5]
    with pytest.raises(Exception, match="a"):
        expressions.of(pa.table({"b": [1]}))
