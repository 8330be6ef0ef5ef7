"""
What a leader does with what producers and coordinators send it: append, park, refuse, and answer when it is safe.

``Partition`` is built on it and adds elections, followers and what may go. Answers wait until the log is written, or
committed, up to their batch; both are told here. Transactions are those of KIP-98 with the verification of KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from headrace_broker.core.enrolment import Parked, Parking
from headrace_broker.core.leadership import Leadership
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.partition_events import (
    Answer,
    AskEnrolment,
    BatchArrived,
    Effect,
    Enrolled,
    MarkerArrived,
    Refuse,
    ShowUpTo,
)
from headrace_broker.core.rows import TRANSACTIONAL_BIT
from headrace_broker.core.waiting import Waiting, put, release
from headrace_common.core.batch import stamp, stamp_log_append_time
from headrace_common.core.errors import (
    ConcurrentTransactions,
    FencedLeaderEpoch,
    HeadraceError,
    InvalidProducerEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    Overloaded,
    UnknownLeaderEpoch,
)
from headrace_common.core.ids import NodeId, Offset

ALL: Final = -1
"""``acks``: every replica that is in sync."""
_LOG_APPEND_TIME_BIT: Final = 0x08
_NOT_ENDED: Final = "the producer's transaction before has no marker here yet; nothing was appended, send it again"


class Following(NamedTuple):
    """Whom this broker follows, and in which leader epoch."""

    leader: NodeId
    epoch: int


@dataclass(slots=True)
class LedLog(LocalLog):
    """A log and what this broker is to it. ``leading`` and ``following`` are never both set."""

    leading: Leadership | None = None
    following: Following | None = None
    leader_high_watermark: Offset = Offset(0)
    """What the leader said last, while following."""
    leader_forgotten_to: Offset = Offset(0)
    """The same; 0: nothing yet."""
    parking: Parking = field(default_factory=Parking)
    _waiting_written: list[Waiting] = field(default_factory=list)
    _waiting_committed: list[Waiting] = field(default_factory=list)

    @property
    def leader_epoch(self) -> int | None:
        """The epoch in which this broker leads; None: it does not."""
        return None if self.leading is None else self.leading.assignment.leader_epoch

    @property
    def known_epoch(self) -> int | None:
        """The leader epoch in which this broker leads or follows; None: neither."""
        if self.leading is not None:
            return self.leading.assignment.leader_epoch
        return None if self.following is None else self.following.epoch

    @property
    def end_known(self) -> bool:
        """Whether the high watermark is the end of what is committed: a new leader first has to find out."""
        return self.leading is not None and self.high_watermark >= self.leading.epoch_start

    def check_epoch(self, claimed: int | None, *, follower: bool = False) -> HeadraceError | None:
        """
        What is wrong with a client's idea of who leads; None: nothing.

        With ``follower`` it is content with a broker that only follows.
        """
        known = self.known_epoch if follower else self.leader_epoch
        if known is None:
            return NotLeader("this broker does not lead the partition; refresh metadata and ask the leader")
        if claimed is None or claimed == known:
            return None
        if claimed < known:
            return FencedLeaderEpoch(f"leader epoch {claimed} is old, it is {known}; refresh metadata")
        return UnknownLeaderEpoch(f"leader epoch {claimed} is not known here yet, it is {known}; retry")

    # --- appending ----------------------------------------------------------------------------------------

    def _append(self, event: BatchArrived, *, enrolled: bool = False) -> list[Effect]:
        wrong = self.check_epoch(event.leader_epoch)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        wrong = self.fences.refusal(event.fencing_token, event.fence)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        header, leading = event.header, self.leading
        assert leading is not None, "only a leader appends"
        begins = False
        if header.producer_id >= 0:
            transactional = bool(header.attributes & TRANSACTIONAL_BIT)
            if self.parking.size and not enrolled and (parked := self.parking.of(header.producer_id)) is not None:
                return self._behind(parked, event)
            try:
                sent_before = self.producers.check(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    transactional=transactional,
                )
            except HeadraceError as error:
                return [Refuse(event.ref, error)]
            if sent_before is not None:
                return self._answer_again(event, leading, sent_before.base_offset)
            begins = transactional and not self.producers.is_open(header.producer_id, header.producer_epoch)
        if event.acks == ALL and not leading.enough:
            return [Refuse(event.ref, NotEnoughReplicas(f"{too_few(leading)}; nothing was appended, send it again"))]
        if begins:
            if not enrolled:
                return self._park(event)
            if self.producers.has_open(header.producer_id):
                return [Refuse(event.ref, ConcurrentTransactions(_NOT_ENDED))]
        return self._accept(event, leading.assignment.leader_epoch)

    def _accept(self, event: BatchArrived, epoch: int, commit: bool | None = None) -> list[Effect]:
        header, base, now_ms, stamped_ms = event.header, self.log_end, event.now_ms, -1
        if self.config.log_append_time:
            batch = stamp_log_append_time(event.batch, base, epoch, now_ms)
            attributes, stamped_ms = header.attributes | _LOG_APPEND_TIME_BIT, now_ms
            header = header._replace(attributes=attributes, base_timestamp=now_ms, max_timestamp=now_ms)
        else:
            batch = stamp(event.batch, base, epoch)
        effects: list[Effect] = [*self.appended(header, batch, base, epoch, now_ms, commit)]
        if event.fence is not None:
            effects += self.fenced(base, event.fence)
        self._wait(event.acks, Waiting(self.log_end, event.ref, base, stamped_ms))
        return effects

    def _wait(self, acks: int, waiting: Waiting) -> None:
        if acks != 0:
            put(self._waiting_written if acks == 1 else self._waiting_committed, waiting)

    def _answer_again(self, event: BatchArrived, leading: Leadership, base: Offset) -> list[Effect]:
        end = Offset(base + event.header.last_offset_delta + 1)
        if event.acks == 0:
            return []
        if end <= (self.written_end if event.acks == 1 else self.high_watermark):
            return [Answer(event.ref, base, -1)]
        if event.acks == ALL and not leading.enough:
            return [Refuse(event.ref, NotEnoughReplicasAfterAppend(appended_already(leading)))]
        self._wait(event.acks, Waiting(end, event.ref, base, -1))
        return []

    # --- transactions -------------------------------------------------------------------------------------

    def _park(self, event: BatchArrived) -> list[Effect]:
        assert event.transactional_id is not None, "checked before it was queued"
        header = event.header
        number = self.parking.park(event)
        return [AskEnrolment(number, event.transactional_id, header.producer_id, header.producer_epoch, event.ref)]

    def _behind(self, parked: Parked, event: BatchArrived) -> list[Effect]:
        """Another batch of a producer whose first one is parked."""
        producer_id, epoch = event.header.producer_id, event.header.producer_epoch
        if epoch > parked.epoch:
            newer = InvalidProducerEpoch(f"producer {producer_id} has begun epoch {epoch}; {parked.epoch} is older")
            return self._void(producer_id, newer) + self._append(event)
        if epoch < parked.epoch:
            older = InvalidProducerEpoch(f"producer {producer_id} has begun epoch {parked.epoch}; {epoch} is older")
            return [Refuse(event.ref, older)]
        if not self.parking.follow(parked, event):
            return [
                Refuse(event.ref, Overloaded("too many batches wait for the transaction's coordinator; send again"))
            ]
        return []

    def _void(self, producer_id: int, reason: HeadraceError) -> list[Effect]:
        return [Refuse(one.ref, reason) for one in self.parking.take(producer_id)]

    def _enrolled(self, event: Enrolled) -> list[Effect]:
        effects: list[Effect] = []
        refused: HeadraceError | None = event.error
        for one in self.parking.take(event.producer_id, event.number):
            if refused is not None:  # what follows a batch that is not there would look like a gap
                effects.append(Refuse(one.ref, refused))
                continue
            done = self._append(replace(one, now_ms=event.now_ms), enrolled=True)
            refused = next((effect.error for effect in done if isinstance(effect, Refuse)), None)
            effects += done
        return effects

    def _end_transaction(self, event: MarkerArrived) -> list[Effect]:
        wrong = self.check_epoch(None)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        leading, (producer_id, epoch) = self.leading, (event.header.producer_id, event.header.producer_epoch)
        assert leading is not None, "only a leader appends"
        try:
            new = self.producers.check_marker(producer_id, epoch, event.commit)
        except HeadraceError as error:
            return [Refuse(event.ref, error)]
        if not new:
            return self._repeated(event, leading)
        effects: list[Effect] = []
        parked = self.parking.of(producer_id)
        if parked is not None and parked.epoch < epoch:
            effects += self._void(producer_id, InvalidProducerEpoch(f"the transaction has ended with epoch {epoch}"))
        if not leading.enough:
            few = NotEnoughReplicas(f"{too_few(leading)}; no marker was written, send it again")
            return [*effects, Refuse(event.ref, few)]
        batch = BatchArrived(event.header, event.batch, ALL, event.now_ms, None, event.ref)
        return effects + self._accept(batch, leading.assignment.leader_epoch, event.commit)

    def _repeated(self, event: MarkerArrived, leading: Leadership) -> list[Effect]:
        """The marker is in the log; it is somewhere below the end."""
        end = self.log_end
        if end <= self.high_watermark:
            return [Answer(event.ref, end, -1)]
        if not leading.enough:
            return [Refuse(event.ref, NotEnoughReplicasAfterAppend(appended_already(leading)))]
        self._wait(ALL, Waiting(end, event.ref, end, -1))
        return []

    # --- written, committed -------------------------------------------------------------------------------

    def _written(self, end: Offset, now_ms: float) -> list[Effect]:
        assert self.written_end <= end <= self.log_end, f"{self.written_end} <= {end} <= {self.log_end}"
        grew = end > self.written_end
        self.written_end = end
        effects: list[Effect] = []
        if self._waiting_written:
            release(self._waiting_written, end, effects)
        if self.leading is None:
            return effects + self._show(min(self.leader_high_watermark, end)) if self.following else effects
        if grew:
            self.leading.grown(now_ms)
        return effects + self._commit(self.leading)

    def _commit(self, leading: Leadership) -> list[Effect]:
        return self._show(leading.committed(self.written_end))

    def _show(self, end: Offset) -> list[Effect]:
        """Everything below ``end`` is committed."""
        before = self.high_watermark
        if end <= before:
            return []
        assert end <= self.written_end, f"{end} is committed and only {self.written_end} written"
        self.high_watermark = end
        stable_before = self.settle()
        stable = None
        if self.last_stable != end or stable_before != before:
            stable = (self.last_stable, stable_before)
        effects: list[Effect] = [ShowUpTo(end, before, stable)]
        if self._waiting_committed:
            release(self._waiting_committed, end, effects)
        return effects


def too_few(leading: Leadership) -> str:
    """Why nothing is committed now, in words."""
    now = leading.assignment
    return f"{len(now.isr)} replicas are in sync and min.insync.replicas is {now.min_isr}"


def appended_already(leading: Leadership) -> str:
    """What that means for a batch that is in the log."""
    return f"{too_few(leading)}; the batch was appended and is not committed yet, send it again unchanged"
