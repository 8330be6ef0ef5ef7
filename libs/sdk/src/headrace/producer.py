"""
The producer for threads. ``headrace.aio.Producer`` is its twin for asyncio: the same settings, names and guarantees.

::

    >>> from headrace import Producer
    >>> with Producer(bootstrap) as producer:
    ...     for number in range(3):
    ...         delivery = producer.send("flights", f"flight {number}", key="UA")
    ...     producer.flush()
    ...     print(delivery.result().offset)
    2

``send`` only appends to a column, in well under a microsecond; batches are made and sent by a background thread that
all clients of the process share. One producer may be used from many threads, and one is enough for a process.
"""

from __future__ import annotations

import contextlib
import threading
import time as clocks
import warnings
from collections.abc import Callable
from functools import partial
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from headrace import _runtime
from headrace._bulk_calls import BulkCalls
from headrace._core.chunk import RECORD_OVERHEAD
from headrace._fence_calls import FenceCalls
from headrace._intake import closed_error
from headrace._setting_names import Servers, split
from headrace._transaction_calls import TransactionCalls
from headrace._waits import check_seconds
from headrace.aio._engine import ProducerEngine
from headrace.aio.producer import INTERRUPTED_SECONDS, _dial, explain_exhaustion
from headrace.delivery import Delivery
from headrace.errors import HeadraceError, UnknownTopicOrPartition, WaitTimedOut
from headrace.records import HeadersIn
from headrace.settings import ProducerSettings, read_settings

if TYPE_CHECKING:
    from headrace._record_rules import View
    from headrace._transport.port import Transport
    from headrace.setting_types import ProducerSettingsDict

T = TypeVar("T")


class Producer(BulkCalls, FenceCalls, TransactionCalls):
    """
    Sends records from any thread.

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
        self._token = self._intake.token
        self._fast = self._intake.fast
        self._thread = _runtime.loop_thread()
        self._thread.call(self._start_engine())
        self._closed = False
        _runtime.enroll(self)

    async def _start_engine(self) -> None:
        self._engine.start()

    def send(
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
                return self._send(topic, value, key, None, None, None)
            token = self._token
            try:
                del token.free  # not a call, so nothing comes between it and the next ``try``: see ``_intake``
            except AttributeError:
                return self._send(topic, value, key, None, None, None)
            try:
                chunk = self._fast[topic]
                if size <= chunk.record_max and time() < chunk.tick:
                    room = chunk.room - size
                    if room >= 0:
                        chunk.room = room
                        values = chunk.values
                        delivery = Delivery()
                        delivery._chunk = chunk
                        delivery._row = len(values)
                        values.append(value)
                        chunk.keys.append(key)
                        return delivery
            except KeyError:
                pass
            except BaseException:
                self._intake.mend()
                raise
            finally:
                token.free = True
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send(
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
        view = self._view(topic)
        try:
            row = intake.rules.row(view, value, key, headers, partition, timestamp_ms)
        except UnknownTopicOrPartition:
            view = self._view(topic, at_least=(partition or 0) + 1)
            row = intake.rules.row(view, value, key, headers, partition, timestamp_ms)
        return self._until_room(lambda: intake.add(view, row), row.size)

    def _view(self, topic: str, at_least: int = 0) -> View:
        self._intake.check_alive()
        view = self._intake.topics.get(topic)
        if view is None or view.partitions < at_least:
            view = self._thread.call(self._engine.topic(topic, self._settings.max_block_ms, at_least))
        return view

    def _until_room(self, add: Callable[[], T | None], size: int) -> T:
        """What ``add`` gives, once there is room."""
        intake = self._intake
        added = intake.within(add)
        if added is not None:
            return added
        if self._thread.here:
            raise explain_exhaustion(self._settings, size)  # waiting here would stop what makes room
        deadline = clocks.monotonic() + self._settings.max_block_ms / 1_000
        while True:
            room = threading.Event()
            added = intake.within(partial(intake.add_or_wait, add, room.set))
            if added is not None:
                return added
            if not room.wait(max(0.0, deadline - clocks.monotonic())):
                raise explain_exhaustion(self._settings, size)

    def flush(self, timeout: float | None = None) -> None:
        """
        Send what was accepted before, without lingering, and wait until every record is acknowledged or has failed.

        Raises:
            WaitTimedOut: ``timeout`` seconds have passed; the work goes on.
            Rejected: below 0, or in milliseconds.
        """
        timeout = check_seconds(timeout)
        self._intake.check_alive()
        self._thread.call(self._engine.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """
        Flush, then end; idempotent. What is not acknowledged within ``timeout`` seconds fails with ``ClientClosed``.

        Raises:
            WaitTimedOut: something was not acknowledged; the producer is closed nevertheless.
        """
        timeout = check_seconds(timeout)
        if self._closed:
            return
        self._thread.check_elsewhere()  # refused in a callback, it is still open
        self._closed = True
        _runtime.dismiss(self)
        self._thread.call(self._engine.close(timeout, closed_error("producer")))

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # interrupted: who wants to end must not wait for a broker that is away
            with contextlib.suppress(WaitTimedOut):
                self.close(INTERRUPTED_SECONDS)

    # --- forks, exit, collection ------------------------------------------------------------------------------

    def _abandon(self) -> None:
        self._closed = True
        self._fast.clear()
        self._intake.orphan()

    def _close_at_exit(self, timeout: float) -> None:
        warnings.warn("a headrace.Producer was never closed; it is flushed now", ResourceWarning, 1, self)
        self._closed = True
        with contextlib.suppress(HeadraceError):
            self._thread.call(self._engine.close(timeout, closed_error("producer")), timeout + _runtime.EXIT_STEP_S)

    def __del__(self) -> None:
        if self._closed:
            return
        warnings.warn("a headrace.Producer was never closed; use it with `with`", ResourceWarning, 1, self)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._thread.call_soon(self._engine.abandon)
