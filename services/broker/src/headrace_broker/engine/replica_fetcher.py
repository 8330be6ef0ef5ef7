"""
The follower's end of a ``Replicate`` stream: all partitions that this broker follows and one other broker leads.

One task per leader keeps a stream open, says how far each log is when that has changed, and puts what comes into the
storage loop: batches to append, ends to cut, high watermarks. It holds one request per partition, so a partition is
asked for more only when the last batches are appended, and counts as further only when they are down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace_broker.core.copying import Copied, CopyAnswer, CopyAsk, Position
from headrace_broker.core.partition_events import BatchesCopied, Emptied, Truncated
from headrace_broker.engine.rebuilding import find_batch_boundary, prepare_trim, rebuild
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import LeaderStream, LogStore
from headrace_common.core.batch import BatchHeader, check_crc, read_header
from headrace_common.core.errors import CorruptBatch, HeadraceError, NetworkFailed, OffsetOutOfRange
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.runtime.clock import Clock, call_later_ms, give_way
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.tasks import first_of

POSITIONS_PER_ASK: Final = 1_000
TRIMS_AT_ONCE: Final = 32
"""Logs that follow their leaders' starts in one go, as where retention has dropped something of thousands."""
RETRY_MS_MIN: Final = 20.0
RETRY_MS_MAX: Final = 1_000.0

_log = logging.getLogger(__name__)

Connect = Callable[[NodeId], Awaitable[LeaderStream]]
"""Opens a stream to a broker, wherever the image says it is now; raises ``HeadraceError``."""


@dataclass(slots=True, eq=False)
class _Followed:
    """One partition of the stream."""

    replica: Replica
    leader_epoch: int
    wants: bool = True
    """What is to be said next asks for more."""
    expects: Offset = Offset(0)
    """Where its log ends once everything that came is appended; before that nothing more is asked for."""
    failures: int = 0
    log_start: Offset = Offset(0)
    """The leader's, as it said last."""


class ReplicaFetcher:
    """One for each broker that leads what this one follows."""

    def __init__(
        self,
        leader: NodeId,
        me: NodeId,
        broker_epoch: Callable[[], int],
        connect: Connect,
        loop: StorageLoop,
        store: LogStore,
        clock: Clock,
        throttle: Throttle,
    ) -> None:
        self.leader = leader
        self._me = me
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._loop = loop
        self._store = store
        self._clock = clock
        self._throttle = throttle
        self._followed: dict[PartitionId, _Followed] = {}
        self._dirty: dict[PartitionId, _Followed] = {}
        self._withdrawn: list[PartitionId] = []
        self._received = 0
        self._acknowledged = 0
        self._wake = asyncio.Event()
        self._retries: dict[asyncio.TimerHandle, None] = {}
        self.connected = False

    def __len__(self) -> int:
        return len(self._followed)

    # --- what is followed ---------------------------------------------------------------------------------

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        """Copy this partition from now on, in this leader epoch."""
        known = self._followed.get(replica.id)
        if known is not None and known.leader_epoch == leader_epoch:
            return
        followed = _Followed(replica, leader_epoch)
        self._followed[replica.id] = self._dirty[replica.id] = followed
        replica.fetcher = self
        self._wake.set()

    def forget(self, replica: Replica) -> None:
        """It is not copied from here any more."""
        if self._followed.pop(replica.id, None) is not None:
            self._dirty.pop(replica.id, None)
            self._withdrawn.append(replica.id)
            self._wake.set()
        if replica.fetcher is self:
            replica.fetcher = None

    def on_progress(self, replica: Replica) -> None:
        """The storage loop says that the log end or the written end has moved."""
        followed = self._followed.get(replica.id)
        if followed is not None:
            self._dirty[replica.id] = followed
            self._wake.set()

    # --- the stream ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the stream open while there is anything to copy; ends only when cancelled."""
        failures = 0
        try:
            while True:
                while not self._followed:
                    self._wake.clear()
                    await self._wake.wait()
                try:
                    await self._run_stream()
                    failures = 0
                except HeadraceError as error:
                    failures = 1 if self._received else failures + 1
                    _log.info(
                        "copying broke off: %s", error, extra={"peer": f"broker-{self.leader}", "failures": failures}
                    )
                    await self._pause(failures)
        finally:
            for timer in self._retries:
                timer.cancel()

    async def _pause(self, failures: int) -> None:
        await self._clock.sleep_ms(max(RETRY_MS_MIN, backoff_ms(failures, ms_max=RETRY_MS_MAX)))

    async def _run_stream(self) -> None:
        """Until the stream breaks, nothing is followed any more, or this broker has another epoch."""
        self._received = self._acknowledged = 0
        self._withdrawn.clear()
        for followed in self._followed.values():
            followed.wants = True
            self._dirty[followed.replica.id] = followed
        epoch = self._broker_epoch()
        stream = await self._connect(self.leader)
        self.connected = True
        try:
            await first_of(self._say(stream, epoch), self._hear(stream))
        finally:
            self.connected = False
            await stream.close()

    async def _say(self, stream: LeaderStream, epoch: int) -> None:
        while self._followed:
            while not (self._dirty or self._withdrawn or self._received > self._acknowledged):
                self._wake.clear()
                await self._wake.wait()
            if self._broker_epoch() != epoch:
                return
            withdrawn, self._withdrawn = self._withdrawn, []
            positions = self._positions()
            self._acknowledged = self._received
            await stream.send(CopyAsk(self._me, epoch, positions, withdrawn, self._received))

    def _positions(self) -> list[Position]:
        said: list[Position] = []
        for partition in list(self._dirty)[:POSITIONS_PER_ASK]:
            followed = self._dirty.pop(partition)
            following = followed.replica.core.following
            if following is None or following != (self.leader, followed.leader_epoch):
                continue  # the storage loop has not heard of it yet, or follows somebody else already
            said.append(self._position(followed))
        return said

    def _position(self, followed: _Followed) -> Position:
        core = followed.replica.core
        wants = followed.wants and core.log_end >= followed.expects
        followed.wants = followed.wants and not wants
        if followed.replica.damage is not None:
            return Position(core.id, followed.leader_epoch, -1, Offset(-1), Offset(-1), wants)
        ends = core.log_end, core.written_end
        return Position(core.id, followed.leader_epoch, core.epochs.latest, *ends, wants, core.forgotten_to)

    # --- what the leader says -----------------------------------------------------------------------------

    async def _hear(self, stream: LeaderStream) -> None:
        while True:
            answer = await stream.receive()
            if answer is None:
                raise NetworkFailed("the leader ended the stream")
            posted = await self._take(answer)
            if posted:
                _All(posted, self._on_taken_in)
            else:
                self._on_taken_in()

    def _on_taken_in(self) -> None:
        """All of one answer is down: the leader may send another one."""
        self._received += 1
        self._wake.set()

    async def _take(self, answer: CopyAnswer) -> list[asyncio.Future[None]]:
        parted: list[tuple[_Followed, Copied]] = []
        posted: list[asyncio.Future[None]] = []
        for copied in answer.partitions:
            followed = self._followed.get(copied.partition)
            if followed is None or followed.leader_epoch != copied.leader_epoch:
                continue  # said before this broker followed somebody else
            followed.log_start = max(followed.log_start, copied.log_start)
            if copied.error is not None and not isinstance(copied.error, OffsetOutOfRange):
                self._on_refused(followed, copied.error)
            elif copied.error is not None or copied.parted is not None:
                parted.append((followed, copied))
            else:
                if copied.batches:
                    followed.failures = 0
                posted += self._append(followed, copied)
        if parted:
            await self._reconcile(parted)
        await self._trim([self._followed[c.partition] for c in answer.partitions if c.partition in self._followed])
        return posted

    def _append(self, followed: _Followed, copied: Copied) -> list[asyncio.Future[None]]:
        replica = followed.replica
        try:
            batches = tuple(map(_check, copied.batches))
        except CorruptBatch as error:
            _log.error("a batch from the leader is damaged: %s", error, extra=self._about(followed))
            self._on_refused(followed, error)
            return []
        size = sum(len(batch) for _, batch in batches)
        event = BatchesCopied(
            copied.leader_epoch, batches, copied.high_watermark, self._clock.now_ms(), copied.forgotten_to
        )
        if not batches:
            self._loop.handle_now(replica, event)
            return []
        followed.wants = not self._throttle_partition(followed, size)
        followed.expects = Offset(batches[-1][0].next_offset)
        done = self._loop.post(replica, event, size)
        done.add_done_callback(lambda future: self._on_appended(followed, future))
        return [done]

    def _on_appended(self, followed: _Followed, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and isinstance(error := done.exception(), CorruptBatch):
            followed.expects = Offset(0)
            self._on_refused(followed, error)

    def _throttle_partition(self, followed: _Followed, size: int) -> bool:
        """Whether the next request for this partition has to wait: it joins, and joining has a rate."""
        metadata = followed.replica.metadata
        if metadata is None or self._me not in metadata.adding or self._me in metadata.isr:
            return False
        wait_ms = self._throttle.spend(size, self._clock.monotonic_ms())
        if wait_ms <= 0:
            return False
        self._ask_later(followed, wait_ms)
        return True

    def _on_refused(self, followed: _Followed, error: HeadraceError) -> None:
        """Ask again a little later: one side does not know yet what the other knows."""
        followed.failures += 1
        level = logging.DEBUG if followed.failures < 10 else logging.WARNING
        _log.log(level, "the leader refuses: %s", error, extra=self._about(followed))
        self._ask_later(followed, min(RETRY_MS_MIN * 2 ** min(followed.failures - 1, 10), RETRY_MS_MAX))

    def _ask_later(self, followed: _Followed, wait_ms: float) -> None:
        def ask() -> None:
            self._retries.pop(timer, None)
            if self._followed.get(followed.replica.id) is followed:
                followed.wants = True
                self._dirty[followed.replica.id] = followed
                self._wake.set()

        timer = call_later_ms(wait_ms, ask)
        self._retries[timer] = None

    # --- making the log a prefix of the leader's ----------------------------------------------------------

    async def _reconcile(self, parted: Sequence[tuple[_Followed, Copied]]) -> None:
        """Cut what the leader does not have; evidence of it is lowered before, for all of them at once."""
        cuts: list[tuple[_Followed, Copied, Offset | None, int]] = []
        for followed, copied in parted:
            core = followed.replica.core
            if core.following != (self.leader, followed.leader_epoch):
                continue
            point = None if copied.parted is None else core.truncation_point(*copied.parted)
            if point is not None:
                point = find_batch_boundary(self._store, core, point)
                point = None if point < core.log_start else point
            cuts.append((followed, copied, point, core.rewrites))
        evidence: list[tuple[object, ...]] = []
        for followed, _, point, _ in cuts:
            core = followed.replica.core
            end = Offset(0) if point is None else point
            evidence.append((core.log, end, core.epochs.epoch_at(Offset(end - 1)) if end else -1))
        await self._store.lower_evidence(evidence)  # type: ignore[arg-type]  # triples, made above
        await self._loop.post_all((f.replica, self._cut(f, copied, point, at)) for f, copied, point, at in cuts)
        for followed, _, point, _ in cuts:
            if point is None and followed.replica.damage is not None:
                followed.replica.damage, followed.replica.standing = None, Standing.ONLINE
            followed.wants, followed.expects = True, Offset(0)
            self._dirty[followed.replica.id] = followed
        self._wake.set()

    def _cut(self, followed: _Followed, copied: Copied, point: Offset | None, rewrites: int) -> Truncated | Emptied:
        core = followed.replica.core
        extra = {**self._about(followed), "log_end": core.log_end, "high_watermark": core.high_watermark}
        now_ms = self._clock.now_ms()
        if point is None:
            level = logging.WARNING if core.log_end > core.log_start else logging.INFO
            reason = copied.error or "the logs have nothing in common that can be kept"
            _log.log(level, "the log begins anew at %d: %s", followed.log_start, reason, extra=extra)
            return Emptied(followed.leader_epoch, followed.log_start, now_ms, copied.fencing_token)
        if point < core.log_end:
            level = logging.ERROR if point < core.high_watermark else logging.INFO
            _log.log(level, "the log is cut to %d, where it parts from the leader's", point, extra=extra)
        return Truncated(followed.leader_epoch, point, rebuild(self._store, core, point, now_ms), rewrites)

    async def _trim(self, followed: Iterable[_Followed]) -> None:
        """Follow the leader's log start, as far as this log is known to be committed."""
        steps = []
        for one in followed:
            core = one.replica.core
            start = min(one.log_start, core.high_watermark)
            if start > core.log_start and core.following == (self.leader, one.leader_epoch):
                steps.append((one.replica, partial(prepare_trim, self._store, core, start, self._clock.now_ms())))
        posted: list[asyncio.Future[None]] = []
        for at in range(0, len(steps), TRIMS_AT_ONCE):
            posted += [self._loop.post(*step) for step in steps[at : at + TRIMS_AT_ONCE]]
            await give_way()  # the storage loop takes them, and others their turn
        if posted:
            await asyncio.gather(*posted)

    def _about(self, followed: _Followed) -> dict[str, object]:
        peer = f"broker-{self.leader}"
        return {**followed.replica.log_fields, "epoch": followed.leader_epoch, "peer": peer}


class _All:
    """Calls back once all of some futures are done, whatever became of them."""

    def __init__(self, futures: Sequence[asyncio.Future[None]], then: Callable[[], None]) -> None:
        self._left = len(futures)
        self._then = then
        for future in futures:
            future.add_done_callback(self._on_one)

    def _on_one(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            future.exception()  # whoever posted it has looked
        self._left -= 1
        if self._left == 0:
            self._then()


def _check(batch: bytes) -> tuple[BatchHeader, bytes]:
    header = read_header(batch)
    check_crc(batch, header)
    return header, batch
