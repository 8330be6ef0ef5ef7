"""
The engine of transactions: which shards of them this node keeps, and which of them a call is for.

It follows the image as ``coordinator`` does for groups. The servicer calls one method per RPC. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from headrace_common.core.errors import HeadraceError, NotCoordinator
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_common.runtime.entropy import new_incarnation
from headrace_coordinator.core.transactions.effects import (
    DecideResult,
    InitResult,
    OwnerResult,
    TransactionDescription,
    TransactionListing,
    UnitResult,
)
from headrace_coordinator.core.transactions.events import (
    AbortAsked,
    DecideAsked,
    DescribeAsked,
    EndAsked,
    EnrolAsked,
    Event,
    InitAsked,
    OwnerInitAsked,
    PrepareAsked,
    UnitAsked,
)
from headrace_coordinator.core.transactions.values import (
    EPOCH_LAST,
    NO_PRODUCER,
    NO_TIME,
    Producer,
    Token,
    TxnState,
    key_of,
)
from headrace_coordinator.engine.host_ports import TransactionHostPorts
from headrace_coordinator.engine.kept_shards import KeptShards
from headrace_coordinator.engine.transaction_host import TransactionHost

IDS_REMEMBERED: Final = 10_000
"""Ids whose shard need not be computed again."""
END_WAIT_MS: Final = 50.0
"""In a request for several transactions: how long one that waits for the end before it may keep the others waiting."""


T = TypeVar("T", Producer, DecideResult)


@lru_cache(IDS_REMEMBERED)
def _partition(key: str, count: int) -> int:
    return partition_for(key.encode(), count)


class Enrolment(NamedTuple):
    """Partitions that one transaction is about to write to."""

    transactional_id: str
    producer: Producer
    partitions: Sequence[PartitionId]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """What is known of an id that was asked for."""

    transactional_id: str
    shard: int
    found: TransactionDescription | HeadraceError


class Transactions:
    """One per process."""

    def __init__(self, node_id: NodeId, ports: TransactionHostPorts) -> None:
        self.node_id = node_id
        self._ports = ports
        self._shards = KeptShards(
            ShardKind.TRANSACTIONS, node_id, lambda number, epoch: TransactionHost(number, epoch, ports)
        )

    # --- shards -----------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Take on and let go of shards as the image says; runs until cancelled."""
        async for image in self._ports.shared.cluster.images():
            self._shards.settle(image)
            self._ports.room.shards = self._shards.count

    def stop(self) -> None:
        """Let go of everything: the process ends."""
        self._shards.stop()

    @property
    def hosts(self) -> list[TransactionHost]:
        """Of all shards that are this node's."""
        return list(self._shards.hosts.values())

    def shard_of(self, transactional_id: str) -> int:
        """The shard of an id, or of an owner; -1: there are none yet."""
        count = self._shards.count
        return _partition(key_of(transactional_id), count) if count else -1

    def keeps(self, transactional_id: str) -> bool:
        """Whether the id, or the owner, is one of this node's."""
        return self.shard_of(transactional_id) in self._shards.hosts

    def _host(self, transactional_id: str) -> TransactionHost:
        """
        Raises:
            NotCoordinator: this node does not have the shard.
        """
        number = self.shard_of(transactional_id)
        host = self._shards.hosts.get(number)
        if host is None:
            raise NotCoordinator(f"shard {number} of {transactional_id!r} is not here; find its coordinator")
        return host

    # --- producers --------------------------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, owner_epoch: int | None) -> InitResult:
        """
        Make the caller the only producer of the id.

        Raises:
            HeadraceError: it is not.
        """

        def asked(ref: object, spare: int) -> Event:
            return InitAsked(transactional_id, ref, self._ports.shared.moment(), timeout_ms, owner_epoch, spare)

        found = await self._host(transactional_id).ask_with_id(transactional_id, asked)
        assert isinstance(found, InitResult), "that is what inits are answered with"
        return found

    async def enrol(self, enrolments: Sequence[Enrolment]) -> list[HeadraceError | None]:
        """The fate of each; None: its partitions are part of the transaction, and durably so."""
        if len(enrolments) == 1:
            return [await self._enrol(enrolments[0], None)]
        return list(await asyncio.gather(*(self._enrol(one, END_WAIT_MS) for one in enrolments)))

    async def _enrol(self, one: Enrolment, end_wait_ms: float | None) -> HeadraceError | None:
        id = one.transactional_id

        def asked(ref: object) -> Event:
            at = self._ports.shared.moment()
            return EnrolAsked(id, ref, at, one.producer.producer_id, one.producer.epoch, one.partitions)

        try:
            await self._host(id).ask(id, asked, end_wait_ms=end_wait_ms)
        except HeadraceError as error:
            return error
        return None

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool) -> Producer:
        """
        Commit or abort; what the next transaction is written under. Decided when this returns.

        Raises:
            HeadraceError: it was not, or nobody knows.
        """

        def asked(ref: object, spare: int) -> Event:
            at = self._ports.shared.moment()
            return EndAsked(transactional_id, ref, at, producer.producer_id, producer.epoch, commit, spare)

        return await self._decide(transactional_id, producer.epoch, asked, Producer)

    async def prepare(self, transactional_id: str, producer: Producer, owner_epoch: int | None) -> Token:
        """
        Make the open transaction durable without deciding it.

        Raises:
            HeadraceError: it was not, or nobody knows.
        """
        nonce = int.from_bytes(new_incarnation()[:8]) or 1

        def asked(ref: object) -> Event:
            at = self._ports.shared.moment()
            return PrepareAsked(transactional_id, ref, at, producer.producer_id, producer.epoch, owner_epoch, nonce)

        found = await self._host(transactional_id).ask(transactional_id, asked)
        assert isinstance(found, Token), "that is what prepares are answered with"
        return found

    async def decide(self, token: Token, *, commit: bool) -> DecideResult:
        """
        Decide a prepared transaction.

        Raises:
            HeadraceError: it was not, or nobody knows.
        """

        def asked(ref: object, spare: int) -> Event:
            return DecideAsked(token, ref, self._ports.shared.moment(), commit, spare)

        return await self._decide(token.transactional_id, token.epoch, asked, DecideResult)

    async def _decide(
        self, transactional_id: str, epoch: int, asked: Callable[[object, int], Event], kind: type[T]
    ) -> T:
        clock = self._ports.shared.clock
        began = clock.monotonic_ms()
        host = self._host(transactional_id)
        if epoch >= EPOCH_LAST:
            found = await host.ask_with_id(transactional_id, asked)
        else:  # epochs go on: decisions do not wait for brokers that give ids
            found = await host.ask(transactional_id, lambda ref: asked(ref, NO_PRODUCER))
        self._ports.shared.measures.decided(clock.monotonic_ms() - began)
        assert isinstance(found, kind), "that is what decisions are answered with"
        return found

    # --- owners -----------------------------------------------------------------------------------------------

    async def init_owner(self, owner: str, claim: int | None = None) -> OwnerResult:
        """
        Make the caller the owner of ``owner/...``; with a claim, together with all who have the same one.

        Raises:
            HeadraceError: it is not, or nobody knows.
        """

        def asked(ref: object) -> Event:
            return OwnerInitAsked(owner, ref, self._ports.shared.moment(), claim)

        found = await self._host(owner).ask(owner, asked)
        assert isinstance(found, OwnerResult), "that is what owners are answered with"
        return found

    async def commit_unit(self, owner: str, owner_epoch: int, sequence: int, tokens: Sequence[Token]) -> UnitResult:
        """
        Commit these prepared transactions at once, and abort the owner's other prepared ones.

        Raises:
            HeadraceError: none of them was committed, or nobody knows.
        """
        clock = self._ports.shared.clock
        began = clock.monotonic_ms()

        def asked(ref: object) -> Event:
            return UnitAsked(owner, ref, self._ports.shared.moment(), owner_epoch, sequence, tokens)

        found = await self._host(owner).ask(owner, asked)
        self._ports.shared.measures.decided(clock.monotonic_ms() - began)
        assert isinstance(found, UnitResult), "that is what units are answered with"
        return found

    # --- operators --------------------------------------------------------------------------------------------

    def list_transactions(
        self, states: Collection[TxnState], producer_ids: Collection[int], older_than_ms: int
    ) -> tuple[list[TransactionListing], list[int]]:
        """Ids of all shards served here that fit (nothing named: all do); and the shards that still load."""
        before_ms = self._ports.shared.clock.now_ms() - older_than_ms

        def fits(one: TransactionListing) -> bool:
            since_ms = one.prepared_at_ms if one.state is TxnState.PREPARED else one.started_at_ms
            return (
                (not states or one.state in states)
                and (not producer_ids or one.producer.producer_id in producer_ids)
                and (not older_than_ms or NO_TIME < since_ms <= before_ms)
            )

        found = [one for host in self.hosts for one in host.list_transactions() if fits(one)]
        return sorted(found, key=lambda one: one.transactional_id), self._shards.list_loading()

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        """What is known of one id, here and now."""
        shard = self.shard_of(transactional_id)
        try:
            found = await self._host(transactional_id).ask(
                transactional_id, lambda ref: DescribeAsked(transactional_id, ref)
            )
        except HeadraceError as error:
            return DescribedTransaction(transactional_id, shard, error)
        assert isinstance(found, TransactionDescription), "that is what descriptions are"
        return DescribedTransaction(transactional_id, shard, found)

    async def abort(self, transactional_id: str, producer_id: int | None, epoch: int | None) -> None:
        """
        An operator's end of an open transaction.

        Raises:
            HeadraceError: none was aborted, or nobody knows.
        """

        def asked(ref: object) -> Event:
            return AbortAsked(transactional_id, ref, self._ports.shared.moment(), producer_id, epoch)

        await self._host(transactional_id).ask(transactional_id, asked)
