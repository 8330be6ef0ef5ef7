"""
Algorithms with a step taken out, each a bug that somebody once had: the simulation must find them.

Each mutant patches functions of the cores, or of what drives them here, for the time of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from tests.simulation import brokers as simulated
from tests.simulation import compaction
from tests.simulation.brokers import Broker, Replica
from tests.simulation.disk import Disk

from headrace_broker.core import controls
from headrace_broker.core.compaction import plan, rules
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.fences import Fences
from headrace_broker.core.leadership import Follower, Leadership, Proposal
from headrace_broker.core.local_log import LocalLog, Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    BatchesCopied,
    Compacted,
    Effect,
    ProposalRefused,
    Rebuilt,
    Truncated,
)
from headrace_broker.core.rows import LogWrite
from headrace_broker.core.time_search import Floor
from headrace_broker.engine.rebuilding import find_batch_boundary, rebuild
from headrace_common.core.errors import HeadraceError, OffsetOutOfRange
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import Partition as PartitionMetadata
from headrace_controller.core import election, isr_changes
from headrace_controller.core.election import Brokers, Rules

Patches = list[object]


def truncate_to_the_high_watermark() -> Patches:
    """KIP-101: who begins to follow cuts its log to the high watermark that it knows."""
    opened = Broker._open

    def _open(self: Broker, id: PartitionId, replica: Replica) -> None:
        core = replica.core
        before = replica.copying
        new_epoch = core.following is not None and (before is None or before.epoch != core.following.epoch)
        if new_epoch and core.high_watermark > core.log_start and core.high_watermark < core.log_end:
            assert core.following is not None
            point = find_batch_boundary(self.disk, core, core.high_watermark)
            self.disk.lower(core.log, point)
            self.handle(id, Truncated(core.following.epoch, point, rebuild(self.disk, core, point, int(self.clock))))
        opened(self, id, replica)

    return [patch.object(Broker, "_open", _open)]


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
    answered = Broker._proposal_answered

    def rolled_back(self: Broker, id: PartitionId, proposal: Proposal, tries: int, result: object) -> None:
        replica = self.replicas.get(id)
        if isinstance(result, HeadraceError) and replica is not None and replica.core.leading is not None:
            self.handle(id, ProposalRefused(proposal, self.clock))
        else:
            answered(self, id, proposal, tries, result)

    return [patch.object(Broker, "_proposal_answered", rolled_back)]


def trust_unclean_restarts() -> Patches:
    """KIP-966: who stopped uncleanly stays in ISR and ELR."""
    without_log = election.without_log

    def trusted(partition: PartitionMetadata, broker: NodeId, rules: Rules, *, damaged: bool) -> PartitionMetadata:
        return without_log(partition, broker, rules, damaged=damaged) if damaged else partition

    return [patch.object(election, "without_log", trusted)]


def keep_producers_of_what_is_cut() -> Patches:
    """The producers' state outlives a truncation: a batch that was cut away is taken for a duplicate."""

    def kept(store: Disk, log: LocalLog, end: Offset, now_ms: int) -> Rebuilt:
        return replace(rebuild(store, log, end, now_ms), producers=log.producers)

    return [patch.object(simulated, "rebuild", kept)]


def commit_below_min_isr() -> Patches:
    """The high watermark moves with whoever is left in sync."""
    return [patch.object(Leadership, "enough", property(lambda _self: True))]


def forget_who_left_the_isr() -> Patches:
    """There is no ELR: whoever is left in sync is all that is known, and after that anybody may lead."""

    def nobody(partition: PartitionMetadata, isr: object, elr: object, rules: Rules) -> PartitionMetadata:
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
    return [patch.object(Fences, "refusal", lambda _self, _carried, _fence: None)]


def copy_without_tokens() -> Patches:
    """Followers copy fences as records that say nothing."""
    return [patch.object(controls, "token_in", lambda _header, _batch: None)]


def keep_tokens_of_what_is_cut() -> Patches:
    """The token outlives the fence that set it."""
    return [patch.object(Fences, "truncate", lambda _self, _end: None)]


def forget_tokens_at_a_restart() -> Patches:
    """The token lives in memory only."""
    return [patch.object(Fences, "rows", lambda _self: ())]


def compact_what_is_not_committed() -> Patches:
    """Compaction goes by what is written: a value gives way to one that may yet be cut."""
    asked, taken = plan.dirty_range, LocalLog.compact

    def dirty_range(log: LocalLog, floor: Floor, lag_ms_min: int, now_ms: int) -> plan.DirtyRange:
        stable, log.last_stable = log.last_stable, log.written_end
        try:
            return asked(log, floor, lag_ms_min, now_ms)
        finally:
            log.last_stable = stable

    def compacted(self: LocalLog, step: Step) -> list[LogWrite]:
        """Without the assertion that would tell."""
        watermark, self.high_watermark = self.high_watermark, self.log_end
        try:
            return taken(self, step)
        finally:
            self.high_watermark = watermark

    return [patch.object(compaction, "dirty_range", dirty_range), patch.object(LocalLog, "compact", compacted)]


def apply_steps_to_another_log() -> Patches:
    """A step is written whatever became of the log since it was made: cut, trimmed, begun anew."""

    def compact(self: Partition, event: Compacted) -> list[Effect]:
        return [*self.compact(event.step)]

    return [patch.object(Partition, "_compact", compact), patch.object(Step, "applies", lambda _self, _first: True)]


def send_whole_gaps() -> Patches:
    """The leader sends the batch that holds the follower's end as it is stored."""
    return [patch.object(simulated, "continue_log", lambda batches, _log_end: batches)]


def let_everybody_go_on() -> Patches:
    """A follower that was away while deletions went copies on from its end, as in Kafka."""
    compare = Partition.compare

    def compared(self: Partition, last_epoch: int, log_end: Offset, _forgotten_to: Offset) -> Parted | None:
        return compare(self, last_epoch, log_end, self.forgotten_to)

    return [patch.object(Partition, "compare", compared)]


def copy_without_what_is_forgotten() -> Patches:
    """A follower does not note that deletions may be missing in what it copies."""
    copy = Partition._copy

    def copied(self: Partition, event: BatchesCopied) -> list[Effect]:
        return copy(self, replace(event, forgotten_to=Offset(0)))

    return [patch.object(Partition, "_copy", copied)]


def delete_deletions_at_once() -> Patches:
    """The first compaction that passes a deletion removes it."""
    return [patch.object(rules, "find_passed_end", lambda points, _now_ms, _retention_ms: points[-1].end)]


MUTANTS: dict[str, Callable[[], Patches]] = {
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
}
OF_COMPACTION: dict[str, Callable[[], Patches]] = {
    "unstable-compaction": compact_what_is_not_committed,
    "stale-steps": apply_steps_to_another_log,
    "whole-gaps": send_whole_gaps,
    "kafka-tombstones": let_everybody_go_on,
    "forgotten-uncopied": copy_without_what_is_forgotten,
    "deletions-at-once": delete_deletions_at_once,
}
"""They are looked for only where there is compaction."""
MUTANTS |= OF_COMPACTION


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Everything in this process runs with the mutant's bug; None: without any."""
    patches = [] if name is None else MUTANTS[name]()
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
