"""
From a decoded batch to what the application gets: a list of ``Record`` tuples, made in bulk.

Called by the consumer shell when a batch is handed out, never before. Nothing here is done per record in Python
except the application's own deserializers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
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

    ``iterator`` may be given to a ``for`` loop: it is walked in C, and how far it got is read from what is left.
    """

    __slots__ = ("end", "epoch", "failure", "iterator", "partition", "records")

    def __init__(
        self, partition: PartitionFetch, records: list[Record], end: int, failure: SerializationFailed | None = None
    ) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self.records = records
        self.end = end
        """The position when all were handed out."""
        self.failure = failure
        """What stopped the deserializer at ``end``; raised after the records before it."""
        self.iterator: Iterator[Record] = iter(records)

    @property
    def position(self) -> int:
        """The offset of the next record of this run."""
        left = length_hint(self.iterator)
        return self.records[-left].offset if left else self.end

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return not length_hint(self.iterator)

    def take(self, count: int) -> list[Record]:
        """Up to ``count`` of those that are left."""
        if length_hint(self.iterator) == len(self.records) <= count:
            self.cut()
            return self.records
        return list(islice(self.iterator, count))

    def cut(self) -> None:
        """Hand out no more; a loop that walks ``iterator`` sees its end."""
        self.iterator.__setstate__(len(self.records))  # type: ignore[attr-defined]


def run_of(partition: PartitionFetch, batch: DecodedBatch, deserializers: Deserializers) -> RecordRun:
    """
    The records of ``partition``'s open batch from its position on.

    Raises:
        SerializationFailed: the deserializer raised at the first of them.
    """
    position = partition.position
    assert position is not None, "an open batch means that there is a position"
    header = batch.header
    count = header.record_count
    offsets = batch.offsets()
    skip = bisect_left(offsets, position) if header.base_offset < position else 0
    keys = batch.keys() if batch.has_keys else None
    values = batch.values()
    failures: list[_Failed] = []
    if deserializers.key is not None and keys is not None:
        keys = _converted(deserializers.key, keys, skip, "key", failures)
    if deserializers.value is not None:
        values = _converted(deserializers.value, values, skip, "value", failures)
    made: Iterator[Record] = map(
        tuple.__new__,
        repeat(Record),
        zip(
            repeat(partition.tp.topic, count),
            repeat(partition.tp.partition),
            offsets,
            repeat(None) if keys is None else keys,
            values,
            batch.headers() if batch.has_headers else repeat(_NO_HEADERS),
            batch.timestamps(),
            repeat(_timestamp_type(header.attributes)),
            repeat(header.leader_epoch),
            strict=False,
        ),
    )
    if failures:
        return _until(partition, list(made), skip, min(failures))
    return RecordRun(partition, list(islice(made, skip, None)) if skip else list(made), header.next_offset)


class _Failed(NamedTuple):
    row: int
    what: str
    error: Exception


def _until(partition: PartitionFetch, records: list[Record], skip: int, failed: _Failed) -> RecordRun:
    """The records before the one that could not be converted; the failure follows them."""
    bad = records[failed.row]
    text = (
        f"{partition.tp}@{bad.offset}: the {failed.what}_deserializer raised {type(failed.error).__name__}: "
        f"{failed.error}; to skip the record, seek to {bad.offset + 1}"
    )
    failure = SerializationFailed(text)
    failure.__cause__ = failed.error
    if failed.row == skip:
        raise failure
    return RecordRun(partition, records[skip : failed.row], bad.offset, failure)


def _converted(
    convert: Deserializer, column: Sequence[bytes | None], skip: int, what: str, failures: list[_Failed]
) -> list[Any]:
    """The column after ``convert``; the rows before ``skip`` are not looked at."""
    converted: list[Any] = [None] * skip
    try:
        converted.extend(None if item is None else convert(item) for item in islice(column, skip, None))
    except Exception as error:  # noqa: BLE001 - the application's own function: told to it, with the record's offset
        failures.append(_Failed(len(converted), what, error))
        converted.extend([None] * (len(column) - len(converted)))
    return converted


_TYPES = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


def _timestamp_type(attributes: int) -> TimestampType:
    return _TYPES[attributes >> 3 & 1]
