"""What a connection gives, and how its failures are told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace_connect.settings import Problem, invalid

TableName = tuple[str, ...]
"""Schema, if one is said, and name."""


class RowFault(Exception):
    """The database refuses a row: a constraint, a value that is too large, a trigger that raises."""


class TableFault(Exception):
    """The database refuses the statement, whatever the rows: no table, no rights, no unique key. Says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """Of a statement."""

    count: int
    """Rows that it changed."""
    rows: Sequence[tuple[Any, ...]] = ()


def show_table(table: TableName) -> str:
    """As messages and positions have it."""
    return ".".join(table)


@contextmanager
def needs_driver(database: str, extra: str) -> Iterator[None]:
    """
    Around an import of what needs it.

    Raises:
        InvalidConfig: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        message = f"{database} needs its driver: pip install 'headrace-connect[{extra}]' ({error})"
        raise invalid([Problem("connection.url", message)]) from error
