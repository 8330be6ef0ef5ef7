"""
Groups with a step taken out, each a bug that could be: the lab must find them.

Each mutant patches functions of the product for the time of one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace._core.commits import CommitQueue
from headrace._core.holdings import Holdings
from headrace_broker.core.fences import Fences
from headrace_broker.core.producers import Producers
from headrace_common.core import assignors
from headrace_common.core.assignors import sticky
from headrace_common.core.assignors.model import MemberSubscription
from headrace_common.core.errors import FencedWriter, HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core import assigned_group, reconcile
from headrace_coordinator.core.classic_group import ClassicGroup
from headrace_coordinator.core.consumer_group import ConsumerGroup
from headrace_coordinator.core.effects import Persist, PersistGroup
from headrace_coordinator.core.reconcile import Holder, Ownership
from headrace_coordinator.core.records import ConsumerRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine import shard_host
from headrace_coordinator.engine.outbox import Outbox

Patches = list[Any]


def answer_before_durable() -> Patches:
    """What follows from a change is shown before its record is committed."""
    taken = Outbox.take

    def take(self: Outbox[Any], effects: Iterable[Any], *, proof: bool) -> None:
        effects = list(effects)
        taken(self, [e for e in effects if not isinstance(e, Persist | PersistGroup)], proof=False)
        taken(self, [e for e in effects if isinstance(e, Persist | PersistGroup)], proof=proof)

    return [patch.object(Outbox, "take", take)]


def take_any_token() -> Patches:
    """The leader of a shard's partition does not compare tokens: a zombie writes."""
    refused = Fences.refusal

    def refusal(self: Fences, carried: int | None, fence: int | None, *, required: bool) -> FencedWriter | None:
        return None if fence is None else refused(self, carried, fence)

    return [patch.object(Fences, "refusal", refusal)]


def serve_reads_from_memory() -> Patches:
    """A coordinator answers reads of positions without a proof that it has the shard still."""
    return [patch.object(shard_host, "PROVED", ())]


def forget_the_order_of_appends() -> Patches:
    """An append whose answer was lost is written whenever its copies arrive: no sequences."""
    return [patch.object(Producers, "check", lambda *_args, **_kwargs: None)]


def take_commits_of_any_generation() -> Patches:
    """Classic: whoever is a member may commit, in whatever generation it believes to be."""
    checked = ClassicGroup.commit_fault

    def fault(
        self: ClassicGroup, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> HeadraceError | None:
        del generation
        present = self.generation if member_id else -1
        return checked(self, member_id, instance_id, present, transactional=transactional)

    return [patch.object(ClassicGroup, "commit_fault", fault)]


def take_commits_of_any_epoch() -> Patches:
    """Server-side protocol: the same."""
    return [patch.object(ConsumerGroup, "_stale", lambda _self, _member, _epoch: None)]


def take_commits_of_strangers() -> Patches:
    """Who was a member once may go on committing."""

    def fault(self: object, member_id: str, instance_id: str | None, generation: int, *, transactional: bool) -> None:
        del self, member_id, instance_id, generation, transactional

    return [patch.object(ClassicGroup, "commit_fault", fault), patch.object(ConsumerGroup, "commit_fault", fault)]


def give_before_it_is_released() -> Patches:
    """A partition goes to its new owner while the old one has not given it up."""
    taken = Ownership.take

    def is_free(self: Ownership[Any], partition: PartitionId) -> bool:
        del self, partition
        return True

    def take(self: Ownership[Any], partitions: Any, member_id: str) -> None:
        for partition in partitions:
            self._owner.pop(partition, None)
            taken(self, [partition], member_id)

    def free(self: Ownership[Any], partitions: Any) -> None:
        for partition in partitions:
            self._owner.pop(partition, None)
            self.freed.add(partition)

    return [
        patch.object(Ownership, "is_free", is_free),
        patch.object(Ownership, "take", take),
        patch.object(Ownership, "free", free),
    ]


def believe_old_reports() -> Patches:
    """What was just given counts as released by a report that was sent before it arrived."""
    moved = reconcile.advance

    def advance(member: Holder[Any], *rest: Any) -> bool:
        member.unconfirmed = frozenset()
        return moved(member, *rest)

    return [patch.object(assigned_group, "advance", advance)]


def keep_cooperative_claims_out() -> Patches:
    """cooperative-sticky gives partitions to their new owners at once."""
    table = {**assignors.ASSIGNORS, "cooperative-sticky": sticky.sticky}
    return [patch.object(assignors, "ASSIGNORS", table)]


def let_sessions_end_at_the_load() -> Patches:
    """Who takes a shard over gives its members no new session."""
    classic = ClassicGroup.restore
    consumer = ConsumerGroup.restore

    def restored(group_id: str, settings: GroupSettings, record: Any, at: Moment) -> ClassicGroup:
        group = classic(group_id, settings, record, at)
        for member in group.members:
            member.deadline_ms = at.mono_ms
        group.wake_ms = at.mono_ms
        return group

    def restore(self: ConsumerGroup, record: ConsumerRecord, at: Moment) -> None:
        consumer(self, record, at)
        for member in self.members.values():
            member.deadline_ms = at.mono_ms
        self.wake_ms = at.mono_ms

    return [
        patch.object(ClassicGroup, "restore", staticmethod(restored)),
        patch.object(ConsumerGroup, "restore", restore),
    ]


def move_more_than_needed() -> Patches:
    """The sticky assignors begin from nothing."""

    def kept(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> dict[str, set[Any]]:
        del partitions
        return {member: set() for member in members}

    return [patch.object(sticky, "_keep_owned", kept)]


def commit_what_was_given_up() -> Patches:
    """A commit that waited while its partition was lost goes out under the next membership."""
    return [patch.object(CommitQueue, "give_up", lambda _self, _partitions, _error: None)]


def say_released_before_it_is() -> Patches:
    """A member reports what it is to hold, not what it holds."""
    return [patch.object(Holdings, "taken", property(lambda self: self.held & (self.target or self.held)))]


def start_epochs_anew() -> Patches:
    """A coordinator that takes a shard over counts epochs from the beginning."""
    consumer = ConsumerGroup.restore

    def restore(self: ConsumerGroup, record: ConsumerRecord, at: Moment) -> None:
        consumer(self, record, at)
        self.group_epoch = 1

    return [patch.object(ConsumerGroup, "restore", restore)]


MUTANTS: Final[dict[str, Mutant]] = {
    "early-answers": answer_before_durable,
    "zombie-writes": take_any_token,
    "unproved-reads": serve_reads_from_memory,
    "no-append-order": forget_the_order_of_appends,
    "any-generation": take_commits_of_any_generation,
    "any-epoch": take_commits_of_any_epoch,
    "stranger-commits": take_commits_of_strangers,
    "early-gift": give_before_it_is_released,
    "old-reports": believe_old_reports,
    "eager-cooperative": keep_cooperative_claims_out,
    "no-new-sessions": let_sessions_end_at_the_load,
    "unsticky": move_more_than_needed,
    "late-commits": commit_what_was_given_up,
    "early-release": say_released_before_it_is,
    "epochs-anew": start_epochs_anew,
}
RARE: Final = frozenset({"unproved-reads"})
"""Found too late for every change; the long form looks for them."""
FOUND: Final[dict[str, int]] = {
    "any-epoch": 1,
    "early-gift": 1,
    "epochs-anew": 1,
    "late-commits": 1,
    "no-append-order": 2,
    "old-reports": 21,
    "unsticky": 1,
    "zombie-writes": 15,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
