"""
``headrace.Consumer``: reads topics from a thread that may block.

The engine of ``aio`` runs on the process's loop thread and fetches in the background; this takes whole batches from it
and decodes them on the application's thread. Nothing crosses threads per record.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from headrace import _runtime
from headrace._group_calls import GroupCalls
from headrace._position_calls import PositionCalls
from headrace._setting_names import Servers
from headrace._waits import check_seconds, check_wait_ms
from headrace.aio._consumer_setup import (
    check_most,
    open_group,
    open_reading,
    read_arguments,
)
from headrace.aio._transactional import Transactional
from headrace.errors import ClientClosed, Rejected
from headrace.records import K, PartitionTable, Record, V

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace._transport.port import Transport
    from headrace.aio._group import Group
    from headrace.aio._reading import Reading
    from headrace.setting_types import ConsumerKeywords

T = TypeVar("T", bound=Sized)

WAIT_SLICE_MS = 500
"""Nobody waits longer without looking for failures."""

CLOSE_TIMEOUT_S = 10.0


class Consumer(GroupCalls, PositionCalls, Transactional, Generic[K, V]):
    """
    Reads records of one or more topics: with a group the partitions that it gives to this member, else all of them.

    Args:
        topics: what to read. None: nothing until ``subscribe`` or ``assign``.
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; by default ``HEADRACE_BOOTSTRAP``.
        group_id: the group whose members share the partitions, and under which positions are committed.
        settings: see ``headrace.consumer_settings.ConsumerSettings``.

    Making one connects to nothing yet; the first call that needs the cluster does. For one thread at a time: calls that
    overlap are refused. Ctrl+C ends any wait, and loses nothing. Prefetched records take up to ``fetch_max_bytes`` per
    broker.

    ``Consumer[K, V]`` tells type checkers what the deserializers make of keys and values.

    Raises:
        InvalidConfig: a setting is unknown or out of bounds; all of them are named.

    Iterate, or poll for lists or Arrow tables; all share one position per partition::

        >>> import headrace
        >>> consumer = headrace.Consumer("flights", auto_offset_reset="earliest")
        >>> for record in consumer:
        ...     print(record.offset, record.key, record.value)
        ...     if record.offset == 1:
        ...         break
        0 b'AA' b'JFK-LAX'
        1 b'UA' b'EWR-ORD'
        >>> [record.value for record in consumer.poll(timeout_ms=5_000, max_records=1)]
        [b'LGA-MIA']
        >>> consumer.poll_table(timeout_ms=5_000).column("offset").to_pylist()
        [3]

    Positions can be asked for and moved, by offset and by time::

        >>> first = headrace.TopicPartition("flights", 0)
        >>> consumer.position(first), consumer.lag()
        (4, {TopicPartition(topic='flights', partition=0): 0})
        >>> consumer.seek(first, 2)
        >>> consumer.seek_to_timestamp(1_700_000_001_000)
        >>> consumer.position(first)
        1
        >>> consumer.seek_to_end()
        >>> consumer.seek_to_beginning(first)
        >>> consumer.beginning_offsets([first]), consumer.end_offsets([first])
        ({TopicPartition(topic='flights', partition=0): 0}, {TopicPartition(topic='flights', partition=0): 4})
        >>> consumer.offsets_for_times({first: 1_700_000_002_000})[first].offset
        2

    What is read can be changed, or held back::

        >>> consumer.pause(first)
        >>> consumer.paused() == {first}, consumer.poll(timeout_ms=10)
        (True, [])
        >>> consumer.resume(first)
        >>> consumer.subscribe(["flights"])
        >>> consumer.assign([first])
        >>> consumer.assignment() == {first}, consumer.subscription(), consumer.partitions_for("flights")
        (True, set(), {0})
        >>> consumer.state, consumer.health().ok
        ('reading', True)

    Positions that outlive the consumer are committed by a group; see ``subscribe`` and ``commit``::

        >>> consumer.commit()
        Traceback (most recent call last):
        ...
        headrace.errors.NoGroup: commit needs a group: make the consumer with a group_id, ...
        >>> consumer.close()
    """

    def __init__(
        self,
        *topics: str | Mapping[str, Any],
        bootstrap_servers: Servers = None,
        group_id: str | None = None,
        _transport: Transport | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        self._closed = True  # until it works, there is nothing to warn of
        arguments = read_arguments(topics, bootstrap_servers, group_id, settings)
        self._settings = arguments.settings
        self._wanted = arguments.topics
        self._arrived = threading.Event()
        self._reading, self._transport, self._clock = open_reading(arguments, _transport, self._arrived.set)
        self._out = self._reading.out
        self._loop = _runtime.loop_thread()
        self._steps = open_group(arguments, self._transport, self._reading, self._clock, self._arrived.set)
        self._started = not arguments.topics
        self._closed = self._closing = self._abandoned = False
        self._using = threading.Lock()
        _runtime.enroll(self)

    # --- life ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._check_usable()
        if not self._started:
            self._begin_reading()
            self._started = True

    def _ready(self) -> None:
        self._start()

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """
        Stop reading and close the connections. Idempotent; every other call raises ``ClientClosed`` afterwards.

        A member of a group first commits what was handed out (``enable_auto_commit``), calls ``on_revoke``, and leaves.
        When an exception leaves a ``with`` block, what was handed out last is not committed: it was not handled.

        Args:
            timeout: seconds, for commits and the good-bye each.
        """
        check_seconds(timeout)
        self._close(timeout, handled_only=False)

    def _close(self, timeout: float, *, handled_only: bool) -> None:
        if self._closed or self._closing or self._abandoned:
            return
        self._loop.check_elsewhere()  # refused in a callback, it is still open
        self._closing, steps = True, self._steps
        try:
            if steps is not None:
                self._run(steps.close(timeout * 1000, handled_only=handled_only))
        finally:
            self._closed = True
            _runtime.dismiss(self)
            self._loop.call(_end(self._reading, self._transport, steps.group if steps is not None else None), timeout)
            self._arrived.set()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._abandoned or sys.is_finalizing():
            return
        self._closed = True
        warnings.warn(f"{self!r} was not closed; use close() or a with block", ResourceWarning, 2, self)
        group = self._steps.group if self._steps is not None else None
        self._loop.call_soon(_end_soon, self._reading, self._transport, group)

    def _abandon(self) -> None:
        self._abandoned = True

    def _close_at_exit(self, timeout: float) -> None:
        """Nothing of a consumer is lost with its process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._close(CLOSE_TIMEOUT_S, handled_only=kind is not None)

    def _check_usable(self) -> None:
        if self._abandoned:
            raise ClientClosed.by_fork("consumer")
        if self._closed:
            raise ClientClosed("the consumer is closed; make a new one")

    def _enter(self) -> None:
        if not self._using.acquire(blocking=False):
            raise Rejected("the consumer is in use by another thread; give each thread a consumer of its own")

    # --- reading ------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float | None = WAIT_SLICE_MS, max_records: int | None = None) -> list[Record[K, V]]:
        """
        Records that are here, waiting up to ``timeout_ms`` for the first (None: for as long as it takes).

        Args:
            timeout_ms: milliseconds; ``poll(1.0)``, which is seconds elsewhere, is refused.
            max_records: at most so many; by default ``max_poll_records``.

        Raises:
            Rejected: a time below 0 or in seconds; a consumer that was told of nothing to read.
            HeadraceError: what stops a partition: a position that does not exist, damaged bytes, a leader that could
                not be reached for ``default_api_timeout_ms``. The next poll tries again.
        """
        limit = self._settings.max_poll_records if max_records is None else max_records
        return self._poll(timeout_ms, lambda may: self._out.take(limit) if may else [])

    def poll_table(self, timeout_ms: float | None = WAIT_SLICE_MS, max_records: int | None = None) -> pa.Table:
        """
        What is here as an Arrow table: topic, partition, offset, timestamp_ms, key, value, headers, timestamp_type (0:
        the writer's, 1: the broker's). Keys and values are bytes, not copied and not deserialized; while the table
        lives, the batches it came from stay in memory.
        Without records within ``timeout_ms`` it has no rows.
        """
        return self._poll(timeout_ms, lambda may: self._out.take_table(max_records if may else 0))

    def poll_batches(
        self, timeout_ms: float | None = WAIT_SLICE_MS, max_rows: int | None = None, max_bytes: int | None = None
    ) -> list[PartitionTable]:
        """
        What is here as Arrow tables, one of each partition, with what tells how far that partition was read.

        As ``poll_table`` in all else, and it may be mixed with the other ways to read: keys and values are bytes, not
        copied where a batch has columns, and deserializers do not apply. What is handed out counts as the position,
        markers and gaps behind it too.

        A partition whose position has moved without a record has a table without rows, so a loop that waits until
        ``next_offset`` reaches an end always gets there. The call waits up to ``timeout_ms`` for any such news (None:
        for as long as it takes), then the list is empty.

        Args:
            max_rows: of all tables together; what is left of a batch comes next time, without being decoded again.
            max_bytes: of keys and values of all tables together; no batch follows one that reaches it. None: no bound.

        Raises:
            Rejected: as ``poll``; ``max_rows`` or ``max_bytes`` below 1.
            HeadraceError: as ``poll``.

        ::

            >>> import headrace
            >>> with headrace.Consumer("flights", auto_offset_reset="earliest") as consumer:
            ...     for part in consumer.poll_batches(timeout_ms=5_000, max_rows=3):
            ...         print(part.topic, part.partition, part.table.num_rows, part.next_offset, part.lag)
            flights 0 3 3 1
        """
        check_most("max_rows", max_rows)
        check_most("max_bytes", max_bytes)
        return self._poll(timeout_ms, lambda may: self._out.take_batches(max_rows, max_bytes) if may else [])

    def _poll(self, timeout_ms: float | None, take: Callable[[bool], T]) -> T:
        """What ``take`` gives as soon as that is not empty. It is told whether anything may be handed out."""
        check_wait_ms(timeout_ms)
        self._enter()
        try:
            self._start()
            self._check_reads()
            deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
            while True:
                self._arrived.clear()
                taken = take(self._step())
                if len(taken) or not self._wait(deadline_ms):
                    return taken
        finally:
            self._using.release()

    def read_to_end(self, timeout_ms: float | None = None) -> list[Record[K, V]]:
        """
        Everything from the positions to the ends that the logs have at this call, as one list; positions are then at
        these ends, and the next poll goes on with what came later. With a group of the partitions that this member
        has, once the group has settled who reads what. With ``read_committed`` the end is before the first transaction
        that is not decided. Paused partitions are left alone.

        It is for what fits into memory; for more, iterate. Automatic commits take it for handled at the next call that
        asks for records, and at ``close``.

        Args:
            timeout_ms: milliseconds for all of it; by default ``default_api_timeout_ms``.

        Raises:
            WaitTimedOut: it took longer. As after every error of this call, positions are where they were before it.
            HeadraceError: as ``poll``.

        ::

            >>> import headrace
            >>> with headrace.Consumer("flights", auto_offset_reset="earliest") as consumer:
            ...     print(len(consumer.read_to_end()), len(consumer.read_to_end()))
            4 0
        """
        from headrace.aio._steps import run_blocking
        from headrace.aio._to_end import read_to_end

        check_wait_ms(timeout_ms)
        self._enter()
        try:
            self._start()
            self._check_reads()
            waiting = (self._arrived, self._wait)
            return run_blocking(read_to_end(self._reading, self._steps, self._clock, waiting, timeout_ms), self._loop)
        finally:
            self._using.release()

    def __iter__(self) -> Iterator[Record[K, V]]:
        """All records, without end. A record counts as handed out when the loop gets it; ``break`` loses nothing."""
        return chain.from_iterable(self._runs())

    def _runs(self) -> Iterator[Iterator[Record[K, V]]]:
        """One iterator per batch: the ``for`` loop of the application walks them in C."""
        while True:
            self._enter()
            try:
                self._start()
                self._check_reads()
                self._arrived.clear()
                run = self._out.next_run() if self._step() else None
                if run is None:
                    self._wait(None)
                    continue
            finally:
                self._using.release()
            if self._steps is None:
                yield run.iterator
                continue
            yield islice(run.iterator, self._steps.pace.begin())
            self._steps.pace.end()

    def _wait(self, deadline_ms: float | None) -> bool:
        """Wait for news, a while at most; False: the deadline has passed."""
        left_ms = WAIT_SLICE_MS if deadline_ms is None else deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        self._arrived.wait(min(left_ms, WAIT_SLICE_MS) / 1000)
        self._check_usable()
        return True

    def __repr__(self) -> str:
        return f"<headrace.Consumer {', '.join(sorted(self._wanted)) or 'of nothing'}: {self.state}>"


async def _end(reading: Reading, transport: Transport, group: Group | None) -> None:
    if group is not None:
        await group.close()
    await reading.close()
    await transport.close()


def _end_soon(reading: Reading, transport: Transport, group: Group | None) -> None:
    """On the loop: nobody waits for it, and the consumer itself is gone."""
    _runtime.Tasks().start(_end(reading, transport, group), "consumer: end one that was not closed")
