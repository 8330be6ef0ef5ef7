"""
``headrace.aio.Consumer``: reads topics on the application's event loop.

The engine (``_reading``) fetches in the background; this is its face. The sync twin is ``headrace.consumer``.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from headrace import _runtime
from headrace._bulk_libraries import load_table_libraries
from headrace._descriptors import needing_descriptors
from headrace._setting_names import Servers
from headrace._waits import check_seconds, check_wait_ms
from headrace.aio._consumer_setup import (
    check_most,
    open_group,
    open_reading,
    read_arguments,
)
from headrace.aio._group_calls import GroupCalls
from headrace.aio._position_calls import PositionCalls
from headrace.aio._transactional import Transactional
from headrace.errors import ClientClosed
from headrace.records import K, PartitionTable, Record, V
from headrace_common.runtime.clock import call_later_ms, give_way

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace._transport.port import Transport
    from headrace.aio._group import Group
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

    Not for concurrent use: one task at a time. Prefetched records take up to ``fetch_max_bytes`` per broker.

    ``Consumer[K, V]`` tells type checkers what the deserializers make of keys and values.

    Raises:
        InvalidConfig: a setting is unknown or out of bounds; all of them are named.

    Iterate, or poll for lists or Arrow tables; all share one position per partition::

        >>> import asyncio
        >>> from headrace import TopicPartition, aio
        >>> async def read():
        ...     async with aio.Consumer("flights", auto_offset_reset="earliest") as consumer:
        ...         async for record in consumer:
        ...             print(record.offset, record.value)
        ...             break
        ...         print([record.value for record in await consumer.poll(timeout_ms=5_000, max_records=1)])
        ...         print((await consumer.poll_table(timeout_ms=5_000)).column("offset").to_pylist())
        ...         first = TopicPartition("flights", 0)
        ...         consumer.seek(first, 1)
        ...         print(await consumer.position(first), (await consumer.lag())[first], consumer.state)
        >>> asyncio.run(read())
        0 b'JFK-LAX'
        [b'EWR-ORD']
        [2, 3]
        1 3 reading

    The methods are those of ``headrace.Consumer``; what may have to wait is a coroutine.
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
        self._arrived = asyncio.Event()
        self._reading, self._transport, self._clock = open_reading(arguments, _transport, self._arrived.set)
        self._out = self._reading.out
        self._wake = _Wake(self._arrived)
        self._steps = open_group(arguments, self._transport, self._reading, self._clock, self._wake)
        self._started = not arguments.topics
        self._makes_tables = False
        """Whether what makes tables is loaded."""
        self._starting = asyncio.Lock()
        self._closed = self._closing = False
        self._pid = os.getpid()

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """
        Connect and assign all partitions of the topics. The first call that reads does it by itself.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            NetworkFailed: no broker answered within ``default_api_timeout_ms``.
        """
        self._check_usable()
        self._wake.loop = asyncio.get_running_loop()
        if self._started:
            return
        async with self._starting:
            if not self._started:
                await self._begin_reading()
                self._started = True

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """
        Stop reading and close the connections. Idempotent; every other call raises ``ClientClosed`` afterwards.

        A member of a group first commits what was handed out (``enable_auto_commit``), calls ``on_revoke``, and leaves.
        When an exception leaves the ``async with`` block, what was handed out last is not committed.

        Args:
            timeout: seconds, for commits and the good-bye each.
        """
        check_seconds(timeout)
        await self._close(timeout, handled_only=False)

    async def _close(self, limit_s: float, *, handled_only: bool) -> None:
        if self._closed or self._closing or self._pid != os.getpid():
            return
        self._closing = True
        try:
            if self._steps is not None:
                await self._run(self._steps.close(limit_s * 1000, handled_only=handled_only))
        finally:
            self._closed = True
            self._arrived.set()
            if self._steps is not None:
                ending = asyncio.run_coroutine_threadsafe(self._steps.group.close(), self._steps.group.loop.loop)
                await asyncio.wrap_future(ending)
            await self._reading.close()
            await self._transport.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        if self._reading.begun:
            warnings.warn(f"{self!r} was not closed; use close() or async with", ResourceWarning, 2, self)
        if self._steps is not None and self._pid == os.getpid():
            self._steps.group.loop.call_soon(_end_soon, self._steps.group)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self._close(CLOSE_TIMEOUT_S, handled_only=kind is not None)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed; make a new one")
        if self._pid != os.getpid():
            raise ClientClosed.by_fork("consumer")

    def _ready(self) -> None:
        self._check_usable()

    # --- reading ------------------------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: float | None = WAIT_SLICE_MS, max_records: int | None = None
    ) -> list[Record[K, V]]:
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
        return await self._poll(timeout_ms, lambda may: self._out.take(limit) if may else [])

    async def poll_table(self, timeout_ms: float | None = WAIT_SLICE_MS, max_records: int | None = None) -> pa.Table:
        """
        What is here as an Arrow table: topic, partition, offset, timestamp_ms, key, value, headers, timestamp_type (0:
        the writer's, 1: the broker's). Keys and values are bytes, not copied and not deserialized; while the table
        lives, the batches it came from stay in memory.
        Without records within ``timeout_ms`` it has no rows.
        """
        return await self._poll(
            timeout_ms, lambda may: self._out.take_table(max_records if may else 0), makes_tables=True
        )

    async def poll_batches(
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
        """
        check_most("max_rows", max_rows)
        check_most("max_bytes", max_bytes)
        return await self._poll(
            timeout_ms, lambda may: self._out.take_batches(max_rows, max_bytes) if may else [], makes_tables=True
        )

    async def _poll(self, timeout_ms: float | None, take: Callable[[bool], T], *, makes_tables: bool = False) -> T:
        """What ``take`` gives as soon as that is not empty. It is told whether anything may be handed out."""
        check_wait_ms(timeout_ms)
        await self.start()
        self._check_reads()
        await give_way()  # the next fetch leaves, even when nobody ever waits
        if makes_tables and not self._makes_tables:
            with needing_descriptors():
                await _runtime.in_thread(load_table_libraries)
            self._makes_tables = True
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while True:
            self._arrived.clear()
            taken = take(await self._step())
            if len(taken) or not await self._wait(deadline_ms):
                return taken

    async def read_to_end(self, timeout_ms: float | None = None) -> list[Record[K, V]]:
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
        """
        from headrace.aio._steps import run_awaiting
        from headrace.aio._to_end import read_to_end

        check_wait_ms(timeout_ms)
        await self.start()
        self._check_reads()
        waiting = (self._arrived, self._wait)
        loop = None if self._steps is None else self._steps.group.loop
        return await run_awaiting(read_to_end(self._reading, self._steps, self._clock, waiting, timeout_ms), loop)

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """All records, without end. A record counts as handed out when the loop gets it; ``break`` loses nothing."""
        await self.start()
        while True:
            self._check_reads()
            await give_way()
            self._arrived.clear()
            run = self._out.next_run() if await self._step() else None
            if run is None:
                await self._wait(None)
                continue
            if self._steps is None:
                for record in run.iterator:
                    yield record
                continue
            for record in islice(run.iterator, self._steps.pace.begin()):
                yield record
            self._steps.pace.end()

    async def _wait(self, deadline_ms: float | None) -> bool:
        """Wait for news, a while at most; False: the deadline has passed."""
        left_ms = WAIT_SLICE_MS if deadline_ms is None else deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        timer = call_later_ms(min(left_ms, WAIT_SLICE_MS), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()
        self._check_usable()
        return True

    def __repr__(self) -> str:
        return f"<headrace.aio.Consumer {', '.join(sorted(self._wanted)) or 'of nothing'}: {self.state}>"


class _Wake:
    """Wakes whoever waits in a poll, from any thread. It does not know the consumer, so that can be collected."""

    def __init__(self, arrived: asyncio.Event) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._arrived = arrived

    def __call__(self) -> None:
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._arrived.set)


def _end_soon(group: Group) -> None:
    """On the group's loop: the consumer is gone without having been closed."""
    _runtime.Tasks().start(group.close(), "consumer: end a group that was not left")
