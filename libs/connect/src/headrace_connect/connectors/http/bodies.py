"""Bodies of web hooks as records. What cannot be written is refused here, so that no request fails a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
import pyarrow as pa

from headrace_common.http.json_gate import NotJson, parse_strict
from headrace_connect.converters.json_plain import check_doubles
from headrace_connect.core.halving import Unfit

Format = Literal["json", "text", "bytes"]
Batch = Literal["none", "array", "lines"]
RECORDS_MAX: Final = 10_000
"""Of one request."""
CELLS_MAX: Final = 300_000
"""Of the columns of one request: an object that lacks a field which others have takes room for it too."""
_CAUGHT: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


class BadBody(ValueError):
    """There is something in it that is no record; says what."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Records of one request; at least one."""

    values: pa.Array[Any] | Sequence[str] | Sequence[bytes]
    kind: Any = None
    """The Arrow type of JSON; None: text or bytes. Requests of one type can be put together and stay as they are."""

    def to_list(self) -> list[Any]:
        """As a chunk has them."""
        return self.values.to_pylist() if isinstance(self.values, pa.Array) else list(self.values)


def parse(body: bytes, format_: Format, batch: Batch, record_bytes_max: int) -> Body:
    """
    Args:
        record_bytes_max: of each record as it is written as JSON, which may be more than it was.

    Raises:
        BadBody: nothing of it is taken.
    """
    parts = [line for line in body.splitlines() if line.strip()] if batch == "lines" else [body]
    if not parts or not body:
        raise BadBody("the body is empty")
    _check_count(parts)
    if format_ == "bytes":
        return Body(parts)
    if format_ == "text":
        try:
            return Body([part.decode() for part in parts])
        except UnicodeDecodeError as error:
            raise BadBody(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        values = [parse_strict(part) for part in parts]
    except NotJson as error:
        raise BadBody(str(error)) from None
    if batch == "array" and isinstance(values[0], list):
        values = values[0]
        if not values:
            raise BadBody("the array has no records")
        _check_count(values)
    return _columns(values, record_bytes_max)


def _columns(values: list[Any], record_bytes_max: int) -> Body:
    if None in values:
        raise BadBody("a record is null")
    if _cells(values, len(values)) > CELLS_MAX:
        raise BadBody("its objects have too many fields that others do not have; send them apart")
    try:
        made = pa.array(values)
        check_doubles(values, made.type, "")
    except Unfit as error:
        raise BadBody(f"the records have no one type: {error}") from None
    except OverflowError:
        raise BadBody("the records have a whole number beyond 64 bits") from None
    except _CAUGHT as error:
        raise BadBody(f"the records cannot be columns: {error}") from None
    size = max(len(orjson.dumps(value)) for value in made.to_pylist())
    if size > record_bytes_max:
        raise BadBody(f"a record has {size} bytes as it is written; {record_bytes_max} is the most")
    return Body(made, made.type)


def _cells(values: Sequence[Any], rows: int) -> int:
    """How many values the columns have that these become, with nulls for fields that are not there."""
    cells = rows
    members: dict[str, list[Any]] = {}
    items: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            for name, inner in value.items():
                members.setdefault(name, []).append(inner)
        elif isinstance(value, list):
            items += value
    cells += sum(_cells(inner, rows) for inner in members.values())
    return cells + (_cells(items, len(items)) if items else 0)


def _check_count(values: Sequence[Any]) -> None:
    if len(values) > RECORDS_MAX:
        raise BadBody(f"there are {len(values)} records in one request; {RECORDS_MAX} is the most")
