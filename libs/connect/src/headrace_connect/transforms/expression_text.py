"""
Expressions of columns as text: what Python's syntax says is built of Narwhals' calls, and nothing is ever executed.

Taken are ``col("amount") * 2 > 10`` and what is in the lists here; every other name, attribute and form is refused. So
is an expression that looks at other rows than its own (``headrace_streams.core.expressions.check``).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import narwhals
import narwhals.stable.v2 as nw

from headrace_connect.core.options import BadOption, near
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.expressions import Expr, check

_TEXT_CHARS_MAX: Final = 10_000
_DEPTH_MAX: Final = 100
_FUNCTIONS: Final[Mapping[str, Any]] = {
    "col": nw.col,
    "lit": nw.lit,
    "when": nw.when,
    "coalesce": nw.coalesce,
    "concat_str": nw.concat_str,
    "all_horizontal": nw.all_horizontal,
    "any_horizontal": nw.any_horizontal,
    "max_horizontal": nw.max_horizontal,
    "min_horizontal": nw.min_horizontal,
    "sum_horizontal": nw.sum_horizontal,
}
_TYPES: Final[Mapping[str, Any]] = {
    name: getattr(nw, name)
    for name in (
        *("Boolean", "Int8", "Int16", "Int32", "Int64", "Float32", "Float64", "String", "Date", "Datetime", "Binary"),
    )
}
_NAMESPACES: Final[Mapping[str, frozenset[str]]] = {
    "str": frozenset(
        [
            "contains",
            "ends_with",
            "head",
            "len_chars",
            "replace",
            "replace_all",
            "slice",
            "split",
            "starts_with",
            "strip_chars",
            "tail",
            "to_date",
            "to_datetime",
            "to_lowercase",
            "to_uppercase",
            "zfill",
        ]
    ),
    "dt": frozenset(
        [
            "date",
            "day",
            "hour",
            "microsecond",
            "millisecond",
            "minute",
            "month",
            "nanosecond",
            "ordinal_day",
            "second",
            "timestamp",
            "to_string",
            "truncate",
            "weekday",
            "year",
        ]
    ),
    "list": frozenset(["contains", "get", "len"]),
    "struct": frozenset(["field"]),
}
_METHODS: Final = frozenset(
    [
        "abs",
        "alias",
        "cast",
        "ceil",
        "clip",
        "exp",
        "fill_nan",
        "fill_null",
        "floor",
        "is_between",
        "is_close",
        "is_finite",
        "is_in",
        "is_nan",
        "is_null",
        "log",
        "round",
        "sqrt",
        "then",
        "otherwise",
    ]
)
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARED: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def parse_expression(option: str, text: str) -> Expr:
    """
    One expression.

    Raises:
        BadOption: of ``option``; it is none, or not of one row.
    """
    return _built(option, _tree(option, text, text), text)


def parse_columns(option: str, text: str) -> dict[str, Expr]:
    """
    Columns, as ``with_columns`` takes them: ``total=col("price") * col("count"), name=col("name").str.to_uppercase()``.

    Raises:
        BadOption: as ``parse_expression``.
    """

    tree = _tree(option, f"_({text})", text)
    given = tree.keywords if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args else []
    names = [one.arg for one in given]
    if not names or None in names or len(set(names)) < len(names):
        raise BadOption(option, 'columns are written like total=col("price") * 2, with commas between, each name once')
    return {str(one.arg): _built(option, one.value, text) for one in given}


class _Refused(Exception):
    """The text has something that is not taken; says what."""


def _tree(option: str, text: str, shown: str) -> ast.expr:
    if len(text) > _TEXT_CHARS_MAX:
        raise BadOption(option, f"is longer than {_TEXT_CHARS_MAX} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        raise BadOption(option, f"{shown[:80]!r} is no expression: {wrong}") from None


def _built(option: str, tree: ast.expr, shown: str) -> Expr:
    try:
        made = _build(tree, 0)
        if not isinstance(made, nw.Expr):
            raise _Refused('it has no column; write col("name")')
        check(made, option)
    except NotAllowed as why:
        raise BadOption(option, str(why).removeprefix(f"{option}: ")) from None
    except (_Refused, TypeError, ValueError, ArithmeticError, AttributeError, nw.exceptions.NarwhalsError) as why:
        raise BadOption(option, f"{shown[:80]!r}: {why}") from None
    return made


def _build(node: ast.expr, depth: int) -> Any:
    """
    What a node stands for.

    Raises:
        _Refused: it is not taken.
    """
    if depth > _DEPTH_MAX:
        raise _Refused(f"it is nested more than {_DEPTH_MAX} deep")
    depth += 1
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() | bytes() as value):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_build(one, depth) for one in elements]
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_expression(_build(operand, depth), "~")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _build(operand, depth)
            return -value if isinstance(value, int | float) else _expression(value, "-") * -1
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combined(_BINARY[type(op)], _build(left, depth), _build(right, depth))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return _combined(_COMPARED[type(op)], _build(left, depth), _build(right, depth))
        case ast.Call(func=function, args=args, keywords=keywords):
            if any(isinstance(one, ast.Starred) for one in args) or any(one.arg is None for one in keywords):
                raise _Refused("* is not taken")
            call = _callable(function, depth)
            values = [_build(one, depth) for one in args]
            if call is nw.col and not all(isinstance(one, str) for one in values):
                raise _Refused("col() takes names in quotes")
            return call(*values, **{str(one.arg): _build(one.value, depth) for one in keywords})
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Name(id=name) if name in _FUNCTIONS:
            raise _Refused(f"{name} is a function: call it, as in {name}(...)")
        case ast.Name(id=name):
            raise _Refused(f"{name} is not known{near(name, _TYPES)}; write col({name!r}) for a column")
        case ast.Compare():
            raise _Refused("write (a < b) & (b < c) for a < b < c, and is_in for in")
        case ast.BoolOp():
            raise _Refused("write & for and, | for or, with each side in (parentheses)")
    raise _Refused(f"{ast.unparse(node)[:40]!r} is not taken in an expression")


def _callable(function: ast.expr, depth: int) -> Any:
    match function:
        case ast.Name(id=name) if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        case ast.Name(id=name):
            raise _Refused(f"{name}() is not known{near(name, _FUNCTIONS)}")
        case ast.Attribute(value=ast.Attribute(value=inner, attr=space), attr=name) if space in _NAMESPACES:
            if name not in _NAMESPACES[space]:
                raise _Refused(f".{space}.{name}() is not known{near(name, _NAMESPACES[space])}")
            return getattr(getattr(_expression(_build(inner, depth), name), space), name)
        case ast.Attribute(value=inner, attr=name) if name in _METHODS:
            target = _build(inner, depth)
            if not isinstance(target, narwhals.Expr | nw.When):
                raise _Refused(f".{name}() is of expressions")
            return getattr(target, name)
        case ast.Attribute(attr=name):
            raise _Refused(f".{name}() is not known{near(name, _METHODS)}")
    raise _Refused(f"{ast.unparse(function)[:40]!r} cannot be called")


def _expression(value: Any, what: str) -> Any:
    if not isinstance(value, narwhals.Expr):
        raise _Refused(f'{what} is of expressions, like col("name")')
    return value


def _combined(combine: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Constants among themselves are not computed: ``9 ** 9 ** 9`` takes for ever."""
    if not isinstance(left, narwhals.Expr) and not isinstance(right, narwhals.Expr):
        raise _Refused("write the result of what has no column in it")
    return combine(left, right)
