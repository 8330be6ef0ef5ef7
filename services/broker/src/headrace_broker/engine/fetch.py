"""
Fetch: batches below the high watermark, as soon as there are enough or the time is over.

The fetch servicer calls ``fetch`` once per request, in order. Fresh batches come from the tail cache without a wait;
older ones from the cold reader. Whoever waits is woken by the storage loop; nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from headrace_broker.core.leadership import Leadership
from headrace_broker.core.local_log import Parted
from headrace_broker.core.measures import Measures
from headrace_broker.core.rows import AbortedRow
from headrace_broker.engine.client_rates import ClientRate, ClientRates
from headrace_broker.engine.cold_reader import ColdReader
from headrace_broker.engine.permitted import Permitted
from headrace_broker.engine.record_notes import READ, NotedTopics, RecordNotes
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.engine.shares import Answers, AnswerShares
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.engine.unreadable import Unreadable
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation
from headrace_common.core.batch import HEADER_SIZE
from headrace_common.core.errors import HeadraceError, OffsetNotAvailable, OffsetOutOfRange, Rejected
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import NodeKey, Role
from headrace_common.runtime.auditing import RecordTeller
from headrace_common.runtime.clock import Deadline

RESPONSE_BYTES_MAX: Final = 8 << 20
"""Bytes of batches in one answer, whatever is asked for."""
IN_FLIGHT_BYTES: Final = 96 << 20
"""Bytes in answers that clients have not taken yet (gRPC holds each about three times); towards it answers shrink."""
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
WAIT_MS_MAX: Final = 300_000
READS_MAX: Final = 5
"""Of one partition for one answer, while compaction rewrites the log."""
_BASE: Final = Struct(">q")
_BASE_AND_DELTA: Final = Struct(">q15xi")
"""Of a batch: its base offset, and how far its last offset is from it."""


@dataclass(frozen=True, slots=True)
class FetchEntry:
    """One partition of a request."""

    partition: PartitionId
    offset: Offset
    bytes_max: int
    leader_epoch: int | None
    last_epoch: int | None = None
    """Leader epoch of the last record that the client has; None: it has none, or does not care."""
    from_leader: bool = False
    """The client wants the leader's own answer: the nearer replica has failed it."""
    unreadable: bool = False
    """The client has got the batch at ``offset`` before, and could not read it."""


@dataclass(frozen=True, slots=True)
class FetchAsk:
    """One request."""

    entries: Sequence[FetchEntry]
    bytes_min: int
    bytes_max: int
    wait_ms: int
    rack: str | None = None
    """The client's; with it followers answer too. None: leaders only."""
    committed: bool = False
    """Only what is decided: nothing above the last stable offset, and what was aborted is named."""
    doubted: int | None = None
    """The first of ``entries`` that is ``unreadable``; None: none is."""


@dataclass(slots=True)
class Fetched:
    """The answer for one partition."""

    partition: PartitionId
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    batches: list[bytes] = field(default_factory=list)
    error: HeadraceError | None = None
    leader: tuple[NodeId, int] | None = None
    parted: Parted | None = None
    """What the client read last is not in this log; there are no batches."""
    preferred: NodeId | None = None
    """A replica nearer to the client, which it should ask instead; there are no batches."""
    aborted: list[AbortedRow] = field(default_factory=list)
    """Aborted transactions that overlap ``batches``, ascending by marker; for those who read what is decided."""

    @property
    def decided(self) -> bool:
        """Whether waiting for records changes nothing."""
        return self.error is not None or self.parted is not None or self.preferred is not None


class _Wait:
    """One fetch that waits for its partitions."""

    __slots__ = ("_missing", "woken")

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_readable(self, replica: Replica, more_bytes: int) -> None:
        """The storage loop says so."""
        del replica
        self._missing -= more_bytes
        if more_bytes == 0 or self._missing <= 0:
            self.wake()

    def wake(self) -> None:
        """The time is over, or the broker stops."""
        if not self.woken.done():
            self.woken.set_result(None)


class FetchSession:
    """One stream: the logs that its caller may read, and what it was told last, so that no answer repeats it."""

    def __init__(
        self,
        logs: Permitted,
        rate: ClientRate,
        notes: RecordNotes | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._notes = notes
        self.answers = answers
        """Those of its caller; None: it has no share of its own."""
        self.logs = logs
        self.rate = rate
        self._told: dict[PartitionId, tuple[int, int, int]] = {}

    def news(self, results: list[Fetched]) -> list[Fetched]:
        """The results that say something new: batches, an error, or a moved high watermark or log start."""
        if self._notes is not None and self._notes.wanted:
            self._notes.take(result.partition.topic_id for result in results if result.batches)
        told, news = self._told, []
        if len(told) > 2 * PARTITIONS_PER_REQUEST_MAX:
            told.clear()
        for result in results:
            now = (result.high_watermark, result.last_stable, result.log_start)
            if result.batches or result.decided or told.get(result.partition) != now:
                told[result.partition] = now
                news.append(result)
        return news


class Fetches:
    """One for the broker."""

    def __init__(
        self, replicas: Replicas, tail: TailCache, cold: ColdReader, measures: Measures, rates: ClientRates
    ) -> None:
        self._replicas = replicas
        self._tail = tail
        self._cold = cold
        self._measures = measures
        self._rates = rates
        self.unreadable = Unreadable()
        self._noted = NotedTopics(replicas, READ)
        self._all_logs = Permitted(replicas, EVERYTHING, Operation.READ)
        self._waits: dict[_Wait, None] = {}
        self._draining = False
        self.answers = AnswerShares(IN_FLIGHT_BYTES)
        """On their way to clients; kept by the servicer."""

    def drain(self) -> None:
        """Answer at once from now on: the broker is stopping."""
        self._draining = True
        for wait in self._waits:
            wait.wake()

    def session(
        self, rights: Rights, client_id: str = "", tell: RecordTeller | None = None, whose: str | None = None
    ) -> FetchSession:
        """
        For one fetch stream of a caller that shows ``client_id``.

        ``tell``: the audit that it has read records. ``whose``: see ``shares``; None: it has no share of its own.
        """
        notes = None if tell is None else RecordNotes(self._noted, tell)
        logs, rate = Permitted(self._replicas, rights, Operation.READ), self._rates.reads(rights, client_id)
        return FetchSession(logs, rate, notes, None if whose is None else self.answers.of(whose))

    async def fetch(
        self, ask: FetchAsk, logs: Permitted | None = None, answers: Answers | None = None
    ) -> list[Fetched]:
        """
        One result per entry, in order.

        Args:
            logs: those that may be read; None: all.
            answers: of the caller; see ``FetchSession``.

        Raises:
            Rejected: the request as a whole is wrong.
        """
        _check(ask)
        self._measures.fetch_requests += 1
        deadline = Deadline(ask.wait_ms)
        while True:
            results, size, decided = await self._collect(ask, logs or self._all_logs, self._most(ask, answers))
            enough = size >= ask.bytes_min or size >= self._most(ask, answers)
            if enough or decided or deadline.left_ms <= 0 or self._draining:
                self._measures.bytes_out += size
                if ask.doubted is not None and (batches := results[ask.doubted].batches):
                    await self.unreadable.look(ask.entries[ask.doubted].partition, batches[0])
                return results
            await self._wait_readable(ask, results, ask.bytes_min - size, deadline)

    def _most(self, ask: FetchAsk, answers: Answers | None) -> int:
        return max(
            1, min(ask.bytes_max, RESPONSE_BYTES_MAX, self.answers.room(answers))
        )  # with 0, having nothing would be enough

    async def _collect(self, ask: FetchAsk, logs: Permitted, room: int) -> tuple[list[Fetched], int, bool]:
        """The answer as it is now, its bytes, and whether it is one whatever its size."""
        total, decided = 0, False
        results: list[Fetched] = []
        for entry in ask.entries:
            result = Fetched(entry.partition)
            results.append(result)
            try:
                replica = self._find(logs, entry, ask, result)
                if result.decided:
                    decided = True
                    continue
                end = replica.readable_end(stable=ask.committed)
                if entry.offset >= end or (room <= 0 and total):
                    continue
                if ask.committed:
                    await self._read_decided(replica, entry, end, room, result, first=total == 0)
                else:
                    result.batches = await self._read(replica, entry, end, room, first=total == 0)
            except HeadraceError as error:
                result.error = error
                result.leader = self._replicas.leader_of(entry.partition)
                decided = True
                continue
            size = sum(map(len, result.batches))
            room -= size
            total += size
            decided = decided or _moves_on(result.batches, end)
        return results, total, decided

    def _find(self, logs: Permitted, entry: FetchEntry, ask: FetchAsk, result: Fetched) -> Replica:
        """The replica to read from, what is known of it, and whether the client is to go elsewhere."""
        if ask.rack is None:
            replica = logs.get_leading(entry.partition, entry.leader_epoch)
        else:
            replica = logs.get_readable(entry.partition, entry.leader_epoch)
        core, offset = replica.core, entry.offset
        result.high_watermark, result.log_start = core.high_watermark, core.log_start
        result.last_stable = core.last_stable
        where = f"{replica.topic}-{entry.partition.partition}"
        if core.leading is None:
            if offset < core.log_start:
                raise OffsetOutOfRange(f"offset {offset} is below {core.log_start} on this follower of {where}")
            if offset > core.high_watermark:
                raise OffsetNotAvailable(
                    f"this follower of {where} knows of records below {core.high_watermark} only; ask again, or ask"
                    " the leader"
                )
            return replica
        if entry.last_epoch is not None and entry.last_epoch >= 0 and offset >= core.log_start:
            epoch, end = core.epochs.end_offset_for(entry.last_epoch, core.log_end)
            if epoch >= 0 and (epoch < entry.last_epoch or end < offset):
                result.parted = Parted(epoch, end)
                return replica
        if not core.log_start <= offset <= core.log_end:
            raise OffsetOutOfRange(f"offset {offset} is not in {core.log_start} to {core.high_watermark} of {where}")
        if ask.rack is not None and not entry.from_leader:
            result.preferred = self._nearer(replica, core.leading, offset, ask.rack)
        return replica

    def _nearer(self, replica: Replica, leading: Leadership, offset: Offset, rack: str) -> NodeId | None:
        """An in-sync replica in ``rack`` that has the offset, unless this one is there itself (KIP-392)."""
        nodes = self._replicas.image.nodes
        here = nodes.get(NodeKey(Role.BROKER, self._replicas.broker_id))
        if here is not None and here.rack == rack:
            return None
        for broker, follower in leading.followers.items():
            node = nodes.get(NodeKey(Role.BROKER, broker))
            near = node is not None and node.rack == rack and not node.fenced and not node.in_controlled_shutdown
            if near and broker in leading.assignment.isr and follower.written_end >= offset:
                return broker
        return None

    async def _read_decided(
        self, replica: Replica, entry: FetchEntry, end: Offset, room: int, result: Fetched, *, first: bool
    ) -> None:
        """
        Batches, and what of them was aborted.

        Compaction forgets that when it drops the abort marker, after it dropped the records. So that no record that
        was read before is taken for committed after, it is read again.

        Raises:
            OffsetNotAvailable: that did not end.
        """
        for _ in range(READS_MAX):
            rewrites = replica.core.rewrites
            batches = await self._read(replica, entry, end, room, first=first)
            if replica.core.rewrites == rewrites:
                result.batches = batches
                result.aborted = _find_aborted(replica, batches) if batches else []
                return
        raise OffsetNotAvailable(f"{replica.topic} was compacted each time it was read; ask again")

    async def _read(self, replica: Replica, entry: FetchEntry, end: Offset, room: int, *, first: bool) -> list[bytes]:
        core, bytes_max = replica.core, min(room, entry.bytes_max)
        # The first batch of each partition comes whatever its own limit is, as long as the answer has room for it.
        alone = first or bytes_max < room
        cached = self._tail.take(core.log, entry.offset, end, bytes_max, first=alone)
        if cached is not None:
            return cached
        return await self._cold.read(replica, entry.offset, bytes_max, end, first=alone)

    async def _wait_readable(self, ask: FetchAsk, results: list[Fetched], missing: int, deadline: Deadline) -> None:
        wait = _Wait(missing)
        watched: list[Replica] = []
        for entry, result in zip(ask.entries, results, strict=True):
            replica = self._replicas.get(entry.partition)
            seen = result.last_stable if ask.committed else result.high_watermark
            if replica is None or replica.readable_end(stable=ask.committed) != seen:
                wait.wake()
                break
            replica.waiting(stable=ask.committed)[wait] = None
            watched.append(replica)
        self._waits[wait] = None
        timer = deadline.call(wait.wake)
        try:
            await wait.woken
        finally:
            timer.cancel()
            self._waits.pop(wait, None)
            for replica in watched:
                replica.waiting(stable=ask.committed).pop(wait, None)


def _moves_on(batches: list[bytes], end: Offset) -> bool:
    """
    Whether to wait for more would only keep the reader back.

    There is more below ``end`` already, for which it has to ask from further on; or compaction has left nothing of
    these batches, so that they would never be as many bytes as a reader may wait for.
    """
    if not batches:
        return False
    base, delta = _BASE_AND_DELTA.unpack_from(batches[-1])
    return base + delta + 1 < end or all(len(batch) <= HEADER_SIZE for batch in batches)


def _find_aborted(replica: Replica, batches: list[bytes]) -> list[AbortedRow]:
    """
    Raises:
        OffsetOutOfRange: the log was trimmed while it was read, and with it what is known of these batches.
    """
    core = replica.core
    (start,) = _BASE.unpack_from(batches[0])
    if start < core.first_batch:
        raise OffsetOutOfRange(f"the log was trimmed to {core.log_start} meanwhile; ask again")
    if not len(core.aborted):
        return []
    base, delta = _BASE_AND_DELTA.unpack_from(batches[-1])
    return core.aborted.find_overlapping(start, Offset(base + delta + 1))


def _check(ask: FetchAsk) -> None:
    if not 1 <= len(ask.entries) <= PARTITIONS_PER_REQUEST_MAX:
        raise Rejected(
            f"the request names {len(ask.entries)} partitions; 1 to {PARTITIONS_PER_REQUEST_MAX} are allowed"
        )
    if not 0 <= ask.wait_ms <= WAIT_MS_MAX:
        raise Rejected(f"max_wait_ms is {ask.wait_ms}; it must be 0 to {WAIT_MS_MAX}")
    if ask.bytes_max < 1 or ask.bytes_min < 0:
        raise Rejected(f"max_bytes is {ask.bytes_max} and min_bytes {ask.bytes_min}; they start from 1 and 0")
    if len({entry.partition for entry in ask.entries}) != len(ask.entries):
        raise Rejected("the request names a partition twice; name each once")
