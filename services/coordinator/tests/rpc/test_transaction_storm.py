"""
Requests about transactions that make no sense, in any order and all at once: each gets an answer or a typed refusal,
and the coordinator goes on. A bug in a state machine would end the process, and the next one that gets the request.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from services.coordinator.tests.kit.dialogue import serving_coordinator
from services.coordinator.tests.kit.ports import topic_id_of
from services.coordinator.tests.kit.processes import answered

from headrace_common.core.errors import HeadraceError, Internal
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

IDS = ("x", "y", "job/1", "job/2", "other/1")
T = topic_id_of("t")
CALLS = 600
AT_ONCE = 12


class Storm:
    """Draws requests from few ids, and from what earlier answers said."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.producers: list[tuple[int, int]] = [(0, 0), (1_000, 0), (1_000, 32_767)]
        self.tokens: list[pb.PreparedToken] = [pb.PreparedToken(transactional_id="x", producer_id=1_000, nonce=5)]
        self.epochs = [0]

    def learn(self, answer: Any) -> None:
        if isinstance(answer, pb.InitTransactionalIdResponse | pb.EndTxnResponse):
            self.producers.append((answer.producer_id, answer.producer_epoch))
        elif isinstance(answer, pb.PrepareTxnResponse):
            self.tokens.append(answer.token)
        elif isinstance(answer, pb.InitOwnerResponse):
            self.epochs.append(answer.owner_epoch)

    def request(self) -> tuple[str, Any]:
        random, id = self.random, self.random.choice(IDS)
        producer_id, epoch = random.choice(self.producers[-6:])
        who: dict[str, Any] = {"transactional_id": id, "producer_id": producer_id, "producer_epoch": epoch}
        owner_epoch = random.choice([None, *self.epochs[-2:]])
        owned: dict[str, Any] = {} if owner_epoch is None else {"owner_epoch": owner_epoch}
        partitions = [pb.TxnPartition(topic_id=T, partition=n) for n in random.sample(range(3), random.randint(1, 3))]
        enrolment = pb.TxnPartitions(**who, partitions=partitions)
        tokens = random.sample(self.tokens, min(len(self.tokens), random.randrange(3)))
        commit = random.random() < 0.5
        requests: list[tuple[str, Any]] = [
            (
                "InitTransactionalId",
                pb.InitTransactionalIdRequest(
                    transactional_id=id, transaction_timeout_ms=random.choice((5, 60_000)), **owned
                ),
            ),
            ("AddPartitionsToTxn", pb.AddPartitionsToTxnRequest(transactions=[enrolment])),
            ("AddPartitionsToTxn", pb.AddPartitionsToTxnRequest(transactions=[enrolment, enrolment])),
            ("EndTxn", pb.EndTxnRequest(**who, commit=commit)),
            ("PrepareTxn", pb.PrepareTxnRequest(**who, **owned)),
            ("DecidePrepared", pb.DecidePreparedRequest(token=random.choice(self.tokens), commit=commit)),
            ("InitOwner", pb.InitOwnerRequest(owner="job", claim=random.choice((None, -1, *range(9))))),
            (
                "CommitUnit",
                pb.CommitUnitRequest(
                    owner="job", owner_epoch=owner_epoch or 0, sequence=random.randrange(4), tokens=tokens
                ),
            ),
            ("AbortTransaction", pb.AbortTransactionRequest(transactional_id=id)),
            ("DescribeTransactions", pb.DescribeTransactionsRequest(transactional_ids=[id, "nobody"])),
            ("ListTransactions", pb.ListTransactionsRequest()),
        ]
        return random.choices(requests, weights=(4, 8, 1, 6, 3, 3, 1, 3, 1, 1, 1))[0]


async def commit_one(stub: Any) -> int:
    """One ordinary transaction, to its end: whatever the storm left behind, a new client is served; its producer id."""
    introduction = pb.InitTransactionalIdRequest(transactional_id="calm", transaction_timeout_ms=60_000)
    first = await answered(stub.InitTransactionalId(introduction))
    who: dict[str, Any] = {
        "transactional_id": "calm",
        "producer_id": first.producer_id,
        "producer_epoch": first.producer_epoch,
    }
    enrolment = pb.TxnPartitions(**who, partitions=[pb.TxnPartition(topic_id=T, partition=0)])
    await answered(stub.AddPartitionsToTxn(pb.AddPartitionsToTxnRequest(transactions=[enrolment])))
    await answered(stub.EndTxn(pb.EndTxnRequest(**who, commit=True)))
    await answered(stub.InitTransactionalId(introduction))  # is answered once its markers are written
    return int(first.producer_id)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_asked_is_answered(seed: int) -> None:
    storm = Storm(Random(seed))
    done: list[str] = []
    bugs: list[Any] = []

    async def caller(stub: Any) -> None:
        while len(done) < CALLS:
            method, request = storm.request()
            try:
                storm.learn(await answered(getattr(stub, method)(request, timeout=10)))
            except HeadraceError as error:
                if isinstance(error, Internal):
                    bugs.append((method, request))
            done.append(method)

    async with asyncio.timeout(60), serving_coordinator({"t": 3}) as running:
        for number in range(3):
            running.cluster.lead("t", number, 1)
        async with running.channel() as channel:
            stub = TransactionCoordinatorStub(channel)
            await asyncio.gather(*(caller(stub) for _ in range(AT_ONCE)))
            calm = await commit_one(stub)
        assert running.tasks.failure is None
        # The storm's own transactions may end meanwhile: only the calm one's marker is counted.
        written = [(id.partition, m.commit) for id, m in running.brokers.markers.written if m.producer_id == calm]
        assert written == [(0, True)]
    assert not bugs
