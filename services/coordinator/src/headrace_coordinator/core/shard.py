"""
All groups of one shard: routes events to them, keeps their time. The engine owns one per shard.

A group is its members (a classic or a server-side state machine, or none yet) and its offsets. It exists from the first
member or commit until it is deleted, or has been empty for the offsets' retention and has no offset left. Its epoch may
outlast it, see ``floors``. A work group exists until it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf

from headrace_common.core.errors import (
    GroupNotFound,
    HeadraceError,
    InconsistentGroupProtocol,
    NonEmptyGroup,
    UnknownMemberId,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.classic_group import ClassicGroup
from headrace_coordinator.core.consumer_group import ConsumerGroup
from headrace_coordinator.core.effects import (
    Answer,
    Effect,
    GroupListing,
    Persist,
    PersistGroup,
    Row,
    Send,
)
from headrace_coordinator.core.events import (
    ClassicJoined,
    CommitAsked,
    ConsumerHeartbeat,
    DescriptionAsked,
    Event,
    GroupDeletionAsked,
    Loaded,
    MarkersAsked,
    MemberEvent,
    OffsetsAsked,
    OffsetsDeletionAsked,
    ShardEnrolled,
    StreamBroke,
    TopicsChanged,
    TxnCommitAsked,
    Woken,
    WorkHeartbeat,
)
from headrace_coordinator.core.floors import Floors
from headrace_coordinator.core.groups import Group, Membership, ReadLog, refusal
from headrace_coordinator.core.offsets import Offsets
from headrace_coordinator.core.records import GroupRecord, group_key, group_value
from headrace_coordinator.core.room import Room, groups
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard_offsets import ShardOffsets
from headrace_coordinator.core.targets import TopicView
from headrace_coordinator.core.values import CommittedOffset, Moment
from headrace_coordinator.core.work_group import WorkGroup


class Shard:
    """
    The state of one shard.

    Between ``replay`` and ``Loaded`` nothing but ``TopicsChanged`` may be sent. A heartbeat that changes nothing costs
    O(1), whatever else the shard holds.
    """

    def __init__(self, number: int, settings: GroupSettings, room: Room | None = None) -> None:
        self.number = number
        self._settings = settings
        self._room = room or groups()
        self._view = TopicView()
        self._groups: dict[str, Group] = {}
        self._floors = Floors()
        self._parts: dict[str, Mapping[bytes, bytes]] = {}
        """What work groups do, by group, as the log has it, or is about to."""
        self._offsets = ShardOffsets(settings, self._view, self._groups, self._room)
        self._replayed: dict[bytes, bytes | None] = {}
        self._log: ReadLog | None = None
        self._loaded = False
        self._wakes: list[tuple[float, str]] = []
        self._next_check_ms = inf

    # --- what the engine asks -------------------------------------------------------------------------------

    def replay(self, rows: Iterable[Row]) -> None:
        """Take records of the log, in its order; they are read when ``Loaded`` comes."""
        assert not self._loaded, "records are replayed before the shard serves"
        self._replayed.update(rows)
        self._log = None

    def next_wake_ms(self) -> float | None:
        """When ``Woken`` is due, monotonic; None: nothing is waited for."""
        while self._wakes:
            due_ms, group_id = self._wakes[0]
            group = self._groups.get(group_id)
            if group is not None and group.scheduled_ms == due_ms:
                break
            heappop(self._wakes)
        due_ms = min(self._wakes[0][0] if self._wakes else inf, self._next_check_ms)
        return None if due_ms == inf else due_ms

    def patterns(self) -> frozenset[str]:
        """Of all members' subscriptions; before ``Loaded``: of the members in the records."""
        if not self._loaded:
            return self._read().patterns()
        groups = (g.membership for g in self._groups.values())
        members = (m for g in groups if isinstance(g, ConsumerGroup) for m in g.members.values())
        return frozenset(m.subscription.pattern for m in members if m.subscription.pattern is not None)

    def group_record(self, group_id: str) -> Row:
        """The group's durable state now, or a tombstone."""
        group = self._groups.get(group_id)
        record: GroupRecord | None = self._floors.record(group_id)
        if group is not None and group.membership is not None and group.recorded:
            record = group.membership.record()
        return group_key(group_id), None if record is None else group_value(record)

    def group_rows(self, group_id: str) -> list[Row]:
        """
        The rows that ``PersistGroup`` is about, which are appended now: ``group_record``, and before it what a work
        group does, where that is new; behind it what it does no more is taken away.
        """
        wanted, known = self._list_parts(group_id), self._parts.pop(group_id, {})
        if wanted:
            self._parts[group_id] = wanted
        rows: list[Row] = [(key, value) for key, value in wanted.items() if known.get(key) != value]
        rows.append(self.group_record(group_id))
        rows += [(key, None) for key in sorted(known.keys() - wanted.keys())]
        return rows

    def _list_parts(self, group_id: str) -> Mapping[bytes, bytes]:
        """What the log is to have of what a work group does."""
        group = self._groups.get(group_id)
        recorded = group is not None and group.recorded
        work = None if group is None or not recorded else group.membership
        return work.declaration_rows() if isinstance(work, WorkGroup) else {}

    def list_groups(self) -> list[GroupListing]:
        return [group.make_listing(group_id) for group_id, group in sorted(self._groups.items())]

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """
        Apply ``event`` and return what must now be done, in order.

        Raises:
            RecordDamaged, UnsupportedVersion: from ``Loaded`` (or ``patterns`` and ``TopicsChanged`` before it), if a
                replayed record cannot be read.
        """
        match event:
            case TopicsChanged():
                return self._topics_changed(event)
            case Loaded():
                return self._load(event.at)
            case Woken():
                return self._wake(event.at)
            case (
                CommitAsked()
                | TxnCommitAsked()
                | MarkersAsked()
                | ShardEnrolled()
                | OffsetsAsked()
                | OffsetsDeletionAsked()
            ):
                return self._offsets.handle(event)
            case GroupDeletionAsked():
                return self._delete_group(event)
            case DescriptionAsked():
                return self._describe(event)
            case _:
                return self._member_event(event)

    # --- members --------------------------------------------------------------------------------------------

    def _member_event(self, event: MemberEvent) -> list[Effect]:
        assert self._loaded, "members are served after Loaded"
        group = self._groups.get(event.group_id)
        joins = isinstance(event, ClassicJoined) or (
            isinstance(event, ConsumerHeartbeat | WorkHeartbeat) and event.member_epoch == 0
        )
        if joins and group is None and (fault := self._room.fault(event.group_id)) is not None:
            return [Send(event.group_id, event.stream, refusal(event, fault))]
        if joins and (group is None or group.may_open_to(event)):
            group = group or self._groups.setdefault(event.group_id, Group(Offsets(event.group_id)))
            group.open_to(event, self._settings, self._view, self._floors.of(event.group_id))
        membership = None if group is None else group.membership
        if group is None or membership is None:
            if isinstance(event, StreamBroke):
                return []
            error: HeadraceError = UnknownMemberId(f"the group {event.group_id!r} has no members; join it")
            return [Send(event.group_id, event.stream, refusal(event, error))]
        effects = group.handle(event)
        if effects is None:
            error = _speaks_another(event.group_id, membership)
            effects = [Send(event.group_id, event.stream, refusal(event, error))]
        self._after(event.group_id, group, effects)
        return effects

    def _after(self, group_id: str, group: Group, effects: list[Effect]) -> None:
        """Keep the group's time; forget a group that came to nothing."""
        membership = group.membership
        if membership is None:
            return
        if not group.recorded and any(isinstance(e, PersistGroup) for e in effects):
            group.recorded = True
            self._floors.drop(group_id)
        if not group.recorded and group.offsets.empty and group.empty:
            del self._groups[group_id]
        elif membership.wake_ms < group.scheduled_ms:
            group.scheduled_ms = membership.wake_ms
            heappush(self._wakes, (group.scheduled_ms, group_id))

    # --- groups ---------------------------------------------------------------------------------------------

    def _describe(self, event: DescriptionAsked) -> list[Effect]:
        group = self._groups.get(event.group_id)
        if group is None:
            return [Answer(event.group_id, event.ref, GroupNotFound(f"there is no group {event.group_id!r}"))]
        return [Answer(event.group_id, event.ref, group.description(event.group_id))]

    def _delete_group(self, event: GroupDeletionAsked) -> list[Effect]:
        group = self._groups.get(event.group_id)
        if group is None:
            return [Answer(event.group_id, event.ref, GroupNotFound(f"there is no group {event.group_id!r}"))]
        if not group.empty:
            error = NonEmptyGroup(f"{event.group_id!r} has members; stop them first")
            return [Answer(event.group_id, event.ref, error)]
        return [*self._bury(event.group_id, group, event.at), Answer(event.group_id, event.ref, None)]

    def _bury(self, group_id: str, group: Group, at: Moment) -> list[Effect]:
        """The group is no more."""
        effects: list[Effect] = []
        rows = group.offsets.forget_all()
        if rows:
            effects.append(Persist(group_id, rows))
        if group.recorded:
            self._floors.keep(group_id, group.floor, at)
            effects.append(PersistGroup(group_id))
        del self._groups[group_id]
        return effects

    # --- topics ---------------------------------------------------------------------------------------------

    def _topics_changed(self, event: TopicsChanged) -> list[Effect]:
        """
        Take the new topics. Offsets of topics that were there and are not any more are forgotten.

        What the first image does not know is kept: it may be older than the one that the last coordinator had.
        """
        before = self._view.topics
        self._view.topics, self._view.closed = event.topics, event.closed
        kept = {p: m for p, m in self._view.matches.items() if p not in event.matches and p in self.patterns()}
        self._view.matches = {**kept, **event.matches}
        if not self._loaded:
            return []
        still = {info.topic_id for info in event.topics.values()}
        gone = frozenset(info.topic_id for info in before.values() if info.topic_id not in still)
        effects: list[Effect] = []
        for group_id, group in list(self._groups.items()):
            effects += self._forget_topics(group_id, group, gone)
            if isinstance(group.membership, ConsumerGroup):
                moved = group.membership.topics_changed(event.at)
                self._after(group_id, group, moved)
                effects += moved
        return effects

    @staticmethod
    def _forget_topics(group_id: str, group: Group, gone: frozenset[TopicId]) -> list[Effect]:
        rows = group.offsets.forget_topics(gone) if gone else ()
        return [Persist(group_id, rows)] if rows else []

    # --- time -----------------------------------------------------------------------------------------------

    def _wake(self, at: Moment) -> list[Effect]:
        due: list[tuple[float, str]] = []
        while self._wakes and self._wakes[0][0] <= at.mono_ms:
            due.append(heappop(self._wakes))
        effects: list[Effect] = []
        for due_ms, group_id in due:
            group = self._groups.get(group_id)
            if group is not None and group.membership is not None and group.scheduled_ms == due_ms:
                group.scheduled_ms = inf
                woken = group.membership.woken(at)
                self._after(group_id, group, woken)
                effects += woken
        if at.mono_ms >= self._next_check_ms:
            self._next_check_ms = at.mono_ms + self._settings.offsets_retention_check_interval_ms
            for group_id, group in list(self._groups.items()):
                effects += self._expire(group_id, group, at)
            effects += [PersistGroup(group_id) for group_id in self._floors.drop_passed(at)]
        return effects

    def _expire(self, group_id: str, group: Group, at: Moment) -> list[Effect]:
        """
        Forget offsets that are past their retention, and the group with the last of them.

        It counts from the commit, and where there were members from when the last one left. While there are members:
        only offsets of topics that none of them reads, or that do not exist. Never: what an open transaction has, or
        what it may replace.
        """
        before_ms = at.wall_ms - self._settings.offsets_retention_ms
        membership = group.membership
        if group.empty and group.offsets.held:
            if membership is not None and membership.empty_since_ms >= before_ms:
                return []
            rows = group.offsets.expire(before_ms, lambda _key, _value: False)
        else:
            rows = group.offsets.expire(before_ms, lambda key, value: self._is_read(group, key, value))
        effects: list[Effect] = [Persist(group_id, rows)] if rows else []
        if group.empty and group.offsets.empty and not isinstance(membership, WorkGroup):
            effects += self._bury(group_id, group, at)
        return effects

    def _is_read(self, group: Group, key: PartitionId, value: CommittedOffset) -> bool:
        info = self._view.topics.get(value.topic)
        exists = info is not None and info.topic_id == key.topic_id
        return exists and group.membership is not None and group.membership.subscribes(value.topic)

    # --- loading --------------------------------------------------------------------------------------------

    def _load(self, at: Moment) -> list[Effect]:
        assert not self._loaded, "a shard is loaded once"
        self._groups = self._read().groups(self._settings, self._view, at)
        self._floors = Floors(self._read().members)
        self._offsets = ShardOffsets(self._settings, self._view, self._groups, self._room)
        self._room.enter(self.number, lambda: len(self._groups) + len(self._floors))
        self._loaded = True
        self._next_check_ms = at.mono_ms + self._settings.offsets_retention_check_interval_ms
        effects: list[Effect] = []
        for group_id, group in list(self._groups.items()):
            moved: list[Effect] = []
            if isinstance(group.membership, ConsumerGroup):
                moved = group.membership.topics_changed(at)
            self._after(group_id, group, moved)
            effects += moved
        effects += self._take_parts()
        self._replayed, self._log = {}, None
        return effects

    def _take_parts(self) -> list[Effect]:
        """Know what the log has of what work groups do; an append that was cut off has left too much of it."""
        effects: list[Effect] = []
        for group_id, parts in self._read().parts.items():
            self._parts[group_id] = parts
            if parts.keys() != self._list_parts(group_id).keys():
                effects.append(PersistGroup(group_id))
        return effects

    def _read(self) -> ReadLog:
        if self._log is None:
            self._log = ReadLog.of(self._replayed)
        return self._log


def _speaks_another(group_id: str, membership: Membership) -> HeadraceError:
    if isinstance(membership, WorkGroup):
        return InconsistentGroupProtocol(f"{group_id!r} is a work group; delete it, or take another name")
    speaks = "classic" if isinstance(membership, ClassicGroup) else "consumer"
    return InconsistentGroupProtocol(f"the members of {group_id!r} use group.protocol={speaks}")
