"""
What answers to fetches change: what they brought is buffered, who was refused is asked again, elsewhere or not at all.

Part of ``fetch_positions``, whose text has the rules; the shell calls ``FetchPositions.answers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace._core.fetch_aborted import Aborted, AbortedRanges
from headrace._core.fetch_events import LogDiverged
from headrace._core.fetch_partition import Fetched, PartitionFetch
from headrace._core.fetch_plans import FetchPlan, PlanEntry
from headrace._core.fetch_state import Ends, FetchState
from headrace._core.remedies import HOPELESS, Asker, Remedy, remedy_for
from headrace.errors import LogTruncated, PositionOutOfRange
from headrace_common.core.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from headrace_common.core.errors import CorruptBatch, HeadraceError, error_for
from headrace_common.core.ids import NO_NODE, NodeId

_MAY_BE_HIDDEN: Final = CONTROL_BIT | TRANSACTIONAL_BIT
"""Batches with neither are always handed out."""


class Answer(NamedTuple):
    """One partition of a fetch answer."""

    entry: PlanEntry
    error: int
    message: str
    high_watermark: int
    log_start_offset: int
    batches: Sequence[bytes]
    leader: tuple[NodeId, int] | None = None
    """Who leads instead, and its epoch, if the broker knows."""
    diverging: tuple[int, int] | None = None
    """What was read last is not in this log: the epoch up to which it is the same, and where that ends."""
    preferred: NodeId = NO_NODE
    """The replica to read from instead."""
    aborted: Sequence[Aborted] = ()
    """Aborted transactions that overlap ``batches``; only for ``read_committed``."""
    last_stable: int = -1


class FetchAnswers:
    """Of one consumer."""

    def __init__(self, state: FetchState) -> None:
        self._state = state

    def take(self, plan: FetchPlan, answers: Iterable[Answer], now_ms: float) -> bool:
        """Take an answer in; True: there is something to hand out, tell or raise that was not there before."""
        fetches = self._state.rooms.brokers[plan.broker]
        served: list[PartitionFetch] = []
        refused: set[PartitionFetch] = set()
        news = False
        for answer in answers:
            partition = answer.entry.partition
            learned = False
            if plan.entries.get(partition.key) is answer.entry:  # else its topic was made anew meanwhile
                learned = self._state.learn_ends(partition, Ends(answer.high_watermark, answer.last_stable))
            fresh = partition.epoch == answer.entry.epoch and partition.fetch_offset == answer.entry.offset
            if not fresh or not partition.assigned:
                continue
            if answer.error:
                refused.add(partition)
                self._refused(plan, answer, now_ms)
                news = news or partition.failure is not None
                continue
            if answer.diverging is not None or answer.preferred != NO_NODE:
                self._turned_away(plan, answer, now_ms)
                news = news or partition.failure is not None
                continue
            partition.log_start_offset, news = answer.log_start_offset, news or learned
            if answer.batches:
                served.append(partition)
                news = self._take_in(partition, plan, answer) or news
        for partition in [p for p in self._state.troubled if p not in refused and p in fetches.members]:
            self._state.went_well(partition)  # who has no news is not in the answer, but was asked and is not refused
        fetches.answered(served)
        self._state.rooms.wake(fetches)
        return news

    def fail(self, plan: FetchPlan, error: HeadraceError, now_ms: float) -> None:
        """The fetch as a whole got no answer, or was refused."""
        fetches = self._state.rooms.brokers[plan.broker]
        fetches.broke()
        remedy = remedy_for(Asker.CONSUMER, error.code)
        to_raise = remedy in HOPELESS
        for partition in list(fetches.members):
            if self._follower_erred(partition, plan, error, now_ms):
                continue
            if to_raise:
                self._state.fail(partition, error)
            self._state.went_wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
            self._state.settle(partition)
            to_raise = False
        self._state.rooms.wake(fetches)

    def abandon(self, plan: FetchPlan) -> None:
        """The shell gave the fetch up, for somebody was late for it."""
        fetches = self._state.rooms.brokers[plan.broker]
        fetches.broke()
        self._state.rooms.wake(fetches)

    def _take_in(self, partition: PartitionFetch, plan: FetchPlan, answer: Answer) -> bool:
        """
        Buffer the batches. They are as stored, so the first may begin below the fetch offset; holes are fine.
        True: there is more to hand out, tell or raise.
        """
        had, size, kept = partition.has_records, 0, 0
        expected = partition.fetch_offset
        aborted = AbortedRanges(answer.aborted) if answer.aborted else None
        for at, batch in enumerate(answer.batches):
            try:
                header = read_header(batch)
                if size and header.base_offset < expected:
                    raise CorruptBatch(f"its base offset {header.base_offset} is below {expected}, where it must begin")
            except HeadraceError as error:
                follows = _readable_base(answer.batches[at + 1 :], expected)
                self._state.fail(partition, partition.meet_unreadable(expected, follows, error))
                break
            if header.next_offset <= expected:
                continue
            if partition.stop is not None and header.base_offset >= partition.stop:
                partition.pass_over(header)
                expected = header.next_offset
                break
            expected, partition.last_epoch = header.next_offset, header.leader_epoch
            size += len(batch)
            hides = header.attributes & _MAY_BE_HIDDEN
            hidden = hides and (hides & CONTROL_BIT or (aborted is not None and aborted.hold(header)))
            if hidden or not header.record_count:
                partition.pass_over(header)
                continue
            partition.buffer.append(Fetched(batch, header))
            kept += len(batch)
        partition.fetch_offset, partition.drain_first = expected, False
        moved = self._state.step_over(partition)
        plan.answered_bytes += size
        self._state.rooms.count(partition, kept)
        if partition.has_records and not had:
            self._state.ready.append(partition)
        self._state.rooms.moved(partition)
        self._state.settle(partition)
        return bool(kept) or moved or partition.failure is not None or partition.stopped

    def _refused(self, plan: FetchPlan, answer: Answer, now_ms: float) -> None:
        partition = answer.entry.partition
        if plan.broker != partition.source:
            return
        error = error_for(answer.error, f"{partition.tp}: {answer.message}" if answer.message else f"{partition.tp}")
        if self._follower_erred(partition, plan, error, now_ms):
            return
        match remedy_for(Asker.CONSUMER, error.code):
            case Remedy.RESET:
                self._out_of_range(partition, answer)
            case Remedy.RAISE:
                self._state.fail(partition, error)
            case remedy:
                self._state.went_wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
                if answer.leader is not None and answer.leader[1] > partition.leader_epoch:
                    self._state.lead_by(partition, *answer.leader)
        self._state.settle(partition)

    def _follower_erred(self, partition: PartitionFetch, plan: FetchPlan, error: HeadraceError, now_ms: float) -> bool:
        """Whether it was a follower that could not be read from, so that the leader is asked now."""
        if plan.broker == partition.leader or plan.broker != partition.follower:
            return False
        if not self._state.sources.erred(partition, error, now_ms):
            return False
        self._state.care = True
        self._state.settle(partition)
        return True

    def _turned_away(self, plan: FetchPlan, answer: Answer, now_ms: float) -> None:
        """No records: another replica is nearer, or what was read is not in this log."""
        partition = answer.entry.partition
        if plan.broker != partition.source:
            return
        if answer.diverging is None:
            self._state.went_well(partition)
            if plan.broker == partition.leader:
                self._state.sources.follow(partition, answer.preferred, now_ms)
                self._state.care = True
        elif not self._follower_erred(partition, plan, LogTruncated(), now_ms):
            self._diverged(partition, answer.diverging[1])
        self._state.settle(partition)

    def _diverged(self, partition: PartitionFetch, end_offset: int) -> None:
        """The leader's log is the one that was read up to ``end_offset``."""
        if partition.buffer or partition.open is not None:
            partition.drain_first = True  # the application first gets what is here, then hears of it
            return
        lost, end_offset = partition.fetch_offset, max(0, end_offset)
        if self._state.reset is None and end_offset < lost:
            self._state.fail(partition, LogTruncated.at(partition.tp, lost, end_offset))
            return
        partition.move_to(min(lost, end_offset))
        self._state.untold[partition] = None
        if partition.base is not None:
            partition.base = min(partition.base, end_offset)
        self._state.rooms.moved(partition)
        if end_offset < lost:
            self._state.tell(LogDiverged(partition.tp, lost, end_offset))

    def _out_of_range(self, partition: PartitionFetch, answer: Answer) -> None:
        if partition.buffer or partition.open is not None:
            partition.drain_first = True
            return
        lost = partition.fetch_offset
        partition.log_start_offset = answer.log_start_offset
        if self._state.reset is None:
            log_start, log_end = answer.log_start_offset, answer.high_watermark
            self._state.fail(partition, PositionOutOfRange.at(partition.tp, lost, log_start, log_end))
            return
        self._state.drop_buffer(partition)
        partition.lose_position(self._state.reset)
        partition.lost_position = lost


def _readable_base(batches: Sequence[bytes], above: int) -> int:
    """Where the first of ``batches`` begins that can be read and is above that offset; without one, the next offset."""
    for batch in batches:
        try:
            base = read_header(batch).base_offset
        except HeadraceError:
            continue
        if base > above:
            return base
    return above + 1
