"""
Algorithms with a step taken out, each a bug that somebody once had: the lab must find them.

Each mutant patches functions of the cores and engines for the time of one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace_broker.adapters.controller_cluster import ControllerCluster
from headrace_broker.core import controls
from headrace_broker.core.appends import Appends
from headrace_broker.core.fences import Fences
from headrace_broker.core.leadership import Follower, Leadership, Proposal
from headrace_broker.core.local_log import LocalLog, Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    BatchArrived,
    Enrolled,
    MarkerArrived,
    Rebuilt,
    Refuse,
    Truncated,
)
from headrace_broker.engine import replica_fetcher
from headrace_broker.engine.rebuilding import find_batch_boundary, rebuild
from headrace_broker.engine.replica_fetcher import ReplicaFetcher
from headrace_broker.engine.replicas import Replica
from headrace_broker.ports import IsrDecision, LogStore
from headrace_common.core.errors import FencedWriter, HeadraceError, IneligibleReplica, OffsetOutOfRange
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import Partition as PartitionMetadata
from headrace_controller.core import election, isr_changes
from headrace_controller.core.election import Brokers, Rules

Patches = list[Any]


def truncate_to_the_high_watermark() -> Patches:
    """KIP-101: who begins to follow cuts its log to the high watermark that it knows."""
    followed = ReplicaFetcher.follow

    def follow(self: ReplicaFetcher, replica: Replica, leader_epoch: int) -> None:
        core, known = replica.core, self._followed.get(replica.id)
        is_new = known is None or known.leader_epoch != leader_epoch
        if is_new and core.log_start < core.high_watermark < core.log_end:
            point, store = find_batch_boundary(self._store, core, core.high_watermark), self._store
            store._evidence[core.log] = min(point, store._evidence.get(core.log, 0))  # type: ignore[attr-defined]
            store._lowered.add(core.log)  # type: ignore[attr-defined]
            again = rebuild(store, core, point, self._clock.now_ms())
            self._loop.post(replica, Truncated(leader_epoch, point, again))
        followed(self, replica, leader_epoch)

    return [patch.object(ReplicaFetcher, "follow", follow)]


def compare_ends_only() -> Patches:
    """KIP-279: the leader tells where an epoch ends, but not whose epoch that is, and the follower does not ask."""

    def compare(self: Partition, last_epoch: int, log_end: Offset, _forgotten_to: Offset) -> Parted | None:
        if log_end < self.log_start:
            raise OffsetOutOfRange("below the log start")
        if last_epoch < 0:
            return None if log_end == self.log_start else Parted(-1, Offset(-1))
        _, end = self.epochs.end_offset_for(last_epoch, self.log_end)
        return Parted(last_epoch, end) if end < log_end else None

    def truncation_point(self: LocalLog, epoch: int, end: Offset) -> Offset | None:
        point = min(end, self.log_end)
        return None if point <= self.log_start else point

    return [patch.object(Partition, "compare", compare), patch.object(LocalLog, "truncation_point", truncation_point)]


def fetch_without_epochs() -> Patches:
    """KIP-320: the leader looks neither at the epoch of a fetch nor at the last epoch of the log behind it."""
    checked = Partition.check_epoch

    def check_epoch(self: Partition, claimed: int | None, *, follower: bool = False) -> HeadraceError | None:
        return checked(self, None, follower=follower)

    def compare(self: Partition, last_epoch: int, log_end: Offset, _forgotten_to: Offset) -> Parted | None:
        if log_end < self.log_start:
            raise OffsetOutOfRange("below the log start")
        return Parted(self.epochs.latest, self.log_end) if log_end > self.log_end else None

    return [patch.object(Partition, "check_epoch", check_epoch), patch.object(Partition, "compare", compare)]


def count_what_is_appended() -> Patches:
    """What a follower has in memory counts as if it were on disk."""
    fetched = Leadership.note_fetch

    def counted(
        self: Leadership,
        broker: NodeId,
        broker_epoch: int,
        log_end: Offset,
        written_end: Offset,
        leader_end: Offset,
        now_ms: float,
        *,
        may_join: bool,
    ) -> bool:
        return fetched(self, broker, broker_epoch, log_end, log_end, leader_end, now_ms, may_join=may_join)

    return [patch.object(Leadership, "note_fetch", counted)]


def shrink_before_it_is_confirmed() -> Patches:
    """Who is to leave the ISR does not count any more while the controller is still asked."""
    leaving = Leadership.propose_leaving

    def left(self: Leadership, now_ms: float, lag_ms_max: float, silence_ms_max: float) -> Proposal | None:
        proposal = leaving(self, now_ms, lag_ms_max, silence_ms_max)
        if proposal is not None:
            members = tuple(broker for broker, _ in proposal.isr)
            self.maximal = frozenset(members)
            self.assignment = replace(self.assignment, isr=members)
        return proposal

    return [patch.object(Leadership, "propose_leaving", left)]


def expand_after_it_is_confirmed() -> Patches:
    """KIP-497: who is to join the ISR counts only when the controller's answer is here."""
    joining = Leadership.propose_joining

    def joined(self: Leadership, broker: NodeId, high_watermark: Offset, now_ms: float) -> Proposal | None:
        proposal = joining(self, broker, high_watermark, now_ms)
        if proposal is not None:
            self.maximal = frozenset(self.assignment.isr)
        return proposal

    def not_near(self: Leadership, follower: Follower, now_ms: float) -> None:
        follower.near = False

    return [patch.object(Leadership, "propose_joining", joined), patch.object(Leadership, "_look_near", not_near)]


def expand_below_the_epoch_start() -> Patches:
    """A follower at the leader's high watermark may join, even where that is not known yet."""
    joining = Leadership.propose_joining

    def joined(self: Leadership, broker: NodeId, high_watermark: Offset, now_ms: float) -> Proposal | None:
        start, self.epoch_start = self.epoch_start, Offset(0)
        try:
            return joining(self, broker, high_watermark, now_ms)
        finally:
            self.epoch_start = start

    return [patch.object(Leadership, "propose_joining", joined)]


def roll_back_on_any_refusal() -> Patches:
    """A proposal is taken back whatever the controller's reason, although it may have been accepted before."""
    asked = ControllerCluster.alter_partitions

    async def alter_partitions(
        self: ControllerCluster, proposals: Sequence[tuple[PartitionId, Proposal]]
    ) -> list[IsrDecision]:
        try:
            decisions = await asked(self, proposals)
        except HeadraceError as error:
            return [IsrDecision(error=IneligibleReplica(str(error))) for _ in proposals]
        return [one if one.error is None else IsrDecision(error=IneligibleReplica(str(one.error))) for one in decisions]

    return [patch.object(ControllerCluster, "alter_partitions", alter_partitions)]


def trust_unclean_restarts() -> Patches:
    """KIP-966: who stopped uncleanly stays in ISR and ELR."""
    without_log = election.without_log

    def trusted(partition: PartitionMetadata, broker: NodeId, rules: Rules, *, damaged: bool) -> PartitionMetadata:
        return without_log(partition, broker, rules, damaged=damaged) if damaged else partition

    return [patch.object(election, "without_log", trusted)]


def keep_producers_of_what_is_cut() -> Patches:
    """The producers' state outlives a truncation: a batch that was cut away is taken for a duplicate."""

    def kept(store: LogStore, log: LocalLog, end: Offset, now_ms: int) -> Rebuilt:
        return replace(rebuild(store, log, end, now_ms), producers=log.producers)

    return [patch.object(replica_fetcher, "rebuild", kept)]


def commit_below_min_isr() -> Patches:
    """The high watermark moves with whoever is left in sync."""
    return [patch.object(Leadership, "enough", property(lambda _self: True))]


def forget_who_left_the_isr() -> Patches:
    """There is no ELR: whoever is left in sync is all that is known, and after that anybody may lead."""

    def nobody(partition: PartitionMetadata, isr: Iterable[NodeId], elr: object, rules: Rules) -> PartitionMetadata:
        members = election._order_members(partition, isr)
        rest = tuple(r for r in partition.replicas if r not in members)
        return replace(partition, isr=members, elr=() if members else rest)

    return [patch.object(election, "with_isr", nobody)]


def join_with_an_old_broker_epoch() -> Patches:
    """KIP-903: a follower may join on the word of a process of it that is gone."""

    def trusting(partition: PartitionMetadata, proposal: isr_changes.Proposal, brokers: Brokers) -> None:
        return None

    def counts_always(
        self: Leadership,
        broker: NodeId,
        broker_epoch: int,
        log_end: Offset,
        written_end: Offset,
        leader_end: Offset,
        now_ms: float,
        *,
        may_join: bool,
    ) -> bool:
        return fetched(self, broker, max(broker_epoch, 0), log_end, written_end, leader_end, now_ms, may_join=True)

    fetched = Leadership.note_fetch
    return [
        patch.object(isr_changes, "_check_members", trusting),
        patch.object(Leadership, "note_fetch", counts_always),
        patch.object(Leadership, "take_peers", lambda _self, _epochs: None),
    ]


def take_any_token() -> Patches:
    """The leader does not look at tokens."""
    return [patch.object(Fences, "refusal", lambda _self, _carried, _fence, **_required: None)]


def copy_without_tokens() -> Patches:
    """Followers copy fences as records that say nothing."""
    return [patch.object(controls, "token_in", lambda _header, _batch: None)]


def keep_tokens_of_what_is_cut() -> Patches:
    """The token outlives the fence that set it."""
    return [patch.object(Fences, "truncate", lambda _self, _end: None)]


def forget_tokens_at_a_restart() -> Patches:
    """The token lives in memory only."""
    return [patch.object(Fences, "rows", lambda _self: ())]


def resume_whoever_was_parked() -> Patches:
    """The token is looked at when a batch comes, and not again when its transaction's coordinator has answered."""
    resumed = Appends.resume

    def resume(self: Appends, leading: Leadership, event: Enrolled) -> list[Any]:
        with patch.object(Appends, "_writer_fault", lambda _self, _event: None):
            return resumed(self, leading, event)

    return [patch.object(Appends, "resume", resume)]


def require_no_token() -> Patches:
    """Leaders do not go by ``fencing.required``."""
    refused = Fences.refusal

    def refusal(self: Fences, carried: int | None, fence: int | None, *, required: bool) -> FencedWriter | None:
        del required
        return refused(self, carried, fence, required=False)

    return [patch.object(Fences, "refusal", refusal)]


def fence_markers() -> Patches:
    """A marker carries no token, and is refused for that."""
    ended = Appends.end_transaction

    def end_transaction(self: Appends, leading: Leadership, event: MarkerArrived) -> list[Any]:
        if self.log.fences.token >= 0:
            return [Refuse(event.ref, FencedWriter("the marker carries no token"))]
        return ended(self, leading, event)

    return [patch.object(Appends, "end_transaction", end_transaction)]


def fence_repeats() -> Patches:
    """The token is looked at before it is seen that the batch is there: a writer is told that it is not."""

    def answer_fenced(self: Appends, leading: Leadership, event: BatchArrived, wrong: FencedWriter) -> list[Any]:
        del self, leading
        return [Refuse(event.ref, wrong)]

    return [patch.object(Appends, "_answer_fenced", answer_fenced)]


def keep_tokens_above_open_transactions() -> Patches:
    """The token outlives the fence that set it, if a transaction is open below the cut."""
    cut = LocalLog.cut

    def kept(self: LocalLog, end: Offset, rebuilt: Rebuilt) -> Any:
        if not rebuilt.producers.open:
            return cut(self, end, rebuilt)
        with patch.object(Fences, "truncate", lambda _self, _end: None):
            return cut(self, end, rebuilt)

    return [patch.object(LocalLog, "cut", kept)]


MUTANTS: dict[str, Mutant] = {
    "kip-101": truncate_to_the_high_watermark,
    "kip-279": compare_ends_only,
    "kip-320": fetch_without_epochs,
    "leo-counts": count_what_is_appended,
    "early-shrink": shrink_before_it_is_confirmed,
    "late-expand": expand_after_it_is_confirmed,
    "expand-below-epoch-start": expand_below_the_epoch_start,
    "roll-back": roll_back_on_any_refusal,
    "unclean-elr": trust_unclean_restarts,
    "producers-kept": keep_producers_of_what_is_cut,
    "no-min-isr": commit_below_min_isr,
    "no-elr": forget_who_left_the_isr,
    "kip-903": join_with_an_old_broker_epoch,
    "any-token": take_any_token,
    "tokens-uncopied": copy_without_tokens,
    "tokens-uncut": keep_tokens_of_what_is_cut,
    "tokens-unstored": forget_tokens_at_a_restart,
    "fenced-resume": resume_whoever_was_parked,
    "unrequired": require_no_token,
    "fenced-markers": fence_markers,
    "fenced-repeats": fence_repeats,
    "tokens-uncut-open": keep_tokens_above_open_transactions,
}
RARE: frozenset[str] = frozenset({"roll-back", "tokens-uncut-open"})
"""Found too late for every change; the long form looks for them."""
FOUND: Final[dict[str, int]] = {
    "any-token": 3,
    "expand-below-epoch-start": 43,
    "fenced-markers": 1,
    "fenced-repeats": 18,
    "fenced-resume": 7,
    "kip-101": 8,
    "kip-903": 3,
    "no-min-isr": 3,
    "tokens-uncopied": 1,
    "tokens-uncut": 46,
    "tokens-unstored": 4,
    "unclean-elr": 42,
    "unrequired": 3,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
