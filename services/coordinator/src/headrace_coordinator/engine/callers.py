"""
Groups and transactions as one caller may ask for them: what its rights do not allow is refused, and no shard asked.

The servicers ask this way alone. A refusal says the same of what exists and of what does not. A list leaves out what
the caller may not DESCRIBE. What concerns a whole unary request is in ``rpc.access_table``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace_common.core.access.control import Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.errors import Denied, HeadraceError
from headrace_coordinator.core.effects import GroupListing, OffsetFound, OffsetOutcome
from headrace_coordinator.core.events import OffsetToCommit
from headrace_coordinator.core.offsets import Transaction
from headrace_coordinator.core.transactions.effects import TransactionDescription, TransactionListing
from headrace_coordinator.core.transactions.values import Producer, TxnState
from headrace_coordinator.core.values import GroupState
from headrace_coordinator.engine.coordinator import Committer, Coordinator, Described, PartitionsByTopic
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.engine.transactions import DescribedTransaction, Transactions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallersGroups:
    """Made for a call; its methods are those of ``Coordinator``, and raise ``Denied`` beside what these raise."""

    groups: Coordinator
    rights: Rights

    def open_stream(self, group_id: str, address: str) -> MemberStream:
        """For who may READ the group; whether it still may is asked for each request, see ``MemberStream.check``."""
        self.rights.check(Operation.READ, ResourceType.GROUP, group_id)
        return self.groups.open_stream(group_id, address, self.rights)

    async def commit(
        self, group_id: str, by: Committer, offsets: Sequence[OffsetToCommit]
    ) -> tuple[OffsetOutcome, ...]:
        """One outcome for each; topics that it may not READ are refused, and the others go on."""

        async def ask(allowed: Sequence[OffsetToCommit]) -> Sequence[OffsetOutcome]:
            return (await self.groups.commit(group_id, by, allowed)).outcomes

        return await self._commit(offsets, ask)

    async def commit_in_transaction(
        self, group_id: str, by: Committer, transaction: Transaction, offsets: Sequence[OffsetToCommit]
    ) -> tuple[OffsetOutcome, ...]:
        """As ``commit``."""

        async def ask(allowed: Sequence[OffsetToCommit]) -> Sequence[OffsetOutcome]:
            return (await self.groups.commit_in_transaction(group_id, by, transaction, allowed)).outcomes

        return await self._commit(offsets, ask)

    async def _commit(
        self,
        offsets: Sequence[OffsetToCommit],
        ask: Callable[[Sequence[OffsetToCommit]], Awaitable[Sequence[OffsetOutcome]]],
    ) -> tuple[OffsetOutcome, ...]:
        refused = self._refuse(Operation.READ, (one.topic for one in offsets))
        allowed = [one for one in offsets if one.topic not in refused] if refused else offsets
        found = await ask(allowed) if allowed else ()
        return _merge([(one.topic, one.partition) for one in offsets], refused, found, OffsetOutcome)

    async def offsets(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int | None,
        partitions: PartitionsByTopic | None,
        *,
        require_stable: bool = False,
    ) -> tuple[OffsetFound, ...]:
        """Topics that it may not DESCRIBE are refused where they are named, and else left out."""
        asked, refused = self._split(Operation.DESCRIBE, partitions or ())
        if partitions and not asked:
            return _merge(_each(partitions), refused, (), _unknown)
        found = await self.groups.offsets(
            group_id, member_id, member_epoch, asked or None, require_stable=require_stable
        )
        if partitions:
            return _merge(_each(partitions), refused, found.offsets, _unknown)
        shows = self.rights.shows
        return tuple(one for one in found.offsets if shows(Operation.DESCRIBE, ResourceType.TOPIC, one.topic))

    async def delete_offsets(self, group_id: str, partitions: PartitionsByTopic) -> tuple[OffsetOutcome, ...]:
        """Topics that it may not READ are refused, and the others go on."""
        asked, refused = self._split(Operation.READ, partitions)
        found = (await self.groups.delete_offsets(group_id, asked)).outcomes if asked else ()
        return _merge(_each(partitions), refused, found, OffsetOutcome)

    def list_groups(self, states: Collection[GroupState]) -> tuple[list[GroupListing], list[int]]:
        """See ``Coordinator.list_groups``."""
        found, loading = self.groups.list_groups(states)
        shows = self.rights.shows
        return [one for one in found if shows(Operation.DESCRIBE, ResourceType.GROUP, one.group_id)], loading

    async def describe(self, group_ids: Sequence[str]) -> list[Described]:
        """See ``Coordinator.describe``; side by side."""
        right = Right(self.rights, Operation.DESCRIBE, ResourceType.GROUP)

        async def one(group_id: str) -> Described:
            if not right.may(group_id):
                return Described(group_id, self.groups.shard_of(group_id), right.refusal(group_id))
            return self._shown(await self.groups.describe(group_id))

        return list(await asyncio.gather(*map(one, group_ids)))

    def _shown(self, one: Described) -> Described:
        """Without the topics that the caller may not DESCRIBE: its members are all there, with what else they read."""
        found = one.found
        if isinstance(found, HeadraceError):
            return one
        topics = {topic for member in found.members for topic in member.topics}
        topics |= {part.topic for member in found.members for part in (*member.assigned, *member.target)}
        shown = {topic for topic in topics if self.rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, topic)}
        if shown == topics:
            return one
        members = tuple(
            replace(
                member,
                topics=tuple(topic for topic in member.topics if topic in shown),
                assigned=tuple(part for part in member.assigned if part.topic in shown),
                target=tuple(part for part in member.target if part.topic in shown),
            )
            for member in found.members
        )
        return replace(one, found=replace(found, members=members))

    async def delete(self, group_ids: Sequence[str]) -> list[HeadraceError | None]:
        """See ``Coordinator.delete_group``; side by side."""
        right = Right(self.rights, Operation.DELETE, ResourceType.GROUP)

        async def one(group_id: str) -> HeadraceError | None:
            return await self.groups.delete_group(group_id) if right.may(group_id) else right.refusal(group_id)

        return list(await asyncio.gather(*map(one, group_ids)))

    def _refuse(self, operation: Operation, topics: Iterable[str]) -> dict[str, Denied]:
        """Those of ``topics`` on which the caller may not do this."""
        right = Right(self.rights, operation, ResourceType.TOPIC)
        return {topic: right.refusal(topic) for topic in dict.fromkeys(topics) if not right.may(topic)}

    def _split(
        self, operation: Operation, partitions: PartitionsByTopic
    ) -> tuple[PartitionsByTopic, dict[str, Denied]]:
        """What goes on, and the topics that do not."""
        refused = self._refuse(operation, (topic for topic, _ in partitions))
        return tuple(one for one in partitions if one[0] not in refused), refused


@dataclass(frozen=True, slots=True)
class CallersTransactions:
    """The same of transactions."""

    transactions: Transactions
    rights: Rights

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool) -> Producer:
        """For who may WRITE the id."""
        self.rights.check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return await self.transactions.end(transactional_id, producer, commit=commit)

    def list_transactions(
        self, states: Collection[TxnState], producer_ids: Collection[int], older_than_ms: int
    ) -> tuple[list[TransactionListing], list[int]]:
        """See ``Transactions.list_transactions``."""
        found, loading = self.transactions.list_transactions(states, producer_ids, older_than_ms)
        return [one for one in found if self._shows(Operation.DESCRIBE, one.transactional_id)], loading

    async def describe(self, transactional_ids: Sequence[str]) -> list[DescribedTransaction]:
        """
        See ``Transactions.describe``; side by side. The token of a prepared transaction, by which it is decided, is for
        who may WRITE the id.
        """
        right = Right(self.rights, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)

        async def one(id: str) -> DescribedTransaction:
            if not right.may(id):
                return DescribedTransaction(id, self.transactions.shard_of(id), right.refusal(id))
            described = await self.transactions.describe(id)
            found = described.found
            if not isinstance(found, TransactionDescription) or self._shows(Operation.WRITE, id):
                return described
            return replace(described, found=replace(found, token=None))

        return list(await asyncio.gather(*map(one, transactional_ids)))

    def _shows(self, operation: Operation, transactional_id: str) -> bool:
        return self.rights.shows(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _each(partitions: PartitionsByTopic) -> list[tuple[str, int]]:
    return [(topic, number) for topic, numbers in partitions for number in numbers]


def _unknown(topic: str, partition: int, error: HeadraceError) -> OffsetFound:
    return OffsetFound(topic, partition, None, error)


def _merge(
    asked: Sequence[tuple[str, int]],
    refused: Mapping[str, Denied],
    found: Sequence[T],
    make: Callable[[str, int, HeadraceError], T],
) -> tuple[T, ...]:
    """One answer for each partition that was asked for, in that order; ``found`` are those that went on."""
    if not refused:
        return tuple(found)
    given = iter(found)
    return tuple(make(topic, number, refused[topic]) if topic in refused else next(given) for topic, number in asked)
