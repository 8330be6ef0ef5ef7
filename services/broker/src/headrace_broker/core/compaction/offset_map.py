"""
The newest offset of each key in the part of a log that is compacted, within a bound of memory.

``dirty_keys`` fills it, ``cleaning`` asks it. Three arrays, sorted by the first half of the keys' hashes; what comes is
gathered and sorted in once there is enough of it. A Python dictionary takes ten times the memory, a cache miss for each
of the objects it is made of, and the interpreter's lock while it grows; here nearly all is done by numpy without it.
Afterwards the offsets alone, sorted, tell for the dirty part which of its records are the newest, so keys are looked up
only for what was clean before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_broker.core.compaction.key_hash import FEW, hash_column, hash_list

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from headrace_common.core.batch import DecodedBatch

    Offsets = np.ndarray[Any, np.dtype[np.int64]]
    Words = np.ndarray[Any, np.dtype[np.uint64]]

KEY_BYTES: Final = 96
"""Of one key, whatever its length: 24 in the arrays, as much in new ones while more is sorted in, and that work."""
_HASHED_TOGETHER: Final = 16_384
"""Keys: many enough for numpy, few enough for the processor's cache."""
_HASHED_BYTES_MAX: Final = 4 << 20
_COLUMN_BYTES_MAX: Final = 1 << 30
_SORTED_IN_MIN: Final = 524_288


class OffsetMap:
    """Keys and offsets of one compaction."""

    __slots__ = (
        "_column_bytes",
        "_columns",
        "_few",
        "_first",
        "_hashed",
        "_keys_max",
        "_offsets",
        "_reserve",
        "_second",
        "_seed",
        "_sorted",
        "_unsorted",
        "_waiting",
    )

    def __init__(self, bytes_max: int, seed: int) -> None:
        """``seed``: 128 bits that nobody who writes keys can know."""
        import numpy as np

        self._seed = seed
        capacity = bytes_max // KEY_BYTES
        self._reserve = capacity // 3
        """Of records that wait at most."""
        self._keys_max = capacity - self._reserve
        self._first: Words = np.empty(0, np.uint64)
        self._second: Words = np.empty(0, np.uint64)
        self._offsets: Offsets = np.empty(0, np.int64)
        self._columns: list[tuple[pa.Array[Any], Offsets]] = []
        self._few: tuple[list[bytes | None], list[int]] = ([], [])
        self._column_bytes = 0
        self._hashed: list[tuple[Words, Words, Offsets]] = []
        self._waiting = self._unsorted = 0
        """Records in ``_columns`` and ``_few``, and in ``_hashed``."""
        self._sorted: Offsets | None = None

    def __len__(self) -> int:
        """Keys that are sorted in."""
        return len(self._offsets)

    @property
    def full(self) -> bool:
        """Whether no batch is to be added any more."""
        return len(self._offsets) > self._keys_max

    def add(self, batch: DecodedBatch) -> None:
        """
        Take in the keys of one batch, later than all before. Missing keys are not kept.

        The memory is bounded but for one batch, so that each compaction gets on.
        """
        assert not self.full, "asked before"
        self._waiting += batch.record_count
        if batch.record_count < FEW:
            keys = batch.keys()
            self._few[0].extend(keys)
            self._few[1].extend(batch.offsets())
            self._column_bytes += sum(map(len, filter(None, keys)))
        else:
            self._columns.append((batch.key_column(), offsets_of(batch)))
            self._column_bytes += batch.header.size
        inflated = batch.header.codec and self._columns  # its keys hold on to all of it
        if inflated or self._waiting >= _HASHED_TOGETHER or self._column_bytes >= _HASHED_BYTES_MAX:
            self._hash()
        if self._waiting + self._unsorted >= min(self._reserve, max(_SORTED_IN_MIN, len(self._offsets))):
            self._sort_in()

    def _hash(self) -> None:
        import numpy as np
        import pyarrow as pa

        keys, offsets = self._few
        parts = [*self._columns, (pa.array(keys, pa.binary()), np.array(offsets, np.int64))]
        for column, wide in _together(parts):
            first, second = hash_column(column, self._seed)
            valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else slice(None)
            self._hashed.append((first[valid], second[valid], wide[valid]))
            self._unsorted += len(self._hashed[-1][2])
        self._columns, self._few, self._column_bytes, self._waiting = [], ([], []), 0, 0

    def _sort_in(self) -> None:
        import numpy as np

        self._hash()
        parts = [(self._first, self._second, self._offsets), *self._hashed]
        first, second, offsets = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._hashed, self._unsorted = [], 0
        if not len(first):
            return
        order = in_order(first)
        first, second = first[order], second[order]
        same = first[1:] == first[:-1]
        if (same & (second[1:] != second[:-1])).any():  # two keys share the first half
            again = np.lexsort((order, second, first))
            first, second, order = first[again], second[again], order[again]
            same = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        begins = np.flatnonzero(np.append(True, ~same))
        self._first, self._second = first[begins], second[begins]
        self._offsets = np.maximum.reduceat(offsets[order], begins)

    def complete(self) -> None:
        """All keys are in; before anything is asked."""
        import numpy as np

        self._sort_in()
        self._sorted = np.sort(self._offsets)

    def newest_within(self, start: int, end: int) -> Offsets:
        """The offsets in ``start <= offset < end`` that are the newest of their keys, ascending."""
        assert self._sorted is not None, "completed first"
        low, high = self._sorted.searchsorted((start, end))
        return self._sorted[low:high]

    def count_within(self, start: int, end: int) -> int:
        """How many those are."""
        return len(self.newest_within(start, end))

    def counts_between(self, bounds: Sequence[int]) -> list[int]:
        """How many from each of ``bounds``, ascending, to the next: one search for many batches."""
        import numpy as np

        assert self._sorted is not None, "completed first"
        counts: list[int] = np.diff(self._sorted.searchsorted(np.array(bounds, np.int64))).tolist()
        return counts

    def newest(self, batch: DecodedBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """
        Which records of a batch from before the map have a key of which nothing newer is known.

        Of two keys that share the first half of their hash the second may be taken for unknown: then a record stays.
        """
        import numpy as np

        present = None
        if batch.record_count < FEW:
            keys = batch.keys()
            first, second = hash_list([key or b"" for key in keys], self._seed)
            if None in keys:
                present = np.array([key is not None for key in keys], np.bool_)
        else:
            column = batch.key_column()
            first, second = hash_column(column, self._seed)
            if column.null_count:
                present = column.is_valid().to_numpy(zero_copy_only=False)
        if len(self._first):
            order = np.argsort(first)  # neighbours are looked up one after the other
            at = np.empty(len(first), np.int64)
            at[order] = np.minimum(self._first.searchsorted(first[order]), len(self._first) - 1)
            keep = (self._first[at] != first) | (self._second[at] != second)
        else:
            keep = np.ones(len(first), np.bool_)
        known: np.ndarray[Any, np.dtype[np.bool_]] = keep if present is None else keep & present
        return known


def in_order(values: Words) -> Offsets:
    """
    What sorts ``values``, equal ones in the order in which they are.

    Numpy sorts numbers faster than it says in which order they are, so where each came from takes the place of its last
    bits. Two that differ in those only may then stand the wrong way round, which is mended where it happens.
    """
    import numpy as np

    low = np.uint64((1 << len(values).bit_length()) - 1)
    packed = values & ~low | np.arange(len(values), dtype=np.uint64)
    packed.sort()
    order: Offsets = (packed & low).view(np.int64)
    found = values[order]
    return order if (found[1:] >= found[:-1]).all() else order[np.argsort(found, kind="stable")]


def _together(parts: list[tuple[pa.Array[Any], Offsets]]) -> Iterator[tuple[pa.Array[Any], Offsets]]:
    """As one, unless their keys are more bytes than one column can have."""
    import numpy as np
    import pyarrow as pa

    if sum(column.nbytes for column, _ in parts) >= _COLUMN_BYTES_MAX:
        yield from parts
    else:
        yield pa.concat_arrays([column for column, _ in parts]), np.concatenate([offsets for _, offsets in parts])


def offsets_of(batch: DecodedBatch) -> Offsets:
    import numpy as np

    header = batch.header
    if header.dense:
        return np.arange(header.base_offset, header.next_offset)
    return np.array(batch.offsets(), np.int64)
