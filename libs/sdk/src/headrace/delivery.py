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
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple, overload

from headrace._callbacks import BLOCKED_LOOK_S, call_back, warn_of_blocked
from headrace._core.batch import Batch, Watcher
from headrace._core.chunk import Chunk
from headrace._waits import check_seconds
from headrace.errors import ClientClosed, HeadraceError, Rejected, WaitTimedOut
from headrace.records import RecordMetadata, Span

END: Final = float("inf")
"""Behind the last record of a batch."""


class _Guard:
    """A lock that a child has anew: a thread that was not forked may have held it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()


_guard: Final = _Guard()
"""For the watchers of all chunks and batches; held for a push or a pop. A finalizer may come here while it is."""
_numbers = count()


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
        return _done(self._chunk, self._row)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """
        Wait for the acknowledgement; not inside an event loop that the producer runs on.

        Args:
            timeout: seconds; None: until the producer's ``delivery_timeout_ms`` decides.

        Raises:
            WaitTimedOut: ``timeout`` has passed; the record is still on its way.
            Rejected: called where the wait could never end: in the event loop that delivers the record.
            ClientClosed: called in a forked child: what becomes of the record only the parent hears.
            HeadraceError: the record was not written, or nobody can tell; see ``headrace.errors``.
        """
        found = self._place_when_told(timeout)
        if found is None:
            raise self._chunk_error()
        batch, place = found
        outcome = batch.outcome
        assert outcome is not None, "asked before its fate was known"
        if outcome.error is not None:
            raise copy(outcome.error)
        return RecordMetadata(batch.topic, batch.partition, outcome.offset_of(place), batch.timestamp(place))

    def _place_when_told(self, timeout: float | None) -> tuple[Batch, int] | None:
        """The batch that has its outcome, and the record's place in it; None: it came into none, the chunk says why."""
        if timeout is not None:
            timeout = check_seconds(timeout)
        found = self._chunk.locate(self._row)
        if found is None or found[0].told < 0:  # mostly somebody who sends much looks at what was settled long ago
            if not _done(self._chunk, self._row):
                self._wait_until_told(timeout)
            found = self._chunk.locate(self._row)
        return found

    def _chunk_error(self) -> HeadraceError:
        assert self._chunk.error is not None, "asked before its fate was known"
        return copy(self._chunk.error)

    def _wait_until_told(self, timeout: float | None) -> None:
        if self._chunk.home == (threading.get_ident(), os.getpid()):
            raise Rejected("this thread delivers the record, so it cannot wait here; await it, or use a callback")
        settled = threading.Event()
        _call_when_settled(self._chunk, self._row, settled.set)
        if not self._wait(settled, timeout):
            raise WaitTimedOut(f"not acknowledged within {timeout:g} s; it is still on its way")

    def _wait(self, settled: threading.Event, timeout: float | None) -> bool:
        while timeout is None or timeout > BLOCKED_LOOK_S:
            if settled.wait(BLOCKED_LOOK_S):
                return True
            warn_of_blocked(self._chunk.home.thread)
            timeout = None if timeout is None else timeout - BLOCKED_LOOK_S
        return settled.wait(timeout)

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """
        Wait like ``result``, and return why the record failed; None when it was acknowledged.

        Raises:
            WaitTimedOut, Rejected, ClientClosed: as ``result``, where they say nothing of the record.
        """
        found = self._place_when_told(timeout)
        if found is None:
            return self._chunk_error()
        outcome = found[0].outcome
        assert outcome is not None, "asked before its fate was known"
        return None if outcome.error is None else copy(outcome.error)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """
        Call ``callback(delivery)`` once it is done: at once, or on the client's own thread; be quick there. Callbacks
        of one partition are called in the order in which its records were sent. What one raises is logged.
        """
        _call_when_settled(self._chunk, self._row, partial(self._call_back, callback))

    def _call_back(self, callback: Callable[[Delivery], object]) -> None:
        found = self._chunk.locate(self._row)
        partition = None if found is None else found[0].partition
        call_back(callback, self, self._chunk.topic, partition)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not _done(self._chunk, self._row):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            _call_when_settled(self._chunk, self._row, lambda: _wake(loop, future))
            yield from future
        return self.result()

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

    def failure(self) -> HeadraceError | None:
        """
        Why one of these was not written, or one that was sent with them; None: all that are done were. Batches are
        looked at, not records.
        """
        for chunk, _, _ in self._runs:
            if chunk.error is not None:
                return copy(chunk.error)
            for batch in chunk.route.batches() if chunk.route is not None else ():
                if batch.outcome is not None and batch.outcome.error is not None:
                    return copy(batch.outcome.error)
        return None

    def spans(self) -> list[Span]:
        """
        Where all of them are, in their order: quicker than to ask each. ``Producer.flush`` waits until it is known.

        Raises:
            Rejected: one is not done.
            HeadraceError: one was not written.
        """
        return [span for chunk, start, end in self._runs for span in _spans(chunk, start, end)]

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """
        Wait for all.

        Args:
            timeout: seconds for each batch; None: until ``delivery_timeout_ms`` decides.

        Raises:
            HeadraceError: the first failure.
        """
        timeout = check_seconds(timeout)
        return [delivery.result(timeout) for delivery in self]

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        results: list[RecordMetadata] = []
        for delivery in self:
            metadata = yield from delivery.__await__()
            results.append(metadata)
        return results


def _spans(chunk: Chunk, row: int, end: int) -> Iterator[Span]:
    while row < end:
        found = chunk.locate(row)
        if found is None and chunk.error is not None:
            raise copy(chunk.error)
        outcome = None if found is None else found[0].outcome
        if found is None or outcome is None:
            raise Rejected("a record is on its way: call flush() before")
        if outcome.error is not None:
            raise copy(outcome.error)
        batch, place = found
        # the rows of a chunk are in a batch in their order: if the last of them is where it would be, so are all
        rows = range(1, min(end - row, batch.count - place))
        count = 1 + bisect_left(rows, True, key=lambda step: chunk.locate(row + step) != (batch, place + step))
        yield Span(batch.partition, outcome.offset_of(place), count)
        row += count


def _handle(chunk: Chunk, row: int) -> Delivery:
    delivery = Delivery()
    delivery._chunk = chunk
    delivery._row = row
    return delivery


def _done(chunk: Chunk, row: int) -> bool:
    found = chunk.locate(row)
    return (chunk if found is None else found[0]).told >= 0


def _call_when_settled(chunk: Chunk, row: int, then: Callable[[], object]) -> None:
    """
    Call ``then`` once the fate of the row is told: now, or in its turn.

    Raises:
        ClientClosed: a forked child asks for what its parent sends.
    """
    if chunk.home.process not in (0, os.getpid()) and not _done(chunk, row):
        raise ClientClosed.by_fork("producer of this record")
    while True:
        found = chunk.locate(row)
        holder, place = (chunk, row) if found is None else found
        with _guard.lock:
            if holder.told >= place:
                break
            if found is None and chunk.route is not None:
                continue  # spread meanwhile
            if isinstance(holder, Batch) and holder.parts is not None:
                continue
            _await_turn(holder, Watcher(place, next(_numbers), then))
            return
    then()


def _await_turn(holder: Chunk | Batch, watcher: Watcher) -> None:
    if holder.watchers is None:
        holder.watchers = []
    heappush(holder.watchers, watcher)


def call_when_told(batch: Batch, then: Callable[[], object]) -> None:
    """Call ``then`` once all who wait for records of ``batch`` were told; at once if they were. On the loop."""
    if batch.parts is not None:
        first, second = batch.parts
        call_when_told(first, partial(call_when_told, second, then))
        return
    with _guard.lock:
        if batch.told < END:
            _await_turn(batch, Watcher(END, next(_numbers), partial(call_when_told, batch, then)))
            return
    then()


def call_when_all_told(batches: Sequence[Batch], then: Callable[[], object]) -> None:
    """Call ``then`` once that is so for all. On the loop."""
    left = len(batches)

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for batch in batches:
        call_when_told(batch, one_less)
    if not batches:
        then()


def tell(holder: Chunk | Batch) -> None:
    """
    The fate of ``holder`` is known: call all who wait, in the order of its records, also those who come meanwhile.
    Who comes for a record that was told of is called at once, where it comes. On the loop.
    """
    with _guard.lock:
        holder.told = max(holder.told, 0)
    while True:
        with _guard.lock:
            if not holder.watchers:
                holder.told, holder.watchers = END, None
                return
            watcher = heappop(holder.watchers)
            holder.told = max(holder.told, watcher.place)
        watcher.look()


def moved(holder: Chunk | Batch) -> None:
    """Rows of ``holder`` are in batches of their own now, or in its halves: who waits for them waits there."""
    with _guard.lock:
        watchers, holder.watchers = holder.watchers, None
        rows = [watcher for watcher in watchers or () if watcher.place < END]
        for watcher in rows:
            batch, place = _new_place(holder, int(watcher.place))
            _await_turn(batch, watcher._replace(place=place))
    for watcher in watchers or ():
        if watcher.place == END:
            watcher.look()


def _new_place(holder: Chunk | Batch, row: int) -> tuple[Batch, int]:
    if isinstance(holder, Chunk):
        found = holder.locate(row)
        assert found is not None, "it was spread"
        return found
    assert holder.parts is not None, "it was halved"
    first, second = holder.parts
    return (first, row) if row < first.count else (second, row - first.count)


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
