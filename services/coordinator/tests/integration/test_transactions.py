"""
Real etcd, controller, brokers and coordinators: transactions whose coordinator, or whose partitions' leader, is killed
at each step. Afterwards each is whole or nothing, and its id goes on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from services.coordinator.tests.kit.processes import START_S, Cluster, answered, running_cluster
from services.coordinator.tests.kit.transactional import (
    TransactionalProducer,
    asked,
    coordinator_of,
    until_stable,
    visible,
)

from headrace_common.core.errors import FencedOwner, HeadraceError, ProducerFenced, TransactionAbortable
from headrace_proto.v1 import transaction_pb2 as pb

pytestmark = pytest.mark.integration

STEPS = (
    "txn.enrol.write.before",
    "txn.enrol.write.after",
    "txn.prepare.write.before",
    "txn.prepare.write.after",
    "txn.end.answer.before",
    "txn.end.answer.after",
    "txn.marker.send.before",
    "txn.marker.send.after",
    "txn.complete.write.before",
    "txn.complete.write.after",
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        await found.create_topic("t", 2)
        yield found


async def hit(path: Path) -> int:
    """The process that came to a fault; once one has."""
    async with asyncio.timeout(START_S):
        while not path.exists():
            await asyncio.sleep(0.02)
    return int(path.read_text())


async def write(producer: TransactionalProducer, value: str, *, commit: bool) -> None:
    """One transaction over both partitions."""
    for partition in (0, 1):
        await producer.send("t", partition, value.encode())
    await producer.end(commit=commit)


async def test_transactions_follow_each_other(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    for number in range(20):
        await write(producer, f"v{number}", commit=number % 3 != 2)
    expected = [f"v{number}".encode() for number in range(20) if number % 3 != 2]
    assert await until_stable(cluster, "t", 0) == expected
    assert await until_stable(cluster, "t", 1) == expected
    assert producer.epoch == 20


async def test_what_is_open_holds_readers_back_and_a_newer_producer_ends_it(cluster: Cluster) -> None:
    old = TransactionalProducer(cluster, "x")
    await old.init()
    await old.send("t", 0, b"open")
    assert await visible(cluster, "t", 0) == ([], False)
    new = TransactionalProducer(cluster, "x")
    await new.init()
    with pytest.raises(ProducerFenced):
        await old.end(commit=True)
    await write(new, "kept", commit=True)
    assert await until_stable(cluster, "t", 0) == [b"kept"]


async def test_a_transaction_past_its_timeout_is_aborted(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init(timeout_ms=500)
    await producer.send("t", 0, b"late")
    assert await until_stable(cluster, "t", 0) == []
    with pytest.raises(HeadraceError):
        await producer.end(commit=True)


async def test_coordinators_are_killed_at_each_step(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    await write(producer, "first", commit=True)
    expected = [b"first"]
    for number, step in enumerate(STEPS):
        commit = number % 2 == 0
        fault = cluster.arm(step)
        await write(producer, step, commit=commit)
        killed = await hit(fault)
        (process,) = [one for one in cluster.coordinators if one.pid == killed]
        expected += [step.encode()] if commit else []
        assert await until_stable(cluster, "t", 0) == expected, step
        assert await until_stable(cluster, "t", 1) == expected, step
        await process.stop(signal.SIGKILL)
        await process.start()
    await write(producer, "last", commit=True)
    assert await until_stable(cluster, "t", 0) == [*expected, b"last"]


async def test_prepared_transactions_and_units_outlive_their_coordinator(cluster: Cluster) -> None:
    owner = await asked(cluster, "job", "InitOwner", pb.InitOwnerRequest(owner="job"))
    producers = [TransactionalProducer(cluster, f"job/{n}", owner_epoch=owner.owner_epoch) for n in range(3)]
    tokens = []
    for producer in producers:
        await producer.init()
        await producer.send("t", 0, producer.id.encode())
        tokens.append(await producer.prepare())
    for sequence, step in enumerate(("txn.unit.write.before", "txn.unit.write.after")):
        fault = cluster.arm(step)
        request = pb.CommitUnitRequest(
            owner="job", owner_epoch=owner.owner_epoch, sequence=sequence, tokens=tokens[sequence : sequence + 1]
        )
        if sequence == 0:
            request.tokens.append(tokens[1])
            await asked(cluster, "job", "CommitUnit", request)
        else:
            fresh = TransactionalProducer(cluster, "job/9", owner_epoch=owner.owner_epoch)
            await fresh.init()
            await fresh.send("t", 0, b"job/9")
            del request.tokens[:]
            request.tokens.append(await fresh.prepare())
            await asked(cluster, "job", "CommitUnit", request)
        killed = await hit(fault)
        (process,) = [one for one in cluster.coordinators if one.pid == killed]
        await process.stop(signal.SIGKILL)
        await process.start()
    assert sorted(await until_stable(cluster, "t", 0)) == [b"job/0", b"job/1", b"job/9"]


async def test_an_owner_is_claimed_whatever_happens_to_its_coordinator(cluster: Cluster) -> None:
    def claimed(number: int) -> Coroutine[Any, Any, pb.InitOwnerResponse]:
        return asked(cluster, "job", "InitOwner", pb.InitOwnerRequest(owner="job", claim=number))

    async def prepared(name: str, epoch: int) -> pb.PreparedToken:
        producer = TransactionalProducer(cluster, name, owner_epoch=epoch)
        await producer.init()
        await producer.send("t", 0, name.encode())
        return await producer.prepare()

    def unit(epoch: int, sequence: int, token: pb.PreparedToken) -> Coroutine[Any, Any, pb.CommitUnitResponse]:
        request = pb.CommitUnitRequest(owner="job", owner_epoch=epoch, sequence=sequence, tokens=[token])
        return asked(cluster, "job", "CommitUnit", request)

    epoch = 0
    assert [one.owner_epoch for one in await asyncio.gather(*(claimed(0) for _ in range(3)))] == [epoch] * 3
    for sequence, step in enumerate(("txn.owner.write.before", "txn.owner.write.after")):
        left = await prepared(f"job/left-{sequence}", epoch)
        fault = cluster.arm(step)
        epoch += 1
        answers = await asyncio.gather(*(claimed(epoch) for _ in range(3)))
        assert [(one.owner_epoch, one.last_sequence) for one in answers] == [(epoch, sequence - 1)] * 3, step
        killed = await hit(fault)
        (process,) = [one for one in cluster.coordinators if one.pid == killed]
        with pytest.raises(TransactionAbortable):
            await unit(epoch, sequence, left)
        token = await prepared(f"job/{sequence}", epoch)
        with pytest.raises(FencedOwner):
            await claimed(epoch - 1)
        with pytest.raises(FencedOwner):
            await unit(epoch - 1, sequence, token)
        assert (await claimed(epoch)).owner_epoch == epoch, "and nothing of it is aborted"
        await unit(epoch, sequence, token)
        await process.stop(signal.SIGKILL)
        await process.start()
    assert await until_stable(cluster, "t", 0) == [b"job/0", b"job/1"]


async def test_a_plain_prepared_transaction_waits_for_its_decision(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init(timeout_ms=500)
    await producer.send("t", 0, b"prepared")
    token = await producer.prepare()
    node_id, _ = await coordinator_of(cluster, "x")
    await cluster.of(node_id).stop(signal.SIGKILL)
    found = await TransactionalProducer(cluster, "x").init()
    assert found.prepared == token
    assert await visible(cluster, "t", 0) == ([], False)
    decided = await asked(cluster, "x", "DecidePrepared", pb.DecidePreparedRequest(token=token, commit=True))
    assert decided.committed
    assert await until_stable(cluster, "t", 0) == [b"prepared"]
    again = await asked(cluster, "x", "DecidePrepared", pb.DecidePreparedRequest(token=token, commit=False))
    assert again.committed, "the verdict that was given"


async def test_a_coordinator_that_leaves_hands_open_transactions_over(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    await producer.send("t", 0, b"kept")
    node_id, _ = await coordinator_of(cluster, "x")
    assert await cluster.of(node_id).stop(signal.SIGTERM) == 0
    await producer.end(commit=True)
    assert await until_stable(cluster, "t", 0) == [b"kept"]


async def test_a_coordinator_that_was_paused_decides_nothing_any_more(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    await producer.send("t", 0, b"aborted")
    node_id, zombie = await coordinator_of(cluster, "x")
    cluster.of(node_id).send(signal.SIGSTOP)
    late = pb.EndTxnRequest(
        transactional_id="x", producer_id=producer.producer_id, producer_epoch=producer.epoch, commit=True
    )
    under_way = asyncio.ensure_future(answered(zombie.EndTxn(late)))  # it waits in the socket of who is paused
    await producer.end(commit=False)
    assert await until_stable(cluster, "t", 0) == []
    cluster.of(node_id).send(signal.SIGCONT)
    with pytest.raises(HeadraceError):
        await under_way
    await write(producer, "next", commit=True)
    assert await until_stable(cluster, "t", 0) == [b"next"]


async def test_operators_list_describe_and_abort(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    await producer.send("t", 1, b"open")
    _, stub = await coordinator_of(cluster, "x")
    listed = await answered(stub.ListTransactions(pb.ListTransactionsRequest(states=[pb.TXN_ONGOING])))
    assert [one.transactional_id for one in listed.transactions] == ["x"]
    asks = pb.DescribeTransactionsRequest(transactional_ids=["x"])
    found = (await answered(stub.DescribeTransactions(asks))).transactions[0]
    assert (found.state, [one.partition for one in found.partitions]) == (pb.TXN_ONGOING, [1])
    await answered(stub.AbortTransaction(pb.AbortTransactionRequest(transactional_id="x")))
    assert await until_stable(cluster, "t", 1) == []


async def test_leaders_are_killed_while_markers_are_under_way(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=3, coordinators=1) as cluster:
        await cluster.create_topic("t", 2)
        producer = TransactionalProducer(cluster, "x")
        await producer.init()
        expected = []
        for number, step in enumerate(("txn.marker.append.before", "txn.marker.append.after")):
            fault = cluster.arm(step)
            await write(producer, step, commit=True)
            expected.append(step.encode())
            killed = await hit(fault)
            (process,) = [one for one in cluster.brokers if one.pid == killed]
            await process.stop(signal.SIGKILL)
            assert await until_stable(cluster, "t", 0) == expected
            assert await until_stable(cluster, "t", 1) == expected
            await process.start()
            await write(producer, f"after-{number}", commit=True)
            expected.append(f"after-{number}".encode())
        assert await until_stable(cluster, "t", 0) == expected
