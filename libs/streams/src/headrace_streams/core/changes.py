"""
Changes of a table: batches with two more system columns. ``_change`` (int8) says what became of each row, ``_was``
(int64) the event time in ms of one that is in the table no more; its ``_time`` is that of the change.

An update is two rows: the one that is replaced, and directly behind it, in the same batch, the one in its place. So
what is computed from a row is computed from both, and whoever sums up can take the earlier one out again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.rows import Numbers, numbers, replace, take

CHANGE: Final = "_change"
WAS: Final = "_was"
ADDED: Final = 0
"""The row is in the table now."""
REMOVED: Final = 1
"""The row is in the table no more, and none of its key."""
REPLACED: Final = 2
"""The row is in the table no more; the next one is in its place."""


def changes_of(rows: pa.Table) -> Numbers:
    """The column ``_change``; rows without it were added."""
    if CHANGE not in rows.column_names:
        return np.zeros(rows.num_rows, np.int8)
    return numbers(rows[CHANGE])


def with_changes(rows: pa.Table, changes: Numbers) -> pa.Table:
    """With that column ``_change``."""
    return replace(rows, CHANGE, pa.array(changes, pa.int8()))


def kept(rows: pa.Table, stays: Numbers) -> pa.Table:
    """The rows where ``stays``; one whose successor does not is removed."""
    changes = changes_of(rows)
    return with_changes(rows.filter(pa.array(stays)), parted(changes, ~np.append(stays[1:], False))[stays])


def parted(changes: Numbers, apart: Numbers) -> Numbers:
    """The column ``_change`` where the row behind those in ``apart`` is not their successor any more."""
    return np.where((changes == REPLACED) & apart, REMOVED, changes).astype(np.int8)


def halves(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Two parts of a batch of two rows or more; an update is in one of them, unless it is all there is."""
    half = rows.num_rows // 2
    if CHANGE in rows.column_names:
        changes = changes_of(rows)
        if changes[half - 1] == REPLACED and rows.num_rows > 2:
            half += 1
        elif changes[half - 1] == REPLACED:
            rows = with_changes(rows, parted(changes, np.ones(len(changes), bool)))
    return rows.slice(0, half), rows.slice(half)


def take_or_null(rows: Any, places: Numbers | None) -> Any:
    """The rows of a table, or the values of a column, at these places, or all; null where a place is below 0."""
    if places is None:
        return rows
    if not (places < 0).any():
        return take(rows, places)
    chosen: Any = pa.array(places, mask=places < 0)
    return rows.take(chosen)
