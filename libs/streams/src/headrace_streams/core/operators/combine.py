"""
Aggregates before a repartition topic: one row for each key of a flush goes through it, and not one for each row.

Only where that is not seen in the result: functions whose parts add up exactly, in any order, and rows that are not
late for their window where they come from (so they are not late behind the topic either, where the watermark is at
most as high). Rows that are go through one by one, behind what was held before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.operators.aggregate import Aggregated, Groups
from headrace_streams.core.operators.aggregates import function
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.windows import Hopping
from headrace_streams.core.rows import KEY, TIME, WATERMARK, Numbers, coded, numbers
from headrace_streams.core.state.slots import KeyedStore, Slots, WindowedStore
from headrace_streams.core.state.store import NOTHING

HELD_MAX: Final = 50_000
"""So many keys are held at most."""
_PARTS: Final = {"count": "sum", "min": "min", "max": "max", "any": "any", "all": "all"}
"""What adds up the parts of a function."""


def adds_up(kind: str, of: pa.DataType | None) -> bool:
    """Whether parts of it add up to the same, however rows are shared among them."""
    match kind:
        case "count":
            return True
        case "sum":
            return of is not None and pa.types.is_integer(of)
        case _:
            return kind in _PARTS and of is not None and _is_plain(of)


def _is_plain(of: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(of) or types.is_boolean(of) or types.is_timestamp(of) or types.is_date32(of))


def behind(columns: Sequence[Aggregated], kinds: Sequence[str], what: str) -> list[Aggregated]:
    """The aggregates that add up the parts: of the columns of their results."""
    return [
        Aggregated(column.name, function(part, column.function.type, what), column.name, part)
        for column, part in zip(columns, (_PARTS.get(kind, kind) for kind in kinds), strict=True)
    ]


class Combine(Operator):
    """Holds one row for each key, or key and window, until a commit or until there are many."""

    def __init__(self, groups: Groups, window: Hopping | None) -> None:
        """
        Args:
            window: tumbling; None: no windows.
        """
        assert window is None or window.size_ms == window.advance_ms
        self.groups = self._groups = groups
        self._window = window
        self._new()

    def _new(self) -> None:
        # It is no state: what is held is part of a commit, or is fed again.
        self._keyed = KeyedStore(self._groups.layout)
        self._windows = WindowedStore(self._groups.layout)
        self._windows.open(NOTHING)
        self._first: Numbers = np.zeros(0, np.int64)

    def begin(self, watermark: int) -> None:
        self._new()

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if self._window is None:
            yield from self._hold(rows, None)
            return
        _, starts = self._window.assign(numbers(rows[TIME]))
        late = starts + (self._window.size_ms + self._window.grace_ms) <= numbers(rows[WATERMARK])
        if not late.any():
            yield from self._hold(rows, starts)
            return
        # In pieces, so that the order of watermarks stays.
        bounds = [0, *(np.flatnonzero(late[1:] != late[:-1]) + 1).tolist(), len(late)]
        for first, end in pairwise(bounds):
            part = rows.slice(first, end - first)
            if late[first]:
                yield from self.flush()
                for place in range(part.num_rows):
                    yield from self._hold(part.slice(place, 1), starts[first + place : first + place + 1])
                    yield from self.flush()
            else:
                yield from self._hold(part, starts[first:end])

    @property
    def _slots(self) -> Slots:
        return self._keyed.slots if self._window is None else self._windows.slots

    @property
    def held_bytes(self) -> int:
        return self._slots.bytes if len(self._slots) else 0

    def _hold(self, rows: pa.Table, starts: Numbers | None) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        keys = coded(rows[KEY])
        places = self._keyed.places(keys) if starts is None else self._windows.places(starts, keys)
        slots = self._slots
        if len(self._first) < len(slots.dirty):
            more = np.full(len(slots.dirty) - len(self._first), np.iinfo(np.int64).max)
            self._first = np.concatenate([self._first, more])
        self._groups.add(slots, places, self._groups.inputs(rows), numbers(rows[TIME]))
        np.minimum.at(self._first, places, numbers(rows[WATERMARK]))
        if len(slots) >= HELD_MAX:
            yield from self.flush()

    def flush(self) -> Iterable[Emitted]:
        slots = self._slots
        held = slots.used()
        if not len(held):
            return
        first = self._first[held]
        held = held[np.argsort(first, kind="stable")]
        keys = [slots.key_of(slot) for slot in held.tolist()]
        columns = [column[held] for column in slots.columns]
        none = np.full(len(held), -1, np.int32)
        table = self._groups.result(keys, columns, None, np.sort(first), none, None)
        self._new()
        yield Emitted(table)
