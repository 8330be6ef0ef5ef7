"""Finds the docstrings of dataclass fields: the string right below each field. Called for ``--help`` only."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def field_docs(cls: type) -> dict[str, str]:
    """Field name to docstring, base classes included; empty where the source is not at hand."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError):
            continue
        body = tree.body[0]
        if isinstance(body, ast.ClassDef):
            found.update(_find_docs(body.body))
    return found


def _find_docs(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return found
