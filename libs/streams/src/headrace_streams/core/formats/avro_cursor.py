"""
Where Avro's binary values are read, all of an array at once: each step reads the next piece of many values.

A value that cannot be read has failed: it says why, stands at its end, and gives zeros and empty texts from then on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

arrow: Any = pa  # its stubs are narrower than it is
Rows = npt.NDArray[np.int64]
"""Places in the array of values."""
Mask = npt.NDArray[np.bool_]
_VARINT_BYTES_MAX: Final = 10
_PADDING: Final = bytes(16)
ENDS: Final = "the value ends in the middle"


def packed(data: npt.NDArray[Any], lengths: Rows) -> pa.BinaryArray:
    """Bytes cut into values of these lengths."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(np.ascontiguousarray(data))]
    made: pa.BinaryArray = arrow.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)
    return made


class Cursor:
    """A place in each of the values."""

    def __init__(self, values: pa.BinaryArray) -> None:
        """``values``: without nulls."""
        buffers: Any = values.buffers()
        _, offsets, data = buffers
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        used = b"" if data is None else memoryview(data)[ends[0] : ends[-1]]
        self._bytes = np.frombuffer(b"".join([used, _PADDING]), np.uint8)
        self.at: Rows = ends[:-1] - ends[0]
        self.end: Rows = ends[1:] - ends[0]
        self.failures: dict[int, str] = {}
        """Why, by row; the first reason counts."""
        self._failed: Mask = np.zeros(len(values), np.bool_)

    def fail(self, rows: Rows, message: str) -> None:
        """These cannot be read."""
        for row in rows.tolist():
            self.failures.setdefault(row, message)
        self._failed[rows] = True
        self.at[rows] = self.end[rows]

    def sound(self, rows: Rows) -> Mask:
        """Which have not failed."""
        return ~self._failed[rows]

    def left(self, rows: Rows) -> Rows:
        """How many bytes are left of each."""
        return self.end[rows] - self.at[rows]

    def finish(self) -> None:
        """Those that go on behind what was read have failed."""
        more = np.flatnonzero(self.at < self.end)
        if len(more):
            self.fail(more, "the value goes on where its schema ends; was it written with another one?")

    def numbers(self, rows: Rows, place: str) -> npt.NDArray[np.int64]:
        """The next number of variable length of each."""
        at = self.at[rows]
        byte = self._bytes[at]
        raw = (byte & 0x7F).astype(np.uint64)
        size = np.ones(len(rows), np.int64)
        going = np.flatnonzero(byte & 0x80)
        for place_of_byte in range(1, _VARINT_BYTES_MAX):
            if not len(going):
                break
            byte = self._bytes[at[going] + place_of_byte]
            raw[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place_of_byte)
            size[going] += 1
            if place_of_byte == _VARINT_BYTES_MAX - 1:
                going = going[byte > 1]
                break
            going = going[byte >= 0x80]
        short = self._pass(rows, at, size, place, going)
        raw[short] = 0
        return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)

    def _pass(self, rows: Rows, at: Rows, size: Rows, place: str, wrong: Rows) -> Rows:
        """Go on by ``size``; those (by their place in ``rows``) that cannot fail."""
        self.at[rows] = at + size
        short = np.flatnonzero(at + size > self.end[rows])
        if len(short):
            self.fail(rows[short], f"{place}: {ENDS}")
        if len(wrong):
            self.fail(rows[wrong], f"{place}: a number has more than 64 bits")
            short = np.union1d(short, wrong)
        return short

    def fixed(self, rows: Rows, dtype: str, place: str) -> npt.NDArray[Any]:
        """The next few bytes of each, as one value of ``dtype``."""
        width = np.dtype(dtype).itemsize
        at = self.at[rows]
        found: npt.NDArray[Any] = self._bytes[at[:, None] + np.arange(width)].view(dtype).reshape(len(rows))
        found[self._pass(rows, at, np.full(len(rows), width), place, rows[:0])] = 0
        return found

    def runs(self, rows: Rows, counts: Rows, dtype: str) -> npt.NDArray[Any]:
        """The next values of ``dtype`` of each, so many that are there."""
        width = np.dtype(dtype).itemsize
        at, lengths = self.slices(rows, counts * width, "")
        buffers: Any = self.copied(at, lengths).buffers()
        found: npt.NDArray[Any] = np.frombuffer(buffers[2], dtype, int(counts.sum()))
        return found

    def slices(self, rows: Rows, lengths: Rows, place: str) -> tuple[Rows, Rows]:
        """Pass so many bytes of each: where they begin, and how many there are."""
        wrong = np.flatnonzero((lengths < 0) | (lengths > self.left(rows)))
        if len(wrong):
            lengths = lengths.copy()
            lengths[wrong] = 0
            self.fail(rows[wrong], f"{place}: {ENDS}")
        at = self.at[rows]
        self.at[rows] = at + lengths
        return at, lengths

    def copied(self, at: Rows, lengths: Rows) -> pa.BinaryArray:
        """These slices, one beside the other."""
        ends = np.cumsum(lengths)
        places = np.repeat(at - ends + lengths, lengths) + np.arange(lengths.sum())
        return packed(self._bytes[places], lengths)

    def sixteen(self, at: Rows, lengths: Rows) -> npt.NDArray[np.uint8]:
        """Signed numbers of up to 16 bytes, the highest first, as 16 bytes, the lowest first."""
        column = np.arange(16)
        inside = column < lengths[:, None]
        places = np.where(inside, (at + lengths)[:, None] - 1 - column, 0)
        sign = np.where(lengths > 0, self._bytes[at] >> 7, 0).astype(np.uint8) * np.uint8(0xFF)
        return np.where(inside, self._bytes[places], sign[:, None])
