"""
The rows of slots as Arrow, as long as none of them changes. What a whole batch finds there is found in one step, by a
hash table that Arrow makes of the keys for each batch: cheaper than a Python object for each row, up to tables of some
times the batch's size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.rows import Column, Numbers, plain_keys, whole

SIZE_MAX: Final = 8
"""The keys of a table are so many for each row of a batch at most: then the hash table pays."""


class Mirror:
    """One row for each slot that has a key."""

    def __init__(self, keys: pa.Array[Any], slots: Numbers, rows: pa.Table, times: Numbers) -> None:
        """
        Args:
            slots: where each of ``rows`` is kept.
            times: their event times, ms.
        """
        self.slots, self.rows, self.times = slots, rows, times
        self._keys = keys
        self.bytes = keys.nbytes + slots.nbytes + rows.nbytes + times.nbytes
        """About how much memory it takes."""

    def __len__(self) -> int:
        return len(self.slots)

    def find(self, keys: Column) -> Numbers:
        """The place of each key in ``rows``; below 0: it is null, or not here."""
        found: Any = pc.index_in(whole(plain_keys(keys)), value_set=self._keys)
        places: Numbers = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return places
