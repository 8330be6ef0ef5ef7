"""
Produce: from the batches of one request to the one answer it gets.

The servicer calls ``ProduceSession.accept`` for each request that it reads; nothing here awaits, so a request costs
no task. What can be told from a batch alone is checked here; the rest is the partition's to say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace_broker.core.append_rules import check_from_producer, check_request
from headrace_broker.core.fences import token_from_client
from headrace_broker.core.measures import Measures
from headrace_broker.engine.audit_log import AUDIT_TOPIC
from headrace_broker.engine.body_checks import NOTHING_CHECKED, BodyChecks, Checked
from headrace_broker.engine.client_rates import ClientRate
from headrace_broker.engine.ownership import Ownership
from headrace_broker.engine.permitted import Permitted
from headrace_broker.engine.record_notes import RecordNotes
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.engine.shares import Share
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.storage_queue import Arrival
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.batch import check_crc, read_header
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    FencedWriter,
    HeadraceError,
    OperationNotAttempted,
    Rejected,
    RequestTimedOut,
    UnknownOutcome,
)
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId
from headrace_common.runtime.clock import Clock

ENTRIES_PER_REQUEST_MAX: Final = 10_000
UNANSWERED_MAX: Final = 1_000
"""Requests of one stream that may wait for answers, or answers for the stream; then it is not read."""


@dataclass(frozen=True, slots=True)
class ProduceEntry:
    """One batch of a request; several of one partition are appended in their order."""

    partition: PartitionId
    batch: bytes
    leader_epoch: int | None
    fencing_token: int | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The fate of one entry."""

    base_offset: int = -1
    """With FENCED_WRITER: of the fence that has set the partition's token."""
    log_append_time_ms: int = -1
    log_start: int = -1
    error: HeadraceError | None = None
    leader: tuple[NodeId, int] | None = None
    """With NOT_LEADER_OR_FOLLOWER: who leads, in which epoch."""
    fencing_token: int | None = None
    """With FENCED_WRITER: the partition's; None: it has none."""


@dataclass(slots=True, eq=False)
class ProduceCall:
    """One request on its way; answered once, when each of its entries is decided."""

    session: ProduceSession
    correlation_id: int
    acks: int
    partitions: Sequence[PartitionId]
    """Of its entries; their bytes are not kept here."""
    results: list[Appended | None]
    undecided: int
    began_ms: float
    deadline_ms: float
    throttle_ms: int = 0
    """How long the client has to wait with its next; 0: not at all."""

    def on_appended(self, index: int, base_offset: Offset, log_append_time_ms: int) -> None:
        """The storage loop says so."""
        if self.results[index] is None:
            replica = self.session.replicas.get(self.partitions[index])
            start = -1 if replica is None else replica.core.log_start
            self._decide(index, Appended(base_offset, log_append_time_ms, start))

    def on_refused(self, index: int, error: HeadraceError) -> None:
        """The storage loop, or a check before it, says so."""
        if self.results[index] is None:
            partition = self.partitions[index]
            leader = self.session.replicas.leader_of(partition)
            fence = self.session.replicas.fence_of(partition) if isinstance(error, FencedWriter) else None
            if fence is None:
                self._decide(index, Appended(error=error, leader=leader))
            else:
                self._decide(index, Appended(fence.offset, error=error, leader=leader, fencing_token=fence.token))

    @property
    def written(self) -> Iterator[TopicId]:
        """The topic of each batch that was written, or may have been."""
        for partition, result in zip(self.partitions, self.results, strict=True):
            if result is not None and (result.error is None or isinstance(result.error, UnknownOutcome)):
                yield partition.topic_id

    def expire(self) -> None:
        """The time the client gave is over; what is not decided stays unknown."""
        late = RequestTimedOut("the batch was not confirmed in time; its fate is unknown: send it again unchanged")
        for index, result in enumerate(self.results):
            if result is None:
                self.on_refused(index, late)

    def _decide(self, index: int, result: Appended) -> None:
        self.results[index] = result
        self.undecided -= 1
        if self.undecided == 0:
            self.session.on_answered(self)


class ProduceSession:
    """The produce stream of one client; its answers in ``answers``, in the order in which they came about."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        clock: Clock,
        measures: Measures,
        *,
        may_write_internal: Callable[[], bool] = lambda: True,
        share: Share | None = None,
        rights: Rights = EVERYTHING,
        rate: ClientRate | None = None,
    ) -> None:
        self.replicas = replicas
        self._writable = Permitted(replicas, rights, Operation.WRITE)
        self._fenceable = Permitted(replicas, rights, Operation.FENCE)
        self._ownership = Ownership(rights)
        self._transactions = Right(rights, Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
        self._loop = loop
        self._clock = clock
        self._measures = measures
        self._may_write_internal = may_write_internal
        self._share = share
        self._rate = rate
        self.notes: RecordNotes | None = None
        """To whom it is told what was written; None: nobody."""
        self._waiting: dict[ProduceCall, None] = {}
        self.answers: deque[ProduceCall] = deque()
        self.changed = asyncio.Event()
        """Set when there are answers, or the session was ended."""
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    @property
    def finished(self) -> bool:
        """Nothing more will be accepted and everything has been answered."""
        return self._ended and not self._waiting and not self.answers

    def end(self) -> None:
        """The client sends no more, or the broker reads no more."""
        self._ended = True
        if self._rate is not None:
            self._rate.end()
        self.changed.set()

    async def room(self) -> None:
        """Wait until the next request may be read from the stream."""
        await self._room.wait()
        if self._rate is not None:
            await self._rate.room()
        if self._share is not None:
            await self._share.room()
        await self._loop.room()

    def may_write(self, entry: ProduceEntry) -> bool:
        """Whether it is worth while to look at its batch."""
        replica = self.replicas.get(entry.partition)
        return replica is not None and self._writable.may(replica)

    def accept(
        self,
        correlation_id: int,
        acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        transactional_id: str | None = None,
        checked: Mapping[int, Checked] = NOTHING_CHECKED,
    ) -> None:
        """
        Take one request; its answer appears in ``answers``, unless ``acks`` is 0.

        ``checked``: what ``BodyChecks`` has found of some of the entries.
        """
        began = self._clock.monotonic_ms()
        partitions = [entry.partition for entry in entries]
        count = len(entries)
        call = ProduceCall(self, correlation_id, acks, partitions, [None] * count, count, began, began + timeout_ms)
        self._measures.produce_requests += 1
        self._waiting[call] = None
        if self._rate is not None and self._rate.holds:
            call.throttle_ms = self._rate.record(sum(len(entry.batch) for entry in entries))
        try:
            check_request(acks, timeout_ms, len(entries), ENTRIES_PER_REQUEST_MAX, transactional_id)
            if transactional_id is not None:
                self._transactions.check(transactional_id)
        except Rejected as error:
            if not entries:
                self.on_answered(call)
            for index in range(len(entries)):
                call.on_refused(index, error)
            return
        arrivals = self._arrivals(call, entries, transactional_id, checked)
        if arrivals:
            self._loop.append(arrivals)
        if len(self._waiting) + len(self.answers) >= UNANSWERED_MAX:
            self._room.clear()

    def on_answered(self, call: ProduceCall) -> None:
        """Called by the call itself when its last entry was decided."""
        self._waiting.pop(call, None)
        self._note(call.written)
        self._measures.produce_ms.record(self._clock.monotonic_ms() - call.began_ms)
        if call.acks != 0:
            self.answers.append(call)
            self.changed.set()
        self.check_room()

    def _note(self, written: Iterator[TopicId]) -> None:
        if self.notes is not None and self.notes.wanted:
            self.notes.take(written)

    def check_room(self) -> None:
        """Called when answers were sent."""
        if not self._room.is_set() and len(self._waiting) + len(self.answers) <= UNANSWERED_MAX // 2:
            self._room.set()

    def expire(self, now_ms: float) -> None:
        """Answer what has waited for longer than its client allowed; called about once a second."""
        for call in [call for call in self._waiting if call.deadline_ms < now_ms]:
            call.expire()

    def _arrivals(
        self,
        call: ProduceCall,
        entries: Sequence[ProduceEntry],
        transactional_id: str | None,
        checked: Mapping[int, Checked],
    ) -> list[Arrival]:
        now_ms = self._clock.now_ms()
        arrivals: list[Arrival] = []
        last: dict[PartitionId, Arrival] = {}
        refused: set[PartitionId] = set()
        for index, entry in enumerate(entries):
            try:
                if entry.partition in refused:
                    raise OperationNotAttempted.behind_refused()
                found = checked.get(index)
                if found is not None and found.batch is not entry.batch:
                    entry = replace(entry, batch=found.batch)  # noqa: PLW2901 - from here on it is this one
                arrival = self._check_entry(call, index, entry, now_ms, transactional_id)
                if found is None:
                    BodyChecks.check(arrival.replica, arrival.header, entry.batch)
                elif found.error is not None:
                    raise found.error
                arrival.before = last.get(entry.partition)
                last[entry.partition] = arrival
                arrivals.append(arrival)
            except HeadraceError as failed:
                refused.add(entry.partition)
                self._measures.refused_batches += 1
                call.on_refused(index, failed)
        if call.acks == 0:
            self._waiting.pop(call, None)
            self._note(arrival.replica.id.topic_id for arrival in arrivals)  # nobody says what became of them
        return arrivals

    def _check_entry(
        self, call: ProduceCall, index: int, entry: ProduceEntry, now_ms: int, transactional_id: str | None
    ) -> Arrival:
        replica: Replica = self._writable.get_leading(entry.partition, entry.leader_epoch)
        header = read_header(entry.batch)
        check_from_producer(header, replica.core.config, now_ms, transactional_id)
        check_crc(entry.batch, header)
        fence = token_from_client(header, entry.batch) if header.control else None
        if fence is not None or entry.fencing_token is not None:
            self._fenceable.check(replica)
        if replica.internal and replica.topic == AUDIT_TOPIC:
            raise ClusterAuthorizationFailed(f"topic {replica.topic} is the system's: nodes alone write to it")
        if replica.internal and not self._may_write_internal():
            raise ClusterAuthorizationFailed(f"topic {replica.topic} is the system's: coordinators alone write to it")
        if replica.internal and ((fence is None and entry.fencing_token is None) or transactional_id is not None):
            raise Rejected(
                f"topic {replica.topic} is the system's: only who has set its fencing token writes to it, without"
                " transactions",
                code=ErrorCode.POLICY_VIOLATION,
            )
        plain = transactional_id is None and header.producer_id >= 0
        return Arrival(
            replica,
            header,
            entry.batch,
            entry.leader_epoch,
            call,
            index,
            entry.fencing_token,
            fence,
            transactional_id,
            share=self._share,
            stranger=self._ownership.refusal(header.producer_id) if plain else None,
            held=self._ownership.holds,
        )
