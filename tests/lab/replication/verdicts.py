"""
Who decides the transactions of the writers of a world of replication, in place of coordinators, which have worlds of
their own: what it says is durable at once. Everything else is real: brokers ask it through the same port, park and
repeat, and its markers go to them as any coordinator's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

import grpc.aio

from headrace_broker.adapters.grpc_transactions import GrpcTransactions
from headrace_broker.core.coordination import FoundCoordinator
from headrace_broker.engine import enrolments
from headrace_broker.ports import Enrolment
from headrace_common.core.errors import ConcurrentTransactions, HeadraceError, InvalidTxnState, ProducerFenced
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Role, ShardKind
from headrace_lab.nodes import address
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.errors_pb2 import ErrorCode

if TYPE_CHECKING:
    from tests.lab.replication.world import World

NOBODY = Node(NodeKey(Role.COORDINATOR, NodeId(1)), Endpoint("coordinator", 1), b"verdicts", 1, fenced=False)
TIMEOUT_S = 3.0
"""A transaction that is older is aborted."""
LOOK_S = 0.2
MARK_S_MAX = 1.0
ANSWERS_S = (0.002, 0.002, 0.05, 0.5)
"""How long an enrolment takes at most: now and then long enough for a fence to come before the answer."""


@dataclass(eq=False)
class Transaction:
    """Of a writer, in one partition."""

    producer: int
    epoch: int
    partition: PartitionId
    began_s: float
    before: Transaction | None
    """That of the same producer before it."""
    enrolled: bool = False
    verdict: bool | None = None
    over: bool = False
    """Its marker is committed, or it needs none."""


class Verdicts:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[int, Transaction] = {}
        """By producer."""
        self._verdicts: dict[tuple[int, int], bool] = {}

    def begin(self, producer: int, partition: PartitionId) -> int:
        """A producer begins its next transaction: its epoch."""
        before = self._last.get(producer)
        assert before is None or before.verdict is not None, "one after the other"
        epoch = 0 if before is None else before.epoch + 1
        self._last[producer] = Transaction(producer, epoch, partition, asyncio.get_running_loop().time(), before)
        return epoch

    def end(self, producer: int, epoch: int, *, commit: bool) -> bool:
        """The verdict, which may have been given before."""
        txn = self._last[producer]
        assert txn.epoch == epoch, "nobody asks about an older one"
        if txn.verdict is None:
            txn.verdict = self._verdicts[producer, epoch] = commit
            self._world.counts[f"transactions {'committed' if commit else 'aborted'}"] += 1
            self._world.spawn(self._mark(txn))
        return txn.verdict

    def abort_others(self, producer: int, partition: PartitionId) -> None:
        """Whoever takes a partition over ends what its predecessors left open."""
        for txn in [txn for txn in self._last.values() if txn.verdict is None]:
            if txn.partition == partition and txn.producer != producer:
                self.end(txn.producer, txn.epoch, commit=False)

    def verdict_of(self, producer: int, epoch: int) -> bool | None:
        """What became of a transaction; None: nobody has decided."""
        return self._verdicts.get((producer, epoch))

    def describe_unfinished(self) -> str:
        """A transaction that is not over; empty: all are."""
        return next((f"{txn} is not over" for txn in self._last.values() if not txn.over), "")

    async def time_out(self) -> None:
        """Abort what takes too long, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            late = asyncio.get_running_loop().time() - TIMEOUT_S
            for txn in [txn for txn in self._last.values() if txn.verdict is None and txn.began_s < late]:
                self.end(txn.producer, txn.epoch, commit=False)

    def enrol(self, one: Enrolment) -> HeadraceError | None:
        """A leader asks before the first append of a transaction."""
        txn = self._last[one.producer_id]
        if one.producer_epoch != txn.epoch:
            return ProducerFenced(f"the producer has epoch {txn.epoch}")
        if txn.verdict is not None:
            return InvalidTxnState("it has ended")
        if txn.before is not None and not txn.before.over:
            return ConcurrentTransactions("the one before has no marker yet")
        txn.enrolled = True
        return None

    async def _mark(self, txn: Transaction) -> None:
        """Write its marker, again and again until it is committed."""
        random, id = self._world.random, txn.partition
        listed = [pb.TxnPartition(topic_id=id.topic_id, partition=id.partition)]
        marker = pb.TxnMarker(
            producer_id=txn.producer, producer_epoch=txn.epoch + 1, commit=bool(txn.verdict), partitions=listed
        )
        while txn.enrolled and not txn.over:
            leader, _ = self._world.leader_by_hearsay(id)
            if leader != NO_NODE:
                stub = BrokerStub(self._world.channels.to(str(address(f"broker-{leader}"))))
                try:
                    request = pb.WriteTxnMarkersRequest(markers=[marker])
                    answer = await stub.WriteTxnMarkers(request, timeout=MARK_S_MAX)
                except grpc.aio.AioRpcError:
                    answer = pb.WriteTxnMarkersResponse()
                for result in (part for one in answer.markers for part in one.partitions):
                    txn.over = result.error == ErrorCode.NONE
                    if result.error == ErrorCode.FENCED_WRITER:
                        self._world.problems.append(f"marker: refused for its token: {txn}")
            await asyncio.sleep(0.01 + 0.1 * random.random())
        txn.over = True


@contextmanager
def asked(random: Random, world: Callable[[], World | None]) -> Iterator[None]:
    """Brokers ask the verdicts of the world, in place of a coordinator."""

    def coordinator_of(kind: ShardKind, key: str, image: ClusterImage) -> FoundCoordinator:
        del kind, image
        return FoundCoordinator(key, node=NOBODY)

    async def enrol(
        self: GrpcTransactions, at: Endpoint, listed: Sequence[Enrolment], timeout_ms: float
    ) -> list[HeadraceError | None]:
        del self, at, timeout_ms
        present = world()
        assert present is not None, "nobody writes before it begins"
        await asyncio.sleep(random.random() * random.choice(ANSWERS_S))
        answers = [present.verdicts.enrol(one) for one in listed]
        await asyncio.sleep(random.random() * random.choice(ANSWERS_S))
        return answers

    with (
        patch.object(enrolments, "coordinator_of", coordinator_of),
        patch.object(GrpcTransactions, "enrol", enrol),
    ):
        yield
