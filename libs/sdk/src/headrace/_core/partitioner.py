"""
Decides the partition of every row of a closed chunk, and cuts the chunk up accordingly. Called once per chunk.

A named partition counts first; then the key: ``(murmur2(key) & 0x7fffffff) % partitions``, as in every Kafka client;
rows with neither go to the sticky partition, which changes when ``batch_size`` bytes have gone there (KIP-794). Per
partition the order is the order of the calls: the sort is stable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._core.batch import Piece, cut
from headrace._core.chunk import Chunk
from headrace_common.core.batch.stamp_runs import StampRuns
from headrace_common.core.errors import InvalidPartitions
from headrace_common.core.murmur2 import partitions_for, partitions_for_list

if TYPE_CHECKING:
    import numpy as np

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

    order: Any
    """Rows in the order of the pieces, a list or an array of numpy; None: as they were sent."""
    pieces: list[tuple[int, Piece]]
    """(partition, rows), covering the order from its start to its end."""


def split(chunk: Chunk, partitions: int, sticky: Sticky, bulk: BulkPartitioner | None = None) -> Cut:
    """
    Cut ``chunk`` up. Lists stay lists: nothing is loaded for them. Arrow columns are a few calls into numpy.

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
    whole = Piece(chunk.values, keys, chunk.timestamps(), headers, chunk.used_bytes)
    if keys is None and not chunk.partitions and bulk is None:
        return Cut(None, list(_cut_runs(whole, [*sticky.runs(rows, whole.size_bytes, partitions)])))
    if isinstance(chunk.values, list):
        return _split_lists(whole, _place_lists(chunk, keys, partitions, sticky, bulk))
    return _split_arrays(whole, _place_arrays(chunk, keys, partitions, sticky, bulk), partitions)


def _all_null(keys: Any) -> bool:
    if hasattr(keys, "null_count"):
        return bool(keys.null_count == len(keys))
    return keys[0] is None and keys.count(None) == len(keys)


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
    return cut(whole, start, end, _share_size(whole, start, end, total))


def _share_size(whole: Piece, start: int, end: int, total: int) -> int:
    size = whole.size_bytes
    return size * end // total - size * start // total


def _ask(bulk: BulkPartitioner, chunk: Chunk, keys: Any, partitions: int) -> list[int]:
    rows = chunk.rows
    given = bulk(chunk.topic, [None] * rows if keys is None else keys, partitions)
    if len(given) != rows:
        raise InvalidPartitions(f"the partitioner gave {len(given)} partitions for {rows} keys; give one for each")
    placed = list(map(int, given.tolist() if hasattr(given, "tolist") else given))
    if max(placed) >= partitions:
        raise InvalidPartitions(f"the partitioner gave {max(placed)}; {chunk.topic} has {partitions} partitions")
    return placed


# --- lists ----------------------------------------------------------------------------------------------------


def _place_lists(
    chunk: Chunk, keys: list[Any] | None, partitions: int, sticky: Sticky, bulk: BulkPartitioner | None
) -> list[int]:
    rows = chunk.rows
    named = [-1] * rows
    for start, end, given in chunk.partitions:
        named[start:end] = [given] * (end - start) if isinstance(given, int) else given
    if -1 not in named:
        return named
    placed = named
    if bulk is not None:
        placed = _ask(bulk, chunk, keys, partitions)
    elif keys is not None:
        placed = partitions_for_list(keys, partitions)
    if chunk.partitions and placed is not named:
        placed = [own if wanted < 0 else wanted for own, wanted in zip(placed, named, strict=True)]
    if bulk is not None or -1 in placed:
        _place_loose(placed, chunk.used_bytes, partitions, sticky)
    return placed


def _place_loose(placed: list[int], size_bytes: int, partitions: int, sticky: Sticky) -> None:
    """Give those without a partition one, in ``placed`` itself."""
    loose = [row for row, partition in enumerate(placed) if partition < 0]
    if not loose:
        return
    at = 0
    for count, partition in sticky.runs(len(loose), size_bytes * len(loose) // len(placed), partitions):
        for row in loose[at : at + count]:
            placed[row] = partition
        at += count


def _split_lists(whole: Piece, placed: list[int]) -> Cut:
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row, partition in enumerate(placed):
        rows_of[partition].append(row)
    if len(rows_of) == 1:
        return Cut(None, [(placed[0], whole)])
    pieces: list[tuple[int, Piece]] = []
    order: list[int] = []
    for partition, rows in sorted(rows_of.items()):
        size = _share_size(whole, len(order), len(order) + len(rows), len(placed))
        pieces.append((partition, _pick(whole, rows, size)))
        order += rows
    return Cut(order, pieces)


def _pick(whole: Piece, rows: list[int], size_bytes: int) -> Piece:
    """The rows at ``rows``, which grow."""
    stamps = whole.timestamps
    if isinstance(stamps, StampRuns):
        stamps = stamps.take(rows)
    elif not isinstance(stamps, int):
        stamps = [stamps[row] for row in rows]
    take = itemgetter(*rows) if len(rows) > 1 else itemgetter(slice(rows[0], rows[0] + 1))
    keys, headers = whole.keys, whole.headers
    return Piece(
        take(whole.values),
        None if keys is None else take(keys),
        stamps,
        None if headers is None else take(headers),
        size_bytes,
    )


# --- Arrow columns --------------------------------------------------------------------------------------------


def _place_arrays(
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
        placed = np.array(_ask(bulk, chunk, keys, partitions), np.int32)
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


def _split_arrays(whole: Piece, placed: np.ndarray[Any, Any], partitions: int) -> Cut:
    import numpy as np

    if int(placed.min()) == int(placed.max()):
        return Cut(None, [(int(placed[0]), whole)])
    narrow = placed.astype(np.int16) if partitions < 2**15 else placed  # radix sort
    order = np.argsort(narrow, kind="stable")
    ordered = placed[order]
    rows = len(order)
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), rows]
    stamps = whole.timestamps
    gathered = Piece(
        whole.values.take(order),
        None if whole.keys is None else whole.keys.take(order),
        stamps if isinstance(stamps, int) else np.asarray(stamps)[order],
        None if whole.headers is None else _take_headers(whole.headers, order),
        whole.size_bytes,
    )
    pieces = [(int(ordered[start]), _share(gathered, start, end, rows)) for start, end in pairwise(edges)]
    return Cut(order, pieces)


def _take_headers(headers: Any, order: np.ndarray[Any, Any]) -> Any:
    return headers.take(order) if hasattr(headers, "take") else [headers[row] for row in order.tolist()]
