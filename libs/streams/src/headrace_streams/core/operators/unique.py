"""Rows whose values did not come a short while before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.rows import KEY, TIME, WATERMARK, coded, numbers
from headrace_streams.core.state.seen import SeenStore


class Unique(Operator):
    """
    A row passes if none with the same values passed before, or event time is ``within_ms`` beyond that one. Rows whose
    only value is null are equal to none.
    """

    def __init__(self, names: Sequence[str], within_ms: int) -> None:
        """
        Args:
            names: the columns that are compared; none: the record's key.
        """
        self._names = names
        self._within = within_ms
        self.store = SeenStore()
        self._store = self.store

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        named = [rows[name] for name in self._names]
        keys = coded(encode_keys(named, self._names) if named else rows[KEY])
        marks = numbers(rows[WATERMARK])
        seen_at = np.maximum(marks, numbers(rows[TIME]))  # a row that is late is remembered as long as others
        passes = np.ones(rows.num_rows, bool)
        each = zip(keys.codes.tolist(), marks.tolist(), seen_at.tolist(), strict=True)
        for place, (code, mark, at) in enumerate(each):
            if code < 0:
                continue
            key = keys.values[code]
            seen = self._store.get(key)
            if seen is None or seen + self._within <= mark:
                self._store.put(key, at)
            else:
                passes[place] = False
        if len(marks):
            self._store.forget(int(marks[-1]) - self._within)
        yield Emitted(rows.filter(pa.array(passes)))

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        self._store.forget(watermark - self._within)
        return ()
