"""
Sets the positions of a group without members: asks what the plan needs, has it made by ``core/resets``, and commits it
where that is wanted. A plan is made anew for each call, so what is carried out is what the logs are then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from headrace_admin.core.resets import Found, Given, Planned, Since, Target, choose_partitions, plan
from headrace_admin.engine.groups import Groups, errors_of
from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.access.resources import ResourceType
from headrace_common.core.errors import ErrorCode, GroupNotFound, HeadraceError, NonEmptyGroup
from headrace_common.core.ids import TopicPartition
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.access_gate import audited
from headrace_common.runtime.auditing import tell_change
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import admin_pb2
from headrace_proto.v1 import coordinator_pb2 as pb

V = TypeVar("V")
Named: TypeAlias = Sequence[tuple[str, Collection[int]]]

_COMMITS_MAX: Final = 1_000
"""Offsets of one commit: what one append of a coordinator surely holds."""
_IMAGE_WAIT_MS: Final = 500.0
_MEMBERS_NAMED_MAX: Final = 3
_HAS_MEMBERS: Final = frozenset(
    {ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)


@dataclass(frozen=True, slots=True)
class Ago:
    """As ``Since``, that long before now."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A planned position, and its error when it could not be committed."""

    planned: Planned
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """A plan, and whether it was carried out."""

    moved: tuple[Moved, ...]
    executed: bool
    members: int
    new_group: bool


class Resets:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock

    async def reset(self, group_id: str, named: Named, target: Target | Ago, *, execute: bool) -> Reset:
        """
        Plan where a group goes on, or also set it; a group that does not exist is made by it.

        Raises:
            NonEmptyGroup: it has members, and it was to be carried out.
            UnknownTopicOrPartition, LeaderNotAvailable: of a partition that was to be reset; nothing was changed.
            Rejected: what is asked for makes no sense; nothing was changed.
        """
        if isinstance(target, Ago):
            target = Since(max(0, self._clock.now_ms() - target.duration_ms))
        members: Sequence[pb.MemberDescription] = ()
        committed: dict[TopicPartition, int] = {}
        failed: Mapping[TopicPartition, HeadraceError] = {}
        new_group = False
        try:
            standing = await self._groups.standing(group_id)
        except GroupNotFound:
            new_group = True
        else:
            members = standing.described.members
            committed = {p: c.offset for p, c in standing.committed.items()}
            failed = standing.failed
        if execute and members:
            raise _busy(group_id, members)
        counts = _counts(await self._image(named, target))
        wanted = choose_partitions(named, counts, {*committed, *failed}, target)
        _all({p: failed[p] for p in wanted if p in failed})
        planned = plan(target, await self._found(wanted, committed, target))
        if not execute:
            return Reset(tuple(map(Moved, planned)), False, len(members), new_group)
        async with audited("Admin/ResetOffsets", admin_pb2.ResetOffsetsRequest(group_id=group_id, execute=True)):
            moved = tuple(await self._committed(group_id, planned))
            done = [one.planned for one in moved if one.error is None]
            before = {str(one.partition): str(committed.get(one.partition, "none")) for one in done}
            tell_change(ResourceType.GROUP, group_id, before, {str(one.partition): str(one.new) for one in done})
        return Reset(moved, True, 0, new_group)

    async def _image(self, named: Named, target: Target) -> ClusterImage:
        """The image; a topic that it does not have may be a moment away."""
        image = self._groups.cluster.image
        topics = {t for t, _ in named} | {p.topic for p in (target.offsets if isinstance(target, Given) else ())}
        if all(image.topic(t) is not None for t in topics):
            return image
        return await self._groups.cluster.caught_up(_IMAGE_WAIT_MS)

    async def _found(
        self, wanted: Sequence[TopicPartition], committed: Mapping[TopicPartition, int], target: Target
    ) -> list[Found]:
        bounds = _all(await self._groups.logs.bounds(wanted, stable=False))
        stable = _all(await self._groups.logs.bounds(wanted, stable=True))
        since: Mapping[TopicPartition, int | None] = {}
        if isinstance(target, Since):
            since = _all(await self._groups.logs.at(wanted, target.timestamp_ms))
        return [Found(p, bounds[p], committed.get(p), since.get(p), stable[p].end) for p in wanted]

    async def _committed(self, group_id: str, planned: Sequence[Planned]) -> list[Moved]:
        moved: list[Moved] = []
        for at in range(0, len(planned), _COMMITS_MAX):
            some = planned[at : at + _COMMITS_MAX]
            try:
                errors = await self._commit(group_id, some)
            except HeadraceError as error:
                if not moved:
                    raise _busy(group_id, ()) if error.code in _HAS_MEMBERS else error from error
                errors = [error] * len(some)  # others are committed already: say of each what became of it
            moved += [Moved(p, e) for p, e in zip(some, errors, strict=True)]
        refused = [m.error for m in moved if m.error is not None and m.error.code in _HAS_MEMBERS]
        if len(refused) == len(moved):
            raise _busy(group_id, ())
        return moved

    async def _commit(self, group_id: str, planned: Sequence[Planned]) -> list[HeadraceError | None]:
        request = pb.CommitOffsetsRequest(group_id=group_id, generation=-1)
        for p in planned:
            request.offsets.add(topic=p.partition.topic, partition=p.partition.partition, offset=p.new, leader_epoch=-1)

        async def ask(place: CoordinatorPlace) -> list[HeadraceError | None]:
            answer = await self._groups.coordinators.ask_group(place, lambda stub: stub.CommitOffsets, request)
            return errors_of(answer.results)

        return await self._groups.coordination.one(group_id, ask, repeatable=True)


def _busy(group_id: str, members: Sequence[pb.MemberDescription]) -> NonEmptyGroup:
    who = [f"{m.client_id or m.member_id} at {m.client_address}" for m in members[:_MEMBERS_NAMED_MAX]]
    more = f" and {len(members) - len(who)} more" if len(members) > len(who) else ""
    there = f"{len(members)} members ({', '.join(who)}{more})" if members else "members"
    return NonEmptyGroup(
        f"group {group_id!r} has {there}; stop those applications and wait until `headrace group describe` shows none "
        "(a killed one is gone after some seconds, a static one when its session ends), then reset again"
    )


def _counts(image: ClusterImage) -> dict[str, int]:
    return {topic.name: topic.partition_count for topic in image.topics.values()}


def _all(found: Mapping[TopicPartition, V | HeadraceError]) -> dict[TopicPartition, V]:
    said: dict[TopicPartition, V] = {}
    for partition, one in found.items():
        if isinstance(one, HeadraceError):
            raise one
        said[partition] = one
    return said
