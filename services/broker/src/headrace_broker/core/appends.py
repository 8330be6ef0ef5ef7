"""
What a leader does with what producers and coordinators send it: append, park, refuse, and answer when it is safe.

``Partition`` asks. Answers wait until the log is written, or committed, up to their batch; both are told here.
Transactions are those of KIP-98 with the verification of KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

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
from headrace_broker.core.rows import TRANSACTIONAL_BIT, ProducerBatch
from headrace_broker.core.waiting import Waiting, put, release
from headrace_common.core.batch import BatchHeader, stamp, stamp_log_append_time
from headrace_common.core.errors import (
    ConcurrentTransactions,
    FencedWriter,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OperationNotAttempted,
    Overloaded,
)
from headrace_common.core.ids import Offset

ALL: Final = -1
"""``acks``: every replica that is in sync."""
_LOG_APPEND_TIME_BIT: Final = 0x08
_OF_ANOTHER: Final = "the producer id is another transactional id's, which has a transaction open here"
_NOT_ENDED: Final = "the producer's transaction before has no marker here yet; nothing was appended, send it again"


@dataclass(slots=True, eq=False)
class Appends:
    """Batches and markers on their way into one log, and who waits for them. While nobody leads it is empty."""

    log: LocalLog
    parking: Parking = field(default_factory=Parking)
    _waiting_written: list[Waiting] = field(default_factory=list)
    _waiting_committed: list[Waiting] = field(default_factory=list)
    _enrolled: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    """Of transactions that are open here: by producer id the epoch, and the id under which it was enrolled. It goes
    with the leadership; the next leader asks the coordinator again."""

    # --- appending ----------------------------------------------------------------------------------------

    def append(self, leading: Leadership, event: BatchArrived, *, enrolled: bool = False) -> list[Effect]:
        """A producer's batch, of this leader epoch. ``enrolled``: its transaction has this partition on its list."""
        log, header, begins, transactional = self.log, event.header, False, False
        wrong = event.stranger or self._writer_fault(event)
        if wrong is not None:
            return self._answer_fenced(leading, event, wrong)
        if header.producer_id >= 0:
            transactional = bool(header.attributes & TRANSACTIONAL_BIT)
            if self.parking.size and not enrolled and (transactional or not event.held):
                parked = self.parking.of(header.producer_id, event.transactional_id)
                if parked is not None:
                    return self._park_behind(leading, parked, event)
            try:
                sent_before = log.producers.check(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    transactional=transactional,
                )
            except HeadraceError as error:
                return [Refuse(event.ref, error)]
            if sent_before is not None:
                return self._answer_repeat(leading, event, sent_before)
            begins = transactional and not log.producers.is_open(header.producer_id, header.producer_epoch)
        if event.acks == ALL and not leading.enough:
            return [
                Refuse(
                    event.ref, NotEnoughReplicas(f"{_describe_too_few(leading)}; nothing was appended, send it again")
                )
            ]
        if transactional and not enrolled:
            if self.has_to_ask(header, held=event.held):
                return self._park(event)
            if event.held and self._enrolled[header.producer_id][1] != event.transactional_id:
                return [Refuse(event.ref, InvalidProducerIdMapping(_OF_ANOTHER))]
        if begins and log.producers.has_open(header.producer_id):
            return [Refuse(event.ref, ConcurrentTransactions(_NOT_ENDED))]
        if transactional and enrolled:
            self._enrolled[header.producer_id] = header.producer_epoch, event.transactional_id
        return self._accept(event, leading.assignment.leader_epoch)

    def has_to_ask(self, header: BatchHeader, *, held: bool) -> bool:
        """
        Whether the coordinator is asked before a batch of a transaction is appended: it begins here, or its writer is
        held to what it may and this leader has not heard whose transaction it is.
        """
        if not self.log.producers.is_open(header.producer_id, header.producer_epoch):
            return True
        known = self._enrolled.get(header.producer_id)
        return held and (known is None or known[0] != header.producer_epoch)

    def _accept(self, event: BatchArrived, epoch: int, commit: bool | None = None) -> list[Effect]:
        header, base, now_ms, stamped_ms = event.header, self.log.log_end, event.now_ms, -1
        if self.log.config.log_append_time:
            batch = stamp_log_append_time(event.batch, base, epoch, now_ms)
            attributes, stamped_ms = header.attributes | _LOG_APPEND_TIME_BIT, now_ms
            header = header._replace(attributes=attributes, base_timestamp=now_ms, max_timestamp=now_ms)
        else:
            batch = stamp(event.batch, base, epoch)
        effects: list[Effect] = [*self.log.append(header, batch, base, epoch, now_ms, commit)]
        if event.fence is not None:
            effects += self.log.fence(base, event.fence)
        self._wait(event.acks, Waiting(self.log.log_end, event.ref, base, stamped_ms))
        return effects

    def _wait(self, acks: int, waiting: Waiting) -> None:
        if acks != 0:
            put(self._waiting_written if acks == 1 else self._waiting_committed, waiting)

    def _writer_fault(self, event: BatchArrived) -> FencedWriter | None:
        """Why its writer may not append now; None: it may."""
        log = self.log
        return log.fences.refusal(event.fencing_token, event.fence, required=log.config.fencing_required)

    def _answer_fenced(self, leading: Leadership, event: BatchArrived, wrong: HeadraceError) -> list[Effect]:
        """
        Nothing more of this writer is appended. What it repeats may be in the log, from before the fence, or from
        before its ids were held against it: then that is the answer, for a refusal says that it is not there.
        """
        header = event.header
        sent_before = self.log.producers.find_sent(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
        )
        return [Refuse(event.ref, wrong)] if sent_before is None else self._answer_repeat(leading, event, sent_before)

    def _answer_repeat(self, leading: Leadership, event: BatchArrived, sent_before: ProducerBatch) -> list[Effect]:
        stamped_ms = sent_before.max_timestamp if self.log.config.log_append_time else -1
        end = Offset(sent_before.base_offset + event.header.last_offset_delta + 1)
        return self._answer_again(leading, event.acks, Waiting(end, event.ref, sent_before.base_offset, stamped_ms))

    def _answer_again(self, leading: Leadership, acks: int, sent: Waiting) -> list[Effect]:
        """What was sent is in the log."""
        if acks == 0:
            return []
        if sent.end <= (self.log.written_end if acks == 1 else self.log.high_watermark):
            return [Answer(sent.ref, sent.base_offset, sent.log_append_time_ms)]
        if acks == ALL and not leading.enough:
            return [Refuse(sent.ref, NotEnoughReplicasAfterAppend(_describe_appended(leading)))]
        self._wait(acks, sent)
        return []

    # --- transactions -------------------------------------------------------------------------------------

    def _park(self, event: BatchArrived) -> list[Effect]:
        assert event.transactional_id is not None, "checked before it was queued"
        header = event.header
        number = self.parking.park(event)
        return [AskEnrolment(number, event.transactional_id, header.producer_id, header.producer_epoch, event.ref)]

    def _park_behind(self, leading: Leadership, parked: Parked, event: BatchArrived) -> list[Effect]:
        """Another batch of a producer whose first one is parked."""
        producer_id, epoch = event.header.producer_id, event.header.producer_epoch
        if epoch > parked.epoch:
            newer = InvalidProducerEpoch(f"producer {producer_id} has begun epoch {epoch}; {parked.epoch} is older")
            return self._refuse_parked(producer_id, parked, newer) + self.append(leading, event)
        if epoch < parked.epoch:
            older = InvalidProducerEpoch(f"producer {producer_id} has begun epoch {parked.epoch}; {epoch} is older")
            return [Refuse(event.ref, older)]
        if not self.parking.follow(parked, event):
            return [
                Refuse(event.ref, Overloaded("too many batches wait for the transaction's coordinator; send again"))
            ]
        return []

    def _refuse_parked(self, producer_id: int, parked: Parked, reason: HeadraceError) -> list[Effect]:
        return [Refuse(one.ref, reason) for one in self.parking.take(producer_id, parked.number)]

    def resume(self, leading: Leadership, event: Enrolled) -> list[Effect]:
        """The coordinator has answered: append or refuse what was parked."""
        effects: list[Effect] = []
        refused: HeadraceError | None = event.error
        for one in self.parking.take(event.producer_id, event.number):
            if refused is not None:  # what follows a batch that is not there would look like a gap
                effects.append(Refuse(one.ref, self._behind(refused, one)))
                continue
            done = self.append(leading, replace(one, now_ms=event.now_ms), enrolled=True)
            refused = next((effect.error for effect in done if isinstance(effect, Refuse)), None)
            effects += done
        return effects

    def _behind(self, refused: HeadraceError, event: BatchArrived) -> HeadraceError:
        """What is said of a batch behind one that was refused; its writer may have set the new token itself."""
        if not isinstance(refused, FencedWriter):
            return refused
        return self._writer_fault(event) or OperationNotAttempted.behind_refused()

    def end_transaction(self, leading: Leadership, event: MarkerArrived) -> list[Effect]:
        """A coordinator's marker."""
        producer_id, epoch = event.header.producer_id, event.header.producer_epoch
        try:
            new = self.log.producers.check_marker(producer_id, epoch, event.commit)
        except HeadraceError as error:
            return [Refuse(event.ref, error)]
        if not new:  # the marker is in the log, somewhere below the end
            return self._answer_again(leading, ALL, Waiting(self.log.log_end, event.ref, self.log.log_end, -1))
        effects: list[Effect] = []
        for parked in self.parking.older(producer_id, epoch):
            ended = InvalidProducerEpoch(f"the transaction has ended with epoch {epoch}")
            effects += self._refuse_parked(producer_id, parked, ended)
        if not leading.enough:
            few = NotEnoughReplicas(f"{_describe_too_few(leading)}; no marker was written, send it again")
            return [*effects, Refuse(event.ref, few)]
        self._enrolled.pop(producer_id, None)
        batch = BatchArrived(event.header, event.batch, ALL, event.now_ms, None, event.ref)
        return effects + self._accept(batch, leading.assignment.leader_epoch, event.commit)

    # --- answers ------------------------------------------------------------------------------------------

    def on_written(self, end: Offset) -> list[Effect]:
        """Everything below ``end`` is written by the flush policy."""
        assert self.log.written_end <= end <= self.log.log_end, f"{self.log.written_end} <= {end} <= {self.log.log_end}"
        self.log.written_end = end
        effects: list[Effect] = []
        if self._waiting_written:
            release(self._waiting_written, end, effects)
        return effects

    def on_committed(self, end: Offset) -> list[Effect]:
        """Everything below ``end`` is committed: show it, and answer those who wait for that."""
        log, before = self.log, self.log.high_watermark
        if end <= before:
            return []
        assert end <= log.written_end, f"{end} is committed and only {log.written_end} written"
        log.high_watermark = end
        stable_before = log.settle()
        stable = None
        if log.last_stable != end or stable_before != before:
            stable = (log.last_stable, stable_before)
        effects: list[Effect] = [ShowUpTo(end, before, stable)]
        if self._waiting_committed:
            release(self._waiting_committed, end, effects)
        return effects

    def refuse_uncommitted(self, leading: Leadership) -> list[Effect]:
        """Too few replicas are in sync for what is appended and not committed."""
        reason = NotEnoughReplicasAfterAppend(_describe_appended(leading))
        waiting, self._waiting_committed = self._waiting_committed, []
        return [Refuse(one.ref, reason) for one in waiting]

    def refuse_all(self, reason: HeadraceError) -> list[Effect]:
        """This broker leads no longer: nobody waits any more."""
        waiting = [*self._waiting_written, *self._waiting_committed]
        self._waiting_written.clear()
        self._waiting_committed.clear()
        self._enrolled.clear()
        refs = [one.ref for one in waiting] + [one.ref for one in self.parking.take_all()]
        return [Refuse(ref, reason) for ref in refs]


def _describe_too_few(leading: Leadership) -> str:
    """Why nothing is committed now, in words."""
    now = leading.assignment
    return f"{len(now.isr)} replicas are in sync and min.insync.replicas is {now.min_isr}"


def _describe_appended(leading: Leadership) -> str:
    """What that means for a batch that is in the log."""
    return f"{_describe_too_few(leading)}; the batch was appended and is not committed yet, send it again unchanged"
