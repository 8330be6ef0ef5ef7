"""
Transactional producers through random faults in the lab: lost requests and answers, late ones, rivals, timeouts, moved
leaders. A program that does what ``error.then`` says sees each transaction whole or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import aio
from headrace.errors import ErrorCode, HeadraceError, Then
from headrace_proto.v1 import broker_pb2 as pb

from .worlds import made, producer

PARTITIONS = 3
ROUNDS = 12
TIMEOUT_S = 6.0
"""A little more than transactions may take."""
HURRIED = {"request_timeout_ms": 60, "delivery_timeout_ms": 120, "max_block_ms": 300, "transaction_timeout_ms": 5_000}
PASSING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
PASSING_AT_LEADERS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR)
REFUSED = Fault(Does.ERROR, code=ErrorCode.INVALID_RECORD)
LOST_ANSWERS = [Fault(Does.DROP, after=True)] * 60
"""More than fit into a delivery timeout."""


@dataclass
class Written:
    """One transaction as its program saw it; ``committed`` None: it was not told."""

    values: dict[int, list[bytes]] = field(default_factory=dict)
    committed: bool | None = None


class World:
    """One seed."""

    def __init__(self, labs: Labs, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster: LabCluster = made(labs)
        self.cluster.on_request = self.fault
        self.release = asyncio.Event()
        self.calm = False
        self.ledger: list[Written] = []
        self.numbers = 0

    def fault(self, api: str, broker: int, request: Any) -> Fault | None:
        if self.calm or api == "metadata" or self.random.random() > 0.12:
            return None
        if api == "produce":
            code = self.random.choice(PASSING_AT_LEADERS)
            kinds = [Fault(Does.DROP), Fault(Does.DROP, after=True), Fault(Does.ERROR, code=code), REFUSED]
            if isinstance(request, pb.ProduceRequest):
                kinds.append(Fault(Does.HOLD, after=True, until=self.release))
                kinds.append(Fault(Does.SILENCE, after=True))
            return self.random.choice(kinds)
        return self.random.choice(
            [Fault(Does.DROP), Fault(Does.DROP, after=True), Fault(Does.ERROR, code=self.random.choice(PASSING))]
        )

    async def run(self) -> None:
        writer = producer(self.cluster, **HURRIED)
        for _ in range(ROUNDS):
            if not await self.transact(writer):
                await writer.close()
                writer = producer(self.cluster, **HURRIED)
            self.cluster.faults.queued.pop("end_txn", None)
            self.release.set()
            self.release = asyncio.Event()
        await writer.close()
        self.calm = True
        self.release.set()
        async with producer(self.cluster) as last:
            token = await last.init_transactions()
            if token is not None:
                await last.abort_prepared(token)

    async def transact(self, writer: aio.Producer) -> bool:
        """One transaction; False: the producer is of no use any more."""
        written = Written()
        self.ledger.append(written)
        try:
            await self.obeying(writer.begin_transaction)
            await self.fill(writer, written)
            await self.disturb(writer)
            if self.random.random() < 0.25:
                await self.obeying(writer.abort_transaction)
                written.committed = False
            elif self.random.random() < 0.2:
                await self.prepared(writer, written)
            else:
                await self.committing(writer.commit_transaction, written)
        except HeadraceError as error:
            if error.then is not Then.ABORT:
                return False
            return await self.aborting(writer, written)
        return True

    async def fill(self, writer: aio.Producer, written: Written) -> None:
        for _ in range(self.random.randrange(6)):
            partition = self.random.randrange(PARTITIONS)
            self.numbers += 1
            value = b"%d" % self.numbers
            written.values.setdefault(partition, []).append(value)
            await writer.send("t", value, partition=partition)
            if self.random.random() < 0.3:
                await writer.flush()

    async def disturb(self, writer: aio.Producer) -> None:
        chance = self.random.random()
        if chance < 0.1:
            await asyncio.sleep(TIMEOUT_S)
        elif chance < 0.2:
            self.cluster.move_leader("t", self.random.randrange(PARTITIONS), self.random.choice([1, 2]))
        elif chance < 0.25:
            self.cluster.inject("end_txn", *LOST_ANSWERS)
        elif chance < 0.35:
            async with producer(self.cluster, **HURRIED) as rival:
                await self.transact(rival)

    async def committing(self, commit: Callable[[], Awaitable[None]], written: Written) -> None:
        """Unless it is told that nothing was committed, nobody knows until it is told that all was."""
        try:
            await self.obeying(commit)
        except HeadraceError as error:
            if error.then is Then.ABORT:
                written.committed = False
            raise
        written.committed = True

    async def prepared(self, writer: aio.Producer, written: Written) -> None:
        token = await self.obeying(writer.prepare_transaction)
        commit = self.random.random() < 0.5
        if self.random.random() < 0.5:
            decider: Any = writer
            await self.decide(decider, token, written, commit=commit)
            return
        async with aio.PreparedTransactions(
            _transport=self.cluster.transport(), retry_backoff_ms=1, default_api_timeout_ms=300
        ) as decider:
            await self.decide(decider, token, written, commit=commit)

    async def decide(self, decider: Any, token: Any, written: Written, *, commit: bool) -> None:
        if commit:
            await self.committing(lambda: decider.commit_prepared(token), written)
        else:
            await self.obeying(lambda: decider.abort_prepared(token))
            written.committed = False

    async def aborting(self, writer: aio.Producer, written: Written) -> bool:
        try:
            await self.obeying(writer.abort_transaction)
        except HeadraceError:
            return False  # it is over, or nobody answers: the next producer sees to it
        written.committed = False
        return True

    async def obeying(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call again while that is what its errors say, a few times."""
        for _ in range(4):
            try:
                return await call()
            except HeadraceError as error:
                if error.then is not Then.RETRY:
                    raise
        return await call()

    def check(self) -> None:
        for partition in range(PARTITIONS):
            seen = self.cluster.committed_values("t", partition)
            assert not self.cluster.log("t", partition).undecided, "nothing hangs"
            assert len(set(seen)) == len(seen), "nothing is doubled"
            place = {value: at for at, value in enumerate(seen)}
            for written in self.ledger:
                places = [place[value] for value in written.values.get(partition, []) if value in place]
                assert places == sorted(places), "in the order of the calls"
        everything = {v for p in range(PARTITIONS) for v in self.cluster.committed_values("t", p)}
        for written in self.ledger:
            mine = {value for values in written.values.values() for value in values}
            visible = mine & everything
            assert visible in (set(), mine), "whole, or not at all"
            if written.committed is not None and mine:
                assert bool(visible) == written.committed


@pytest.mark.parametrize("seed", range(30))
async def test_each_transaction_is_whole_or_not_there(labs: Labs, seed: int) -> None:
    world = World(labs, seed)
    await world.run()
    world.check()
