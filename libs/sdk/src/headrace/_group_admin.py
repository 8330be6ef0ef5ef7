"""The part of ``headrace.AdminClient`` that looks after consumer groups; its asyncio twin does the work."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace.aio._group_admin import GroupAdmin as AsyncGroupAdmin
    from headrace.group_types import GroupDescription, GroupList, PartitionLag, ResetPlan

T = TypeVar("T")


class GroupAdmin:
    """
    Inherited by ``AdminClient``.

    A group may be made, looked at, moved and forgotten without any member::

        >>> import headrace
        >>> admin = headrace.AdminClient()
        >>> created = admin.create_topic("landings", partitions=2)
        >>> plan = admin.reset_offsets("billing", ["landings"], to="latest")
        >>> [(p.partition.partition, p.old_offset, p.new_offset) for p in plan.partitions], plan.executed
        ([(0, None, 0), (1, None, 0)], False)
        >>> admin.reset_offsets("billing", ["landings"], to="latest", execute=True).executed
        True
        >>> [group.group_id for group in admin.list_groups().groups]
        ['billing']
        >>> admin.describe_group("billing").state
        'empty'
        >>> {tp.partition: lag.lag for tp, lag in admin.group_lag("billing").items()}
        {0: 0, 1: 0}
        >>> admin.delete_offsets("billing", [("landings", 1)])
        {TopicPartition(topic='landings', partition=1): None}
        >>> admin.delete_group("billing")
        >>> admin.delete_topic("landings")
        >>> admin.close()
    """

    _client: AsyncGroupAdmin

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_groups(self, *, states: Iterable[str] = ()) -> GroupList:
        """
        The consumer groups of all coordinators, or those in some states; and which shards could not be asked.

        Raises:
            Rejected: there is no such state.
        """
        return self._wait(self._client.list_groups(states=states))

    def describe_group(self, group_id: str) -> GroupDescription:
        """
        A group with its members and what they hold.

        Raises:
            GroupNotFound: there is none of this id.
        """
        return self._wait(self._client.describe_group(group_id))

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | HeadraceError]:
        """Several, up to 1,000; in place of one that cannot be told, its error."""
        return self._wait(self._client.describe_groups(group_ids))

    def group_lag(
        self, group_id: str, topics: Iterable[str] = (), *, ages: bool = True
    ) -> dict[TopicPartition, PartitionLag]:
        """
        How far a group is behind, in records and in time, with what it has committed; in all partitions that it has
        committed or holds, or in those of some topics. Without ``ages`` nothing is read to find out times.

        Raises:
            GroupNotFound: there is none of this id.
        """
        return self._wait(self._client.group_lag(group_id, topics, ages=ages))

    def reset_offsets(
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
        return self._wait(
            self._client.reset_offsets(
                group_id,
                topics,
                to=to,
                to_datetime=to_datetime,
                to_offset=to_offset,
                shift_by=shift_by,
                by_duration=by_duration,
                execute=execute,
            )
        )

    def delete_group(self, group_id: str) -> None:
        """
        Forget a group and all that it has committed, for good.

        Raises:
            NonEmptyGroup: it has members; stop them first.
            GroupNotFound: there is none of this id.
        """
        self._wait(self._client.delete_group(group_id))

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, HeadraceError | None]:
        """Several, up to 1,000; each succeeds (None) or fails by itself."""
        return self._wait(self._client.delete_groups(group_ids))

    def delete_offsets(
        self, group_id: str, topics: Iterable[str | tuple[str, int]]
    ) -> dict[TopicPartition, HeadraceError | None]:
        """
        Forget what a group has committed in topics or partitions; each succeeds (None) or fails by itself.

        Raises:
            GroupSubscribedToTopic: members read all of these topics; stop them first.
            GroupNotFound, NotFound: there is no such group, or it has committed nothing in one of the topics.
        """
        return self._wait(self._client.delete_offsets(group_id, topics))
