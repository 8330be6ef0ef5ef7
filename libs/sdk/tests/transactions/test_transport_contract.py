"""What ``port.Transport`` promises, kept by processes over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import TypeVar

import pytest

from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import CoordinatorCall, Transport
from headrace.errors import (
    ErrorCode,
    FencedOwner,
    HeadraceError,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    Rejected,
    TransactionAbortable,
    TxnVerdictUnknown,
)
from headrace.testing import TestCluster, started_cluster
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2 as pb

T = TypeVar("T")
MS = 10_000.0
NUMBERS = count(1)


class World:
    """A transport, a topic of one partition, and a transactional id that nobody has used."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self.transport = transport
        self.topic = topic
        self.key = f"contract-{next(NUMBERS)}"
        self.topic_id = b""
        self.leader = NodeId(-1)

    async def begun(self) -> World:
        request = broker_pb2.MetadataRequest(topics=[self.topic])
        while self.leader < 0:
            [described] = (await self.transport.metadata(request)).topics
            self.topic_id, self.leader = described.topic_id, NodeId(described.partitions[0].leader)
        return self

    async def ask(self, call: CoordinatorCall[T], key: str = "") -> T:
        """The answer, or an error that does not pass."""
        while True:
            try:
                return await call(await self.transport.find_coordinator(key or self.key, broker_pb2.TRANSACTION), MS)
            except HeadraceError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)

    async def init(self, key: str = "", owner_epoch: int | None = None) -> pb.InitTransactionalIdResponse:
        request = pb.InitTransactionalIdRequest(
            transactional_id=key or self.key, transaction_timeout_ms=60_000, owner_epoch=owner_epoch
        )
        return await self.ask(self.transport.transaction_call(lambda stub: stub.InitTransactionalId, request), key)

    async def write(
        self, me: pb.InitTransactionalIdResponse | pb.EndTxnResponse, value: bytes, sequence: int = 0, key: str = ""
    ) -> broker_pb2.ProducePartitionResult:
        """One batch in the transaction, again while its enrolment passes."""
        batch = build_batch(
            RecordColumns([value], timestamps_ms=1_700_000_000_000),
            producer_id=me.producer_id,
            producer_epoch=me.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        while True:
            request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=5_000, transactional_id=key or self.key)
            request.partitions.add(topic_id=self.topic_id, partition=0, batch=batch)
            answer = await self.transport.produce_stream(self.leader).send(request)
            [result] = answer.partitions
            if not ErrorCode(result.error).retriable:
                return result
            await asyncio.sleep(0.02)

    async def end(
        self, me: pb.InitTransactionalIdResponse | pb.EndTxnResponse, *, commit: bool = True
    ) -> pb.EndTxnResponse:
        request = pb.EndTxnRequest(
            transactional_id=self.key, producer_id=me.producer_id, producer_epoch=me.producer_epoch, commit=commit
        )
        return await self.ask(self.transport.transaction_call(lambda stub: stub.EndTxn, request))

    async def prepare(
        self, me: pb.InitTransactionalIdResponse, key: str = "", owner_epoch: int | None = None
    ) -> pb.PreparedToken:
        request = pb.PrepareTxnRequest(
            transactional_id=key or self.key,
            producer_id=me.producer_id,
            producer_epoch=me.producer_epoch,
            owner_epoch=owner_epoch,
        )
        return (await self.ask(self.transport.transaction_call(lambda stub: stub.PrepareTxn, request), key)).token

    async def decide(self, token: pb.PreparedToken, *, commit: bool) -> pb.DecidePreparedResponse:
        request = pb.DecidePreparedRequest(token=token, commit=commit)
        return await self.ask(self.transport.transaction_call(lambda stub: stub.DecidePrepared, request))

    async def become(self, owner: str, claim: int | None = None) -> pb.InitOwnerResponse:
        request = pb.InitOwnerRequest(owner=owner, claim=claim)
        return await self.ask(self.transport.transaction_call(lambda stub: stub.InitOwner, request), owner)

    async def unit(self, owner: str, epoch: int, sequence: int, *tokens: pb.PreparedToken) -> bool:
        request = pb.CommitUnitRequest(owner=owner, owner_epoch=epoch, sequence=sequence, tokens=tokens)
        return (
            await self.ask(self.transport.transaction_call(lambda stub: stub.CommitUnit, request), owner)
        ).repeated_sequence

    async def committed(self, count_: int) -> list[bytes | None]:
        """So many committed values, once they are there."""
        values: list[bytes | None] = []
        offset = 0
        while len(values) < count_:
            request = broker_pb2.FetchRequest(
                min_bytes=1, max_wait_ms=5_000, max_bytes=1 << 20, isolation_level=broker_pb2.READ_COMMITTED
            )
            request.partitions.add(topic_id=self.topic_id, partition=0, fetch_offset=offset, max_bytes=1 << 20)
            for result in (await self.transport.fetch_stream(self.leader).send(request)).partitions:
                gone = {(each.producer_id, each.first_offset): each.last_offset for each in result.aborted}
                for batch in map(decode_batch, result.batches):
                    header = batch.header
                    offset = header.next_offset
                    dropped = any(
                        who == header.producer_id and first <= header.base_offset < last
                        for (who, first), last in gone.items()
                    )
                    if not (batch.is_control or dropped):
                        values += batch.values()
        return values


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("transactions")) as running:
        yield running


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.integration)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    running: TestCluster = request.getfixturevalue("cluster")
    transport = GrpcTransport(running.bootstrap_servers)
    yield await World(transport, running.unique_topic()).begun()
    await transport.close()


async def test_what_is_committed_is_read_and_what_is_aborted_is_not(world: World) -> None:
    me: pb.InitTransactionalIdResponse | pb.EndTxnResponse = await world.init()
    for number in range(4):
        assert not (await world.write(me, b"%d" % number)).error
        ended = await world.end(me, commit=number % 2 == 1)
        assert (ended.producer_id, ended.producer_epoch) == (me.producer_id, me.producer_epoch + 1)
        me = ended
    assert await world.committed(2) == [b"1", b"3"]


async def test_the_same_end_again_has_the_same_answer(world: World) -> None:
    me = await world.init()
    await world.write(me, b"x")
    first = await world.end(me)
    assert await world.end(me) == first
    with pytest.raises(InvalidTxnState):
        await world.end(me, commit=False)


async def test_who_comes_later_fences_who_came_before(world: World) -> None:
    old = await world.init()
    await world.write(old, b"old")
    new = await world.init()
    assert new.producer_id == old.producer_id
    assert new.producer_epoch > old.producer_epoch + 1, "the epoch that fenced was never handed out"
    assert (await world.write(old, b"late", 1)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            await world.end(old, commit=commit)
    await world.write(new, b"new")
    await world.end(new)
    assert await world.committed(1) == [b"new"]


async def test_a_batch_after_the_end_of_its_transaction_is_refused(world: World) -> None:
    me = await world.init()
    await world.write(me, b"x")
    ended = await world.end(me)
    assert not (await world.write(ended, b"next")).error, "behind the marker: enrolment waits for it"
    assert (await world.write(me, b"late", 1)).error == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_who_was_never_introduced_writes_nothing(world: World) -> None:
    stranger = pb.InitTransactionalIdResponse(producer_id=2**40, producer_epoch=0)
    refused = await world.write(stranger, b"x")
    assert refused.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with pytest.raises(InvalidProducerIdMapping):
        await world.end(stranger)


async def test_timeouts_and_ids_that_cannot_be(world: World) -> None:
    for timeout_ms in (0, 10**9):
        request = pb.InitTransactionalIdRequest(transactional_id=world.key, transaction_timeout_ms=timeout_ms)
        with pytest.raises(InvalidTransactionTimeout):
            await world.ask(world.transport.transaction_call(lambda stub: stub.InitTransactionalId, request))
    with pytest.raises(Rejected):
        await world.transport.find_coordinator("x" * 250, broker_pb2.TRANSACTION)
    with pytest.raises(Rejected):
        await world.init("owner/needs-an-epoch")


# --- prepared ----------------------------------------------------------------------------------------------------


async def test_a_token_decides_from_anywhere_and_its_verdict_stands(world: World) -> None:
    me = await world.init()
    await world.write(me, b"x")
    token = await world.prepare(me)
    assert await world.prepare(me) == token
    with pytest.raises(InvalidTxnState):
        await world.end(me)
    assert (await world.init()).prepared == token, "a newer producer finds it, and takes nothing"
    assert (await world.decide(token, commit=True)).committed
    assert (await world.decide(token, commit=False)).committed, "the first verdict stands"
    assert await world.committed(1) == [b"x"]
    await world.init()
    me = await world.init()
    await world.write(me, b"y")
    await world.end(me)
    with pytest.raises(TxnVerdictUnknown):
        await world.decide(token, commit=True)


async def test_its_producer_goes_on_under_what_the_decision_answers(world: World) -> None:
    me = await world.init()
    await world.write(me, b"dropped")
    decided = await world.decide(await world.prepare(me), commit=False)
    assert not decided.committed
    assert (decided.producer_id, decided.producer_epoch) == (me.producer_id, me.producer_epoch + 1)
    again = pb.EndTxnResponse(producer_id=decided.producer_id, producer_epoch=decided.producer_epoch)
    assert not (await world.write(again, b"kept")).error
    await world.end(again)
    assert await world.committed(1) == [b"kept"]


async def test_a_token_that_nobody_gave_has_no_verdict(world: World) -> None:
    me = await world.init()
    invented = pb.PreparedToken(
        transactional_id=world.key, producer_id=me.producer_id, producer_epoch=me.producer_epoch, nonce=7
    )
    with pytest.raises(TxnVerdictUnknown):
        await world.decide(invented, commit=True)


# --- units -------------------------------------------------------------------------------------------------------


async def part(world: World, owner: str, number: int, epoch: int) -> pb.PreparedToken:
    key = f"{owner}/{number}"
    me = await world.init(key, epoch)
    assert not (await world.write(me, b"part %d" % number, key=key)).error
    return await world.prepare(me, key, epoch)


async def test_a_unit_is_one_decision(world: World) -> None:
    owner = f"owner-{next(NUMBERS)}"
    begun = await world.become(owner)
    assert begun.last_sequence == -1
    tokens = [await part(world, owner, number, begun.owner_epoch) for number in range(4)]
    assert not await world.unit(owner, begun.owner_epoch, 0, *tokens[:3])
    assert await world.unit(owner, begun.owner_epoch, 0, *tokens[:3]), "a repeat"
    assert sorted(v for v in await world.committed(3) if v) == [b"part 0", b"part 1", b"part 2"]
    with pytest.raises(TransactionAbortable):
        await world.unit(owner, begun.owner_epoch, 1, tokens[3])


async def test_what_a_unit_has_decided_is_forgotten(world: World) -> None:
    owner = f"owner-{next(NUMBERS)}"
    epoch = (await world.become(owner)).owner_epoch
    token = await part(world, owner, 1, epoch)
    for sequence, tokens in ((0, [token, token]), (-1, [])):
        with pytest.raises(Rejected):
            await world.unit(owner, epoch, sequence, *tokens)
    assert not await world.unit(owner, epoch, 0, token), "the wrong ones have decided nothing"
    while True:  # until its markers are written
        try:
            await world.decide(token, commit=True)
        except TxnVerdictUnknown:
            break
        await asyncio.sleep(0.02)
    for key in (f"{owner}/", "/1"):
        with pytest.raises(Rejected, match="owner/suffix"):
            await world.init(key, epoch)


async def test_a_newer_owner_fences(world: World) -> None:
    owner = f"owner-{next(NUMBERS)}"
    old = await world.become(owner)
    token = await part(world, owner, 1, old.owner_epoch)
    await world.unit(owner, old.owner_epoch, 4, token)
    new = await world.become(owner)
    assert (new.owner_epoch, new.last_sequence) == (old.owner_epoch + 1, 4)
    with pytest.raises(FencedOwner):
        await world.unit(owner, old.owner_epoch, 5)
    with pytest.raises(FencedOwner):
        await world.init(f"{owner}/2", old.owner_epoch)
    with pytest.raises(FencedOwner):
        await world.unit(owner, new.owner_epoch, 3)
    with pytest.raises(Rejected):
        await world.unit(owner, new.owner_epoch + 1, 5)


async def test_whoever_has_the_claim_of_an_owner_is_that_owner(world: World) -> None:
    owner = f"owner-{next(NUMBERS)}"
    first = await world.become(owner, 10)
    token = await part(world, owner, 1, first.owner_epoch)
    several = await asyncio.gather(*(world.become(owner, 10) for _ in range(5)))
    assert several == [first] * 5
    assert not await world.unit(owner, first.owner_epoch, 3, token), "nothing was aborted"
    token = await part(world, owner, 2, first.owner_epoch)
    assert (await world.become(owner, 10)).last_sequence == 3, "as it is now"
    later = await world.become(owner, 11)
    assert (later.owner_epoch, later.last_sequence) == (first.owner_epoch + 1, 3)
    with pytest.raises(FencedOwner):
        await world.become(owner, 10)
    with pytest.raises(FencedOwner):
        await world.init(f"{owner}/2", first.owner_epoch)
    with pytest.raises(FencedOwner):
        await world.unit(owner, first.owner_epoch, 4, token)
    with pytest.raises(TransactionAbortable):
        await world.unit(owner, later.owner_epoch, 4, token)
    with pytest.raises(Rejected):
        await world.become(owner, -1)


async def test_an_owner_without_a_claim_is_out_of_reach_of_those_before_it(world: World) -> None:
    owner = f"owner-{next(NUMBERS)}"
    claimed = await world.become(owner, 10)
    plain = await world.become(owner)
    assert plain.owner_epoch == claimed.owner_epoch + 1
    token = await part(world, owner, 1, plain.owner_epoch)
    for claim in (9, 10):
        with pytest.raises(FencedOwner):
            await world.become(owner, claim)
    assert not await world.unit(owner, plain.owner_epoch, 0, token)
    again = await world.become(owner, 11)
    assert (again.owner_epoch, again.last_sequence) == (plain.owner_epoch + 1, 0)


# --- positions ---------------------------------------------------------------------------------------------------


async def test_positions_count_with_their_transaction(world: World) -> None:
    group = f"group-{next(NUMBERS)}"
    me: pb.InitTransactionalIdResponse | pb.EndTxnResponse = await world.init()
    for commit, offset in ((False, 3), (True, 4)):
        request = group_pb.TxnOffsetCommitRequest(
            group_id=group,
            generation=-1,
            transactional_id=world.key,
            producer_id=me.producer_id,
            producer_epoch=me.producer_epoch,
        )
        request.offsets.add(topic=world.topic, partition=0, offset=offset, leader_epoch=-1)
        assert await hold(world, group, request) == [ErrorCode.NONE]
        assert (await fetched(world, group)).error == ErrorCode.UNSTABLE_OFFSET_COMMIT
        ended = await world.end(me, commit=commit)
        while (at := await fetched(world, group)).error == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            await asyncio.sleep(0.02)
        assert at.offset == (4 if commit else -1)
        assert await hold(world, group, request) == [ErrorCode.INVALID_PRODUCER_EPOCH], "the transaction has ended"
        me = ended


async def hold(world: World, group: str, request: group_pb.TxnOffsetCommitRequest) -> list[ErrorCode]:
    """What became of the positions; an error of the whole call counts for all."""
    while True:
        try:
            coordinator = await world.transport.find_coordinator(group)
            answer = await world.transport.group_call(lambda stub: stub.TxnOffsetCommit, request)(coordinator, MS)
            codes = [ErrorCode(result.error) for result in answer.results]
        except HeadraceError as error:
            codes = [error.code]
        if not any(code.retriable for code in codes):
            return codes
        await asyncio.sleep(0.02)


async def fetched(world: World, group: str) -> group_pb.CommittedOffset:
    """What the group has committed of the topic."""
    request = group_pb.FetchOffsetsRequest(group_id=group, require_stable=True)
    request.partitions.add(topic=world.topic, partitions=[0])
    coordinator = await world.transport.find_coordinator(group)
    [offset] = (await world.transport.group_call(lambda stub: stub.FetchOffsets, request)(coordinator, MS)).offsets
    return offset
