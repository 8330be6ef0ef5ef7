"""
Does what a partition's core says, but for writing: that is gathered in the group of the storage loop, which calls this.

Whoever must hear of something (producers, readers that wait, followers, ISR proposals, enrolments) hears of it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from headrace_broker.core.leadership import Proposal
from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import (
    Answer,
    AskEnrolment,
    Effect,
    Event,
    ForgetBelow,
    ProposeIsr,
    Refuse,
    ShowUpTo,
)
from headrace_broker.core.rows import DropBatch, LogWrite, PutBatch
from headrace_broker.engine.replicas import Replica
from headrace_broker.engine.storage_queue import Arrival, Group
from headrace_broker.engine.tail_cache import TailCache


class Effects:
    """One for the storage loop."""

    def __init__(self, tail: TailCache, measures: Measures) -> None:
        self._tail = tail
        self._measures = measures
        self.parked: dict[Replica, int] = {}
        """Bytes of batches that wait for the coordinators of their transactions, by log."""
        self.parked_bytes = 0
        self.on_proposal: Callable[[Replica, Proposal], None] = lambda _replica, _proposal: None
        """Called with each ISR that a leader asks for."""
        self.on_enrolment: Callable[[Replica, AskEnrolment], None] = lambda _replica, _ask: None
        """Called with each transaction that has to be enrolled before its first batch is appended."""

    def handle(self, replica: Replica, event: Event) -> list[Effect]:
        """Let the core take the event in; what is parked is counted."""
        effects = replica.core.handle(event)
        parking = replica.core.appends.parking
        if parking.size or replica in self.parked:
            self.parked_bytes += parking.size - self.parked.pop(replica, 0)
            if parking.size:
                self.parked[replica] = parking.size
        return effects

    def do(self, replica: Replica, effects: list[Effect], group: Group) -> None:
        """Do them in order; writes go into ``group``."""
        for effect in effects:
            kind = type(effect)
            if kind is Answer:
                self._answer(cast(Answer, effect))  # ``kind`` says it; isinstance costs more here
            elif kind is PutBatch:
                self._append_batch(replica, cast(PutBatch, effect), group)
            elif isinstance(effect, ShowUpTo):
                self._show(replica, effect)
            elif isinstance(effect, Refuse):
                self._refuse(effect)
            elif isinstance(effect, ForgetBelow):
                replica.wake()
                for session in replica.sessions:
                    session.on_shown(replica)
            elif isinstance(effect, ProposeIsr):
                self.on_proposal(replica, effect.proposal)
            elif isinstance(effect, AskEnrolment):
                self.on_enrolment(replica, effect)
            else:
                assert not isinstance(effect, (Answer, PutBatch))
                group.writes.append(effect)

    def rewrite(self, replica: Replica, effects: list[Effect], group: Group) -> None:
        """What one step of a compaction writes: nobody waits for it, and no end moves."""
        bases = group.rewritten.setdefault(replica.core.log, [])
        for effect in effects:
            assert not isinstance(effect, (Answer, Refuse, ShowUpTo)), "a compaction only writes"
            group.writes.append(cast(LogWrite, effect))
            if type(effect) is PutBatch:
                bases.append(effect.row.base_offset)
            elif type(effect) is DropBatch:
                bases.append(effect.base_offset)

    def _append_batch(self, replica: Replica, put: PutBatch, group: Group) -> None:
        row = put.row
        end = row.next_offset
        group.writes.append(put)
        group.appended.append(put)
        group.ends[replica] = (end, replica.core.truncations)
        group.bytes += row.size
        group.batches += 1
        measures = self._measures
        measures.bytes_in += row.size
        measures.batches_in += 1
        measures.records_in += row.record_count

    def _answer(self, answer: Answer) -> None:
        arrival = answer.ref
        assert isinstance(arrival, Arrival)
        arrival.caller.on_appended(arrival.index, answer.base_offset, answer.log_append_time_ms)

    def _refuse(self, refuse: Refuse) -> None:
        arrival = refuse.ref
        assert isinstance(arrival, Arrival)
        self._measures.refused_batches += 1
        arrival.refuse(refuse.error)

    def _show(self, replica: Replica, show: ShowUpTo) -> None:
        for session in replica.sessions:
            session.on_shown(replica)
        log = replica.core.log
        if replica.waiters:
            replica.wake_waiting(self._tail.bytes_between(log, show.before, show.high_watermark))
        if replica.stable_waiters:
            stable, before = show.stable or (show.high_watermark, show.before)
            if stable > before:
                replica.wake_waiting(self._tail.bytes_between(log, before, stable), stable=True)
