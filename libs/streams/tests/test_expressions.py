"""What Narwhals' nodes say of an expression: their form is not public, so a change of it must show here."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_streams import NotAllowed, all_horizontal, any_horizontal, coalesce, col, concat_str, lit, when
from headrace_streams.core.expressions import check, columns_of

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
