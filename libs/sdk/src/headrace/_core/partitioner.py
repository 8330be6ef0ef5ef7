"""
Decides the partition of every row of a closed chunk, and cuts the chunk up accordingly. Called once per chunk.

A named partition counts first; then the key: ``(murmur2(key) & 0x7fffffff) % partitions``, as in every Kafka client;
rows with neither go to the sticky partition, which changes when ``batch_size`` bytes have gone there (KIP-794). Per
partition the order is the order of the calls: the sort is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._core.batch import Piece, cut
from headrace._core.chunk import Chunk
from headrace_common.core.arrow import has_arrow
from headrace_common.core.errors import InvalidPartitions
from headrace_common.core.murmur2 import partition_for, partitions_for

if TYPE_CHECKING:
    import numpy as np

FEW = 16
"""Up to here plain Python is faster than numpy, and does not need it loaded."""

BulkPartitioner = Callable[[str, Any, int], Any]
"""(topic, keys, partitions) -> a partition for each key; keys are a list or an Arrow array."""


class Sticky:
    """The partition that rows without a key go to now."""

    __slots__ = ("_partition", "_size", "_taken")

    def __init__(self, first: int, size_bytes: int) -> None:
        self._partition = first
        self._size = size_bytes
        self._taken = 0

    def runs(self, rows: int, size_bytes: int, partitions: int) -> Iterator[tuple[int, int]]:
        """Spread ``rows`` of ``size_bytes`` in all: (number of rows, partition), one after the other."""
        per_row = max(1.0, size_bytes / rows)
        while rows:
            if self._taken >= self._size:
                self._taken = 0
                self._partition += 1
            fit = -int((self._taken - self._size) // per_row)
            if rows <= fit + fit // 2:  # no runt at the end
                fit = rows
            self._taken += int(fit * per_row)
            yield fit, self._partition % partitions
            rows -= fit


class Cut(NamedTuple):
    """A chunk's rows by partition."""

    order: np.ndarray[Any, Any] | None
    """Rows in the order of the pieces; None: as they were sent."""
    pieces: list[tuple[int, Piece]]
    """(partition, rows), covering the order from its start to its end."""


def split(chunk: Chunk, partitions: int, sticky: Sticky, bulk: BulkPartitioner | None = None) -> Cut:
    """
    Cut ``chunk`` up.

    Raises:
        InvalidPartitions: the application's partitioner gave no valid partition for each key.
    """
    rows = chunk.rows
    keys = chunk.keys
    if keys is not None and _all_null(keys):
        keys = None
    headers = chunk.header_column
    if headers is None and chunk.headers:
        headers = [chunk.headers.get(row, ()) for row in range(rows)]
    if isinstance(keys, list) and rows > FEW and bulk is None and has_arrow():
        import pyarrow as pa

        keys = pa.array(keys, pa.binary())  # hashed, sorted and written from here, without touching each key again
    whole = Piece(chunk.values, keys, chunk.timestamps(), headers, chunk.used_bytes)
    if keys is None and not chunk.partitions and bulk is None:
        return Cut(None, list(_cut_runs(whole, [*sticky.runs(rows, whole.size_bytes, partitions)])))
    if rows <= FEW and isinstance(keys, list | None) and bulk is None:
        return _split_few(whole, _partitions_of_few(chunk, keys, partitions, sticky))
    return _split_many(whole, _partitions_of(chunk, keys, partitions, sticky, bulk), partitions)


def _all_null(keys: Any) -> bool:
    count = keys.null_count if hasattr(keys, "null_count") else keys.count(None)
    return bool(count == len(keys))


def _cut_runs(whole: Piece, runs: list[tuple[int, int]]) -> Iterator[tuple[int, Piece]]:
    if len(runs) == 1:
        yield runs[0][1], whole
        return
    start, total = 0, len(whole.values)
    for count, partition in runs:
        yield partition, _share(whole, start, start + count, total)
        start += count


def _share(whole: Piece, start: int, end: int, total: int) -> Piece:
    """Rows ``start`` to ``end``; sizes are shares of the whole, and add up to it exactly."""
    size = whole.size_bytes
    return cut(whole, start, end, size * end // total - size * start // total)


def _partitions_of_few(chunk: Chunk, keys: list[Any] | None, partitions: int, sticky: Sticky) -> list[int]:
    rows = chunk.rows
    placed = [-1 if key is None else partition_for(key, partitions) for key in keys or [None] * rows]
    for start, end, given in chunk.partitions:
        named = [given] * (end - start) if isinstance(given, int) else given.tolist()
        placed[start:end] = [n if n >= 0 else own for n, own in zip(named, placed[start:end], strict=True)]
    loose = [row for row, partition in enumerate(placed) if partition < 0]
    if loose:
        at = 0
        for count, partition in sticky.runs(len(loose), chunk.used_bytes * len(loose) // rows, partitions):
            for row in loose[at : at + count]:
                placed[row] = partition
            at += count
    return placed


def _split_few(whole: Piece, placed: list[int]) -> Cut:
    rows = len(placed)
    if len(set(placed)) == 1:
        return Cut(None, [(placed[0], whole)])
    order = sorted(range(rows), key=placed.__getitem__)
    return _cut(whole, _array(order), [placed[row] for row in order])


def _partitions_of(
    chunk: Chunk, keys: Any, partitions: int, sticky: Sticky, bulk: BulkPartitioner | None
) -> np.ndarray[Any, Any]:
    import numpy as np

    rows = chunk.rows
    named = np.full(rows, -1, np.int32)
    for start, end, given in chunk.partitions:
        named[start:end] = given
    if int(named.min()) >= 0:
        return named
    if bulk is not None:
        placed = _ask(bulk, chunk, keys, partitions)
    elif keys is None:
        placed = named
    else:
        placed = partitions_for(keys, partitions)
    if chunk.partitions and placed is not named:
        np.copyto(placed, named, where=named >= 0)
    loose = np.flatnonzero(placed < 0)
    if len(loose):
        at = 0
        for count, partition in sticky.runs(len(loose), chunk.used_bytes * len(loose) // rows, partitions):
            placed[loose[at : at + count]] = partition
            at += count
    return placed


def _ask(bulk: BulkPartitioner, chunk: Chunk, keys: Any, partitions: int) -> np.ndarray[Any, Any]:
    import numpy as np

    rows = chunk.rows
    given = np.array(bulk(chunk.topic, [None] * rows if keys is None else keys, partitions), dtype=np.int64)
    if given.shape != (rows,):
        raise InvalidPartitions(f"the partitioner gave {given.shape} partitions for {rows} keys; give one for each")
    if int(given.max()) >= partitions:
        raise InvalidPartitions(f"the partitioner gave {int(given.max())}; {chunk.topic} has {partitions} partitions")
    return given.astype(np.int32)


def _split_many(whole: Piece, placed: np.ndarray[Any, Any], partitions: int) -> Cut:
    import numpy as np

    if int(placed.min()) == int(placed.max()):
        return Cut(None, [(int(placed[0]), whole)])
    narrow = placed.astype(np.int16) if partitions < 2**15 else placed  # radix sort
    order = np.argsort(narrow, kind="stable")
    return _cut(whole, order, placed[order])


def _cut(whole: Piece, order: np.ndarray[Any, Any], ordered: Any) -> Cut:
    import numpy as np

    rows = len(order)
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), rows]
    stamps = whole.timestamps
    gathered = Piece(
        _take(whole.values, order),
        None if whole.keys is None else _take(whole.keys, order),
        stamps if isinstance(stamps, int) else stamps[order],
        None if whole.headers is None else _take_headers(whole.headers, order),
        whole.size_bytes,
    )
    pieces = [(int(ordered[start]), _share(gathered, start, end, rows)) for start, end in pairwise(edges)]
    return Cut(order, pieces)


def _take_headers(headers: Any, order: np.ndarray[Any, Any]) -> Any:
    return headers.take(order) if hasattr(headers, "take") else [headers[row] for row in order.tolist()]


def _take(column: Any, order: np.ndarray[Any, Any]) -> Any:
    if hasattr(column, "take"):
        return column.take(order)
    import numpy as np

    objects = np.empty(len(column), object)
    objects[:] = column
    return objects[order].tolist()


def _array(order: list[int]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(order, np.int64)
