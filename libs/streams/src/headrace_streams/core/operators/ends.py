"""Where rows come from and where they go: sources that decode records, sinks that encode them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.changes import ADDED, REMOVED, changes_of, take_or_null, with_changes
from headrace_streams.core.formats.port import Format, NotEncodable
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.columns import WithTime, times
from headrace_streams.core.operators.headers import HEADERS, HeaderColumns, header_bytes
from headrace_streams.core.outputs import Limits, Output, records
from headrace_streams.core.rows import (
    KEY,
    RECORD,
    TIME,
    TIMESTAMP,
    Numbers,
    numbers,
    replace,
    take,
    typed,
    user_columns,
    whole,
    with_system,
)

_ROOM: Final = 1_024
"""Bytes that a batch of one record needs besides its key and value."""


METADATA: Final[Mapping[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "headers": HEADERS,
}
"""What a program may ask to know of the records that it reads, as columns of these names."""


class Unreadable(Exception):
    """The value or key of a record is not of the format of its topic."""


class Source(Operator):
    """
    Records of a topic as rows. What feeds it knows the watermark, so its rows have none yet.

    Takes tables with the columns ``key``, ``value`` (binary) and ``timestamp_ms``, and those of ``metadata``.
    """

    def __init__(
        self,
        value: Format,
        key: Format | None,
        timestamp: nw.Expr | None,
        *,
        metadata: Sequence[str] = (),
        deletes: bool = False,
    ) -> None:
        """
        Args:
            metadata: names of ``METADATA``, which are columns of the rows too.
            deletes: a record without a value deletes its key; else a stream leaves it out.
        """
        self._value = value
        self.metadata = tuple(metadata)
        self.deletes = self._deletes = deletes
        self._key = key
        self.timestamp = timestamp
        self._time = WithTime(timestamp) if timestamp is not None else None
        self.dropped = 0
        """Records without a value, which a stream leaves out."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        places = np.arange(rows.num_rows, dtype=np.int32)
        values = rows["value"]
        deleted = places[:0]
        if values.null_count:
            valid = values.is_valid().to_numpy()
            if self._deletes:
                deleted = places[~valid]
            else:
                self.dropped += values.null_count
            places = places[valid]
            values = values.drop_null()
        user, good = self._decoded(self._value, values, rows, places, failed)
        places = places[good]
        if len(deleted):
            order = np.argsort(np.concatenate([places, deleted]), kind="stable")
            user = take_or_null(user, np.where(order < len(places), order, -1))
            places = np.concatenate([places, deleted])[order]
        if self._key is not None:
            user, places = self._with_key(user, rows, places, failed)
        taken = rows if np.array_equal(places, np.arange(rows.num_rows)) else take(rows, places)
        stamps = taken["timestamp_ms"].to_numpy()
        for name in self.metadata:
            user = user.append_column(name, taken["timestamp_ms" if name == "timestamp" else name].cast(METADATA[name]))
        none = np.zeros(len(places), np.int64)
        key = typed(taken["key"], pa.binary())
        made = with_system(user, key, stamps, none, places)
        if self._deletes:
            removed = np.isin(places, deleted)
            made = with_changes(made, np.where(removed, REMOVED, ADDED))
        yield Emitted(made)

    def _with_key(self, user: pa.Table, rows: pa.Table, places: Numbers, failed: Failed) -> tuple[pa.Table, Numbers]:
        assert self._key is not None
        keys = take(rows["key"], places)
        if keys.null_count:  # a key that is missing is a null in its column
            keys_valid = keys.is_valid().to_numpy()
            decoded, good = self._decoded(self._key, keys.drop_null(), rows, places[keys_valid], failed)
            order = np.full(len(places), -1, np.int64)
            order[np.flatnonzero(keys_valid)[good]] = np.arange(len(good))
            stays = ~keys_valid | (order >= 0)
            chosen: Any = pa.array(order[stays], mask=order[stays] < 0)
            taken = decoded.take(chosen)
        else:
            taken, good = self._decoded(self._key, keys, rows, places, failed)
            stays = np.zeros(len(places), bool)
            stays[good] = True
        user = user.filter(pa.array(stays))
        for name in taken.column_names:
            user = user.append_column(name, taken[name])
        return user, places[stays]

    def _decoded(
        self, format_: Format, values: pa.ChunkedArray[Any], rows: pa.Table, places: Numbers, failed: Failed
    ) -> tuple[pa.Table, Numbers]:
        """Columns, and of which value each row is."""
        decoded = format_.decode(whole(values))
        good = np.ones(len(values), bool)
        for problem in decoded.problems:
            good[problem.row] = False
            said = f"the key: {problem.message}" if format_ is self._key else problem.message
            failed(row_of(rows, int(places[problem.row])), Unreadable(said))
        found = np.flatnonzero(good)
        return decoded.table, found if decoded.counts is None else np.repeat(found, decoded.counts)

    def timed(self, rows: pa.Table) -> pa.Table:
        """
        With the event time that the program names, or that of the records.

        Raises:
            Exception: a time is missing, out of range, or cannot be computed; then the halves are tried.
        """
        if self._time is None:
            times(rows[TIME])
            return rows
        added = np.flatnonzero(changes_of(rows) == ADDED)
        if len(added) == rows.num_rows:
            (emitted,) = self._time.feed(rows, 0, _never)
            return emitted.rows
        # Where nothing is there to look into, the record's time counts.
        found = numbers(rows[TIME]).copy()
        (emitted,) = self._time.feed(take(rows, added), 0, _never)
        found[added] = numbers(emitted.rows[TIME])
        return replace(rows, TIME, times(pa.chunked_array([pa.array(found, pa.int64())])))


def with_place(records: pa.Table, topic: str, partition: int) -> pa.Table:
    """Records with the columns ``topic`` and ``partition``: where they were read."""
    topics: pa.Array[Any] = pa.repeat(pa.scalar(topic), records.num_rows)
    partitions: pa.Array[Any] = pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows)
    return records.append_column("topic", topics).append_column("partition", partitions)


def row_of(rows: pa.Table, place: int) -> pa.Table:
    """One record, told by its place as the column ``_row`` of a table without others."""
    return pa.table({"_row": pa.array([place], pa.int32())})


def _never(rows: pa.Table, error: BaseException) -> None:
    raise AssertionError("an expression tells no row") from error


class Sink(Operator):
    """Rows as records of a topic."""

    def __init__(
        self,
        topic: str,
        value: Format,
        write: Callable[[Output], None],
        limits: Limits | None = None,
        headers: HeaderColumns | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """
        Args:
            limits: of the topic; None: not known. Brokers' clocks differ, so times are at most half as far ahead.
            headers: those of each record; None: none.
            without: columns that are no part of the value.
        """
        self._topic = topic
        self._value = value
        self._write = write
        self._limits = limits
        self.headers = headers
        self._without = frozenset(without)

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        while rows.num_rows:
            try:
                headers = None if self.headers is None else pa.chunked_array([self.headers.of(rows)])
                values = self._encoded(rows)
                times = self._times(rows[TIME])
                if self._limits is not None:
                    self._check_keys(self._limits, rows[KEY])
                    self._check_sizes(self._limits, rows[KEY], values, headers)
            except NotEncodable as error:
                failed(rows.slice(error.row, 1), error)
                stays = np.ones(rows.num_rows, bool)
                stays[error.row] = False
                rows = rows.filter(pa.array(stays))
                continue
            self._write(Output(self._topic, records(rows[KEY], values, times, headers)))
            break
        return ()

    def _encoded(self, rows: pa.Table) -> pa.Array[Any] | pa.ChunkedArray[Any]:
        if RECORD in rows.column_names:
            return pc.cast(rows[RECORD], pa.binary())
        return self._value.encode(rows.select([c for c in user_columns(rows.column_names) if c not in self._without]))

    def _check_sizes(
        self,
        limits: Limits,
        keys: pa.ChunkedArray[Any],
        values: pa.Array[Any] | pa.ChunkedArray[Any],
        headers: pa.ChunkedArray[Any] | None,
    ) -> None:
        """
        Raises:
            NotEncodable: a record is larger than its topic takes.
        """
        of_headers = 0 if headers is None else header_bytes(headers)
        if values.nbytes + keys.nbytes + np.sum(of_headers) <= limits.bytes_max - _ROOM:
            return
        sizes = _lengths(keys) + _lengths(values) + of_headers
        (large,) = np.nonzero(sizes > limits.bytes_max - _ROOM)
        if len(large):
            raise NotEncodable(
                int(large[0]),
                f"its record for {self._topic} has {int(sizes[large[0]]):,} bytes; the topic's max.message.bytes is "
                f"{limits.bytes_max:,}: raise that, or write less",
            )

    def _check_keys(self, limits: Limits, keys: pa.ChunkedArray[Any]) -> None:
        """
        Raises:
            NotEncodable: a record has no key, and its topic is compacted.
        """
        if limits.keyed and keys.null_count:
            place = int(np.argmax(keys.is_null().to_numpy()))
            raise NotEncodable(
                place, f"it has no key, and {self._topic} is compacted: key_by() before to(), or leave such rows out"
            )

    def _times(self, times: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
        """
        Of the records. A window that is open ends long after now, and a row may say anything: what is further ahead of
        the clock than the topic takes would hold up all that comes behind it, for ever.

        Raises:
            NotEncodable: a time is further behind the clock than the topic takes.
        """
        limits = self._limits
        if limits is None or not (now := self.clock.wall):
            return times
        found = numbers(times)
        if limits.behind_ms is not None and len(far := np.flatnonzero(found < now - limits.behind_ms)):
            ms = int(found[far[0]])
            raise NotEncodable(
                int(far[0]),
                f"its time {ms} is {now - ms:,} ms behind the clock; message.timestamp.before.max.ms of {self._topic} "
                f"is {limits.behind_ms:,}: raise that, or leave such rows out",
            )
        if limits.ahead_ms is None or found.max(initial=0) <= (most := now + limits.ahead_ms // 2):
            return times
        return pa.chunked_array([pa.array(np.minimum(found, most), pa.int64())])


def _lengths(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> Numbers:
    texts: Any = column.cast(pa.binary())
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0), np.int64)
