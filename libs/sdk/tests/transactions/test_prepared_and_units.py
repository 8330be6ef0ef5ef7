"""Prepared transactions, decided by anybody who has the token, and units that decide many as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import PreparedTransaction, PreparedTransactions, Producer, UnitOwner, aio
from headrace.errors import (
    AlreadyDecided,
    ClientClosed,
    ErrorCode,
    FencedOwner,
    HeadraceError,
    InvalidTxnState,
    Rejected,
    Then,
    TransactionAbortable,
    TxnVerdictUnknown,
    WaitTimedOut,
)

from .worlds import IMPATIENT, QUICK, made, producer

LOST_ANSWER = Fault(Does.DROP, after=True)


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    return made(labs)


@pytest.fixture
async def anybody(cluster: LabCluster) -> AsyncIterator[aio.PreparedTransactions]:
    async with aio.PreparedTransactions(_transport=cluster.transport(), retry_backoff_ms=1) as prepared:
        yield prepared


async def prepare(writer: aio.Producer, value: bytes) -> PreparedTransaction:
    await writer.begin_transaction()
    await writer.send("one", value)
    return await writer.prepare_transaction()


# --- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_survives_files_and_columns() -> None:
    token = PreparedTransaction("bïlling/7", 2**62, 32_766, 2**64 - 1)
    assert PreparedTransaction.parse(str(token)) == token
    assert PreparedTransaction.parse(f" {token}\n") == token
    assert PreparedTransaction.parse(bytes(token)) == token
    assert PreparedTransaction.parse(token) is token
    assert str(token).isascii()


@pytest.mark.parametrize("given", ["", "?", "ä", b"", b"\xff\xff", "AAAA", 7, None])
def test_what_is_no_token_is_refused(given: object) -> None:
    with pytest.raises(Rejected, match="prepare_transaction"):
        PreparedTransaction.parse(given)  # that is the point


# --- one ---------------------------------------------------------------------------------------------------------


async def test_its_producer_decides_and_goes_on(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        token = await prepare(writer, b"kept")
        assert cluster.committed_values("one", 0) == []
        for attempt in (writer.begin_transaction, writer.commit_transaction, lambda: writer.send("one", b"x")):
            with pytest.raises(InvalidTxnState, match="prepared"):
                await attempt()
        await writer.commit_prepared(token)
        assert cluster.committed_values("one", 0) == [b"kept"]
        await writer.abort_prepared(await prepare(writer, b"dropped"))
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.committed_values("one", 0) == [b"kept", b"next"]
    assert cluster.asked.count("init") == 2, "the second asks whether somebody else has decided"


async def test_another_process_decides_and_its_producer_goes_on(
    cluster: LabCluster, anybody: aio.PreparedTransactions
) -> None:
    async with producer(cluster) as writer:
        token = str(await prepare(writer, b"kept"))
        await anybody.commit_prepared(token)
        await anybody.commit_prepared(token)
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.committed_values("one", 0) == [b"kept", b"next"]
    with pytest.raises(TxnVerdictUnknown):
        await anybody.commit_prepared(token)


async def test_a_verdict_stands(cluster: LabCluster, anybody: aio.PreparedTransactions) -> None:
    async with producer(cluster) as writer:
        token = await prepare(writer, b"x")
        await anybody.abort_prepared(token)
        with pytest.raises(AlreadyDecided, match="aborted"):
            await anybody.commit_prepared(token)
        with pytest.raises(AlreadyDecided, match="aborted"):
            await writer.commit_prepared(token)
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.committed_values("one", 0) == [b"next"]


async def test_a_restarted_producer_finds_what_is_prepared(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        token = await prepare(writer, b"kept")
    async with producer(cluster) as writer:
        assert await writer.init_transactions() == token
        with pytest.raises(InvalidTxnState, match="commit_prepared"):
            await writer.begin_transaction()
        await writer.commit_prepared(token)
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.committed_values("one", 0) == [b"kept", b"next"]


async def test_a_producer_that_just_started_decides_by_a_token_alone(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        token = await prepare(writer, b"kept")
    async with producer(cluster) as writer:
        await writer.commit_prepared(bytes(token))
        async with writer.transaction():
            await writer.send("one", b"next")
        with pytest.raises(TxnVerdictUnknown):
            await writer.commit_prepared(token)
    assert cluster.committed_values("one", 0) == [b"kept", b"next"]


async def test_closing_does_not_touch_what_is_prepared(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await prepare(writer, b"x")
    assert cluster.log("one").undecided


async def test_lost_answers_change_nothing(cluster: LabCluster, anybody: aio.PreparedTransactions) -> None:
    async with producer(cluster) as writer:
        cluster.inject("prepare_txn", LOST_ANSWER)
        token = await prepare(writer, b"kept")
        cluster.inject("decide_prepared", LOST_ANSWER, Fault(Does.ERROR, code=ErrorCode.NOT_COORDINATOR))
        await anybody.commit_prepared(token)
    assert cluster.committed_values("one", 0) == [b"kept"]


async def test_a_preparation_without_an_answer_may_only_be_repeated(cluster: LabCluster) -> None:
    async with producer(cluster, **IMPATIENT) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"kept")
        cluster.on_request = lambda api, *_: LOST_ANSWER if api == "prepare_txn" else None
        with pytest.raises(WaitTimedOut):
            await writer.prepare_transaction()
        with pytest.raises(InvalidTxnState, match="prepare_transaction"):
            await writer.abort_transaction()
        cluster.on_request = None
        await writer.commit_prepared(await writer.prepare_transaction())
    assert cluster.committed_values("one", 0) == [b"kept"]


async def test_nobody_who_answers_is_told_in_time(cluster: LabCluster) -> None:
    cluster.refuse()
    settings = {"default_api_timeout_ms": 50, "retry_backoff_ms": 1}
    async with aio.PreparedTransactions(_transport=cluster.transport(), **settings) as prepared:
        with pytest.raises(WaitTimedOut, match="billing") as raised:
            await prepared.commit_prepared(PreparedTransaction("billing", 1, 1, 1))
        assert raised.value.then is Then.RETRY
    with pytest.raises(ClientClosed):
        await prepared.commit_prepared(PreparedTransaction("billing", 1, 1, 1))


async def test_what_was_never_prepared_has_no_verdict(anybody: aio.PreparedTransactions) -> None:
    with pytest.raises(TxnVerdictUnknown):
        await anybody.commit_prepared(PreparedTransaction("billing", 1, 1, 1))


async def test_a_failed_delivery_prepares_nothing(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        cluster.inject("produce", Fault(Does.ERROR, code=ErrorCode.INVALID_RECORD))
        with pytest.raises(TransactionAbortable):
            await prepare(writer, b"x")
        await writer.abort_transaction()
        await writer.commit_prepared(await prepare(writer, b"y"))
    assert cluster.committed_values("one", 0) == [b"y"]


# --- units -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def owner(cluster: LabCluster) -> AsyncIterator[aio.UnitOwner]:
    async with aio.UnitOwner(None, "nightly", _transport=cluster.transport(), retry_backoff_ms=1) as owner:
        yield owner


async def part(cluster: LabCluster, number: int, epoch: int) -> PreparedTransaction:
    async with producer(cluster, f"nightly/{number}", owner_epoch=epoch) as writer:
        return await prepare(writer, b"part %d" % number)


async def test_a_unit_is_committed_as_one_and_what_it_does_not_list_is_aborted(
    cluster: LabCluster, owner: aio.UnitOwner
) -> None:
    assert await owner.init() == (0, -1)
    assert owner.epoch == 0
    tokens = [await part(cluster, number, 0) for number in range(4)]
    assert cluster.committed_values("one", 0) == []
    cluster.inject("commit_unit", LOST_ANSWER)
    assert not await owner.commit(0, tokens[:3]), "the answer was lost, so it was sent again"
    assert cluster.committed_values("one", 0) == [b"part 0", b"part 1", b"part 2"]
    assert not cluster.log("one").undecided
    assert await owner.commit(1, [])


async def test_one_that_is_not_prepared_spoils_the_unit(cluster: LabCluster, owner: aio.UnitOwner) -> None:
    await owner.init()
    good = await part(cluster, 1, 0)
    with pytest.raises(TransactionAbortable, match="nightly/2"):
        await owner.commit(0, [good, PreparedTransaction("nightly/2", 5, 0, 5)])
    assert cluster.committed_values("one", 0) == []
    with pytest.raises(Rejected, match="other/1"):
        await owner.commit(0, [PreparedTransaction("other/1", 5, 0, 5)])


async def test_a_newer_owner_fences_the_older_and_its_producers(cluster: LabCluster, owner: aio.UnitOwner) -> None:
    await owner.init()
    await owner.commit(7, [])
    token = await part(cluster, 1, 0)
    async with aio.UnitOwner(None, "nightly", _transport=cluster.transport()) as newer:
        assert await newer.init() == (1, 7)
        cluster.wait_until_decided("one")  # what was undecided is aborted
        for attempt in (lambda: owner.commit(8, [token]), lambda: part(cluster, 2, 0)):
            with pytest.raises(FencedOwner) as raised:
                await attempt()
            assert raised.value.then is Then.FENCED
        with pytest.raises(FencedOwner):
            await newer.commit(6, [])
        assert await newer.commit(8, [await part(cluster, 2, 1)])
    assert cluster.committed_values("one", 0) == [b"part 2"]


async def test_an_epoch_from_another_process_does(cluster: LabCluster, owner: aio.UnitOwner) -> None:
    with pytest.raises(InvalidTxnState, match=r"init\(\)") as raised:
        await owner.commit(0, [])
    assert raised.value.then is Then.FENCED
    epoch, _ = await owner.init()
    async with aio.UnitOwner(None, "nightly", epoch=epoch, _transport=cluster.transport()) as elsewhere:
        assert await elsewhere.commit(0, [str(await part(cluster, 1, epoch))])
    assert cluster.committed_values("one", 0) == [b"part 1"]


async def test_several_processes_claim_an_owner_together(cluster: LabCluster, owner: aio.UnitOwner) -> None:
    assert await owner.init(7) == (0, -1)
    token = await part(cluster, 1, 0)
    async with aio.UnitOwner(None, "nightly", _transport=cluster.transport(), retry_backoff_ms=1) as sibling:
        cluster.inject("init_owner", LOST_ANSWER)
        assert await sibling.init(claim=7) == (0, -1)
        assert await sibling.commit(0, [token])
        assert await owner.init(7) == (0, 0)
        cluster.inject("init_owner", LOST_ANSWER)
        assert await sibling.init(8) == (1, 0), "the answer was lost, and the same claim made again"
        with pytest.raises(FencedOwner, match="claimed with 8") as raised:
            await owner.init(7)
        assert raised.value.then is Then.FENCED
        assert await owner.init() == (2, 0)
        with pytest.raises(FencedOwner):
            await sibling.init(8)
        assert await sibling.init(9) == (3, 0)


@pytest.mark.parametrize("claim", [-1, 2**63, "1", 1.5])
async def test_numbers_that_no_claim_has(owner: aio.UnitOwner, claim: Any) -> None:
    with pytest.raises(Rejected, match="claimed with a number of 0"):
        await owner.init(claim)
    assert owner.epoch is None


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, 7])
def test_names_that_no_owner_has(cluster: LabCluster, name: object) -> None:
    with pytest.raises(Rejected, match="owner"):
        UnitOwner(None, name, _transport=cluster.transport())  # that is the point


@pytest.mark.parametrize("number", [-1, 2**63, "1", 1.5, None])
async def test_numbers_that_no_unit_and_no_epoch_has(cluster: LabCluster, owner: aio.UnitOwner, number: Any) -> None:
    await owner.init()
    with pytest.raises(Rejected, match="numbered from 0"):
        await owner.commit(number, [])
    if number is not None:
        with pytest.raises(Rejected, match=r"what init\(\) returned"):
            UnitOwner(None, "nightly", epoch=number, _transport=cluster.transport())


@pytest.mark.parametrize("token", [PreparedTransaction("a", 2**64, 1, 1), PreparedTransaction("a", 1, 1, -1)])
async def test_numbers_that_no_token_has(anybody: aio.PreparedTransactions, token: PreparedTransaction) -> None:
    with pytest.raises(Rejected, match="not the token"):
        await anybody.commit_prepared(token)


async def test_a_unit_has_a_bound(owner: aio.UnitOwner) -> None:
    await owner.init()
    with pytest.raises(Rejected, match="10000"):
        await owner.commit(0, [PreparedTransaction("nightly/1", 1, 1, n) for n in range(10_001)])


async def test_an_id_of_a_unit_needs_its_owner(cluster: LabCluster) -> None:
    async with producer(cluster, "nobody/1", owner_epoch=0) as writer:
        with pytest.raises(HeadraceError, match="InitOwner"):
            await writer.begin_transaction()


# --- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_the_sync_twins(cluster: LabCluster) -> None:
    def run() -> None:
        with UnitOwner(None, "nightly", _transport=cluster.transport()) as owner:
            epoch, last = owner.init(claim=7)
            assert owner.init(7) == (epoch, last)
            settings = {"transactional_id": "nightly/1", "owner_epoch": epoch, **QUICK}
            with Producer(_transport=cluster.transport(), **settings) as writer:
                writer.begin_transaction()
                writer.send("one", b"unit")
                assert owner.commit(last + 1, [writer.prepare_transaction()])
            assert (owner.owner, owner.epoch) == ("nightly", epoch)
        with (
            Producer(_transport=cluster.transport(), transactional_id="plain", **QUICK) as writer,
            PreparedTransactions(_transport=cluster.transport()) as prepared,
        ):
            writer.begin_transaction()
            writer.send("one", b"plain")
            token = writer.prepare_transaction()
            prepared.commit_prepared(token)
            with pytest.raises(AlreadyDecided):
                prepared.abort_prepared(token)
            writer.begin_transaction()
            writer.send("one", b"dropped")
            writer.abort_prepared(writer.prepare_transaction())

    await asyncio.to_thread(run)
    assert cluster.committed_values("one", 0) == [b"unit", b"plain"]
