"""
The part of ``headrace.aio.AdminClient`` that looks after consumer groups.

Where a reset goes is said in Python's own values (``datetime``, ``timedelta``) or as people write it; the messages
are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.aio._admin_calls import AdminCalls
from headrace.errors import HeadraceError, Rejected, error_for
from headrace.group_types import GroupDescription, GroupList, PartitionLag, ResetPlan, error_or_none, group_state
from headrace.records import TopicPartition
from headrace_common.core.moments import parse_duration_ms, parse_moment_ms
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as coordinator

POSITIONS: Final = {"earliest": pb.EARLIEST, "latest": pb.LATEST, "current": pb.CURRENT}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class GroupAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which brings the calls."""

    async def list_groups(self, *, states: Iterable[str] = ()) -> GroupList:
        """
        The consumer groups of all coordinators, or those in some states; and which shards could not be asked.

        Raises:
            Rejected: there is no such state.
        """
        request = pb.ListClusterGroupsRequest(states=[group_state(state) for state in states])
        return GroupList.of(await self._call(lambda stub, timeout: stub.ListGroups(request, timeout=timeout)))

    async def describe_group(self, group_id: str) -> GroupDescription:
        """
        A group with its members and what they hold.

        Raises:
            GroupNotFound: there is none of this id.
        """
        (described,) = (await self.describe_groups([group_id])).values()
        if isinstance(described, HeadraceError):
            raise described
        return described

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | HeadraceError]:
        """Several, up to 1,000; in place of one that cannot be told, its error."""
        request = coordinator.DescribeGroupsRequest(group_ids=group_ids)
        answer = await self._call(lambda stub, timeout: stub.DescribeGroups(request, timeout=timeout))
        return {g.group_id: error_for(g.error, g.message) if g.error else GroupDescription.of(g) for g in answer.groups}

    async def group_lag(
        self, group_id: str, topics: Iterable[str] = (), *, ages: bool = True
    ) -> dict[TopicPartition, PartitionLag]:
        """
        How far a group is behind, in records and in time, with what it has committed; in all partitions that it has
        committed or holds, or in those of some topics. Without ``ages`` nothing is read to find out times.

        Raises:
            GroupNotFound: there is none of this id.
        """
        request = pb.DescribeGroupLagRequest(group_id=group_id, topics=_several(topics), without_age=not ages)
        answer = await self._call(lambda stub, timeout: stub.DescribeGroupLag(request, timeout=timeout))
        lags = map(PartitionLag.of, answer.partitions)
        return {lag.partition: lag for lag in lags}

    async def reset_offsets(
        self,
        group_id: str,
        topics: Iterable[str | tuple[str, int]] = (),
        *,
        to: str | None = None,
        to_datetime: datetime | int | str | None = None,
        to_offset: int | Mapping[tuple[str, int], int] | None = None,
        shift_by: int | None = None,
        by_duration: timedelta | str | None = None,
        execute: bool = False,
    ) -> ResetPlan:
        """
        Plan where a group without members goes on; with ``execute``, set it. A group that does not exist is made by it.
        Exactly one of the arguments that say where; what lies outside a log is moved to its nearer end, with a note.

        Args:
            topics: topics and partitions; by default all that the group has committed.
            to: ``"earliest"``, ``"latest"`` or ``"current"``.
            to_datetime: the first record at or after it: with a zone, as text too, or milliseconds since the epoch.
            to_offset: this offset in each partition; or one for each, and then name no topics.
            shift_by: so many records from the committed offset; negative: back.
            by_duration: the first record at or after that long ago; as text too: ``"1h30m"``.

        Raises:
            NonEmptyGroup: with ``execute``: the group has members; stop them first.
            UnknownTopicOrPartition, LeaderNotAvailable: of a partition to be reset; nothing was changed.
            Rejected: not exactly one place is said, or it cannot be read.
        """
        request = pb.ResetOffsetsRequest(group_id=group_id, execute=execute)
        for topic, numbers in _group_by_topic(topics).items():
            request.partitions.add(topic=topic, partitions=sorted(numbers))
        targets: list[pb.ResetOffsetsRequest] = []
        if to is not None:
            targets.append(pb.ResetOffsetsRequest(to=_position(to)))
        if to_datetime is not None:
            targets.append(pb.ResetOffsetsRequest(to_timestamp_ms=_moment_ms(to_datetime)))
        if isinstance(to_offset, Mapping):
            targets.append(pb.ResetOffsetsRequest(to_offsets=_offsets(to_offset)))
        elif to_offset is not None:
            targets.append(pb.ResetOffsetsRequest(to_offset=_int64("to_offset", to_offset)))
        if shift_by is not None:
            targets.append(pb.ResetOffsetsRequest(shift_by=_int64("shift_by", shift_by)))
        if by_duration is not None:
            targets.append(pb.ResetOffsetsRequest(ago_ms=_duration_ms(by_duration)))
        if len(targets) != 1:
            raise Rejected("say exactly one of to, to_datetime, to_offset, shift_by, by_duration")
        request.MergeFrom(targets[0])
        answer = await self._call(lambda stub, timeout: stub.ResetOffsets(request, timeout=timeout), change=execute)
        return ResetPlan.of(answer, group_id=group_id)

    async def delete_group(self, group_id: str) -> None:
        """
        Forget a group and all that it has committed, for good.

        Raises:
            NonEmptyGroup: it has members; stop them first.
            GroupNotFound: there is none of this id.
        """
        (error,) = (await self.delete_groups([group_id])).values()
        if error is not None:
            raise error

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, HeadraceError | None]:
        """Several, up to 1,000; each succeeds (None) or fails by itself."""
        request = coordinator.DeleteGroupsRequest(group_ids=group_ids)
        answer = await self._call(lambda stub, timeout: stub.DeleteGroups(request, timeout=timeout), change=True)
        return {r.group_id: error_or_none(r.error, r.message) for r in answer.groups}

    async def delete_offsets(
        self, group_id: str, topics: Iterable[str | tuple[str, int]]
    ) -> dict[TopicPartition, HeadraceError | None]:
        """
        Forget what a group has committed in topics or partitions; each succeeds (None) or fails by itself.

        Raises:
            GroupSubscribedToTopic: members read all of these topics; stop them first.
            GroupNotFound, NotFound: there is no such group, or it has committed nothing in one of the topics.
        """
        request = coordinator.DeleteOffsetsRequest(group_id=group_id)
        for topic, numbers in _group_by_topic(topics).items():
            request.partitions.add(topic=topic, partitions=sorted(numbers))
        answer = await self._call(lambda stub, timeout: stub.DeleteOffsets(request, timeout=timeout), change=True)
        return {TopicPartition(r.topic, r.partition): error_or_none(r.error, r.message) for r in answer.results}


def _several(topics: Iterable[str]) -> list[str]:
    """A text alone is one topic, not its letters."""
    return [topics] if isinstance(topics, str) else list(topics)


def _group_by_topic(topics: Iterable[str | tuple[str, int]]) -> dict[str, set[int]]:
    """Numbers by topic; none: all of it."""
    found: dict[str, set[int]] = {}
    whole: set[str] = set()
    for one in [topics] if isinstance(topics, str) else topics:
        if isinstance(one, str):
            whole.add(one)
            found[one] = set()
        else:
            found.setdefault(one[0], set()).add(one[1])
    return found | {topic: set() for topic in whole}


def _position(to: str) -> pb.ResetPosition.ValueType:
    position = POSITIONS.get(to)
    if position is None:
        raise Rejected(f"to={to!r} is not known; it takes {', '.join(POSITIONS)}")
    return position


def _moment_ms(moment: datetime | int | str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise Rejected("to_datetime has no zone, so it is not clear when that is; give it one, such as tzinfo=UTC")
        return _int64("to_datetime", (moment - _EPOCH) // _MILLISECOND)
    return parse_moment_ms(str(moment))


def _duration_ms(duration: timedelta | str) -> int:
    return duration // _MILLISECOND if isinstance(duration, timedelta) else parse_duration_ms(duration)


def _offsets(offsets: Mapping[tuple[str, int], int]) -> pb.ResetOffsetList:
    return pb.ResetOffsetList(
        offsets=[
            pb.ResetOffset(topic=topic, partition=n, offset=_int64(f"the offset of {topic}-{n}", offset))
            for (topic, n), offset in offsets.items()
        ]
    )


def _int64(what: str, number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise Rejected(f"{what} is {number}, which no offset can be; see group_lag() for those there are")
    return number
