"""One column of byte strings, from lists or Arrow arrays: lengths, validity and bytes as a batch holds them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, cast

from headrace_common.core.batch.columns import (
    FIXED_WIDTH,
    HAS_VALIDITY,
    align,
)
from headrace_common.core.batch.header import (
    INT32_MAX,
)
from headrace_common.core.errors import RecordTooLarge

if TYPE_CHECKING:
    from headrace_common.core.batch.columns import BytesColumn

Piece = bytes | memoryview
PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""By length modulo 8: what fills up to the next multiple of 8."""


class Column:
    """One column, ready to be written: its id, flags, pieces, and their bytes in all."""

    __slots__ = ("flags", "id", "length", "pieces")

    def __init__(self, column_id: int, flags: int, pieces: Sequence[Piece], length: int) -> None:
        if length > INT32_MAX:
            raise RecordTooLarge(f"{length} bytes are more than one column can have; send fewer records at a time")
        self.id = column_id
        self.flags = flags
        self.pieces = pieces
        self.length = length


def bytes_column(column_id: int, given: BytesColumn, count: int, *, absent_if_null: bool = False) -> Column | None:
    """A column of byte strings; None if all are null and such a column may be absent."""
    if not isinstance(given, list | tuple):
        if hasattr(given, "type"):
            return arrow_column(column_id, given, count, absent_if_null)
        given = list(given)
    whole = cast("Sequence[bytes]", given)
    try:
        return _column_of_list(column_id, whole, list(map(len, whole)))
    except TypeError:  # there is a None, which has no length
        return _column_with_nulls(column_id, given, absent_if_null)


def _column_of_list(column_id: int, given: Sequence[bytes], lengths: list[int]) -> Column:
    """Without a None, and without a copy of its own: the batch is joined from the byte strings themselves."""
    count, width = len(lengths), lengths[0]
    alike = width and lengths[-1] == width == lengths[count >> 1]  # three are looked at first: they mostly settle it
    if alike and lengths.count(width) == count:
        return Column(column_id, FIXED_WIDTH, given, width * count)
    size = sum(lengths)
    if size > INT32_MAX:
        raise RecordTooLarge(f"{size} bytes are more than one column can have; send fewer records at a time")
    ends = _pad(struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0)))
    return Column(column_id, 0, [*ends, *given], align(4 * (count + 1)) + size)


def _column_with_nulls(column_id: int, given: Sequence[bytes | None], absent_if_null: bool) -> Column | None:
    present = ["0" if value is None else "1" for value in reversed(given)]
    bits = int("".join(present), 2)
    if absent_if_null and not bits:
        return None
    filled = [b"" if value is None else value for value in given]
    column = _column_of_list(column_id, filled, list(map(len, filled)))
    validity = _pad(bits.to_bytes((len(given) + 7) // 8, "little"))
    return Column(column_id, HAS_VALIDITY, [*validity, *column.pieces], column.length + sum(map(len, validity)))


def arrow_column(column_id: int, given: Any, count: int, absent_if_null: bool) -> Column | None:
    """From an Arrow array of any binary or text type, sliced or chunked; its bytes are copied once, into the batch."""
    import numpy as np

    if given.null_count == count and absent_if_null:
        return None
    array = as_binary(given)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(memoryview(offsets), "<i4", count + 1, array.offset * 4)
    first, last = int(ends[0]), int(ends[-1])
    blob: Piece = memoryview(data)[first:last] if last > first else b""
    flags = 0
    pieces: list[Piece] = []
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        flags, pieces = HAS_VALIDITY, _pad(bytes_of(np.packbits(valid, bitorder="little")))
    width = int(ends[1]) - first
    if width and width * count == last - first and bool((np.diff(ends) == width).all()):
        flags |= FIXED_WIDTH
    else:
        pieces += _pad(bytes_of(ends - np.int32(first) if first else ends))
    pieces.append(blob)
    return Column(column_id, flags, pieces, sum(map(len, pieces)))


def as_binary(given: Any) -> Any:
    """``given`` as one array of 32-bit binary; without a copy where it is that or text already."""
    import pyarrow as pa

    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.ChunkedArray):
        raise RecordTooLarge("the chunks are more than one batch can have; send fewer records at a time")
    kind = given.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return given
    if pa.types.is_dictionary(kind):
        given = given.dictionary_decode()
    try:
        return given.cast(pa.binary())
    except pa.ArrowInvalid as failed:
        raise RecordTooLarge(f"the array does not fit into one batch: {failed}") from None
    except pa.ArrowNotImplementedError:
        raise TypeError(f"keys and values must be bytes or text, not {kind}; cast the column first") from None


def bytes_of(array: Any) -> memoryview:
    """The memory of a numpy array, not a copy."""
    return memoryview(array).cast("B")


def _pad(piece: Piece) -> list[Piece]:
    return [piece, PADDING[len(piece) & 7]] if len(piece) & 7 else [piece]
