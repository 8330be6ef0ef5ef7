"""
``headrace.RangeReader``: ranges of offsets as Arrow tables, for programs that know what they want to read and no more.

The engine is that of the consumers: it fetches on the process's loop thread, ahead of the application, on whose thread
the batches are decoded.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from headrace._core.ranges import RangeQueue
from headrace._core.record_runs import Deserializers
from headrace._core.record_tables import TABLE_COLUMNS
from headrace._core.remedies import UNKNOWN_TOPIC_GRACE_MS
from headrace._lifetime import CLOSE_TIMEOUT_S, Lifetime
from headrace._waits import check_wait_ms
from headrace.aio._consumer_setup import open_transport
from headrace.aio._reading import Reading
from headrace.consumer_settings import reading_settings
from headrace.errors import (
    InvalidConfig,
    NoPosition,
    PositionOutOfRange,
    Rejected,
    UnknownTopicOrPartition,
    WaitTimedOut,
)
from headrace_common.core.ids import TopicId
from headrace_common.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace._transport.port import Transport
    from headrace.setting_types import ReadingSettingsDict

WAIT_SLICE_MS: Final = 500
"""Nobody waits longer without looking for failures."""
NAMED_MAX: Final = 5
"""Of so many partitions a text tells."""


class RangeReader(Lifetime):
    """
    An iterator over tables of the records in some ranges of offsets: each record once, those of a partition in order.

    Args:
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; else as ``headrace.finding`` says.
        ranges: (topic, partition, start, end) each; ``end`` is not among them. Several of one partition do not overlap.
        columns: which columns are wanted, in this order; the others are not made. By default all of
            ``Consumer.poll_table``.
        topic_ids: in hexadecimal digits, as ``LogWatch.topics`` has them: then a topic that was created anew under the
            name is not read.
        poll_timeout_ms: how long to wait while nothing comes at all; by default ``default_api_timeout_ms``.
        settings: those of a consumer that are not about groups, resets or single records.

    Ends when every range was read, also where its last offsets are gaps, which compaction, aborted transactions and
    their markers leave. Nothing at or above an end is handed out, and at most one fetch of a partition reaches beyond.
    Making one connects to nothing yet. For one thread at a time. It belongs to the process that made it: a forked child
    makes its own.

    Raises:
        InvalidConfig: a setting or a column is unknown, or a value out of bounds.
        Rejected: the ranges are not such.

    ::

        >>> import headrace
        >>> ranges = [("flights", 0, 1, 3)]
        >>> with headrace.RangeReader(ranges=ranges, columns=["offset", "value"]) as reader:
        ...     for table in reader:
        ...         print(table.to_pydict())
        {'offset': [1, 2], 'value': [b'EWR-ORD', b'LGA-MIA']}
    """

    _KIND = "range reader"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        ranges: Iterable[tuple[str, int, int, int]] = (),
        *,
        columns: Sequence[str] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        poll_timeout_ms: float | None = None,
        _transport: Transport | None = None,
        **settings: Unpack[ReadingSettingsDict],
    ) -> None:
        read = reading_settings(self._KIND, settings)
        addresses = read.find(bootstrap_servers)
        self._columns = _check_columns(columns)
        self._queue = RangeQueue(ranges)
        self._topic_ids = _parse_ids(topic_ids or {})
        self._poll_timeout_ms = _check_timeout(
            read.default_api_timeout_ms if poll_timeout_ms is None else poll_timeout_ms
        )
        self._left_at_end: list[tuple[str, int, int, int]] | None = None
        self._started = self._finished = False
        self._using = threading.Lock()
        self._arrived = threading.Event()
        transport = open_transport(addresses, read, settings) if _transport is None else _transport
        self._clock = SystemClock()
        limits = replace(read.limits, gone_after_ms=UNKNOWN_TOPIC_GRACE_MS)
        self._reading = reading = Reading(
            transport, read, self._clock, Deserializers(), self._arrived.set, limits=limits
        )
        self._out = reading.out

        async def end() -> None:
            await reading.close()
            await transport.close()

        self._begin_life(end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.Table:
        """
        The next table; it has at least one row.

        Raises:
            StopIteration: all was read; the reader has closed itself.
            PositionOutOfRange: the log does not begin or end where the ranges say; ``partition``, ``offset`` and
                ``log_start`` say what is gone.
            UnknownTopicOrPartition: the topic does not exist (any more), or was created anew.
            WaitTimedOut: nothing came for ``poll_timeout_ms``.
            HeadraceError: a leader could not be asked within ``default_api_timeout_ms``, or stored bytes are damaged.
        """
        if not self._using.acquire(blocking=False):
            raise Rejected("the range reader is in use by another thread; give each thread a reader of its own")
        try:
            table = None if self._finished else self._next_table()
        finally:
            self._using.release()
        if table is None:
            self._finished = True
            self.close()
            raise StopIteration
        return table

    def _next_table(self) -> pa.Table | None:
        self._check_usable()
        if not self._started:
            self._ask(self._reading.read_ranges(self._queue.now(), self._topic_ids))
            self._started = True
        waited_since_ms, heard = self._clock.monotonic_ms(), self._sum_progress()
        while True:
            self._arrived.clear()
            table = self._take()
            if len(table) or not self._go_on():
                return table if len(table) else None
            now_ms, hears = self._clock.monotonic_ms(), self._sum_progress()
            if hears != heard:
                waited_since_ms, heard = now_ms, hears
            left_ms = waited_since_ms + self._poll_timeout_ms - now_ms
            if left_ms <= 0:
                raise WaitTimedOut(self._silence())
            self._arrived.wait(min(left_ms, WAIT_SLICE_MS) / 1000)
            self._check_usable()

    def _take(self) -> pa.Table:
        try:
            return self._out.take_table(None, self._columns)
        except NoPosition:
            self._check_usable()  # closing takes the positions away
            names = sorted({tp.topic for tp, _ in self._queue.list_left()})
            text = f"{', '.join(names[:NAMED_MAX])}: deleted, and created again: what was to be read is gone"
            raise UnknownTopicOrPartition(text) from None
        except PositionOutOfRange as error:
            if error.partition is None:
                raise
            advice = "Read what there is with another reader; remaining() says what this one has not handed out"
            at = PositionOutOfRange.at(error.partition, error.offset, error.log_start, error.log_end, advice=advice)
            raise at from None

    def _go_on(self) -> bool:
        """Begin the next range of partitions whose range was read; False: all was read."""
        now = self._queue.now()
        ended = [tp for tp in now if self._out.stopped(tp)]
        self._out.go_on({tp: self._queue.done(tp) for tp in ended})
        return len(ended) < len(now) or bool(self._queue.now())

    def _sum_progress(self) -> int:
        """Another number whenever a broker has told something of the ranges."""
        partitions, now = self._out.core.partitions, self._queue.now()
        known = (partitions.get(tp) for tp in now)  # none of them once another thread has closed this
        return sum(partition.fetch_offset for partition in known if partition is not None) - len(now)

    def _silence(self) -> str:
        left = self.remaining()
        those = "; ".join(f"{topic}-{number} is at {start} of {end}" for topic, number, start, end in left[:NAMED_MAX])
        more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
        return (
            f"nothing came for {self._poll_timeout_ms:g} ms: {those}{more}. Does the log reach that far, or does an "
            "undecided transaction hold readers of committed records back?"
        )

    def remaining(self) -> list[tuple[str, int, int, int]]:
        """What was not handed out yet, as ranges: for another reader, after this one has failed."""
        if self._left_at_end is not None:
            return self._left_at_end
        partitions, now = self._out.core.partitions, self._queue.now()
        left: list[tuple[str, int, int, int]] = []
        for tp, (start, end) in self._queue.list_left():
            partition = partitions.get(tp) if (start, end) == now[tp] else None
            at = start if partition is None or partition.position is None else partition.position
            if at < end:
                left.append((tp.topic, tp.partition, max(start, at), end))
        return left

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop reading and close the connections. Idempotent; what was not read then is ``remaining``."""
        if self._left_at_end is None:
            self._left_at_end = self.remaining()
        super().close(timeout)
        self._arrived.set()

    def __repr__(self) -> str:
        if self._closed or self._abandoned:
            return "<headrace.RangeReader: closed>"
        return f"<headrace.RangeReader: {len(self._queue.list_left())} ranges left>"


def _check_columns(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return TABLE_COLUMNS
    names = tuple(given)
    unknown = [name for name in names if name not in TABLE_COLUMNS]
    if isinstance(given, str) or not names or unknown or len(set(names)) < len(names):
        raise InvalidConfig(f"columns are one or more of {', '.join(TABLE_COLUMNS)}, each once; not {given!r}")
    return names


def _check_timeout(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise InvalidConfig(f"poll_timeout_ms takes a number of ms above 0, not {given!r}")
    check_wait_ms(given, "poll_timeout_ms")
    return float(given)


def _parse_ids(given: Mapping[str, str]) -> dict[str, TopicId]:
    try:
        return {topic: TopicId(bytes.fromhex(digits)) for topic, digits in given.items()}
    except (ValueError, TypeError):
        raise InvalidConfig(f"topic_ids are those that LogWatch.topics() gives, not {given!r}") from None


__all__ = ["RangeReader"]
