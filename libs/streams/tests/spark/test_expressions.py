"""Each expression that is not refused has the same result on Arrow and on Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import narwhals.stable.v2 as nw
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace_streams import all_horizontal, any_horizontal, coalesce, col, concat_str, lit, when
from headrace_streams.core import expressions
from headrace_streams.core.expressions import parts_of
from headrace_streams.core.rows import TIMESTAMP
from headrace_streams.spark.columns import cast
from headrace_streams.spark.expressions import EQUAL, differences

pytestmark = pytest.mark.spark
ROWS = pa.table(
    {
        "i": pa.array([0, 1, -1, 7, -7, None, 3, 2**40], pa.int64()),
        "j": pa.array([1, 2, 3, -2, 2, 5, None, 3], pa.int64()),
        "s": pa.array([0, 1, -1, 7, -7, None, 3, 127], pa.int32()),
        "x": pa.array([0.0, 0.25, 1.5, 2.5, -2.5, None, 1e300, 0.1], pa.float64()),
        "y": pa.array([0.0, 1.0, -1.5, 2.5, 0.5, 1.0, 2.0, None], pa.float64()),
        "b": pa.array([True, False, None, True, True, False, False, None]),
        "c": pa.array([True, None, None, False, True, False, True, False]),
        "u": pa.array(["Ab", " x ", "", "äÖ", "a b c", None, "ß", "zz𝄞"]),
        "v": pa.array(["b", "x", "", "ä", "a", None, "s", "zz"]),
        "t": pa.array(
            [0, 1, 86_399_999, 1_700_000_000_123, 253_402_300_799_999, None, 951_782_400_000, -1], pa.int64()
        ),
        "d": pa.array(
            [
                date(1970, 1, 1),
                date(2024, 2, 29),
                date(1999, 12, 31),
                None,
                date(2000, 1, 1),
                date(2026, 11, 29),
                date(1969, 1, 1),
                date(1900, 3, 1),
            ]
        ),
        "l": pa.array([[1, 2], [], None, [None], [3], [4, 5, 6], [1], [1, None]], pa.list_(pa.int64())),
        "st": pa.array(
            [{"a": 1}, {"a": None}, None, {"a": 2}, {"a": 3}, {"a": 4}, {"a": 5}, {"a": 6}],
            pa.struct([("a", pa.int64())]),
        ),
    }
)
ROWS = ROWS.set_column(ROWS.schema.get_field_index("t"), "t", ROWS["t"].cast(TIMESTAMP))
NAN = col("x") * 0 / 0
PAIRS = (("i", "j"), ("x", "y"), ("s", "x"), ("s", "i"), ("j", "x"))
EXPRESSIONS: dict[str, Any] = {
    **{f"{a} + {b}": col(a) + col(b) for a, b in PAIRS},
    **{f"{a} - {b}": col(a) - col(b) for a, b in PAIRS},
    **{f"{a} * 3": col(a) * 3 for a, _ in PAIRS},
    **{f"{a} * {b}": col(a) * col(b) for a, b in (("j", "j"), ("x", "y"), ("s", "y"))},
    **{f"{a} / {b}": col(a) / col(b) for a, b in PAIRS},
    **{f"{a} % 3": col(a) % 3 for a in ("i", "s", "j")},
    **{f"{a} == {b}": col(a) == col(b) for a, b in (*PAIRS, ("u", "v"), ("b", "c"))},
    **{f"{a} != {b}": col(a) != col(b) for a, b in (*PAIRS, ("u", "v"), ("b", "c"))},
    **{f"{a} < {b}": col(a) < col(b) for a, b in (*PAIRS, ("u", "v"))},
    **{f"{a} <= {b}": col(a) <= col(b) for a, b in (*PAIRS, ("u", "v"))},
    **{f"{a} > {b}": col(a) > col(b) for a, b in (*PAIRS, ("u", "v"))},
    **{f"{a} >= {b}": col(a) >= col(b) for a, b in (*PAIRS, ("u", "v"))},
    "divided by 0": col("i") / 0,
    "and": col("b") & col("c"),
    "or": col("b") | col("c"),
    "not": ~col("b"),
    "neg": -col("i"),
    "abs": col("i").abs() + col("x").abs(),
    "sqrt": col("y").sqrt(),
    "clip": col("i").clip(0, 5),
    "fill_null": col("i").fill_null(-1),
    "fill_nan": NAN.fill_nan(None),
    "is_nan": NAN.is_nan(),
    "is_finite": (col("y") / 0).is_finite(),
    "is_null": col("u").is_null(),
    "is_in": col("i").is_in([1, None, 7]),
    "is_in text": col("u").is_in(["ß", ""]),
    "is_between": col("i").is_between(0, 5),
    "when": when(col("i") > 0).then(col("j")).otherwise(lit(5)),
    "when without otherwise": when(col("b")).then(lit("a")),
    "coalesce": coalesce(col("i"), col("j"), lit(0)),
    "concat_str": concat_str(col("u"), col("v"), separator="-"),
    "concat_str without nulls": concat_str(col("u"), col("v"), separator="-", ignore_nulls=True),
    **{f"all {nulls}": all_horizontal(col("b"), col("c"), ignore_nulls=nulls) for nulls in (True, False)},
    **{f"any {nulls}": any_horizontal(col("b"), col("c"), ignore_nulls=nulls) for nulls in (True, False)},
    "len_chars": col("u").str.len_chars(),
    "slice": col("u").str.slice(1, 2),
    "slice from behind": col("u").str.slice(-2),
    "head": col("u").str.head(2),
    "tail": col("u").str.tail(2),
    "starts_with": col("u").str.starts_with("a"),
    "ends_with": col("u").str.ends_with("c"),
    "contains": col("u").str.contains("a"),
    "contains literally": col("u").str.contains(".", literal=True),
    "replace_all": col("u").str.replace_all("z", "q"),
    "replace_all literally": col("u").str.replace_all(" ", "$1", literal=True),
    "split": col("u").str.split(" "),
    "strip_chars": col("u").str.strip_chars(" z"),
    **{name: getattr(col("t").dt, name)() for name in ("year", "month", "day", "hour", "minute", "second")},
    **{name: getattr(col("t").dt, name)() for name in ("ordinal_day", "date")},
    **{f"{name} of a date": getattr(col("d").dt, name)() for name in ("year", "month", "day", "ordinal_day")},
    **{f"truncate {every}": col("t").dt.truncate(every) for every in ("1s", "1m", "1h", "1d", "1mo", "1y")},
    "list.len": col("l").list.len(),
    "list.contains": col("l").list.contains(1),
    "struct.field": col("st").struct.field("a"),
    **{f"cast to {to}": col("s").cast(to) for to in (nw.Int64, nw.Int16, nw.Float64, nw.Float32, nw.String)},
    "cast of floats": col("y").cast(nw.Float32).cast(nw.Float64),
    "cast to a date": col("t").cast(nw.Date),
    "lit": lit(1.5),
    "lit of no value": lit(None, nw.Int64),
    "a date compared": col("d") > date(2000, 1, 1),
    "a time compared": col("t") > datetime(2000, 1, 1, tzinfo=UTC),
}


def names_in(expression: Any) -> set[str]:
    return {
        name for node in expression._nodes for name in (node.name, *(n for p in parts_of(node) for n in names_in(p)))
    }


def test_each_function_is_looked_at() -> None:
    assert {name for expression in EXPRESSIONS.values() for name in names_in(expression)} == EQUAL


def test_the_same_results(spark: SparkSession) -> None:
    refused = {name: found for name, one in EXPRESSIONS.items() if (found := list(differences(one, ROWS.schema)))}
    assert refused == {}
    frame = nw.from_native(spark.createDataFrame(cast(ROWS, ROWS.schema)))
    numbered = {f"e{place}": one for place, one in enumerate(EXPRESSIONS.values())}
    by_spark = frame.select(**numbered).to_native().toArrow()
    for place, (name, expression) in enumerate(EXPRESSIONS.items()):
        mine = expressions.evaluated(ROWS, expression)
        found = by_spark[f"e{place}"].cast(mine.type)
        assert str(found.to_pylist()) == str(mine.to_pylist()), name  # NaN is no other NaN
