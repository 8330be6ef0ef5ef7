"""What is to be written of records, fitted to their table. The sink writes it; a verifier looks whether it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from headrace_connect.connectors.sql.session import RowFault, TableName
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.envelopes import Part
from headrace_connect.connectors.sql_sink.plan import plan_rows
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.connectors.sql_sink.tables import Tables

Add = Callable[[Write], None]
Savepoint = Callable[[], AbstractContextManager[None]]
_REASON_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What is to be done for some records."""

    start: int
    """Index of the first."""
    wrong: dict[int, str]
    """By index behind ``start``: records that are refused; ``write`` has them too."""
    write: Write | None
    """None: there is nothing to write."""
    truncates: bool = False


def fit_rows(table: TableName, part: Part, tables: Tables, settings: SinkSettings) -> Fitted:
    """
    What is to be done for records that follow each other; tables are made and widened, as the settings say.

    Raises:
        TableFault: there is no such table, or it lacks a column of the key.
        NoSuchKey: see there.
    """
    plan = plan_rows(part.rows, settings)
    wrong = plan.wrong | part.wrong
    if len(wrong) == len(part.rows):
        return Fitted(part.start, wrong, None)
    columns, misfits = tables.fit(table, plan)
    wrong = misfits | wrong
    if not columns:
        return Fitted(part.start, wrong, None)
    absent = {name: mask for name, mask in plan.absent.items() if name in columns}
    return Fitted(part.start, wrong, Write(table, columns, plan.keys, plan.deletes, settings.insert_mode, absent))


def write_good(
    write: Write, wrong: Mapping[int, str], add: Add, savepoint: Savepoint, batch_size: int
) -> dict[int, str]:
    """Write the rows that are not ``wrong``, so many at once; those that the database refuses, and why."""
    good = [row for row in range(len(write)) if row not in wrong]
    refused: dict[int, str] = {}
    for start in range(0, len(good), batch_size):
        some = good[start : start + batch_size]
        part = write.take(some[0], len(some)) if some[-1] - some[0] < len(some) else write.choose(some)
        refused |= {some[row]: reason for row, reason in _write(part, add, savepoint).items()}
    return refused


def _write(write: Write, add: Add, savepoint: Savepoint) -> dict[int, str]:
    """Halves of it are tried where it is refused."""
    try:
        with savepoint():
            add(write)
    except RowFault as error:
        if len(write) == 1:
            return {0: str(error)[:_REASON_CHARS_MAX]}
    else:
        return {}
    half = len(write) // 2
    left = _write(write.take(0, half), add, savepoint)
    right = _write(write.take(half, len(write) - half), add, savepoint)
    return left | {half + row: reason for row, reason in right.items()}
