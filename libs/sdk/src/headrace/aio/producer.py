"""
The producer for asyncio. ``headrace.Producer`` is its twin for threads: the same settings, names and guarantees.

::

    >>> async def main():
    ...     async with aio.Producer(bootstrap) as producer:
    ...         delivery = await producer.send("flights", b"UA 1545 departed", key=b"UA")
    ...         metadata = await delivery
    ...         print(metadata.topic, metadata.offset)
    >>> asyncio.run(main())
    flights 0

``await send(...)`` waits only where there is no room; awaiting what it returns waits for the acknowledgement. Records
of one ``linger_ms`` leave together, a batch per partition, so send many before you await.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from headrace import _runtime
from headrace._core.chunk import RECORD_OVERHEAD
from headrace._descriptors import needing_descriptors
from headrace._intake import closed_error
from headrace._setting_names import Servers, split
from headrace._waits import check_seconds
from headrace.aio._bulk_calls import BulkCalls
from headrace.aio._engine import ProducerEngine
from headrace.aio._fence_calls import FenceCalls
from headrace.aio._transaction_calls import TransactionCalls
from headrace.delivery import Delivery, finish
from headrace.errors import BufferExhausted, UnknownTopicOrPartition, WaitTimedOut
from headrace.records import HeadersIn
from headrace.settings import ProducerSettings, read_settings, waits_as_told
from headrace_common.runtime.clock import Deadline, give_way
from headrace_common.runtime.machine import MACHINE

if TYPE_CHECKING:
    from headrace._record_rules import View
    from headrace._transport.port import Transport
    from headrace.setting_types import ProducerSettingsDict

INTERRUPTED_SECONDS: Final = 5.0
"""How long leaving ``with`` waits for acknowledgements when the body was cancelled or interrupted."""
TURN_SECONDS: Final = 0.001
"""A task that sends without a pause gives the loop a turn this often."""

T = TypeVar("T")


class Producer(BulkCalls, FenceCalls, TransactionCalls):
    """
    Sends records from one event loop.

    Args:
        bootstrap_servers: ``"host:port"``, several with commas, or a list; else as ``headrace.finding`` says:
            ``HEADRACE_BOOTSTRAP``, a profile, the local cluster of ``./.headrace``, ``127.0.0.1:9292``.
        settings: see ``headrace.settings.ProducerSettings``; Kafka's names, with underscores or dots. A dict of
            them may stand in the place of ``bootstrap_servers``, as with confluent-kafka.

    Raises:
        InvalidConfig: all that is wrong with the settings.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[ProducerSettingsDict],
    ) -> None:
        self._closed = True  # until it works, there is nothing to warn of
        servers, given = split(bootstrap_servers, settings)
        self._settings = read_settings(ProducerSettings, given)
        self._engine = ProducerEngine(
            _transport or _dial(self._settings.find(servers), self._settings.client_id, given), self._settings
        )
        self._intake = self._engine.intake
        self._fast = self._intake.fast
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_at = 0.0
        self._time = MACHINE.get().time
        self._closed = False
        _runtime.enroll(self)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersIn | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """
        Accept one record; waits up to ``max_block_ms`` for metadata and buffer space, and not for the broker.

        Args:
            value, key: bytes, text (UTF-8) or None; with serializers, what those take.
            headers: a mapping, or (name, bytes) pairs.
            partition: else the partitioner decides: by key; without one the sticky partition.
            timestamp_ms: milliseconds since the epoch; now, when absent.

        Raises:
            RecordTooLarge, SerializationFailed, UnknownTopicOrPartition, Rejected: the record is wrong.
            BufferExhausted: the buffer stayed full.
            ClientClosed: the producer is closed.
            InvalidTxnState: it writes in transactions, and none is open.
        """
        if headers is None and partition is None and timestamp_ms is None and type(value) is bytes:
            if key is None:
                size = len(value) + RECORD_OVERHEAD
            elif type(key) is bytes:
                size = len(value) + len(key) + RECORD_OVERHEAD
            else:
                return await self._send(topic, value, key, None, None, None)
            chunk = self._fast.get(topic)
            if chunk is not None and size <= chunk.record_max and self._time() < chunk.tick:
                room = chunk.room - size
                if room >= 0:  # nothing waits in between, so the loop's own turn is the critical section
                    chunk.room = room
                    values = chunk.values
                    delivery = Delivery()
                    delivery._chunk = chunk
                    delivery._row = len(values)
                    values.append(value)
                    chunk.keys.append(key)
                    return delivery
        return await self._send(topic, value, key, headers, partition, timestamp_ms)

    async def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: HeadersIn | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery:
        intake = self._intake
        intake.check_open()
        view = await self._view(topic)
        try:
            row = intake.rules.row(view, value, key, headers, partition, timestamp_ms)
        except UnknownTopicOrPartition:
            view = await self._view(topic, at_least=(partition or 0) + 1)
            row = intake.rules.row(view, value, key, headers, partition, timestamp_ms)
        delivery = await self._until_room(lambda: intake.add(view, row), row.size)
        now = self._time()
        if now >= self._turn_at:  # a loop that only sends must let batches leave, and other tasks run
            self._turn_at = now + TURN_SECONDS
            await give_way()
        return delivery

    async def _view(self, topic: str, at_least: int = 0) -> View:
        self._start()
        self._intake.check_alive()
        view = self._intake.topics.get(topic)
        if view is None or view.partitions < at_least:
            return await self._engine.topic(topic, self._settings.max_block_ms, at_least)
        return view

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._engine.start()
        elif self._loop is not loop:
            raise closed_error("producer's event loop")

    async def _until_room(self, add: Callable[[], T | None], size: int) -> T:
        """What ``add`` gives, once there is room; in the order of the calls."""
        intake = self._intake
        added = intake.within(add)
        if added is not None:
            return added
        loop = asyncio.get_running_loop()
        deadline = Deadline(self._settings.max_block_ms)
        while True:
            room: asyncio.Future[None] = loop.create_future()
            added = intake.within(partial(intake.add_or_wait, add, partial(finish, room)))
            if added is not None:
                return added
            try:
                async with deadline.limit():
                    await room
            except TimeoutError:
                raise explain_exhaustion(self._settings, size) from None

    async def flush(self, timeout: float | None = None) -> None:
        """
        Send what was accepted before, without lingering, and wait until every record is acknowledged or has failed.

        Raises:
            WaitTimedOut: ``timeout`` seconds have passed; the work goes on.
            Rejected: below 0, or in milliseconds.
        """
        timeout = check_seconds(timeout)
        self._intake.check_alive()
        if self._loop is not None:
            await self._engine.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """
        Flush, then end; idempotent. What is not acknowledged within ``timeout`` seconds fails with ``ClientClosed``.

        Raises:
            WaitTimedOut: something was not acknowledged; the producer is closed nevertheless.
        """
        timeout = check_seconds(timeout)
        if self._closed:
            return
        self._closed = True
        _runtime.dismiss(self)
        self._start()
        await self._engine.close(timeout, closed_error("producer"))

    async def __aenter__(self) -> Producer:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:  # cancelled or interrupted: who wants to end must not wait for a broker that is away
            with contextlib.suppress(WaitTimedOut):
                await self.close(INTERRUPTED_SECONDS)

    def _abandon(self) -> None:
        if self._loop is None:
            return  # never used, so nothing of it is the parent's
        self._closed = True
        self._fast.clear()
        self._intake.orphan()

    def _close_at_exit(self, timeout: float) -> None:
        """Its loop has ended before; a warning was given when it was collected."""

    def __del__(self) -> None:
        if self._closed:
            return
        warnings.warn("a headrace.aio.Producer was never closed; use it with `async with`", ResourceWarning, 1, self)
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop ends just now
                self._loop.call_soon_threadsafe(self._engine.abandon)


def _dial(addresses: Sequence[str], client_id: str, given: Collection[str]) -> Transport:
    with needing_descriptors():
        from headrace._transport.grpc import GrpcTransport

    return GrpcTransport(addresses, patient=waits_as_told("max_block_ms", given), client_id=client_id)


def explain_exhaustion(settings: ProducerSettings, size: int) -> BufferExhausted:
    """What a call is told that has waited for room in vain."""
    return BufferExhausted(
        f"no room for {size} bytes within max_block_ms ({settings.max_block_ms}): all of buffer_memory "
        f"({settings.buffer_memory}) waits for brokers; send slower, or look why they do not answer"
    )
