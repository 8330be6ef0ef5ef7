"""A transactional producer on a cluster of the lab: what becomes visible, and what it does when something fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import Producer, bulk_partitioner
from headrace.errors import (
    ClientClosed,
    ErrorCode,
    HeadraceError,
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NoGroup,
    ProducerFenced,
    Then,
    TransactionAbortable,
    WaitTimedOut,
)
from headrace_common.core.batch import read_header
from headrace_common.core.ids import NodeId
from headrace_coordinator.core.transactions import producers, transaction
from headrace_coordinator.engine import transactions
from headrace_proto.v1 import broker_pb2 as pb

from .worlds import IMPATIENT, consumer, made, producer

LOST_ANSWER = Fault(Does.DROP, after=True)
TIMEOUT_S = 62.0
"""A little more than transactions may take by default."""


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    return made(labs)


async def test_what_was_committed_is_visible_at_once_and_begins_ask_nobody(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        for number in range(3):
            await writer.begin_transaction()
            for partition in range(3):
                await writer.send("t", b"%d" % number, partition=partition)
            await writer.flush()
            assert cluster.committed_values("t", 0) == [b"%d" % n for n in range(number)]
            await writer.commit_transaction()
        assert [cluster.committed_values("t", p) for p in range(3)] == [[b"0", b"1", b"2"]] * 3
    assert cluster.asked == ["init"] + ["enrol", "end"] * 3


async def test_each_transaction_has_an_epoch_and_begins_its_sequences_anew(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        for _ in range(2):
            async with writer.transaction():
                await writer.send("one", b"x")
                await writer.flush()
                await writer.send("one", b"y")
    headers = [read_header(entry.batch) for request in cluster.faults.produced for entry in request.partitions]
    assert [(h.producer_epoch, h.base_sequence) for h in headers] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(h.transactional for h in headers)
    assert {request.transactional_id for request in cluster.faults.produced} == {"billing"}


async def test_a_commit_does_not_linger(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000) as writer:
        async with writer.transaction():
            await writer.send("one", b"at once")
        assert cluster.committed_values("one", 0) == [b"at once"]


async def test_what_was_aborted_is_never_visible_and_what_was_not_sent_never_leaves(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000) as writer:
        await writer.begin_transaction()
        sent = await writer.send("one", b"sent")
        await writer.flush()
        kept = await writer.send("one", b"kept")
        await writer.abort_transaction()
        assert (await sent).offset == 0
        with pytest.raises(TransactionAbortable, match="aborted"):
            await kept
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.values("one", 0) == [b"sent", b"next"]
    assert cluster.committed_values("one", 0) == [b"next"]


async def test_an_exception_that_leaves_the_block_aborts_and_goes_on(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:

        async def fails() -> None:
            async with writer.transaction():
                await writer.send("one", b"x")
                await writer.flush()
                raise KeyError("the application's own")

        with pytest.raises(KeyError, match="own"):
            await fails()
        assert cluster.values("one", 0) == [b"x"]
        assert cluster.committed_values("one", 0) == []
        assert cluster.asked[-1] == "end"


async def test_an_empty_transaction_asks_nobody(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await writer.init_transactions()
        async with writer.transaction():
            pass
        await writer.begin_transaction()
        await writer.abort_transaction()
    assert cluster.asked == ["init"]


async def test_sending_outside_of_a_transaction_is_refused(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            await writer.send("one", b"x")
        async with writer.transaction():
            await writer.send("one", b"x")
        for attempt in (
            lambda: writer.send("one", b"y"),
            lambda: writer.send_many("one", [b"y"]),
            lambda: writer.send_offsets_to_transaction({("in", 0): 1}, "g"),
            writer.commit_transaction,
            writer.abort_transaction,
        ):
            with pytest.raises(InvalidTxnState):
                await attempt()
        await writer.flush()
        assert await writer.partitions_for("t") == 3
    assert cluster.values("one", 0) == [b"x"]


async def test_other_producers_have_no_transactions(cluster: LabCluster) -> None:
    async with producer(cluster, None) as plain:
        with pytest.raises(InvalidTxnState, match="transactional_id"):
            await plain.begin_transaction()
        await plain.send("one", b"x")
    assert not cluster.faults.produced[0].HasField("transactional_id")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"transactional_id": ""}, "1 to 249"),
        ({"transactional_id": "x", "acks": 1}, "enable_idempotence"),
        ({"transactional_id": "x", "enable_idempotence": False}, "enable_idempotence"),
        ({"transactional_id": "owner/1"}, "owner_epoch"),
        ({"transactional_id": "x", "owner_epoch": 3}, "owner/suffix"),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, "transaction_timeout_ms"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        Producer(**given)


async def test_a_refused_timeout_is_told_by_the_first_begin(cluster: LabCluster) -> None:
    async with producer(cluster, transaction_timeout_ms=10**9) as writer:
        for attempt in (writer.begin_transaction, writer.init_transactions, writer.abort_transaction):
            with pytest.raises(InvalidTransactionTimeout) as raised:
                await attempt()
            assert raised.value.then is Then.FENCED, "no abort helps"


async def test_settings_and_what_is_undecided_end_the_loop_of_a_worker(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        for group, automatic, error in ((None, False, NoGroup), ("g", True, InvalidConfig)):
            async with consumer(cluster, "one", group_id=group, enable_auto_commit=automatic) as reader:
                with pytest.raises(error) as raised:
                    async with writer.transaction(reader):
                        pass
            assert raised.value.then is Then.FENCED
        await writer.begin_transaction()
        await writer.send("one", b"x")
        await writer.prepare_transaction()
    async with producer(cluster) as again:
        with pytest.raises(InvalidTxnState, match="commit_prepared") as undecided:
            async with again.transaction():
                pass
        assert undecided.value.then is Then.FENCED


# --- coordinators that fail --------------------------------------------------------------------------------------


async def test_a_lost_answer_is_asked_for_again_and_commits_once(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        cluster.inject("init_transactional_id", LOST_ANSWER)
        cluster.inject("end_txn", LOST_ANSWER, LOST_ANSWER)
        for value in (b"one", b"two"):
            async with writer.transaction():
                await writer.send("one", value)
    asked = cluster.faults.asked
    assert [asked.count(api) for api in ("init_transactional_id", "end_txn")] == [2, 4]
    assert cluster.committed_values("one", 0) == [b"one", b"two"]
    markers = [read_header(batch) for batch in cluster.log("one", 0).batches if read_header(batch).control]
    assert [m.producer_epoch for m in markers] == [2, 3], "the introduction was carried out twice, each end once"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
async def test_what_passes_is_waited_for(cluster: LabCluster, code: ErrorCode) -> None:
    finds = 0

    def count(api: str, broker: int, request: Any) -> None:
        nonlocal finds
        finds += api == "find_transaction_coordinator"

    cluster.on_request = count
    async with producer(cluster) as writer:
        for api in ("init_transactional_id", "end_txn"):
            cluster.inject(api, Fault(Does.ERROR, code=code), Fault(Does.ERROR, code=code))
        async with writer.transaction():
            await writer.send("one", b"x")
    assert cluster.committed_values("one", 0) == [b"x"]
    stays = code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
    assert finds == (1 if stays else 5)


async def test_a_commit_that_nobody_answers_ends_in_time_and_can_be_made_again(cluster: LabCluster) -> None:
    async with producer(cluster, **IMPATIENT) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"x")
        await writer.flush()
        cluster.refuse()
        with pytest.raises(WaitTimedOut) as raised:
            await writer.commit_transaction()
        assert raised.value.then is Then.RETRY
        with pytest.raises(InvalidTxnState, match="commit_transaction"):
            await writer.abort_transaction()
        with pytest.raises(InvalidTxnState):
            await writer.send("one", b"y")
        cluster.accept()
        await writer.commit_transaction()
        assert cluster.committed_values("one", 0) == [b"x"]
        async with writer.transaction():
            await writer.send("one", b"y")
    assert cluster.committed_values("one", 0) == [b"x", b"y"]


async def test_the_next_block_settles_what_the_last_left_open(cluster: LabCluster) -> None:
    async with producer(cluster, **IMPATIENT) as writer:

        async def loses_its_coordinator() -> None:
            async with writer.transaction():
                await writer.send("one", b"unsure")
                await writer.flush()
                cluster.refuse()

        for aborted in (False, True):
            with pytest.raises(WaitTimedOut):
                await loses_its_coordinator()
            cluster.accept()
            if aborted:
                cluster.pass_time(TIMEOUT_S)
            async with writer.transaction():
                await writer.send("one", b"next")
    assert cluster.committed_values("one", 0) == [b"unsure", b"next", b"next"]


async def test_a_cancelled_commit_can_be_made_again(cluster: LabCluster) -> None:
    release = asyncio.Event()
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"x")
        cluster.inject("end_txn", Fault(Does.HOLD, until=release))
        committing = asyncio.ensure_future(writer.commit_transaction())
        while "enrol" not in cluster.asked:
            await asyncio.sleep(0.01)
        await writer.flush()
        await asyncio.sleep(0.01)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        await writer.commit_transaction()
    assert cluster.committed_values("one", 0) == [b"x"]


async def test_a_silent_coordinator_is_not_waited_for_without_end(cluster: LabCluster) -> None:
    never = asyncio.Event()
    async with producer(cluster, **IMPATIENT) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"x")
        for api in ("end_txn", "find_transaction_coordinator"):
            cluster.on_request = lambda asked, *_, silent=api: (
                Fault(Does.HOLD, until=never) if asked == silent else None
            )
            writer._engine.transactions._asking.link.known = None
            with pytest.raises(WaitTimedOut):
                await writer.commit_transaction()
        cluster.on_request = None
        await writer.commit_transaction()
    assert cluster.committed_values("one", 0) == [b"x"]


async def test_a_silent_coordinator_is_left_once_another_has_taken_over(labs: Labs) -> None:
    cluster = made(labs, coordinators=2)
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"x")
        await writer.flush()
        cluster.pause_coordinator()
        await writer.commit_transaction()
        assert writer._engine.transactions._asking.link.known.node == 2
    assert cluster.committed_values("one", 0) == [b"x"]


async def test_nobody_to_introduce_oneself_to_is_told_in_time(cluster: LabCluster) -> None:
    cluster.refuse()
    async with producer(cluster, **IMPATIENT) as writer:
        with pytest.raises(WaitTimedOut, match="init_transactions"):
            await writer.begin_transaction()
        cluster.accept()
        async with writer.transaction():
            await writer.send("one", b"x")
    assert cluster.committed_values("one", 0) == [b"x"]


# --- fences and timeouts -----------------------------------------------------------------------------------------


async def test_a_newer_producer_fences_the_older_for_good(cluster: LabCluster) -> None:
    async with producer(cluster) as old, producer(cluster) as new:
        await old.begin_transaction()
        await old.send("one", b"old")
        await old.flush()
        async with new.transaction():
            await new.send("one", b"new")
        late = await old.send("one", b"late")
        with pytest.raises(HeadraceError):
            await late
        with pytest.raises(TransactionAbortable):
            await old.commit_transaction()
        with pytest.raises(ProducerFenced) as raised:
            await old.abort_transaction()
        assert raised.value.then is Then.FENCED
        for attempt in (old.begin_transaction, old.commit_transaction, lambda: old.send("one", b"x")):
            with pytest.raises(ProducerFenced) as again:
                await attempt()
            assert again.value.then is Then.FENCED
    assert cluster.committed_values("one", 0) == [b"new"]


async def test_a_transaction_that_took_too_long_is_aborted_and_the_producer_goes_on(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"early")
        await writer.flush()
        cluster.pass_time(TIMEOUT_S)
        with pytest.raises(TransactionAbortable) as raised:
            await writer.commit_transaction()
        assert raised.value.then is Then.ABORT
        with pytest.raises(TransactionAbortable):
            await writer.send("one", b"x")
        await writer.abort_transaction()
        async with writer.transaction():
            await writer.send("one", b"again")
    assert cluster.committed_values("one", 0) == [b"again"]


async def test_a_transaction_takes_as_long_as_its_producer_said(cluster: LabCluster) -> None:
    async with (
        producer(cluster, transaction_timeout_ms=3_000) as writer,
        consumer(cluster, "one", group_id=None, isolation_level="read_committed") as reader,
    ):
        await writer.begin_transaction()
        await writer.send("one", b"early")
        await writer.flush()
        await asyncio.sleep(2.5)
        await (await writer.send("one", b"in time"))
        await asyncio.sleep(2.5)
        reader.seek_to_end(("one", 0))
        assert await reader.position(("one", 0)) == 3, "readers are not held back"
        with pytest.raises(TransactionAbortable):
            await writer.commit_transaction()
        await writer.abort_transaction()
        async with writer.transaction():
            await writer.send("one", b"again")
            await asyncio.sleep(2.5)
    assert cluster.committed_values("one", 0) == [b"again"]


async def test_what_is_sent_after_the_timeout_is_refused_and_nothing_more_leaves(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"early")
        await writer.flush()
        cluster.pass_time(TIMEOUT_S)
        late = await writer.send("one", b"late")
        with pytest.raises(InvalidProducerEpoch) as raised:
            await late
        assert raised.value.then is Then.ABORT
        with pytest.raises(TransactionAbortable):
            await writer.send("one", b"x")
        await writer.abort_transaction()
        async with writer.transaction():
            await writer.send("one", b"again")
    assert cluster.committed_values("one", 0) == [b"again"]


async def test_a_partition_that_the_transaction_never_touched_refuses_it_after_its_end(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("t", b"x", partition=0)
        await writer.flush()
        cluster.pass_time(TIMEOUT_S)
        with pytest.raises(HeadraceError, match="has ended"):
            await (await writer.send("t", b"x", partition=1))
    assert cluster.values("t", 1) == []


async def test_an_id_that_expired_is_over(labs: Labs) -> None:
    cluster = made(labs, transactions={"transactional_id_check_interval_ms": 1_000})
    async with producer(cluster) as writer:
        await writer.init_transactions()
        cluster.nodes.jump_clocks(days=8)
        await asyncio.sleep(5)
        await writer.begin_transaction()
        with pytest.raises(HeadraceError) as raised:
            await (await writer.send("one", b"x"))
        assert raised.value.then is Then.FENCED
        with pytest.raises(HeadraceError) as raised:
            await writer.abort_transaction()
        assert raised.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_epochs_that_run_out_bring_another_producer_id(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (producers, transaction, transactions):
        monkeypatch.setattr(module, "EPOCH_LAST", 1)
    async with producer(cluster) as writer:
        for number in range(3):
            async with writer.transaction():
                await writer.send("one", b"%d" % number)
    assert cluster.committed_values("one", 0) == [b"0", b"1", b"2"]
    headers = [read_header(entry.batch) for request in cluster.faults.produced for entry in request.partitions]
    [old, new] = dict.fromkeys(header.producer_id for header in headers)
    written = [(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers]
    assert written == [(old, 0, 0), (old, 1, 0), (new, 0, 0)]


# --- deliveries that fail ----------------------------------------------------------------------------------------


async def test_an_undelivered_record_leaves_only_the_abort_and_late_answers_count_for_nothing(
    cluster: LabCluster,
) -> None:
    async with producer(cluster, **IMPATIENT) as writer:
        await writer.init_transactions()
        await writer.partitions_for("t")
        await writer.begin_transaction()
        for broker in cluster.brokers:
            cluster.pause(broker)
        deliveries = [await writer.send("t", b"late", partition=partition) for partition in range(3)]
        with pytest.raises(TransactionAbortable) as raised:
            await writer.commit_transaction()
        assert raised.value.then is Then.ABORT
        told = [delivery.exception() for delivery in deliveries]
        assert all(error is not None and error.then is Then.ABORT for error in told)
        for broker in cluster.brokers:
            cluster.resume(broker)
        await writer.abort_transaction()
        async with writer.transaction():
            again = [await writer.send("t", b"again", partition=partition) for partition in range(3)]
        assert all(delivery.exception() is None for delivery in again)
        assert writer._intake.within(lambda: writer._intake.available) == writer._settings.buffer_memory
    assert [cluster.committed_values("t", p) for p in range(3)] == [[b"again"]] * 3


async def test_answers_to_a_dropped_transaction_do_not_disturb_the_next(cluster: LabCluster) -> None:
    release = asyncio.Event()
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        cluster.inject("produce", Fault(Does.HOLD, after=True, until=release))
        dropped = await writer.send("one", b"dropped")
        while not cluster.values("one", 0):
            await asyncio.sleep(0.01)
        await writer.abort_transaction()
        with pytest.raises(TransactionAbortable):
            await dropped
        await writer.begin_transaction()
        kept = await writer.send("one", b"kept")
        assert (await kept).offset == 2, "behind the marker"
        release.set()
        await asyncio.sleep(0.01)
        await writer.commit_transaction()
    assert cluster.committed_values("one", 0) == [b"kept"]


async def test_a_batch_that_is_carried_out_after_its_abort_is_refused(cluster: LabCluster) -> None:
    release = asyncio.Event()
    async with producer(cluster) as writer:
        await writer.begin_transaction()
        await writer.send("one", b"first")
        await writer.flush()
        cluster.inject("produce", Fault(Does.HOLD, until=release))
        await writer.send("one", b"late")
        while len(cluster.faults.queued["produce"]):
            await asyncio.sleep(0.01)
        await writer.abort_transaction()
        cluster.wait_until_decided("one")
        release.set()
        async with writer.transaction():
            await writer.send("one", b"next")
    assert cluster.values("one", 0) == [b"first", b"next"]
    assert cluster.committed_values("one", 0) == [b"next"]


async def test_the_next_transaction_waits_for_markers_of_the_last(cluster: LabCluster) -> None:
    async with producer(cluster) as writer:
        release = asyncio.Event()
        cluster.inject("write_txn_markers", Fault(Does.HOLD, until=release))
        async with writer.transaction():
            await writer.send("one", b"first")
        assert cluster.committed_values("one", 0) == [], "decided, and not written yet"
        await writer.begin_transaction()
        next_one = await writer.send("one", b"second")
        await asyncio.sleep(1)
        assert not next_one.done()
        release.set()
        await writer.commit_transaction()
    assert cluster.committed_values("one", 0) == [b"first", b"second"]


async def test_a_partitioner_that_raises_breaks_the_transaction(cluster: LabCluster) -> None:
    @bulk_partitioner
    def broken(topic: str, keys: Any, partitions: int) -> list[int]:
        if b"bad" in keys:
            raise ValueError("no")
        return [0] * len(keys)

    async with producer(cluster, partitioner=broken) as writer:
        await writer.begin_transaction()
        await writer.send("t", b"good", key=b"good")
        await writer.flush()
        await writer.send("t", b"bad", key=b"bad")
        with pytest.raises(TransactionAbortable, match="partitioner"):
            await writer.commit_transaction()
        await writer.abort_transaction()
        async with writer.transaction():
            await writer.send("t", b"good", key=b"good")
    assert cluster.committed_values("t", 0) == [b"good"]


async def test_a_leader_that_moves_in_the_middle_changes_nothing(cluster: LabCluster) -> None:
    async with producer(cluster) as writer, writer.transaction():
        await writer.send("one", b"before")
        await writer.flush()
        cluster.move_leader("one", 0, 2)
        await writer.send("one", b"after")
    assert cluster.committed_values("one", 0) == [b"before", b"after"]


async def test_what_leaves_has_the_bit_and_the_id_together(cluster: LabCluster) -> None:
    async with producer(cluster) as writer, writer.transaction():
        await writer.send("one", b"x")
    [request] = cluster.faults.produced
    plain = pb.ProduceRequest()
    plain.CopyFrom(request)
    plain.ClearField("transactional_id")
    transport = cluster.transport()
    await transport.metadata(pb.MetadataRequest())
    [result] = (await transport.produce_stream(NodeId(cluster.leader("one")[0] or 0)).send(plain)).partitions
    await transport.close()
    assert result.error == ErrorCode.INVALID_TXN_STATE


# --- the end of the producer -------------------------------------------------------------------------------------


async def test_closing_aborts_what_is_open(cluster: LabCluster) -> None:
    writer = producer(cluster)
    await writer.begin_transaction()
    await writer.send("one", b"x")
    await writer.flush()
    await writer.close()
    assert cluster.committed_values("one", 0) == []
    assert not cluster.log("one").undecided
    with pytest.raises(ClientClosed):
        await writer.begin_transaction()


async def test_closing_does_not_wait_for_a_coordinator_that_is_away(
    cluster: LabCluster, caplog: pytest.LogCaptureFixture
) -> None:
    writer = producer(cluster, **IMPATIENT)
    await writer.begin_transaction()
    await writer.send("one", b"x")
    await writer.flush()
    cluster.refuse()
    await writer.close()
    assert "ends by its timeout" in caplog.text


# --- threads -----------------------------------------------------------------------------------------------------


def test_the_sync_twin(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport(), transactional_id="sync", linger_ms=1_000) as writer:
        with writer.transaction():
            writer.send("one", b"one")

        def fails() -> None:
            with writer.transaction():
                writer.send("one", b"never")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fails()
        writer.begin_transaction()
        writer.send_many("one", [b"two", b"three"])
        writer.commit_transaction()
        with pytest.raises(InvalidTxnState):
            writer.send("one", b"x")
        writer.begin_transaction()
        writer.send("one", b"aborted")
        writer.abort_transaction()
        assert writer.init_transactions() is None
    assert cluster.committed_values("one", 0) == [b"one", b"two", b"three"]
    assert cluster.asked == ["init"] + ["enrol", "end"] * 2
