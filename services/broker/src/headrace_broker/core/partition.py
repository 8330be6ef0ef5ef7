"""
One partition as this broker keeps it: led, followed, or neither.

As leader it decides which offsets a batch gets, when it is committed, and who is in sync; as follower it copies and
truncates. Only the storage loop calls ``handle``. Events go in, effects come out, in the order in which they must be
done; effects that are ``LogWrite`` belong to one group, and ``GroupWritten`` follows when the flush policy counts it
as written. The algorithms are those of KIP-101, 279, 497, 595, 903 and 966 (docs/replication.md tells them).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_broker.core.aborted import AbortedIndex
from headrace_broker.core.appends import Appends
from headrace_broker.core.compaction.clean_points import cut_points
from headrace_broker.core.compaction.steps import StepOutdated
from headrace_broker.core.copies import Copies, Following
from headrace_broker.core.epochs import Epochs
from headrace_broker.core.fences import Fences
from headrace_broker.core.leadership import Assignment, Leadership, Proposal
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.partition_events import (
    BatchArrived,
    BatchesCopied,
    CheckpointAsked,
    Compacted,
    Deposed,
    Effect,
    Elected,
    Emptied,
    Enrolled,
    Event,
    Followed,
    FollowerFetched,
    FollowersChecked,
    GroupWritten,
    MarkerArrived,
    PeersChanged,
    ProposalRefused,
    ProposeIsr,
    Reassigned,
    Reconfigured,
    Refuse,
    RetentionChecked,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.producers import Ended, Producers
from headrace_broker.core.rows import (
    AbortedRow,
    EpochRow,
    LogId,
    LogWrite,
    PutSegment,
    StateRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import (
    FencedLeaderEpoch,
    HeadraceError,
    NotLeader,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from headrace_common.core.ids import NodeId, Offset, PartitionId


@dataclass(slots=True)
class Partition(LocalLog):
    """The log, and what this broker is to it. ``leading`` and ``following`` are never both set."""

    leading: Leadership | None = None
    following: Following | None = None
    appends: Appends = field(init=False, repr=False, compare=False)
    copies: Copies = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.appends, self.copies = Appends(self), Copies(self)

    @staticmethod
    def create(
        partition: PartitionId, log: LogId, config: TopicConfig, now_ms: int, roll_jitter: float = 0.0
    ) -> tuple[Partition, list[LogWrite]]:
        """A new, empty log, and the writes that make it exist."""
        start = Offset(0)
        segments = Segments.fresh(start, now_ms, roll_jitter)
        fresh = Partition(partition, log, config, segments, start, start, start, start, Epochs(), Producers())
        return fresh, [fresh.state(), PutSegment(log, segments.active)]

    @staticmethod
    def recover(
        state: StateRow,
        log: LogId,
        config: TopicConfig,
        segments: Segments,
        log_end: Offset,
        epochs: Iterable[EpochRow],
        producers: Producers,
        first_batch: Offset | None = None,
    ) -> Partition:
        """
        The log as it was found at opening. What is found is written; what of it is committed the cluster knows.

        ``first_batch`` is the base of the batch that holds the log start; None: one begins there, or there is none.
        ``with_transactions`` adds what its rows tell of those.
        """
        assert state.log_start <= log_end, f"{state.partition} starts at {state.log_start} and ends at {log_end}"
        return Partition(
            id=state.partition,
            log=log,
            config=config,
            segments=segments,
            log_start=state.log_start,
            log_end=log_end,
            written_end=log_end,
            high_watermark=Offset(min(max(state.high_watermark, state.log_start), log_end)),
            epochs=Epochs(epochs),
            producers=producers,
            first_batch=state.log_start if first_batch is None else first_batch,
            fences=Fences(state.cut(log_end).fences),
            cleaned_to=min(state.cleaned_to, log_end),
            clean_points=cut_points(state.clean_points, log_end),
            forgotten_to=state.forgotten_to,
            checkpoint=state.high_watermark,
        ).with_transactions((), ())

    def with_transactions(self, aborted: Iterable[AbortedRow], ended: Iterable[Ended]) -> Partition:
        """What was found at opening. ``ended``: those with a marker at or above the high watermark, maybe more."""
        self.aborted, self.ending = AbortedIndex(aborted), deque(ended)
        self.settle()
        return self

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

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        leading = self.leading
        match event:
            case BatchArrived():
                return self._append(event)
            case GroupWritten(end, now_ms):
                return self._on_written(end, now_ms)
            case FollowerFetched():
                return [] if leading is None else self._on_follower_fetched(leading, event)
            case BatchesCopied():
                return self._copy(event)
            case MarkerArrived():
                return self._end_transaction(event)
            case Enrolled():
                return [] if leading is None else self.appends.resume(leading, event)
            case Elected(assignment, now_ms):
                return self._lead(assignment, now_ms)
            case Reassigned(assignment, now_ms):
                return [] if leading is None else self._on_reassigned(leading, assignment, now_ms)
            case Followed(leader, epoch, reason):
                return self._follow(Following(leader, epoch), reason)
            case Deposed(reason):
                self.following = None
                return self._stop_leading(reason)
            case FollowersChecked(now_ms, lag_ms_max, silence_ms_max):
                return [] if leading is None else self._check_followers(leading, now_ms, lag_ms_max, silence_ms_max)
            case PeersChanged(epochs, now_ms):
                return [] if leading is None else self._on_peers_changed(leading, epochs, now_ms)
            case ProposalRefused(proposal, now_ms):
                return [] if leading is None else self._on_refused(leading, proposal, now_ms)
            case Truncated():
                return self._truncate(event)
            case Emptied():
                return self._empty(event)
            case TrimAsked():
                return self._trim(event)
            case RetentionChecked(now_ms, producers_before_ms):
                self.producers.expire(producers_before_ms)
                return self._retain(now_ms)
            case Compacted():
                return self._compact(event)
            case Reconfigured(config):
                self.config = config
                return []
            case CheckpointAsked(whole):
                snapshot = self.snapshot() if whole else []
                return [self.state(), *snapshot] if snapshot or self.high_watermark > self.checkpoint else []

    def forgets_below(self, now_ms: float, away_ms: float) -> Offset:
        """
        Below, a compaction that begins now may remove deletions and markers that were to be read long enough.

        Only a leader decides that, and it spares followers that need them and were heard within ``away_ms``; a follower
        removes what its leader has removed. ``now_ms`` is monotonic.
        """
        if self.leading is not None:
            return self.leading.find_copied_end(now_ms, away_ms)
        return self.forgotten_to if self.following is None else max(self.forgotten_to, self.copies.leader_forgotten_to)

    # --- leading ------------------------------------------------------------------------------------------

    def _lead(self, assignment: Assignment, now_ms: float) -> list[Effect]:
        epoch = assignment.leader_epoch
        if self.known_epoch is not None and (epoch < self.known_epoch or epoch == self.leader_epoch):
            return []
        effects: list[Effect] = []
        if self.leading is not None:  # the same leader in a new epoch: those who wait hear that it is unknown
            effects += self._stop_leading(NotLeader("the partition has a new leader epoch; send the batch again"))
        if epoch < self.epochs.latest:
            return effects
        self.following = None
        effects += self.begin_epoch(epoch)
        self.leading = Leadership.begin(assignment, self.log_end, now_ms)
        return effects + self._commit(self.leading)

    def _append(self, event: BatchArrived) -> list[Effect]:
        wrong = self.check_epoch(event.leader_epoch)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        assert self.leading is not None, "only a leader appends"
        return self.appends.append(self.leading, event)

    def _end_transaction(self, event: MarkerArrived) -> list[Effect]:
        wrong = self.check_epoch(None)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        assert self.leading is not None, "only a leader appends"
        return self.appends.end_transaction(self.leading, event)

    def _on_written(self, end: Offset, now_ms: float) -> list[Effect]:
        grew = end > self.written_end
        effects = self.appends.on_written(end)
        if self.following is not None:
            return effects + self._commit_copied()
        if self.leading is None:
            return effects
        if grew:
            self.leading.note_grown(now_ms)
        return effects + self._commit(self.leading)

    def _commit(self, leading: Leadership) -> list[Effect]:
        return self.appends.on_committed(leading.find_committed(self.written_end))

    def _stop_leading(self, reason: HeadraceError) -> list[Effect]:
        self.leading = None
        return self.appends.refuse_all(reason)

    def _on_reassigned(self, leading: Leadership, assignment: Assignment, now_ms: float) -> list[Effect]:
        if assignment.leader_epoch != leading.assignment.leader_epoch:
            return []
        if assignment.partition_epoch < leading.assignment.partition_epoch:
            return []
        leading.take_assignment(assignment, now_ms)
        effects = self._commit(leading)
        if not leading.enough:
            effects += self.appends.refuse_uncommitted(leading)
        return effects + self._propose_joining(leading, now_ms)

    def _on_follower_fetched(self, leading: Leadership, event: FollowerFetched) -> list[Effect]:
        known = leading.note_fetch(
            event.broker,
            event.broker_epoch,
            event.log_end,
            event.written_end,
            self.written_end,
            event.now_ms,
            may_join=event.may_join,
        )
        if not known:
            return []
        proposal = leading.propose_joining(event.broker, self.high_watermark, event.now_ms)
        effects: list[Effect] = [] if proposal is None else [ProposeIsr(proposal)]
        return effects + self._commit(leading)

    def _check_followers(
        self, leading: Leadership, now_ms: float, lag_ms_max: float, silence_ms_max: float
    ) -> list[Effect]:
        proposal = leading.propose_leaving(now_ms, lag_ms_max, silence_ms_max)
        effects: list[Effect] = [] if proposal is None else [ProposeIsr(proposal)]
        return effects + self._commit(leading) + self._propose_joining(leading, now_ms)

    def _propose_joining(self, leading: Leadership, now_ms: float) -> list[Effect]:
        for broker in leading.followers:
            proposal = leading.propose_joining(broker, self.high_watermark, now_ms)
            if proposal is not None:
                return [ProposeIsr(proposal)]
        return []

    def _on_peers_changed(self, leading: Leadership, epochs: dict[NodeId, int], now_ms: float) -> list[Effect]:
        leading.take_peers(epochs)
        return self._commit(leading) + self._propose_joining(leading, now_ms)

    def _on_refused(self, leading: Leadership, proposal: Proposal, now_ms: float) -> list[Effect]:
        leading.give_up(proposal, now_ms)
        return self._commit(leading)

    # --- following ----------------------------------------------------------------------------------------

    def _follow(self, following: Following, reason: HeadraceError) -> list[Effect]:
        if self.known_epoch is not None and following.epoch < self.known_epoch:
            return []
        effects = self._stop_leading(reason)
        if self.following != following:
            self.copies = Copies(self)
        self.following = following
        return effects

    def _copy(self, event: BatchesCopied) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
        return self.copies.take(self.following, event) + self._commit_copied()

    def _commit_copied(self) -> list[Effect]:
        return self.appends.on_committed(min(self.copies.leader_high_watermark, self.written_end))

    def _truncate(self, event: Truncated) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
        if event.rewrites is not None and event.rewrites != self.rewrites:
            return []  # the leader is asked again
        return [*self.cut(event.end, event.rebuilt)]

    def _empty(self, event: Emptied) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
        return [*self.empty(event.start, event.now_ms, event.fencing_token)]

    # --- what may go --------------------------------------------------------------------------------------

    def _trim(self, event: TrimAsked) -> list[Effect]:
        if event.offset > self.high_watermark:
            raise OffsetOutOfRange(f"offset {event.offset} is above the high watermark {self.high_watermark}")
        if event.offset <= self.log_start:
            return []
        return [*self.start_at(event.offset, event.boundary, event.producers)]

    def _retain(self, now_ms: int) -> list[Effect]:
        config, effects = self.config, list[Effect]()
        if (self.leading is not None or config.compacts) and self.is_aged(now_ms):
            effects += self.roll(now_ms)
        if self.leading is None:
            return effects
        start = self.segments.find_expired(
            now_ms,
            self.log_end,
            self.high_watermark,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
        )
        if start is None or start <= self.log_start:
            return effects
        if start == self.log_end and self.segments.active.size:
            effects += self.roll(now_ms)
        return [*effects, *self.start_at(start, start)]

    def _compact(self, event: Compacted) -> list[Effect]:
        if event.truncations != self.truncations:
            raise StepOutdated("the end of the log was cut since the compaction began")
        if not event.step.applies(self.first_batch):
            raise StepOutdated(f"the log begins at {self.first_batch}, above where the step does")
        return [*self.compact(event.step)]
