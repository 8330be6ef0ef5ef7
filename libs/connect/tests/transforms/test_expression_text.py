"""Expressions as text: what is taken, and that nothing else is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace_connect.core.options import BadOption
from headrace_connect.transforms.expression_text import parse_columns, parse_expression
from headrace_streams.core.expressions import evaluated

TABLE = pa.table(
    {
        "a": [1, 2, None],
        "b": [1.5, -2.5, 0.0],
        "s": ["x", "yY", None],
        "t": pa.array([0, 86_400_000, None], pa.timestamp("ms", "UTC")),
        "l": [[1, 2], [], None],
        "n": [{"x": 1}, {"x": 2}, None],
        "odd name": [1, 2, 3],
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('col("a")', [1, 2, None]),
        ('col("odd name") + 1', [2, 3, 4]),
        ("1 + col('a') * 2", [3, 5, None]),
        ('-col("a")', [-1, -2, None]),
        ('col("a") > -1', [True, True, None]),
        ('~(col("a") == 1)', [False, True, None]),
        ('(col("a") > 1) & (col("b") < 0) | col("s").is_null()', [False, True, True]),
        ('col("a").is_in([1, 3])', [True, False, None]),
        ('col("a").fill_null(0).cast(Float64) / 2', [0.5, 1.0, 0.0]),
        ('col("s").str.to_uppercase().str.slice(0, 1)', ["X", "Y", None]),
        ('col("s").str.contains("^y")', [False, True, None]),
        ('when(col("a") > 1).then(lit("big")).otherwise(lit("small"))', ["small", "big", "small"]),
        ('coalesce(col("a"), lit(7))', [1, 2, 7]),
        ('concat_str(col("s"), lit("!"))', ["x!", "yY!", None]),
        ('max_horizontal(col("a"), col("b"))', [1.5, 2.0, 0.0]),
        ('col("t").dt.day()', [1, 2, None]),
        ('col("l").list.len()', [2, 0, None]),
        ('col("n").struct.field("x")', [1, 2, None]),
        ('col("a").is_between(1, 1, closed="both")', [True, False, None]),
        ('  col("a")\n  ', [1, 2, None]),
    ],
)
def test_expressions_of_one_row(text: str, expected: list[Any]) -> None:
    assert evaluated(TABLE, parse_expression("filter", text)).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no expression"),
        ("col(", "is no expression"),
        ("a = 1", "is no expression"),
        ("col('a'); 1", "is no expression"),
        ("1", "it has no column"),
        ("col", "col is a function: call it"),
        ("a > 1", "a is not known; there are"),
        ("open('x')", "open() is not known"),
        ("__import__('os')", "__import__() is not known"),
        ("col.__class__", "'col.__class__' is not taken"),
        ("col('a').__class__", "is not taken"),
        ("col('a').__class__()", ".__class__() is not known"),
        ("col('a')._nodes", "is not taken"),
        ("col('a').pipe(lit)", ".pipe() is not known"),
        ("col('a').map_batches(1)", ".map_batches() is not known"),
        ("col('a').str.__init__()", ".str.__init__() is not known"),
        ("col('a').name.suffix('x')", ".suffix() is not known"),
        ("col('a').mean()", ".mean() is not known"),
        ("col('a').shift(1)", ".shift() is not known"),
        ("col('a').over('b')", ".over() is not known"),
        ("col('a').fill_null(strategy='forward')", "needs other rows than its own"),
        ("col('a', 'b').fill_null(1) + max_horizontal(col('a').len())", ".len() is not known"),
        ("[x for x in (1, 2)]", "is not taken"),
        ("(lambda: 1)()", "cannot be called"),
        ("col('a')['b']", "is not taken"),
        ("f'{1}'", "is not taken"),
        ("{'a': 1}", "is not taken"),
        ("(x := col('a'))", "is not taken"),
        ("col('a') if col('b') else 1", "is not taken"),
        ("col('a') and col('b')", "write & for and"),
        ("not col('a')", "is not taken"),
        ("1 < col('a') < 3", "for a < b < c"),
        ("col('a') in [1]", "is_in for in"),
        ("9 ** 9 > col('a')", "write the result of what has no column in it"),
        ("col('a') << 3", "is not taken"),
        ("col(*['a'])", "* is not taken"),
        ("col(**{'a': 1})", "* is not taken"),
        ("col('a').cast(str)", "str is not known"),
        ("'abc'.upper()", ".upper() is not known"),
        ("(1).abs()", ".abs() is of expressions"),
        ("when(col('a')).then(1).then", "is not taken"),
        ("col(1)", "col() takes names in quotes"),
        ("(" * 300 + "col('a')" + ")" * 300, "is no expression"),
        ("~" * 200 + "col('a')", "nested more than 100 deep"),
        ("col('a') + " * 5000 + "1", "is longer than 10000 characters"),
    ],
)
def test_everything_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_expression("filter", text)
    assert why in str(caught.value)
    assert caught.value.name == "filter"


def test_columns_are_written_as_keywords() -> None:
    made = parse_columns("with_columns", 'x=col("a") + 1, y=lit("z")')
    assert {name: evaluated(TABLE, one).to_pylist() for name, one in made.items()} == {
        "x": [2, 3, None],
        "y": ["z", "z", "z"],
    }
    for text in ("", 'col("a")', '**{"x": col("a")}', "x=1", 'x=col("a"), x=col("b")', "x=open('f')", ") + f(x=1"):
        with pytest.raises(BadOption):
            parse_columns("with_columns", text)
