"""
Consumer groups: which there are, who is in them, how far they are behind, and forgetting them.

Lists ask every coordinator at once and say which shards are missing; everything else goes to the coordinator of the
group, and to the leaders of the partitions that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from headrace_admin.core.lag import Committed, Owner, PartitionLag, age_ms, lags
from headrace_admin.engine.coordination import Coordination, Unanswered
from headrace_admin.engine.log_offsets import Answers, LogOffsets
from headrace_admin.ports import Cluster, CoordinatorPlace, Coordinators
from headrace_common.core.errors import (
    GroupNotFound,
    HeadraceError,
    NotFound,
    Overloaded,
    Rejected,
    TopicAuthorizationFailed,
    error_for,
)
from headrace_common.core.ids import NodeId, TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import errors_pb2

Described: TypeAlias = pb.GroupDescription | HeadraceError

AGES_AT_ONCE_MAX: Final = 8
"""Groups whose ages are looked up at one time: each may hold some megabytes of batches."""
GROUPS_MAX: Final = 1_000
"""Groups of one request."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A group, and who coordinates it."""

    group: pb.GroupListing
    coordinator: NodeId


@dataclass(frozen=True, slots=True)
class Listing:
    """All groups by id, and the shards that are missing."""

    groups: tuple[Listed, ...]
    unanswered: tuple[Unanswered, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """A group and what it has committed."""

    described: pb.GroupDescription
    committed: Mapping[TopicPartition, Committed]
    failed: Mapping[TopicPartition, HeadraceError]
    """Partitions whose committed offset could not be told."""


class Groups:
    """Any number of calls at one time on one event loop, ``AGES_AT_ONCE_MAX`` of which look up ages."""

    def __init__(
        self, cluster: Cluster, coordinators: Coordinators, coordination: Coordination, logs: LogOffsets, clock: Clock
    ) -> None:
        self.cluster = cluster
        self.coordinators = coordinators
        self.coordination = coordination
        self.logs = logs
        self._clock = clock
        self._reading = 0

    # --- looking --------------------------------------------------------------------------------------------------

    async def listing(self, states: Iterable[pb.GroupState.ValueType] = ()) -> Listing:
        """The groups of all coordinators, or those in some states."""
        request = pb.ListGroupsRequest(states=states)
        said = await self.coordination.all(
            lambda place: self.coordinators.ask_group(place, lambda stub: stub.ListGroups, request)
        )
        groups = {g.group_id: Listed(g, c) for c, answer in said.lists.items() for g in answer.groups}
        return Listing(tuple(groups[i] for i in sorted(groups)), said.unanswered)

    async def describe(self, group_ids: Sequence[str]) -> dict[str, Described]:
        """
        Groups with their members; in place of one that cannot be told, its error.

        Raises:
            Rejected: none, or more than 1,000.
        """
        _check_count(group_ids)
        if not await self.coordination.any_shards():
            return {i: not_found(i) for i in group_ids}

        async def ask(place: CoordinatorPlace, ids: Sequence[str]) -> dict[str, Described]:
            answer = await self.coordinators.ask_group(
                place, lambda stub: stub.DescribeGroups, pb.DescribeGroupsRequest(group_ids=ids)
            )
            return {i: _described(i, g) for i, g in zip(ids, answer.groups, strict=True)}

        return await self.coordination.each(group_ids, ask, repeatable=True)

    async def standing(self, group_id: str) -> Standing:
        """
        One group and all that it has committed.

        Raises:
            GroupNotFound: there is none of this id.
            HeadraceError: what its coordinator said last.
        """
        (described,) = (await self.describe([group_id])).values()
        if isinstance(described, HeadraceError):
            raise described
        request = pb.FetchOffsetsRequest(group_id=group_id)
        answer = await self.coordination.one(
            group_id,
            lambda place: self.coordinators.ask_group(place, lambda stub: stub.FetchOffsets, request),
            repeatable=True,
        )
        committed: dict[TopicPartition, Committed] = {}
        failed: dict[TopicPartition, HeadraceError] = {}
        for o in answer.offsets:
            where = TopicPartition(o.topic, o.partition)
            if o.error != errors_pb2.NONE:
                failed[where] = error_for(o.error, o.message)
            elif o.offset >= 0:
                committed[where] = Committed(o.offset, o.leader_epoch, o.metadata, o.committed_at_ms or None)
        return Standing(described, committed, failed)

    async def lag(
        self, group_id: str, topics: Collection[str] = (), *, ages: bool = True
    ) -> tuple[pb.GroupDescription, list[PartitionLag]]:
        """
        How far a group is behind, in the partitions that it has committed or holds; ``ages``: also in time.

        Raises:
            GroupNotFound: there is none of this id.
        """
        standing = await self.standing(group_id)
        owners = _owners_of(standing.described)
        committed = {p: c for p, c in standing.committed.items() if not topics or p.topic in topics}
        held = {p: o for p, o in owners.items() if not topics or p.topic in topics}
        failed = {p: e for p, e in standing.failed.items() if not topics or p.topic in topics}
        bounds = await self.logs.bounds(sorted({*committed, *held} - {*failed}), stable=True)
        found = lags(committed, held, {**bounds, **failed})
        found += [PartitionLag(p, None, error=e) for p, e in failed.items() if p not in held]
        if ages:
            found = await self._aged(found)
        return standing.described, sorted(found, key=lambda one: one.partition)

    async def _aged(self, found: Sequence[PartitionLag]) -> list[PartitionLag]:
        unread = {one.partition: one.first_unread for one in found if one.first_unread is not None}
        written = await self._written_ms(unread) if unread else {}
        now_ms = self._clock.now_ms()
        aged = []
        for one in found:
            said = written.get(one.partition)
            if isinstance(said, TopicAuthorizationFailed):
                aged.append(one)  # whoever may not read a topic is not told when its records were written
            elif isinstance(said, HeadraceError):
                aged.append(replace(one, error=one.error or said))
            else:
                aged.append(replace(one, lag_ms=age_ms(one, said, now_ms)))
        return aged

    async def _written_ms(self, unread: Mapping[TopicPartition, int]) -> Answers[int | None]:
        """Raises: ``Overloaded``: as many are being read already as there may be."""
        if self._reading >= AGES_AT_ONCE_MAX:
            raise Overloaded(f"the ages of {self._reading} groups are being looked up; try again, or leave ages out")
        self._reading += 1
        try:
            return await self.logs.written_ms(unread)
        finally:
            self._reading -= 1

    # --- forgetting -----------------------------------------------------------------------------------------------

    async def delete(self, group_ids: Sequence[str]) -> dict[str, HeadraceError | None]:
        """
        Forget groups and their offsets; in place of one that was refused, its error: ``GroupNotFound``,
        ``NonEmptyGroup``.

        Raises:
            Rejected: none, more than 1,000, or one twice.
        """
        _check_count(group_ids)
        if len(set(group_ids)) != len(group_ids):
            raise Rejected("a group is named twice; name each once")
        if not await self.coordination.any_shards():
            return {i: not_found(i) for i in group_ids}

        async def ask(place: CoordinatorPlace, ids: Sequence[str]) -> dict[str, HeadraceError | None]:
            answer = await self.coordinators.ask_group(
                place, lambda stub: stub.DeleteGroups, pb.DeleteGroupsRequest(group_ids=ids)
            )
            return {i: _error_of(r.error, r.message) for i, r in zip(ids, answer.groups, strict=True)}

        return dict(await self.coordination.each(group_ids, ask, repeatable=False))

    async def delete_offsets(
        self, group_id: str, named: Iterable[tuple[str, Collection[int]]]
    ) -> dict[TopicPartition, HeadraceError | None]:
        """
        Forget committed offsets; no numbers: all of the topic that are committed. In place of one that was refused,
        its error: ``GroupSubscribedToTopic``.

        Raises:
            GroupNotFound: there is none of this id.
            NotFound: nothing is committed in a topic that is named.
        """
        topics = list(named)
        if not topics:
            raise Rejected("name the topics whose offsets are to be forgotten; deleting the group forgets all")
        standing = await self.standing(group_id)
        there = {*standing.committed, *standing.failed}
        wanted: set[TopicPartition] = set()
        for topic, numbers in topics:
            own = {TopicPartition(topic, n) for n in numbers} or {p for p in there if p.topic == topic}
            if not own:
                raise NotFound(
                    f"group {group_id!r} has committed nothing in {topic!r}; `headrace group lag` shows all it has"
                )
            wanted |= own
        request = pb.DeleteOffsetsRequest(group_id=group_id)
        for topic in sorted({p.topic for p in wanted}):
            request.partitions.add(topic=topic, partitions=sorted(p.partition for p in wanted if p.topic == topic))

        async def ask(place: CoordinatorPlace) -> dict[TopicPartition, HeadraceError | None]:
            results = (await self.coordinators.ask_group(place, lambda stub: stub.DeleteOffsets, request)).results
            return {TopicPartition(r.topic, r.partition): e for r, e in zip(results, errors_of(results), strict=True)}

        return await self.coordination.one(group_id, ask, repeatable=True)


def errors_of(results: Sequence[pb.OffsetResult]) -> list[HeadraceError | None]:
    """
    What was said of each partition.

    Raises:
        HeadraceError: the same of all, so that it concerns the group: another coordinator has it, for example.
    """
    codes = {r.error for r in results}
    if len(codes) == 1 and errors_pb2.NONE not in codes:
        raise error_for(results[0].error, results[0].message)
    return [_error_of(r.error, r.message) for r in results]


def not_found(group_id: str) -> GroupNotFound:
    """What is said of a group that nobody knows."""
    return GroupNotFound(f"there is no group {group_id!r}; `headrace group list` shows those there are")


def _check_count(group_ids: Sequence[str]) -> None:
    if not 1 <= len(group_ids) <= GROUPS_MAX:
        raise Rejected(f"name 1 to {GROUPS_MAX} groups, not {len(group_ids)}")


def _described(group_id: str, group: pb.GroupDescription) -> Described:
    if group.error == errors_pb2.GROUP_ID_NOT_FOUND:
        return not_found(group_id)
    return group if group.error == errors_pb2.NONE else error_for(group.error, group.message)


def _error_of(code: int, message: str) -> HeadraceError | None:
    return None if code == errors_pb2.NONE else error_for(code, message)


def _owners_of(described: pb.GroupDescription) -> dict[TopicPartition, Owner]:
    return {
        TopicPartition(t.topic, n): Owner(member.member_id, member.client_id)
        for member in described.members
        for t in member.assigned
        for n in t.partitions
    }
