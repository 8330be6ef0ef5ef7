"""
Reads the columns of a magic 3 body and trusts none of its lengths.

``decoded`` calls this. Everything that could make a later access fail, read elsewhere or allocate much is checked here,
once per batch: directory, bounds of every buffer, offsets that grow, header keys that are UTF-8.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.arrow import has_arrow
from headrace_common.core.batch.columns import (
    COLUMNS_MAX,
    DIRECTORY_ENTRY,
    FIXED_WIDTH,
    HAS_VALIDITY,
    LAST_COLUMN,
    SMALL,
    align,
)
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Body = bytes | memoryview
_KNOWN_FLAGS: Final = HAS_VALIDITY | FIXED_WIDTH | LAST_COLUMN


class Slot:
    """Where one column lies in the body."""

    __slots__ = ("at", "end", "flags")

    def __init__(self, flags: int, at: int, end: int) -> None:
        self.flags = flags
        self.at = at
        self.end = end


def read_directory(body: Body, start: int) -> dict[int, Slot]:
    """The columns of the body that begins at ``start`` and goes to the end of ``body``."""
    entries: list[tuple[int, int, int]] = []
    at, size, last = start, len(body), False
    while not last:
        if at + DIRECTORY_ENTRY.size > size or len(entries) == COLUMNS_MAX:
            raise CorruptBatch("the directory of columns does not end")
        column_id, flags, reserved, length = DIRECTORY_ENTRY.unpack_from(body, at)
        if reserved:
            raise UnsupportedVersion(f"column {column_id} was written by a newer version; upgrade first")
        entries.append((column_id, flags, length))
        at += DIRECTORY_ENTRY.size
        last = bool(flags & LAST_COLUMN)
    found: dict[int, Slot] = {}
    end = at
    for column_id, flags, length in entries:
        at = start + align(end - start)
        end = at + length
        if end > size or column_id in found:
            raise CorruptBatch(f"column {column_id} of {length} bytes goes past the end, or comes twice")
        found[column_id] = Slot(flags, at, end)
    if end != size:
        raise CorruptBatch(f"{size - end} bytes follow the last column")
    return found


def _check_flags(slot: Slot) -> None:
    if slot.flags & ~_KNOWN_FLAGS:
        raise UnsupportedVersion(f"column flags {slot.flags:#x} were set by a newer version; upgrade first")


class IntColumn:
    """A column of ``count`` little-endian integers."""

    __slots__ = ("at", "body", "code", "count")

    def __init__(self, body: Body, slot: Slot, count: int, code: str) -> None:
        _check_flags(slot)
        width = 8 if code == "q" else 4
        if slot.flags & (HAS_VALIDITY | FIXED_WIDTH) or slot.end - slot.at != width * count:
            raise CorruptBatch(f"a column of {slot.end - slot.at} bytes where {width * count} are needed")
        self.body = body
        self.at = slot.at
        self.count = count
        self.code = code

    def to_list(self, plus: int = 0) -> list[int]:
        """The numbers, and ``plus`` to each."""
        if self.count <= SMALL:  # one more than records, for the bounds of a small column
            few = struct.unpack_from(f"<{self.count}{self.code}", self.body, self.at)
            return [plus + number for number in few] if plus else list(few)
        numbers = self.to_numpy()
        if plus:
            import numpy as np

            numbers = numbers + np.int64(plus)
        listed: list[int] = numbers.tolist()
        return listed

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The numbers, in place."""
        import numpy as np

        return np.frombuffer(self.body, "<i8" if self.code == "q" else "<i4", self.count, self.at)

    def check_grows(self, *, first: int, last: int, by: int) -> None:
        """
        Raises:
            CorruptBatch: it does not lie in ``first..last``, or does not grow by at least ``by`` at each step.
        """
        if self.count <= SMALL:
            numbers = self.to_list()
            grows = all(after - before >= by for before, after in pairwise(numbers))
            low, high = numbers[0], numbers[-1]
        else:
            array = self.to_numpy()
            low, high = int(array[0]), int(array[-1])
            grows = bool((array[1:] > array[:-1]).all() if by else (array[1:] >= array[:-1]).all())
        if not grows or low < first or high > last:
            raise CorruptBatch(f"a column of offsets does not grow from {first} to {last}")


class BytesColumn:
    """A column of ``count`` byte strings, some of which may be null."""

    __slots__ = ("blob_at", "blob_end", "body", "count", "ends", "validity_at", "width")

    def __init__(self, body: Body, slot: Slot, count: int) -> None:
        _check_flags(slot)
        if not count:
            raise CorruptBatch("a column of nothing")
        at = slot.at
        self.body = body
        self.count = count
        self.validity_at = -1
        if slot.flags & HAS_VALIDITY:
            self.validity_at = at
            at += align((count + 7) // 8)
        self.ends: IntColumn | None = None
        self.width = 0
        if slot.flags & FIXED_WIDTH:
            self.width, rest = divmod(slot.end - at, count)
            if rest or self.width < 1:
                raise CorruptBatch(f"{slot.end - at} bytes are not {count} byte strings of one length")
        else:
            bounds = Slot(0, at, at + 4 * (count + 1))
            at += align(4 * (count + 1))
            if at > slot.end:
                raise CorruptBatch(f"a column of {slot.end - slot.at} bytes cannot hold {count} byte strings")
            self.ends = IntColumn(body, bounds, count + 1, "i")
            self._check_ends(slot.end - at)
        self.blob_at = at
        self.blob_end = slot.end

    def _check_ends(self, blob_size: int) -> None:
        assert self.ends is not None, "only of columns with lengths of their own"
        self.ends.check_grows(first=0, last=blob_size, by=0)
        first, last = struct.unpack_from("<i", self.body, self.ends.at)[0], self.ends.at + 4 * self.count
        if first or struct.unpack_from("<i", self.body, last)[0] != blob_size:
            raise CorruptBatch("a column's offsets do not cover its bytes")

    def to_list(self) -> list[bytes | None]:
        if self.count >= SMALL:
            if not has_arrow():
                return self._slice_values()
            listed: list[bytes | None] = self.to_arrow().to_pylist()
            return listed
        bounds = self._bounds()
        at, body = self.blob_at, self.body
        present = -1 if self.validity_at < 0 else self._validity_bits()
        return [
            bytes(body[at + bounds[index] : at + bounds[index + 1]]) if present >> index & 1 else None
            for index in range(self.count)
        ]

    def _slice_values(self) -> list[bytes | None]:
        """The byte strings of a large column, in Python."""
        import numpy as np

        bounds, blob = self._bounds(), bytes(self.body[self.blob_at : self.blob_end])
        listed: list[bytes | None] = [blob[start:end] for start, end in pairwise(bounds)]
        if self.validity_at >= 0:
            bits = np.frombuffer(self.body, np.uint8, (self.count + 7) // 8, self.validity_at)
            for at in np.flatnonzero(np.unpackbits(bits, count=self.count, bitorder="little") == 0).tolist():
                listed[at] = None
        return listed

    def _bounds(self) -> list[int]:
        if self.ends is None:
            return list(range(0, self.width * (self.count + 1), self.width))
        return self.ends.to_list()

    def starts(self) -> np.ndarray[Any, Any]:
        """Where each begins, in the bytes of all."""
        import numpy as np

        if self.ends is None:
            return np.arange(0, self.width * self.count, self.width, dtype=np.int64)
        return self.ends.to_numpy()[:-1]

    def _validity_bits(self) -> int:
        return int.from_bytes(self.body[self.validity_at : self.validity_at + (self.count + 7) // 8], "little")

    def first_null(self) -> int | None:
        """Which is the first that is null; None: none is."""
        if self.validity_at < 0:
            return None
        absent = ~self._validity_bits() & ((1 << self.count) - 1)
        return (absent & -absent).bit_length() - 1 if absent else None

    def to_arrow(self, kind: pa.DataType | None = None) -> pa.Array[Any]:
        """An Arrow array over the body, without a copy of its bytes."""
        import numpy as np
        import pyarrow as pa

        whole = pa.py_buffer(self.body)
        validity = None
        if self.validity_at >= 0:
            validity = whole.slice(self.validity_at, (self.count + 7) // 8)
        if self.ends is None:
            ends = np.arange(0, self.width * self.count + 1, self.width, dtype=np.int32)
            bounds = pa.py_buffer(memoryview(ends))  # type: ignore[arg-type]  # the stubs of numpy lack __buffer__
        else:
            bounds = whole.slice(self.ends.at, 4 * (self.count + 1))
        blob = whole.slice(self.blob_at, self.blob_end - self.blob_at)
        return pa.Array.from_buffers(kind or pa.binary(), self.count, [validity, bounds, blob])
