"""
From a decoded batch to what the application gets: ``Record`` tuples, made in C from columns.

Called by the consumer shell when a batch is handed out, never before. Nothing here is done per record in Python
except the application's own deserializers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import length_hint
from typing import Any, NamedTuple

from headrace._core.fetch_partition import PartitionFetch
from headrace.errors import SerializationFailed
from headrace.records import Record, TimestampType
from headrace_common.core.batch import DecodedBatch

Deserializer = Callable[[bytes], Any]
_NO_HEADERS: tuple[()] = ()


class Deserializers(NamedTuple):
    """What turns bytes into objects; None: bytes stay bytes. A missing key or value stays None."""

    key: Deserializer | None = None
    value: Deserializer | None = None


class RecordRun:
    """
    The records of one open batch, while they are handed out.

    ``iterator`` may be given to a ``for`` loop: it is walked in C, makes each ``Record`` when the loop gets there (so
    that few live at a time, which spares the garbage collector), and how far it got is read from what is left.
    """

    __slots__ = ("_left", "_offsets", "end", "epoch", "failure", "iterator", "partition")

    def __init__(
        self,
        partition: PartitionFetch,
        columns: Columns,
        offsets: Sequence[int],
        end: int,
        failure: SerializationFailed | None = None,
    ) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self.end = end
        """The position when all were handed out."""
        self.failure = failure
        """What stopped a deserializer at ``end``; raised after the records before it."""
        self._offsets = offsets
        self._left: Iterator[int] = iter(offsets)
        self.iterator: Iterator[Record] = map(
            tuple.__new__,
            repeat(Record),
            zip(
                repeat(partition.tp.topic),
                repeat(partition.tp.partition),
                self._left,  # the shortest: it decides how many there are
                columns.keys,
                columns.values,
                columns.headers,
                columns.timestamps,
                repeat(columns.timestamp_type),
                repeat(columns.leader_epoch),
                strict=False,
            ),
        )

    @property
    def position(self) -> int:
        """The offset of the next record of this run."""
        left = length_hint(self._left)
        return self._offsets[-left] if left else self.end

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return not length_hint(self._left)

    def take(self, count: int) -> list[Record]:
        """Up to ``count`` of those that are left."""
        return list(self.iterator) if length_hint(self._left) <= count else list(islice(self.iterator, count))

    def cut(self) -> None:
        """Hand out no more; a loop that walks ``iterator`` sees its end."""
        self._left.__setstate__(len(self._offsets))  # type: ignore[attr-defined]  # iterators of list and range have it


class Columns(NamedTuple):
    """What records are made of, besides their offsets."""

    keys: Iterable[Any]
    values: Iterable[Any]
    headers: Iterable[Any]
    timestamps: Iterable[int]
    timestamp_type: TimestampType
    leader_epoch: int


def run_of(partition: PartitionFetch, batch: DecodedBatch, deserializers: Deserializers) -> RecordRun:
    """
    The records of ``partition``'s open batch from its position on.

    Raises:
        SerializationFailed: the deserializer raised at the first of them.
    """
    position = partition.position
    assert position is not None, "an open batch means that there is a position"
    header = batch.header
    offsets: Sequence[int] = range(header.base_offset, header.next_offset) if header.dense else batch.offsets()
    skip = bisect_left(offsets, position) if header.base_offset < position else 0
    offsets = offsets[skip:]
    keys: list[Any] | None = batch.keys()[skip:] if batch.has_keys else None
    values: list[Any] = batch.values()[skip:] if skip else batch.values()
    failed: list[_Failed] = []
    if deserializers.key is not None and keys is not None:
        keys = _convert_column(deserializers.key, keys, "key", failed)
    if deserializers.value is not None:
        values = _convert_column(deserializers.value, values, "value", failed)
    columns = Columns(
        keys=repeat(None) if keys is None else keys,
        values=values,
        headers=batch.headers()[skip:] if batch.has_headers else repeat(_NO_HEADERS),
        timestamps=repeat(batch.timestamps()[0]) if batch.timestamps_equal else batch.timestamps()[skip:],
        timestamp_type=_TYPES[header.attributes >> 3 & 1],
        leader_epoch=header.leader_epoch,
    )
    if failed:
        return _until(partition, columns, offsets, min(failed, key=lambda one: one.row))
    return RecordRun(partition, columns, offsets, header.next_offset)


class _Failed(NamedTuple):
    row: int
    what: str
    error: Exception


def _until(partition: PartitionFetch, columns: Columns, offsets: Sequence[int], failed: _Failed) -> RecordRun:
    """The records before the one that could not be converted; the failure follows them."""
    bad = offsets[failed.row]
    text = (
        f"{partition.tp}@{bad}: the {failed.what}_deserializer raised {type(failed.error).__name__}: "
        f"{failed.error}; to skip the record, seek to {bad + 1}"
    )
    failure = SerializationFailed(text)
    failure.__cause__ = failed.error
    if not failed.row:
        raise failure
    return RecordRun(partition, columns, offsets[: failed.row], bad, failure)


def _convert_column(convert: Deserializer, column: list[bytes | None], what: str, failed: list[_Failed]) -> list[Any]:
    """The column after ``convert``, up to the first row where that raised."""
    converted: list[Any] = []
    try:
        converted.extend(None if item is None else convert(item) for item in column)
    except Exception as error:  # noqa: BLE001 - the application's own function: told to it, with the record's offset
        failed.append(_Failed(len(converted), what, error))
    return converted


_TYPES = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
