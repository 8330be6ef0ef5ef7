"""
WriteTxnMarkers: the ends of transactions, each appended to every partition it names as a leader's own batch.

The servicer calls ``write`` for each request of a coordinator or an operator. All markers of a request go through the
storage loop together, in one pass; the answer comes when each is committed or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.measures import Measures
from headrace_broker.engine.replicas import Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.storage_queue import Arrival
from headrace_common.core.batch import build_marker_batch, read_header
from headrace_common.core.errors import ErrorCode, HeadraceError, Rejected, RequestTimedOut
from headrace_common.core.ids import Offset, PartitionId
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.failpoints import failpoint

MARKERS_PER_REQUEST_MAX: Final = 10_000
PARTITIONS_PER_MARKER_MAX: Final = 10_000
WRITES_PER_REQUEST_MAX: Final = 100_000
"""Partitions of all markers of a request together."""
COMMIT_MS_MAX: Final = 30_000
"""How long a request waits for its markers to be committed; whoever sent it sends it again."""
PRODUCER_EPOCH_MAX: Final = 32_767


@dataclass(frozen=True, slots=True)
class MarkerAsk:
    """The end of one producer's transaction in some partitions."""

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Sequence[PartitionId]


class _Call:
    """One request: what became of each of its markers in each partition."""

    acks: int = -1

    def __init__(self, count: int, deadline_ms: float, measures: Measures) -> None:
        self.deadline_ms = deadline_ms
        self.results: list[HeadraceError | None] = [None] * count
        self._undecided = set(range(count))
        self._measures = measures
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_appended(self, index: int, base_offset: Offset, log_append_time_ms: int) -> None:
        """The storage loop says so."""
        del base_offset, log_append_time_ms
        self._measures.markers_written += 1
        self._decide(index)

    def on_refused(self, index: int, error: HeadraceError) -> None:
        """The storage loop, or a check before it, says so."""
        self.results[index] = error
        self._decide(index)

    def expire(self) -> None:
        """The time is over."""
        late = RequestTimedOut("the marker is not committed yet, its fate is unknown; send it again")
        for index in self._undecided:
            self.results[index] = late

    def _decide(self, index: int) -> None:
        self._undecided.discard(index)
        if not self._undecided and not self.done.done():
            self.done.set_result(None)


class Markers:
    """One for the broker."""

    def __init__(self, replicas: Replicas, loop: StorageLoop, clock: Clock, measures: Measures) -> None:
        self._replicas = replicas
        self._loop = loop
        self._clock = clock
        self._measures = measures

    async def write(self, asks: Sequence[MarkerAsk]) -> list[list[HeadraceError | None]]:
        """
        For each ask, in order, one result for each of its partitions; None: the marker is committed, now or before.

        Raises:
            Rejected: the request as a whole is wrong; nothing was written.
        """
        count = _check(asks)
        call = _Call(count, self._clock.monotonic_ms() + COMMIT_MS_MAX, self._measures)
        arrivals = self._arrivals(asks, call)
        failpoint("txn.marker.append.before")
        if arrivals:
            self._loop.append(arrivals)
        try:
            async with limit_ms(COMMIT_MS_MAX):
                await asyncio.shield(call.done)
        except TimeoutError:
            call.expire()
        failpoint("txn.marker.append.after")
        results = iter(call.results)
        return [[next(results) for _ in ask.partitions] for ask in asks]

    def _arrivals(self, asks: Sequence[MarkerAsk], call: _Call) -> list[Arrival]:
        now_ms = self._clock.now_ms()
        arrivals: list[Arrival] = []
        index = 0
        for ask in asks:
            batch = build_marker_batch(ask.producer_id, ask.producer_epoch, commit=ask.commit, timestamp_ms=now_ms)
            header = read_header(batch)
            for partition in ask.partitions:
                try:
                    replica = self._replicas.get_leading(partition, None)
                    if replica.internal:
                        raise Rejected(
                            f"{replica.topic} is the system's: its coordinators end transactions there",
                            code=ErrorCode.POLICY_VIOLATION,
                        )
                    arrivals.append(Arrival(replica, header, batch, None, call, index, commit=ask.commit))
                except HeadraceError as error:
                    call.on_refused(index, error)
                index += 1
        return arrivals


def _check(asks: Sequence[MarkerAsk]) -> int:
    """How many partitions there are in all."""
    if not 1 <= len(asks) <= MARKERS_PER_REQUEST_MAX:
        raise Rejected(f"the request has {len(asks)} markers; 1 to {MARKERS_PER_REQUEST_MAX} are allowed")
    count = 0
    for ask in asks:
        count += len(ask.partitions)
        if not 1 <= len(ask.partitions) <= PARTITIONS_PER_MARKER_MAX:
            raise Rejected(
                f"a marker names {len(ask.partitions)} partitions; 1 to {PARTITIONS_PER_MARKER_MAX} are allowed"
            )
        if ask.producer_id < 0 or not 0 <= ask.producer_epoch <= PRODUCER_EPOCH_MAX:
            raise Rejected(f"no producer has id {ask.producer_id} and epoch {ask.producer_epoch}")
    if count > WRITES_PER_REQUEST_MAX:
        raise Rejected(f"the markers name {count} partitions in all; {WRITES_PER_REQUEST_MAX} is the most, split it")
    return count
