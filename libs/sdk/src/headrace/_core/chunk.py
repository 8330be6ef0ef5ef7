"""
The open columns of one topic: where ``send`` appends, and how a row finds its batch afterwards.

A chunk belongs to one topic and is filled under the intake's token. When it closes, ``partitioner`` spreads its rows
over partitions; from then on it only knows the way from a row to its batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace_common.core.batch.stamp_runs import StampRuns

if TYPE_CHECKING:
    from headrace._core.batch import Batch, Watcher
    from headrace.records import Header
    from headrace_common.core.errors import HeadraceError

RECORD_OVERHEAD: Final = 16
"""Bytes that a record counts for beyond its key, value and headers."""

BATCH_OVERHEAD: Final = 256
"""More than the header and directory of a batch need."""


class Home(NamedTuple):
    """Where a chunk is delivered."""

    thread: int
    """Its number; that thread must not wait for what it delivers."""
    process: int
    """Nobody delivers it anywhere else: not in a child that has it by a fork."""


NOWHERE: Final = Home(0, 0)


class Chunk:
    """
    Columns that grow, then the route of each row.

    ``room`` are the bytes that still fit into what was granted; ``tick`` is the wall time in seconds at which the
    next row needs a new entry in ``clock``. Sparse things (explicit partitions, timestamps, headers) are kept aside.
    """

    __slots__ = (
        "clock",
        "error",
        "granted",
        "header_column",
        "headers",
        "home",
        "keys",
        "opened_ms",
        "partitions",
        "record_max",
        "room",
        "route",
        "stamps",
        "tick",
        "told",
        "topic",
        "values",
        "watchers",
    )

    def __init__(self, topic: str, *, opened_ms: float, record_max: int, home: Home = NOWHERE) -> None:
        self.topic = topic
        self.home = home
        self.opened_ms = opened_ms
        """Monotonic: linger and delivery timeout count from here."""
        self.record_max = record_max
        """Bytes of one record, overhead included."""
        self.granted = 0
        self.room = 0
        self.values: Any = []
        self.keys: Any = []
        self.clock: list[tuple[int, int]] = []
        """(first row, timestamp in ms): holds for all rows up to the next entry."""
        self.tick = 0.0
        self.partitions: list[tuple[int, int, Any]] = []
        """(first row, end, partition or an array of one for each), where the caller named it; -1: did not."""
        self.stamps: list[tuple[int, int, Any]] = []
        """(first row, end, timestamp in ms or one for each), where the caller gave it."""
        self.headers: dict[int, Sequence[Header]] = {}
        self.header_column: Any = None
        """Those of all rows, in Arrow, instead; only of chunks that were added whole."""
        self.route: Route | None = None
        self.error: HeadraceError | None = None
        """Why no row of this chunk went anywhere."""
        self.told = -1.0
        """Who waits for the rows up to this one was told of the error."""
        self.watchers: list[Watcher] | None = None

    @property
    def rows(self) -> int:
        """How many rows it has; only before it is routed."""
        return len(self.values)

    @property
    def used_bytes(self) -> int:
        """What its rows count for."""
        return self.granted - self.room

    def mark(self, now_ms: int) -> None:
        """From here on rows are stamped ``now_ms``."""
        if not self.clock or self.clock[-1][1] < now_ms:
            self.clock.append((len(self.values), now_ms))
        self.tick = (self.clock[-1][1] + 1) / 1_000

    def name_partition(self, start: int, end: int, partition: int) -> None:
        """The caller wants these rows there."""
        runs = self.partitions
        if runs and runs[-1][1] == start and isinstance(runs[-1][2], int) and runs[-1][2] == partition:
            runs[-1] = (runs[-1][0], end, partition)
        else:
            runs.append((start, end, partition))

    def mend(self) -> None:
        """Rows were being added when an exception came: those that are not whole are undone."""
        rows = min(len(self.values), len(self.keys))
        del self.values[rows:], self.keys[rows:]
        self.partitions = [(start, min(end, rows), given) for start, end, given in self.partitions if start < rows]
        self.stamps = [run for run in self.stamps if run[0] < rows]
        self.headers = {row: headers for row, headers in self.headers.items() if row < rows}

    def timestamps(self) -> Any:
        """One for all, or a sequence of one for each row."""
        if len(self.clock) == 1 and not self.stamps:
            return self.clock[0][1]
        count = len(self.values)
        if len(self.stamps) == 1 and self.stamps[0][:2] == (0, count) and not isinstance(self.stamps[0][2], int):
            return self.stamps[0][2]  # the caller's, as they were given
        edges = [*(start for start, _ in self.clock), count]
        runs = StampRuns((end - start, stamp) for (start, stamp), end in zip(self.clock, edges[1:], strict=True))
        if not self.stamps:
            return runs
        column = list(runs)
        for start, end, given in self.stamps:
            column[start:end] = [given] * (end - start) if isinstance(given, int) else given
        return column

    def locate(self, row: int) -> tuple[Batch, int] | None:
        """The batch that holds the row now, and its place there; None before the rows were spread."""
        if self.route is None:
            return None
        batch, place = self.route.locate(row)
        while batch.parts is not None:
            (first, second) = batch.parts
            if place < first.count:
                batch = first
            else:
                batch, place = second, place - first.count
        return batch, place


class Route:
    """Which batch each row of a chunk went into."""

    __slots__ = ("_batches", "_order", "_places", "_rank", "_starts")

    def __init__(self, order: Any, starts: list[int], batches: list[Batch], places: list[int]) -> None:
        self._order = order
        """Rows in the order in which they were cut up, a list or an array; None: as they were sent."""
        self._starts = starts
        """Where each piece starts in that order."""
        self._batches = batches
        self._places = places
        """Where each piece starts in its batch."""
        self._rank: list[int] | None = None

    def batches(self) -> Iterator[Batch]:
        """All that rows went into; of one that was divided, its halves."""
        left = list(dict.fromkeys(self._batches))
        while left:
            batch = left.pop()
            if batch.parts is None:
                yield batch
            else:
                left += batch.parts

    def locate(self, row: int) -> tuple[Batch, int]:
        """The batch, and the row's place in it."""
        if self._order is not None:
            if self._rank is None:
                self._rank = self._ranks(self._order)
            row = self._rank[row]
        piece = bisect_right(self._starts, row) - 1
        return self._batches[piece], self._places[piece] + row - self._starts[piece]

    @staticmethod
    def _ranks(order: Any) -> list[int]:
        rank = [0] * len(order)
        for place, row in enumerate(order.tolist() if hasattr(order, "tolist") else order):
            rank[row] = place
        return rank
