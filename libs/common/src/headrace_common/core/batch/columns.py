"""What goes into one batch, and the names of the columns on the wire. Read by the writers of both formats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import InvalidRecord

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    BytesColumn = Sequence[bytes | None] | pa.Array[Any]
    IntColumn = Sequence[int] | np.ndarray[Any, Any]

HeaderList = Sequence[tuple[str, bytes | None]]

DIRECTORY_ENTRY: Final = struct.Struct("<BBHI")
"""Column id, flags, reserved, bytes of the column."""

COLUMNS_MAX: Final = 64
"""A directory with more entries than this is refused."""

# Column ids. Numbers are never used again for another meaning.
TIMESTAMP: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADERS: Final = 4
HEADER_KEY: Final = 5
HEADER_VALUE: Final = 6
OFFSET_DELTA: Final = 7

# Flags of a directory entry.
HAS_VALIDITY: Final = 0x01
FIXED_WIDTH: Final = 0x02
LAST_COLUMN: Final = 0x80

SMALL: Final = 16
"""Below this many records plain Python reads faster than numpy and pyarrow, and does not need them loaded."""


class RecordColumns:
    """
    The records of one batch, column by column: lists for the per-record path, Arrow arrays for bulk.

    ``timestamps_ms`` is one int when all are equal, ``StampRuns`` where many are. ``keys`` and ``headers`` are None
    when no record has any; headers in Arrow are of ``arrow_schema.headers_type``, and no list of them is null.
    ``offset_deltas`` (strictly increasing, from 0) and ``last_offset_delta`` are for batches with holes.
    """

    __slots__ = ("headers", "keys", "last_offset_delta", "offset_deltas", "timestamps_ms", "values")

    def __init__(
        self,
        values: BytesColumn,
        keys: BytesColumn | None = None,
        timestamps_ms: int | IntColumn = 0,
        headers: Sequence[HeaderList] | pa.Array[Any] | None = None,
        offset_deltas: IntColumn | None = None,
        last_offset_delta: int | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.timestamps_ms = timestamps_ms
        self.headers = headers
        self.offset_deltas = offset_deltas
        self.last_offset_delta = last_offset_delta

    def check_lengths(self) -> int:
        """
        The number of records.

        Raises:
            InvalidRecord: there is none, or a column has another length than the values.
        """
        count = len(self.values)
        if not count:
            raise InvalidRecord("a batch needs at least one record")
        for name in ("keys", "headers", "offset_deltas"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise InvalidRecord(f"{len(column)} {name} for {count} values; give one for each")
        if not isinstance(self.timestamps_ms, int) and len(self.timestamps_ms) != count:
            raise InvalidRecord(f"{len(self.timestamps_ms)} timestamps_ms for {count} values; give one for each")
        return count


def align(size: int) -> int:
    """``size`` rounded up to 8 bytes."""
    return (size + 7) & ~7
