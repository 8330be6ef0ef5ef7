"""Columns, formats, topics and functions as programs name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace_streams.core.errors import NotAllowed


def check_names(names: Sequence[str], what: str) -> None:
    """
    Raises:
        NotAllowed: these cannot be the columns of a stream.
    """
    for place, name in enumerate(names):
        if name.startswith("_"):
            raise NotAllowed(f"{what}: the name {name!r} is reserved; columns must not begin with an underscore")
        if name in names[:place]:
            raise NotAllowed(f"{what}: the name {name!r} would be there twice; rename() or select() one away first")


def is_count(given: object) -> bool:
    """Whether it is a whole number from 1 on."""
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1


def check_format(given: object, what: str) -> None:
    """
    Raises:
        NotAllowed: this cannot read and write values.
    """
    if not (callable(getattr(given, "decode", None)) and callable(getattr(given, "encode", None))):
        raise NotAllowed(f"{what} is {given!r:.100}, which is no format; write for example json('user string')")


def columns_text(fields: Iterable[pa.Field[Any]]) -> str:
    """Columns and types, as the form of state has them."""
    return ", ".join(f"{field.name} {field.type}" for field in fields)


def check_function(function: object, what: str) -> None:
    """
    Raises:
        NotAllowed: it cannot be called, or is async: a coroutine that nobody awaits does nothing, without an error.
    """
    if not callable(function):
        raise NotAllowed(f"{what} needs a function, not {function!r:.100}")
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise NotAllowed(f"{what}: {function!r:.100} is async, and nothing awaits it here; write a plain function")
