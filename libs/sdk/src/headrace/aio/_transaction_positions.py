"""
The positions of a group's consumer that a transaction commits: ``producer.transaction(consumer)`` asks here.

A transaction that takes the positions is told of by ``begin`` and ``end``; in between nobody else commits them, and
``_group_steps`` gives no partition up. Methods run on the application's thread or task, ``recall`` on the loop that
reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.errors import IllegalGeneration, InvalidConfig, InvalidTxnState
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.aio._group import Group
    from headrace.aio._hand_out import HandOut
    from headrace.group_types import ConsumerGroupMetadata

RECALL_MS: Final = 1_000
"""How long one attempt to learn committed positions may take. Attempts go on until the partition is somebody else's;
the application is told after ``default_api_timeout_ms``."""


class TransactionPositions:
    """
    See the module's text.

    Args:
        known: what was committed last, as far as this consumer knows; kept up to date here too.
    """

    def __init__(self, group: Group, out: HandOut, known: dict[TopicPartition, int]) -> None:
        self._group = group
        self._out = out
        self._known = known
        self._lost: list[TopicPartition] = []
        """Partitions that were lost since the transaction began."""

    def metadata(self) -> ConsumerGroupMetadata:
        """
        Who commits now.

        Raises:
            UnknownMemberId: it was a member, and is out.
            RebalanceInProgress: it is no member yet.
        """
        from headrace.group_types import ConsumerGroupMetadata

        group, identity = self._group, self._group.identity()
        instance_id = group.settings.group_instance_id if identity.member_id else None
        return ConsumerGroupMetadata(group.coordinators.group_id, identity.member_id, identity.generation, instance_id)

    def begin(self) -> None:
        """
        A transaction is to commit what is handed out from now on, and what was and is not committed yet.

        Raises:
            InvalidConfig: automatic commits are on.
            InvalidTxnState: another transaction does that already.
        """
        if self._group.settings.enable_auto_commit:
            raise InvalidConfig(
                "a consumer whose positions a transaction commits must not commit by itself: make it with "
                "enable_auto_commit=False"
            )
        self.check_none("producer.transaction(consumer)")
        self._lost.clear()
        self._out.in_transaction = True

    def check_none(self, call: str) -> None:
        """Raises: ``InvalidTxnState``: the positions are a transaction's now."""
        if self._out.in_transaction:
            raise InvalidTxnState(
                f"{call} has to wait: another transaction is to commit what this consumer has handed out"
            )

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """
        These are given up, and still held here: whoever has them now reads from what is committed. That matters to the
        transaction where it was to commit more.
        """
        if self._out.in_transaction:
            moved = self._out.to_commit(self._known)
            self._lost += [tp for tp in partitions if tp in moved]

    @property
    def doomed(self) -> bool:
        """Whether the transaction can only be aborted, as ``check_held`` tells."""
        return bool(self._lost)

    def to_commit(self) -> dict[TopicPartition, Committed]:
        """
        Where partitions are that have moved since they were committed last: the next record to read, and the leader
        epoch of the one before it.

        Raises:
            IllegalGeneration: some were lost meanwhile; their records are read again by others, so abort.
        """
        self.check_held()
        return self._out.to_commit(self._known)

    def check_held(self) -> None:
        """
        Whether the transaction still has all that was handed out in it.

        Raises:
            IllegalGeneration: see ``to_commit``.
        """
        if self.doomed:
            names = ", ".join(map(str, sorted(self._lost)[:5]))
            raise IllegalGeneration(
                f"this consumer of group {self._group.settings.group_id!r} lost {names} in the middle of the "
                "transaction, and others read their records again: abort it"
            )

    def committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """The group has committed these for this consumer, in a transaction or otherwise."""
        self._known.update({tp: at.offset for tp, at in offsets.items()})
        self._out.committed(offsets)

    def end(self, committed: Mapping[TopicPartition, Committed] | None) -> None:
        """The transaction has committed these; or with None it failed: go back to what is committed."""
        self._out.in_transaction = False
        self._lost.clear()
        if committed is None:
            self._out.rewind()
        else:
            self.committed(committed)

    async def recall(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """
        What the group has committed, whatever this consumer believes.

        Raises:
            HeadraceError: it could not be had within ``RECALL_MS``, or never will.
        """
        loop, asking = self._group.loop, self._group.coordinators.fetch(partitions, RECALL_MS)
        if loop.here:
            found = await asking
        else:
            found = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, loop.loop))
        held = self._out.core.partitions
        self._known.update({tp: at.offset for tp, at in found.items() if at is not None and tp in held})
        return found
