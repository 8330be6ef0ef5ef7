"""
What the next fetch from one broker asks for, and when it may leave.

``fetch_positions`` keeps one ``BrokerFetches`` per leader. One fetch is on the wire per broker; the next leaves when
the answer came and the buffer has room, so it travels while the application works. A plan is kept and only what moved
is changed in it: with a thousand partitions an answer for one of them costs one entry, not a thousand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace._core.fetch_partition import PartitionFetch
from headrace_common.core.ids import NodeId, TopicId

MEMBERS_MAX: Final = 10_000
"""Most partitions of one fetch; more take turns."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of prefetching and of retrying."""

    fetch_max_bytes: int = 50 << 20
    """Most bytes buffered and on the wire per broker, but for a first batch that is larger."""
    max_partition_fetch_bytes: int = 1 << 20
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    api_timeout_ms: int = 60_000
    """A partition that cannot be read for so long is told to the application."""
    gone_after_ms: int | None = None
    """The same for a topic that nobody knows; None: as for all else, for it may come back."""
    follow_ms: int = 300_000
    """How long a replica that the leader has named is read from before the leader is asked again."""


@dataclass(slots=True)
class PlanEntry:
    """One partition of a plan, and what it was asked for."""

    partition: PartitionFetch
    epoch: int
    offset: int
    last_epoch: int
    unreadable: bool = False
    """What is at the offset was fetched before, and could not be read."""


@dataclass(slots=True)
class FetchPlan:
    """One fetch. ``entries`` are in the order in which the broker should read them."""

    broker: NodeId
    max_bytes: int
    entries: dict[tuple[TopicId, int], PlanEntry]
    changed: list[PlanEntry]
    rebuilt: bool
    """True: other entries or another order than in the last plan of this broker; False: only ``changed`` differ."""
    answered_bytes: int = 0


@dataclass(slots=True)
class BrokerFetches:
    """The partitions that are read from one broker, as far as they may be fetched."""

    broker: NodeId
    limits: FetchLimits
    members: dict[PartitionFetch, None] = field(default_factory=dict)
    """In the order of the next plan; those that were served go to the end when an answer was full."""
    moved: dict[PartitionFetch, None] = field(default_factory=dict)
    """Members whose offset or epoch is not what the last plan says."""
    dirty: bool = True
    """The last plan cannot be used again."""
    on_wire: bool = False
    late: bool = False
    """Somebody joined or sought while a fetch was on the wire that may wait for records of others."""
    buffered_bytes: int = 0
    plan: FetchPlan | None = None

    def add(self, partition: PartitionFetch) -> None:
        """It may be fetched from now on."""
        if partition not in self.members:
            self.members[partition] = None
            self.dirty = True
            self.late = self.on_wire

    def remove(self, partition: PartitionFetch) -> None:
        """It may not be fetched any more."""
        if partition in self.members:
            del self.members[partition]
            self.moved.pop(partition, None)
            self.dirty = True

    @property
    def ready(self) -> bool:
        """Whether a fetch may leave now: half of the room is empty, so that answers stay large."""
        return bool(self.members) and not self.on_wire and self.buffered_bytes <= self._room() // 2

    def _room(self) -> int:
        wanted = 2 * self.limits.max_partition_fetch_bytes * len(self.members)
        return min(self.limits.fetch_max_bytes, wanted)

    def next_plan(self) -> FetchPlan | None:
        """The fetch to send now, if any; the broker counts as asked until ``answered`` or ``broke``."""
        if not self.ready:
            return None
        self.on_wire, self.late = True, False
        max_bytes = max(1, self.limits.fetch_max_bytes - self.buffered_bytes)
        if self.dirty or self.plan is None:
            members = list(self.members)[:MEMBERS_MAX]
            entries = {m.key: PlanEntry(m, m.epoch, m.fetch_offset, m.last_epoch, m.meets_unreadable) for m in members}
            self.plan = FetchPlan(self.broker, max_bytes, entries, list(entries.values()), rebuilt=True)
            self.dirty = False
        else:
            self.plan.max_bytes, self.plan.rebuilt = max_bytes, False
            self.plan.changed = [self._update_entry(self.plan, m) for m in self.moved if m.key in self.plan.entries]
            self.plan.answered_bytes = 0
        self.moved.clear()
        return self.plan

    @staticmethod
    def _update_entry(plan: FetchPlan, member: PartitionFetch) -> PlanEntry:
        entry = plan.entries[member.key]
        entry.epoch, entry.offset, entry.last_epoch = member.epoch, member.fetch_offset, member.last_epoch
        entry.unreadable = member.meets_unreadable
        return entry

    def answered(self, served: list[PartitionFetch]) -> None:
        """
        The answer is in. A large one puts those it served behind the others: what a broker puts into one answer is
        bounded, and it reads in the order of the request. More members than fit take turns.
        """
        assert self.plan is not None, "an answer follows a plan"
        self.on_wire = False
        full = self.plan.answered_bytes >= min(self.plan.max_bytes // 2, self.limits.max_partition_fetch_bytes)
        if len(self.members) > MEMBERS_MAX:
            served = [entry.partition for entry in self.plan.entries.values()]
        elif not full or len(served) == len(self.members):
            return
        for partition in served:
            if partition in self.members:
                del self.members[partition]
                self.members[partition] = None
                self.dirty = True

    def broke(self) -> None:
        """The fetch failed as a whole."""
        self.on_wire = False
        self.dirty = True
