"""
What ``send`` gives back: a handle that knows its row, and asks the batch only when somebody asks the handle.

A handle may be awaited (in ``headrace.aio``, and in any event loop), waited for with ``result()``, or dropped, which
costs nothing. One event settles all handles of a batch::

    >>> delivery = producer.send("flights", b"UA 1545 departed", key=b"UA")
    >>> metadata = delivery.result(timeout=10)
    >>> metadata.topic, metadata.offset
    ('flights', 0)
    >>> delivery.done(), delivery.exception()
    (True, None)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, overload

from headrace._core.batch import Batch
from headrace._core.chunk import Chunk
from headrace.errors import HeadraceError, Rejected, WaitTimedOut
from headrace.records import RecordMetadata

_lock = threading.Lock()
"""Guards the watchers of all chunks and batches; held for an append or a swap."""


class DeliveredBatch(NamedTuple):
    """What ``on_delivery`` of a producer is called with: the records of one batch were written, or failed together."""

    topic: str
    partition: int
    base_offset: int
    """Of the first record; the others follow without a gap. -1 on failure and with ``acks=0``."""
    records: int
    timestamp_ms: int
    """Of the first record; -1 when the batch was never built."""
    error: Exception | None


class Delivery:
    """The fate of one record. Safe to use from any thread."""

    __slots__ = ("_chunk", "_row")

    _chunk: Chunk
    _row: int

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        return _holder(self._chunk, self._row) is None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """
        Wait for the acknowledgement; not inside an event loop that the producer runs on.

        Args:
            timeout: seconds; None: until the producer's ``delivery_timeout_ms`` decides.

        Raises:
            WaitTimedOut: ``timeout`` has passed; the record is still on its way.
            Rejected: called where the wait could never end: in the event loop that delivers the record.
            HeadraceError: the record was not written, or nobody can tell; see ``headrace.errors``.
        """
        if _holder(self._chunk, self._row) is not None:
            if self._chunk.home == threading.get_ident():
                raise Rejected("this thread delivers the record, so it cannot wait here; await it, or use a callback")
            settled = threading.Event()
            _when_settled(self._chunk, self._row, settled.set)
            if not settled.wait(timeout):
                raise WaitTimedOut(f"not acknowledged within {timeout:g} s; it is still on its way")
        return _metadata(self._chunk, self._row)

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """Wait like ``result``, and return why the record failed; None when it was acknowledged."""
        try:
            self.result(timeout)
        except HeadraceError as error:
            if not self.done():
                raise
            return error
        return None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once it is done: at once, or on the client's own thread; be quick there."""
        _when_settled(self._chunk, self._row, lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if _holder(self._chunk, self._row) is not None:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            _when_settled(self._chunk, self._row, lambda: _wake(loop, future))
            yield from future
        return _metadata(self._chunk, self._row)

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way"
        return f"<Delivery of a record for {self._chunk.topic!r}: {state}>"


class Deliveries(Sequence[Delivery]):
    """The fates of records that were sent in bulk, in their order."""

    __slots__ = ("_ends", "_runs")

    def __init__(self, runs: Sequence[tuple[Chunk, int, int]]) -> None:
        self._runs = runs
        """(chunk, first row, end)."""

    def __len__(self) -> int:
        return sum(end - start for _, start, end in self._runs)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        """The handle of one record, or of some."""
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index if index >= 0 else index + len(self)
        if at >= 0:
            for chunk, start, end in self._runs:
                if at < end - start:
                    return _handle(chunk, start + at)
                at -= end - start
        raise IndexError(f"there are {len(self)} records")

    def __iter__(self) -> Iterator[Delivery]:
        return (_handle(chunk, row) for chunk, start, end in self._runs for row in range(start, end))

    def done(self) -> bool:
        """Whether all are done."""
        return all(delivery.done() for delivery in self)

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """
        Wait for all.

        Args:
            timeout: seconds for each batch; None: until ``delivery_timeout_ms`` decides.

        Raises:
            HeadraceError: the first failure.
        """
        return [delivery.result(timeout) for delivery in self]

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        results: list[RecordMetadata] = []
        for delivery in self:
            metadata = yield from delivery.__await__()
            results.append(metadata)
        return results


def _handle(chunk: Chunk, row: int) -> Delivery:
    delivery = Delivery()
    delivery._chunk = chunk
    delivery._row = row
    return delivery


def _holder(chunk: Chunk, row: int) -> Chunk | Batch | None:
    """Who will know more about the row; None when its fate is known."""
    if chunk.error is not None:
        return None
    found = chunk.locate(row)
    if found is None:
        return chunk
    return found[0] if found[0].outcome is None else None


def _metadata(chunk: Chunk, row: int) -> RecordMetadata:
    if chunk.error is not None:
        raise copy(chunk.error)
    found = chunk.locate(row)
    assert found is not None, "asked before its fate was known"
    batch, place = found
    outcome = batch.outcome
    assert outcome is not None, "asked before its fate was known"
    if outcome.error is not None:
        raise copy(outcome.error)
    offset = outcome.base_offset + place if outcome.base_offset >= 0 else -1
    return RecordMetadata(batch.topic, batch.partition, offset, batch.timestamp(place))


def _when_settled(chunk: Chunk, row: int, then: Callable[[], object]) -> None:
    while True:
        holder = _holder(chunk, row)
        if holder is None:
            then()
            return
        if watch(holder, lambda: _when_settled(chunk, row, then)):
            return


def batch_settled(batch: Batch, then: Callable[[], object]) -> None:
    """Call ``then`` once all records of ``batch`` have their outcome; at once if they have."""
    while batch.outcome is None:
        if batch.parts is not None:
            first, second = batch.parts
            batch_settled(first, partial(batch_settled, second, then))
            return
        if watch(batch, partial(batch_settled, batch, then)):
            return
    then()


def watch(holder: Chunk | Batch, look: Callable[[], None]) -> bool:
    """Call ``look`` when something is new about ``holder``; False when it is already."""
    with _lock:
        if isinstance(holder, Chunk):
            if holder.route is not None or holder.error is not None:
                return False
        elif holder.outcome is not None or holder.parts is not None:
            return False
        if holder.watchers is None:
            holder.watchers = []
        holder.watchers.append(look)
        return True


def changed(holder: Chunk | Batch) -> list[Callable[[], None]]:
    """Those who wait for news of ``holder``; it was changed before this is called."""
    if holder.watchers is None and not _lock.locked():
        return []
    with _lock:
        watchers, holder.watchers = holder.watchers, None
    return watchers or []


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        finish(future)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(finish, future)


def finish(future: asyncio.Future[None]) -> None:
    """Wake who waits for ``future``, if somebody still does."""
    if not future.done():
        future.set_result(None)
