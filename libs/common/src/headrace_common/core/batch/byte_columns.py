"""One column of byte strings, from lists or Arrow arrays: lengths, validity and bytes as a batch holds them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.arrow import has_arrow
from headrace_common.core.batch.columns import (
    FIXED_WIDTH,
    HAS_VALIDITY,
    SMALL,
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
_LARGE: Final = 4096
"""From this many records on a list is not handed to pyarrow, unless it has nulls."""


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
    if count < SMALL:
        return _small_column(column_id, given, count, absent_if_null)
    if width := _one_width(given, count):
        return Column(column_id, FIXED_WIDTH, given, width * count)  # type: ignore[arg-type]  # no None is among them
    if count >= _LARGE:
        try:
            return _large_column(column_id, given, count)
        except TypeError:  # there is a None
            pass
    if not has_arrow():
        return _column_of_list(column_id, given, count, absent_if_null)
    import pyarrow as pa

    return arrow_column(column_id, pa.array(given, pa.binary()), count, absent_if_null)


def _column_of_list(column_id: int, given: Sequence[bytes | None], count: int, absent_if_null: bool) -> Column | None:
    """A column with lengths of their own, and perhaps nulls, where there is no pyarrow."""
    import numpy as np

    present = [value for value in given if value is not None]
    if len(present) == count:
        return _large_column(column_id, given, count)
    if absent_if_null and not present:
        return None
    column = _large_column(column_id, [b"" if value is None else value for value in given], count)
    there = np.fromiter((value is not None for value in given), np.bool_, count)
    validity = _pad(bytes_of(np.packbits(there, bitorder="little")))
    return Column(column_id, HAS_VALIDITY, [*validity, *column.pieces], column.length + sum(map(len, validity)))


def _large_column(column_id: int, given: Sequence[bytes | None], count: int) -> Column:
    """Without a None, and without a copy of its own: the fresh pages of one cost more than pyarrow's speed saves."""
    import numpy as np

    lengths = np.fromiter(map(len, given), np.int32, count)  # type: ignore[arg-type]  # None fails, and tells
    ends = np.empty(count + 2 & ~1, np.int64)
    ends[0] = ends[-1] = 0
    np.cumsum(lengths, out=ends[1 : count + 1])
    size = int(ends[count])
    if size > INT32_MAX:
        raise RecordTooLarge(f"{size} bytes are more than one column can have; send fewer records at a time")
    pieces: list[Any] = [bytes_of(ends.astype("<i4")), *given]
    return Column(column_id, 0, pieces, 4 * len(ends) + size)


def _one_width(given: Sequence[bytes | None], count: int) -> int:
    """The length that all have, else 0. Three are looked at first, because they mostly settle it."""
    try:
        width = len(given[0])  # type: ignore[arg-type]  # None fails, and tells
        if len(given[-1]) != width or len(given[count >> 1]) != width:  # type: ignore[arg-type]
            return 0
        return width if list(map(len, given)).count(width) == count else 0  # type: ignore[arg-type]
    except TypeError:
        return 0


def _small_column(column_id: int, given: Sequence[bytes | None], count: int, absent_if_null: bool) -> Column | None:
    pieces: list[Piece] = []
    flags = 0
    present = given
    if None in given:
        present = [value for value in given if value is not None]
        if absent_if_null and not present:
            return None
        flags = HAS_VALIDITY
        bits = sum(1 << at for at, value in enumerate(given) if value is not None)
        pieces.append(bits.to_bytes(8, "little"))
    blob = b"".join(present)  # type: ignore[arg-type]  # no None is left
    width, rest = divmod(len(blob), count)
    lengths = [0 if value is None else len(value) for value in given]
    if width and not rest and lengths.count(width) == count:
        return Column(column_id, FIXED_WIDTH, [*pieces, blob], 8 * len(pieces) + len(blob))
    ends = struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))
    pieces += [*_pad(ends), blob]
    return Column(column_id, flags, pieces, sum(map(len, pieces)))


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
