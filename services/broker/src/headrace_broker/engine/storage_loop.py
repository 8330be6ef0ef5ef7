"""
The one task that changes partitions and writes to the store: group commit (03-storage §2).

Produce streams, the image applier and the upkeep tasks put work into one bounded queue, in order. The loop takes a
slice of it, runs the cores, writes one group, and by the flush policy confirms it at once (``os``) or when a sync
that began after the write has ended (``group``, ``always``). Answers, high watermarks and waiters follow from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import (
    BatchArrived,
    Compacted,
    Deposed,
    Event,
    GroupWritten,
    MarkerArrived,
    Refuse,
)
from headrace_broker.core.rows import DropSuffix, LogWrite
from headrace_broker.engine.effects import Effects
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.storage_queue import Arrival, Caller, Flush, Group, Posted, Posting, QueueLimits
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.ports import LogStore, WriteStalled
from headrace_common.core.errors import (
    DiskFull,
    HeadraceError,
    NotLeader,
    OperationNotAttempted,
    Overloaded,
    StorageFailed,
    UnknownTopicId,
)
from headrace_common.core.ids import Offset
from headrace_common.runtime.clock import Clock, give_way

SLICE_BYTES: Final = 1 << 20
"""Bytes of one write group at most, so that other work gets its turn."""
SLICE_ITEMS: Final = 1024
STALL_WAIT_MS: Final = 20
GROWTH_BYTES: Final = 4 << 20
"""A fast producer fills a small disk between two looks by the clock."""
STALL_LOGGED_MS: Final = 1_000

_log = logging.getLogger(__name__)


class StorageLoop:
    """See the module's text. ``run`` and ``flush`` are background tasks of the service; both end the process when
    they raise."""

    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        tail: TailCache,
        measures: Measures,
        flush: Flush = Flush.GROUP,
        limits: QueueLimits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tail = tail
        self._measures = measures
        self._policy = flush
        self._limits = limits or QueueLimits()
        self._queue: deque[Arrival | Posted] = deque()
        self._queued_bytes = 0
        self._unconfirmed_bytes = 0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._being_written: list[Group] = []
        """One at most: a store that stalls has not taken it yet, so that no sync is for it."""
        self._unsynced: list[Group] = []
        self._synced: list[Group] = []
        self._to_sync = asyncio.Event()
        self._in_hand: list[Group] = []
        self.failure: StorageFailed | None = None
        """Why nothing is written any more; the process is about to stop."""
        self.disk_full: str | None = None
        """Set by the disk guard: what to tell producers."""
        self.on_growth: Callable[[], None] = lambda: None
        """Called before more is queued after each ``GROWTH_BYTES``: the disk guard looks."""
        self._growth = 0
        self.effects = Effects(tail, measures)

    # --- called by others ---------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the loop or for a sync."""
        return self._queued_bytes + self._unconfirmed_bytes

    @property
    def has_room(self) -> bool:
        """Whether produce streams may be read."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until the queue is below its bounds."""
        await self._room.wait()

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Queue the batches of one request, one or more; the caller hears of every one of them, in time or at once."""
        size = sum(len(arrival.batch) for arrival in arrivals)
        self._growth += size
        if self._growth >= GROWTH_BYTES:
            self._growth = 0
            self.on_growth()
        refusal = self._refusal()
        if refusal is not None:
            arrivals = self._let_through(arrivals, refusal)
            if not arrivals:
                return
            size = sum(len(arrival.batch) for arrival in arrivals)
        self._queue.extend(arrivals)
        self._queued_bytes += size
        if (share := arrivals[0].share) is not None:
            share.take(size)
        if self.queued_bytes > self._limits.bytes_max or len(self._queue) > self._limits.items_max:
            self._room.clear()
        self._work.set()

    def post(self, replica: Replica, event: Posting, size: int = 0) -> asyncio.Future[None]:
        """
        Queue an event, or writes; done when what it writes is down by the flush policy.

        ``size``: bytes of batches in it. The future raises what the core raised, or ``StorageFailed``.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            done.set_exception(self.failure)
            return done
        self._queue.append(Posted(replica, event, done, size))
        self._queued_bytes += size
        self._work.set()
        return done

    def handle_now(self, replica: Replica, event: Event) -> None:
        """
        Let a partition take in what only moves its high watermark or its ISR, between two steps of the loop.

        Followers tell how far they are many times a second; behind the queue of the producers they would hold up what
        those wait for.
        """
        scratch = Group()
        self.effects.do(replica, self.effects.handle(replica, event), scratch)
        assert not scratch.writes, "what writes goes through the queue"

    async def post_all(self, events: Iterable[tuple[Replica, Posting]]) -> None:
        """Queue many events in order and wait for all of them; the first failure is raised."""
        waits = [self.post(replica, event) for replica, event in events]
        if waits:
            await asyncio.gather(*waits)

    def _let_through(self, arrivals: Sequence[Arrival], refusal: HeadraceError) -> list[Arrival]:
        """
        Refuse all but what the system itself writes to a disk below its reserve: the reserve is for that.

        The ends of transactions are part of it: they let readers go on.
        """
        through: list[Arrival] = []
        for arrival in arrivals:
            if (arrival.replica.internal or arrival.commit is not None) and isinstance(refusal, DiskFull):
                through.append(arrival)
            else:
                arrival.refuse(refusal)
        return through

    def _refusal(self) -> HeadraceError | None:
        if self.failure is not None:
            return self.failure
        if self.disk_full is not None:
            return DiskFull(self.disk_full)
        if self.queued_bytes > self._limits.refuse_bytes:
            return Overloaded("the broker's write queue is full; wait 1000 ms and send the batch again")
        return None

    # --- the loop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the queue for ever; raises ``StorageFailed`` when the store has failed, after telling all who wait."""
        try:
            while True:
                if not self._queue and not self._synced:
                    self._work.clear()
                    await self._work.wait()
                if self.failure is not None:
                    raise self.failure
                self._confirm_synced()
                if self._queue:
                    await self._commit(self._next_group())
                    if self._queue:
                        await give_way()
        except StorageFailed as error:
            self._fail(error)
            raise

    async def flush(self) -> None:
        """Sync whatever was written, one sync at a time, as soon as there is something."""
        while True:
            await self._to_sync.wait()
            self._to_sync.clear()
            groups, self._unsynced = self._unsynced, []
            if not groups:
                continue
            self._in_hand = groups
            began = self._clock.monotonic_ms()
            try:
                await self._store.sync()
            except StorageFailed as error:
                self.failure = error
                self._work.set()
                return
            self._measures.sync_ms.record(self._clock.monotonic_ms() - began)
            self._in_hand = []
            self._synced.extend(groups)
            self._work.set()

    def _next_group(self) -> Group:
        group = Group()
        now_ms = self._clock.now_ms()
        room = SLICE_BYTES
        caller: Caller | None = None
        queue = self._queue
        for _ in range(min(len(queue), SLICE_ITEMS)):
            item = queue[0]
            if type(item) is Arrival:
                size = len(item.batch)
                if room < size and group.writes:
                    break
                if self._policy is Flush.ALWAYS and caller not in (None, item.caller):
                    break
                caller = item.caller
                queue.popleft()
                room -= size
                self._queued_bytes -= size
                if item.share is not None:
                    group.count(item.share, size)
                self._run_arrival(item, now_ms, group)
            else:
                assert isinstance(item, Posted)
                if room < item.size and group.writes:
                    break
                if callable(item.event) and item.replica.core.log in group.rewritten:
                    break  # it looks for rows that are not as the store has them yet
                queue.popleft()
                room -= item.size
                self._queued_bytes -= item.size
                self._run_posted(item, group)
            if len(group.writes) > SLICE_ITEMS:
                break
        return group

    def _run_arrival(self, arrival: Arrival, now_ms: int, group: Group) -> None:
        replica = arrival.replica
        if replica.standing is not Standing.ONLINE:
            arrival.refuse(_describe_gone(replica))
            return
        if arrival.before is not None and arrival.before.refused:
            arrival.refuse(OperationNotAttempted.behind_refused())
            return
        if arrival.commit is not None:
            marker = MarkerArrived(arrival.header, arrival.batch, arrival.commit, now_ms, arrival)
            self.effects.do(replica, self.effects.handle(replica, marker), group)
            return
        event = BatchArrived(
            arrival.header,
            arrival.batch,
            arrival.caller.acks,
            now_ms,
            arrival.leader_epoch,
            arrival,
            arrival.fencing_token,
            arrival.fence,
            arrival.transactional_id,
            arrival.stranger,
            arrival.held,
        )
        core, header = replica.core, arrival.header
        full = arrival.transactional_id is not None and self.effects.parked_bytes > self._limits.parked_bytes_max
        if full and core.appends.has_to_ask(header, held=arrival.held):
            wait = "too much waits for coordinators of transactions; wait 1000 ms and send the batch again"
            arrival.refuse(Overloaded(wait))
            return
        end, parked = core.log_end, core.appends.parking.size
        effects = self.effects.handle(replica, event)
        appended = core.log_end != end or core.appends.parking.size > parked
        if not appended and not any(isinstance(effect, Refuse) for effect in effects):
            self._measures.duplicate_batches += 1
        arrival.batch = b""  # the store and the tail cache have the stamped one
        self.effects.do(replica, effects, group)

    def _run_posted(self, posted: Posted, group: Group) -> None:
        if posted.done.cancelled():
            return
        before = len(group.writes)
        try:
            self._take(posted.replica, posted.event, group)
        except HeadraceError as error:
            posted.done.set_exception(error)
            return
        if len(group.writes) > before:
            group.done.append(posted.done)
        else:
            posted.done.set_result(None)

    def _take(self, replica: Replica, event: Posting, group: Group) -> None:
        if isinstance(event, Sequence):
            group.writes.extend(event)
            return
        event = event() if callable(event) else event
        if type(event) is Compacted:
            if replica.standing is not Standing.ONLINE:
                raise _describe_gone(replica)
            self.effects.rewrite(replica, self.effects.handle(replica, event), group)
        else:
            self.effects.do(replica, self.effects.handle(replica, event), group)

    # --- writing and confirming ---------------------------------------------------------------------------

    async def _commit(self, group: Group) -> None:
        if not group.writes:
            group.give_back_shares()
            self._check_room()
            return
        self._being_written.append(group)  # so that a failure finds it
        await self._write(group.writes)
        self._being_written.clear()
        cut = [write.log for write in group.writes if type(write) is DropSuffix]
        if cut:  # always before what the same group appends
            self._tail.drop(cut)
        for log, bases in group.rewritten.items():
            self._tail.forget(log, bases)
        for put in group.appended:
            self._tail.put(put.log, put.row.base_offset, put.row.next_offset, put.batch)
        group.writes, group.appended, group.rewritten = [], [], {}
        if group.batches:
            self._measures.group_batches.record(group.batches)
        if self._policy is Flush.OS:
            self._confirm(group)
            self._check_room()
            return
        for replica in group.ends:
            if replica.fetcher is not None:
                replica.fetcher.on_progress(replica)
        self._unconfirmed_bytes += group.bytes
        self._unsynced.append(group)
        self._to_sync.set()
        if self._policy is Flush.ALWAYS:
            await self._sync_of(group)

    async def _sync_of(self, group: Group) -> None:
        while group not in self._synced:
            self._work.clear()
            await self._work.wait()
            if self.failure is not None:
                raise self.failure

    async def _write(self, writes: list[LogWrite]) -> None:
        began: float | None = None
        while True:
            try:
                self._store.write(writes)
            except WriteStalled:
                now = self._clock.monotonic_ms()
                began = now if began is None else began
                self._measures.write_stalls += 1
                if now - began > self._limits.stall_ms_max:
                    raise StorageFailed(f"the store has stalled for {now - began:.0f} ms; restart the broker") from None
                await self._clock.sleep_ms(STALL_WAIT_MS)
            else:
                stalled_ms = 0.0 if began is None else self._clock.monotonic_ms() - began
                if stalled_ms >= STALL_LOGGED_MS:
                    _log.warning("the store stalled", extra={"ms": round(stalled_ms)})
                return

    def _confirm_synced(self) -> None:
        if not self._synced:
            return
        groups, self._synced = self._synced, []
        for group in groups:
            self._unconfirmed_bytes -= group.bytes
            self._confirm(group, synced=True)
        self._check_room()

    def _confirm(self, group: Group, *, synced: bool = False) -> None:
        group.give_back_shares()
        now_ms = self._clock.monotonic_ms()
        for replica, (end, truncations) in group.ends.items():
            core = replica.core
            if replica.standing is Standing.DELETING or core.truncations != truncations:
                continue  # its end was cut since: this says nothing about the end it has now
            if synced:
                self._store.note_synced(core.log, end, core.epochs.epoch_at(Offset(end - 1)))
            self.effects.do(replica, self.effects.handle(replica, GroupWritten(end, now_ms)), group)
            for session in replica.sessions:
                session.on_grown(replica)
            if replica.fetcher is not None:
                replica.fetcher.on_progress(replica)
        for done in group.done:
            if not done.done():
                done.set_result(None)

    def _check_room(self) -> None:
        if self._room.is_set():
            return
        limits = self._limits
        if self.queued_bytes <= limits.bytes_max // 2 and len(self._queue) <= limits.items_max // 2:
            self._room.set()

    # --- failure ------------------------------------------------------------------------------------------

    def stop(self, error: StorageFailed) -> None:
        """Write nothing more, tell all who wait, and end the process, as after a write that failed."""
        self.failure = self.failure or error
        self._work.set()

    def _fail(self, error: StorageFailed) -> None:
        """Nobody is left waiting: what was not confirmed has an unknown fate, what is queued was not written."""
        self.failure = error
        _log.critical("the store failed; the broker acknowledges nothing more and stops", extra={"reason": str(error)})
        groups = [*self._in_hand, *self._unsynced, *self._synced, *self._being_written]
        waiting = {replica for group in groups for replica in group.ends} | set(self.effects.parked)
        for item in self._queue:
            if isinstance(item, Arrival):
                item.refuse(error)
                waiting.add(item.replica)
            elif not item.done.done():
                item.done.set_exception(error)
        self._queue.clear()
        self._queued_bytes = 0
        for group in groups:
            for done in group.done:
                if not done.done():
                    done.set_exception(error)
        scratch = Group()
        for replica in waiting:
            self.effects.do(replica, self.effects.handle(replica, Deposed(error)), scratch)
            replica.wake()
        self._room.set()


def _describe_gone(replica: Replica) -> HeadraceError:
    if replica.standing is Standing.DELETING:
        return UnknownTopicId(f"topic {replica.topic} was deleted; refresh metadata")
    return NotLeader(f"{replica.topic}-{replica.id.partition} is not served here any more; refresh metadata")
