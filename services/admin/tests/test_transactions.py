"""Transactions of a cluster in the lab: who is asked, what hangs, and what is ended."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs
from services.admin.tests.kit.world import World

from headrace_admin.adapters.otel_waiting import GAUGES
from headrace_admin.config import TransactionLimits
from headrace_admin.core.status import State
from headrace_admin.core.transactions import Standing, Waiting
from headrace_admin.engine import open_transactions
from headrace_admin.engine.leaders import Patience
from headrace_admin.engine.open_transactions import EndedHanging
from headrace_admin.engine.transactions import Listing, PreparedListing
from headrace_admin.engine.waiting_watch import WaitingWatch
from headrace_admin.ports import CoordinatorPlace
from headrace_cli.local.plan import JUDGED_BY_ADMIN
from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidTxnState,
    NetworkFailed,
    NotCoordinator,
    NotFound,
    Rejected,
    TransactionalIdNotFound,
    TxnVerdictUnknown,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NodeId, TopicPartition
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_proto.v1 import transaction_pb2 as pb

MINUTE_MS = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def lab(labs: Labs) -> LabCluster:
    """The internal topics are well with two of the brokers."""
    return labs(3, coordinators=2)


@pytest.fixture
async def world(lab: LabCluster, world: World) -> World:
    """Topic t, whose leaders are brokers 1 and 2 alone, with 100 and 900 records."""
    lab.create_topic("t", on=[[1], [2]])
    await world.fill("t", 0, 100)
    await world.fill("t", 1, 900)
    return world


def age(world: World, minutes: float) -> None:
    """All wall clocks go ahead."""
    world.lab.nodes.jump_clocks(minutes=minutes)


async def hang(world: World, partition: int = 0, *, minutes: float = 20) -> int:
    """A transaction is open in the log for so long, and nobody knows of it; the producer's id."""
    producer_id = await world.hang("t", partition)
    age(world, minutes)
    return producer_id


def stable(world: World, partition: int) -> int:
    """Up to where readers of what is committed come."""
    return world.lab.log("t", partition).stable_end


def all_is_read(world: World, partition: int) -> bool:
    """Whether nothing holds readers back, once markers are written."""
    world.lab.wait_until_decided("t", partition)
    return not world.lab.log("t", partition).undecided


def ids(listed: Listing | PreparedListing) -> list[str]:
    return [t.transaction.transactional_id for t in listed.transactions]


class TestLooking:
    async def test_looking_makes_nothing(self, world: World) -> None:
        transactions = world.engines.transactions
        assert (await transactions.listing(pb.ListTransactionsRequest())).transactions == ()
        assert isinstance((await transactions.describe(["a"]))["a"], TransactionalIdNotFound)
        assert (await transactions.prepared()).transactions == ()
        with pytest.raises(TransactionalIdNotFound):
            await transactions.abort("a")
        token = pb.PreparedToken(transactional_id="a", nonce=1)
        with pytest.raises(TransactionalIdNotFound):
            await transactions.decide(pb.DecidePreparedRequest(token=token))
        assert world.image.topic(INTERNAL_TOPICS[ShardKind.TRANSACTIONS]) is None

    async def test_lists_come_from_all_coordinators_by_state_producer_and_age(self, world: World) -> None:
        for n in reversed(range(8)):
            await world.begin(f"id-{n}", T0)
            age(world, minutes=1 if n else 0)
        await world.producers["id-7"].commit_transaction()
        assert not all_is_read(world, 0)
        listing = world.engines.transactions.listing
        everything = await listing(pb.ListTransactionsRequest())
        assert ids(everything) == [f"id-{n}" for n in range(8)]
        assert {t.coordinator for t in everything.transactions} == {1, 2}
        assert ids(await listing(pb.ListTransactionsRequest(states=[pb.TXN_COMPLETE_COMMIT]))) == ["id-7"]
        producers = [everything.transactions[n].transaction.producer_id for n in (3, 5)]
        assert ids(await listing(pb.ListTransactionsRequest(producer_ids=producers))) == ["id-3", "id-5"]
        assert ids(await listing(pb.ListTransactionsRequest(older_than_ms=5 * MINUTE_MS))) == ["id-5", "id-6"]
        for wrong in (pb.ListTransactionsRequest(states=[pb.TXN_STATE_UNSPECIFIED]), {"older_than_ms": -1}):
            with pytest.raises(Rejected):
                await listing(wrong if not isinstance(wrong, dict) else pb.ListTransactionsRequest(**wrong))

    async def test_a_list_says_which_shards_are_missing(self, world: World) -> None:
        await world.make_shards(ShardKind.TRANSACTIONS)
        owned = [(key.number, shard.owner) for key, shard in sorted(world.image.shards.items())]
        first = next(number for number, who in owned if who == 1)
        ask = world.transaction_calls.ListTransactions

        async def loading(place: CoordinatorPlace, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
            answer = await ask(place, request)
            answer.loading.append(first)
            return answer

        world.transaction_calls.ListTransactions = loading
        world.lab.refuse("coordinator-2")
        listed = await world.engines.transactions.listing(pb.ListTransactionsRequest())
        assert [(u.shard, u.coordinator, type(u.error)) for u in listed.unanswered] == [
            (number, who, CoordinatorLoading if who == 1 else NetworkFailed)
            for number, who in owned
            if who == 2 or number == first
        ]

    async def test_a_list_is_whole_or_says_what_is_missing_also_while_coordinators_start_again(
        self, world: World
    ) -> None:
        for n in range(4):
            await world.begin(f"id-{n}", T0)
        for number in (1, 2):
            world.lab.kill_coordinator(number)
            world.lab.restart_coordinator(number)
        for _ in range(200):
            listed = await world.engines.transactions.listing(pb.ListTransactionsRequest())
            assert listed.unanswered or len(listed.transactions) == 4
            await asyncio.sleep(0.001)
        assert not listed.unanswered

    async def test_shards_that_move_while_their_coordinators_are_asked_are_missing(self, world: World) -> None:
        for n in range(4):
            await world.begin(f"id-{n}", T0)
        await world.lab.nodes.stop(coordinator=2)
        await world.make_shards(ShardKind.TRANSACTIONS)
        ask = world.transaction_calls.ListTransactions

        def moved() -> list[int]:
            return [key.number for key, shard in sorted(world.image.shards.items()) if shard.owner == 2]

        async def late(place: CoordinatorPlace, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
            world.lab.restart_coordinator(2)
            while not moved():
                await asyncio.sleep(0.01)
            return await ask(place, request)

        assert moved() == []
        world.transaction_calls.ListTransactions = late
        listed = await world.engines.transactions.listing(pb.ListTransactionsRequest())
        assert [(u.shard, u.coordinator, type(u.error)) for u in listed.unanswered] == [
            (number, 1, NotCoordinator) for number in moved()
        ]

    async def test_partitions_are_named_with_those_that_do_not_know_of_the_end(self, world: World) -> None:
        await world.begin("pay", T1, T0)
        world.lab.kill(2)
        await world.producers["pay"].commit_transaction()
        await asyncio.sleep(1)
        one = await world.engines.transactions.one("pay")
        assert (one.partitions, one.without_marker) == ((T0, T1), {T1})

    async def test_partitions_are_named_also_where_the_topic_is_gone(self, world: World) -> None:
        topic_id = world.image.topic_ids["t"]
        await world.begin("pay", T1, T0)
        world.lab.delete_topic("t")
        one = await world.engines.transactions.one("pay")
        assert [p.topic for p in one.partitions] == [topic_id.hex()] * 2

    async def test_prepared_ones_come_oldest_first_with_their_tokens(self, world: World) -> None:
        await world.begin("id-3", T0)
        await world.begin("other", T0)
        for i, minutes in (("id-1", 6), ("id-2", 2), ("id-0", 0)):
            await world.begin(i, T0)
            token = await world.prepare(i)
            age(world, minutes)
        await world.prepare("id-3")
        prepared = await world.engines.transactions.prepared()
        assert ids(prepared) == ["id-1", "id-2", "id-0", "id-3"]
        assert prepared.transactions[2].transaction.token == token
        old = await world.engines.transactions.prepared(5 * MINUTE_MS)
        assert [d.transaction.token.transactional_id for d in old.transactions] == ["id-1"]
        assert "id-3" not in ids(old), "open for long, not prepared"


class TestEnding:
    @pytest.mark.parametrize("lost", [0, 1])
    @pytest.mark.parametrize("commit", [True, False])
    async def test_a_token_decides_once_and_tells_the_verdict_again(
        self, world: World, commit: bool, lost: int
    ) -> None:
        await world.begin("pay", T0)
        token = await world.prepare("pay")
        world.lab.inject("decide_prepared", *[Fault(Does.DROP, after=True)] * lost)
        decide = world.engines.transactions.decide
        assert (await decide(pb.DecidePreparedRequest(token=token, commit=commit))).committed == commit
        assert (await decide(pb.DecidePreparedRequest(token=token, commit=not commit))).committed == commit
        assert not world.lab.faults.queued.get("decide_prepared")
        assert all_is_read(world, 0)
        await world.producers.pop("pay").close()
        await world.begin("pay", T0)
        next_token = await world.prepare("pay")
        await decide(pb.DecidePreparedRequest(token=next_token))
        with pytest.raises(TxnVerdictUnknown):
            await decide(pb.DecidePreparedRequest(token=token, commit=commit))

    async def test_an_abort_ends_what_was_seen_open(self, world: World) -> None:
        await world.begin("pay", T0, T1)
        abort = world.engines.transactions.abort
        planned = await abort("pay", validate_only=True)
        seen = planned.before.transaction
        assert (planned.aborted, seen.state, stable(world, 0)) == (False, pb.TXN_ONGOING, 100)
        for wrong in ({"producer_id": seen.producer_id + 1}, {"producer_epoch": seen.producer_epoch + 1}):
            with pytest.raises(InvalidTxnState):
                await abort("pay", **wrong)
        done = await abort("pay", seen.producer_id, seen.producer_epoch)
        assert (done.aborted, done.before.partitions) == (True, (T0, T1))
        assert all_is_read(world, 0)
        assert all_is_read(world, 1)

    async def test_an_abort_whose_answer_is_lost_is_told_again_and_leaves_the_next_transaction_alone(
        self, world: World
    ) -> None:
        await world.begin("pay", T0)
        tell = world.transaction_calls.AbortTransaction
        told: list[pb.AbortTransactionRequest] = []

        async def lost_abort(
            place: CoordinatorPlace, request: pb.AbortTransactionRequest
        ) -> pb.AbortTransactionResponse:
            answer = await tell(place, request)
            told.append(request)
            if len(told) == 1:
                world.producers["first"] = world.producers.pop("pay")
                await world.begin("pay", T0)  # the next transaction
                raise NetworkFailed("the connection broke before the answer came")
            return answer

        world.transaction_calls.AbortTransaction = lost_abort
        assert (await world.engines.transactions.abort("pay")).aborted
        first, second = [(r.producer_id, r.producer_epoch) for r in told]
        assert first == second
        one = await world.engines.transactions.one("pay")
        assert one.transaction.state == pb.TXN_ONGOING, "the next one was left alone"

    async def test_what_cannot_be_aborted_says_what_can_be_done(self, world: World) -> None:
        await world.begin("pay", T0)
        token = await world.prepare("pay")
        await self.refused(world, "pay", "headrace txn abort TOKEN")
        world.lab.kill(1)
        await world.engines.transactions.decide(pb.DecidePreparedRequest(token=token, commit=True))
        await self.refused(world, "pay", "committed already, and 1 of its partitions")
        await world.begin("done", T1)
        await world.producers["done"].commit_transaction()
        assert all_is_read(world, 1)
        await self.refused(world, "done", "no transaction open")

    async def refused(self, world: World, i: str, says: str) -> None:
        with pytest.raises(InvalidTxnState, match=says):
            await world.engines.transactions.abort(i, validate_only=True)


class TestOpen:
    async def test_what_a_coordinator_will_end_is_its_own(self, world: World) -> None:
        await world.begin("kept", T1)
        await world.prepare("kept")
        age(world, 46)
        await world.begin("long", T0)
        age(world, 14)
        listed = await world.engines.open_transactions.listing()
        assert [(t.partition, t.standing, t.held_back) for t in listed.transactions] == [
            (T1, Standing.COORDINATED, 1),
            (T0, Standing.COORDINATED, 1),
        ]
        assert [t.owner and t.owner.transactional_id for t in listed.transactions] == ["kept", "long"]
        assert (await self.hanging(world)) == []
        recent = await world.engines.open_transactions.listing(older_than_ms=20 * MINUTE_MS)
        assert [t.partition for t in recent.transactions] == [T1]

    async def hanging(self, world: World, **how: int) -> list[tuple[TopicPartition, int, Standing]]:
        listed = await world.engines.open_transactions.listing(hanging_only=True, **how)
        return [(t.partition, t.producer_id, t.standing) for t in listed.transactions]

    async def test_what_no_coordinator_knows_hangs_when_it_is_old(self, world: World) -> None:
        zero, one = await hang(world, 0, minutes=5), await hang(world, 1, minutes=15)
        assert await self.hanging(world) == [(T0, zero, Standing.HANGING)]
        assert [p for p, _, _ in await self.hanging(world, older_than_ms=15 * MINUTE_MS)] == [T0, T1]
        everything = await world.engines.open_transactions.listing()
        assert [(t.producer_id, t.standing) for t in everything.transactions] == [
            (zero, Standing.HANGING),
            (one, Standing.YOUNG),
        ]

    async def test_what_its_coordinator_has_ended_and_forgotten_here_hangs(self, world: World) -> None:
        lost = await hang(world)
        self.own(world, lost, pb.TXN_COMPLETE_COMMIT)
        assert await self.hanging(world) == [(T0, lost, Standing.HANGING)]

    def own(self, world: World, producer_id: int, state: pb.TransactionState.ValueType) -> None:
        """A coordinator says that an id has this producer id and, where it is asked, writes to t-1 alone."""
        ask, topic_id = world.transaction_calls.ListTransactions, world.image.topic_ids["t"]

        async def listed(place: CoordinatorPlace, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
            answer = await ask(place, request)
            if place.id == 1:
                answer.transactions.add(
                    transactional_id="pay", producer_id=producer_id, state=state, started_at_ms=1, prepared_at_ms=-1
                )
            return answer

        async def described(
            place: CoordinatorPlace, request: pb.DescribeTransactionsRequest
        ) -> pb.DescribeTransactionsResponse:
            return pb.DescribeTransactionsResponse(
                transactions=[
                    pb.TransactionDescription(
                        transactional_id="pay",
                        state=state,
                        producer_id=producer_id,
                        partitions=[pb.TxnPartition(topic_id=topic_id, partition=1)],
                    )
                ]
            )

        world.transaction_calls.ListTransactions = listed
        world.transaction_calls.DescribeTransactions = described

    async def test_what_its_coordinator_does_not_count_among_its_partitions_hangs(self, world: World) -> None:
        lost = await hang(world)
        self.own(world, lost, pb.TXN_ONGOING)
        assert await self.hanging(world) == [(T0, lost, Standing.HANGING)]

    async def test_it_is_not_called_hanging_while_a_coordinator_might_know_it(self, world: World) -> None:
        lost = await hang(world)
        world.lab.refuse("coordinator-1")
        assert await self.hanging(world) == [(T0, lost, Standing.UNKNOWN)]
        with pytest.raises(CoordinatorNotAvailable, match="start a coordinator, or force it"):
            await self.end(world)
        assert (await self.end(world, force=True)).aborted

    async def end(
        self, world: World, producer_id: int | None = None, *, validate_only: bool = False, force: bool = False
    ) -> EndedHanging:
        return await world.engines.open_transactions.abort_hanging(
            T0, producer_id, validate_only=validate_only, force=force
        )

    async def test_what_ended_while_coordinators_were_asked_does_not_hang(self, world: World) -> None:
        lost = await hang(world)
        ask = world.transaction_calls.ListTransactions

        async def slowly(*given: Any) -> pb.ListTransactionsResponse:
            marker = pb.TxnMarker(producer_id=lost, producer_epoch=1, commit=True)
            marker.partitions.add(topic_id=world.image.topic_ids["t"], partition=0)
            await world.brokers.ask(
                NodeId(1), lambda stub: stub.WriteTxnMarkers, pb.WriteTxnMarkersRequest(markers=[marker])
            )
            return await ask(*given)

        assert await self.hanging(world) == [(T0, lost, Standing.HANGING)]
        world.transaction_calls.ListTransactions = slowly
        assert await self.hanging(world) == []

    @pytest.mark.parametrize("lost", [0, 1])
    async def test_what_hangs_is_ended_and_readers_go_on(self, world: World, lost: int) -> None:
        producer_id = await hang(world)
        await world.fill("t", 0, 22)
        world.lab.inject("write_txn_markers", *[Fault(Does.DROP, after=True)] * lost)
        planned = await self.end(world, validate_only=True)
        assert (planned.aborted, planned.before.held_back, stable(world, 0)) == (False, 23, 100)
        assert (await self.end(world)).aborted
        assert not world.lab.faults.queued.get("write_txn_markers")
        assert stable(world, 0) == 124
        with pytest.raises(NotFound):
            await self.end(world)
        with pytest.raises(NotFound):
            await self.end(world, producer_id)

    async def test_one_of_several_has_to_be_named(self, world: World) -> None:
        one, other = await hang(world), await hang(world)
        with pytest.raises(Rejected, match=f"{one}, {other}"):
            await self.end(world)
        await self.end(world, other)
        assert stable(world, 0) == 100
        await self.end(world)
        assert stable(world, 0) == 104

    async def test_what_has_a_coordinator_is_never_ended_here_and_what_is_young_only_by_force(
        self, world: World
    ) -> None:
        await world.begin("pay", T0)
        pay = (await world.engines.transactions.one("pay")).transaction.producer_id
        for force in (False, True):
            with pytest.raises(InvalidTxnState, match="headrace txn abort pay"):
                await self.end(world, pay, force=force)
        await world.prepare("pay")
        with pytest.raises(InvalidTxnState, match="headrace txn prepared"):
            await self.end(world, pay, force=True)
        lost = await hang(world, minutes=1)
        with pytest.raises(InvalidTxnState, match="wait, or force it"):
            await self.end(world, lost)
        assert (await self.end(world, lost, force=True)).aborted

    async def test_partitions_that_cannot_be_asked_are_named(self, world: World) -> None:
        await hang(world)
        world.lab.refuse("broker-2")
        listed = await world.engines.open_transactions.listing()
        assert [t.partition for t in listed.transactions] == [T0]
        assert list(listed.unasked) == [T1]
        assert all(isinstance(e, HeadraceError) for e in listed.unasked.values())
        for topic in (["nope"], ["t", "nope"]):
            with pytest.raises(UnknownTopicOrPartition):
                await world.engines.open_transactions.listing(topic)
        with pytest.raises(UnknownTopicOrPartition, match="0 to 1"):
            await world.engines.open_transactions.abort_hanging(
                TopicPartition("t", 2), None, validate_only=True, force=False
            )


class TestStatus:
    async def test_without_transactions_nobody_is_asked_for_them(self, world: World) -> None:
        world.cluster.newer = world.broker_calls.DescribeProducers = _waits
        assert (await world.engines.statuses.now()).state is State.HEALTHY

    async def test_it_names_what_holds_readers_back(self, world: World) -> None:
        assert (await world.engines.statuses.now()).state is State.HEALTHY
        await world.begin("pay", T1)
        producer_id = (await world.engines.transactions.one("pay")).transaction.producer_id
        age(world, 9 / 60)
        assert "pay" not in (await world.engines.statuses.now()).verdict, "a moment is not noticed"
        age(world, 1)
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        waits = f"readers of read_committed wait in t-1: 'pay' (producer {producer_id}) is open since 2026-01-01"
        assert waits in judged.verdict
        assert "headrace txn abort pay" in judged.verdict

    async def test_what_hangs_comes_first_and_degrades_it(self, world: World) -> None:
        lost = await hang(world)
        await world.fill("t", 0, 22)
        await world.begin("long", T1)
        age(world, 1)
        judged = await world.engines.statuses.now()
        assert judged.state is State.DEGRADED
        assert re.search(
            "degraded: 1 hanging transaction holds readers of read_committed back in t-0: "
            rf"producer {lost}, open since 2026-01-01 00:00:0\d UTC, 23 records held back, and no coordinator is going "
            rf"to end it; `headrace txn abort --partition t-0 --producer-id {lost}` does",
            judged.verdict,
        ), judged.verdict
        assert "'long'" in judged.verdict

    async def test_it_alarms_what_is_prepared_for_too_long(self, world: World) -> None:
        await world.begin("sink", T0)
        await world.prepare("sink")
        age(world, 1_430)
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        assert "it is prepared, and the holder of its token decides it" in judged.verdict
        age(world, 10)
        judged = await world.engines.statuses.now()
        assert judged.state is State.DEGRADED
        assert "1 transaction is prepared for long and decided by nobody: 'sink' (producer" in judged.verdict
        assert "wait in t-0" not in judged.verdict, "it is said once"

    async def test_it_waits_for_nobody_who_is_silent(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        await hang(world)

        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(open_transactions, "HURRIED", Patience(1, 1.0))
        monkeypatch.setattr(open_transactions, "HURRIED_LIST_MS", 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(world.brokers, "ask", world.brokers.ask)
            world.broker_calls.DescribeProducers = silent
            assert "is not known of 2 partitions" in (await world.engines.statuses.now()).verdict
        with monkeypatch.context() as patched:
            patched.setattr(world.coordinators, "ask_transaction", world.coordinators.ask_transaction)
            world.transaction_calls.ListTransactions = silent
            assert "headrace txn find-hanging" in (await world.engines.statuses.now()).verdict

    async def test_partitions_that_nobody_leads_are_not_also_unknown(self, world: World) -> None:
        await hang(world)
        world.lab.stop(2)
        began_ms = world.clock.monotonic_ms()
        judged = await world.engines.statuses.now()
        assert world.clock.monotonic_ms() - began_ms < 100, "there is nothing to wait for"
        assert judged.state is State.UNAVAILABLE
        assert "hanging transaction" in judged.verdict
        assert "not known" not in judged.verdict

    async def test_it_is_told_also_when_leaders_or_coordinators_do_not_answer(self, world: World) -> None:
        await hang(world)
        for number in (1, 2, 3):
            world.lab.refuse(f"broker-{number}")
        judged = await world.engines.statuses.now()
        assert "whether transactions hold readers back is not known of 2 partitions" in judged.verdict
        for number in (1, 2, 3):
            world.lab.accept(f"broker-{number}")
        for number in (1, 2):
            world.lab.refuse(f"coordinator-{number}")
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        assert "headrace txn find-hanging" in judged.verdict


class TestWatch:
    async def test_what_waits_is_counted_and_what_hangs_is_logged_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = WaitingWatch(world.engines.open_transactions, world.clock)
        await watch.look()
        assert (watch.hanging(), watch.held_back(), watch.held_back_seconds(), watch.overdue()) == (0, 0, 0.0, 0)
        await world.begin("pay", T1)
        await world.prepare("pay")
        age(world, 1_440)
        lost = await hang(world)
        await world.fill("t", 0, 22)
        for _ in range(2):
            await watch.look()
        assert (watch.hanging(), watch.held_back(), watch.held_back_records(), watch.overdue()) == (1, 2, 24, 1)
        assert 0 <= watch.held_back_seconds() - 1_460 * 60 < 10
        assert watch.readings().keys() == GAUGES.keys()
        assert [r.levelname for r in caplog.records if f"producer {lost}" in r.getMessage()] == ["WARNING"]
        await world.engines.open_transactions.abort_hanging(T0, None, validate_only=False, force=False)
        await watch.look()
        assert (watch.hanging(), watch.held_back()) == (0, 1)

    async def test_it_goes_on_when_nobody_answers(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        await hang(world)
        watch = WaitingWatch(world.engines.open_transactions, world.clock)
        running = asyncio.create_task(watch.follow())
        try:
            await asyncio.sleep(31)
            assert watch.hanging() == 1
            monkeypatch.setattr(world.engines.open_transactions, "waiting", _unavailable)
            await asyncio.sleep(30)
            assert (watch.looks_failed, watch.hanging()) == (1, 1), "what was seen last"
        finally:
            running.cancel()


async def _waits(*_: object) -> None:
    raise AssertionError("this takes time, and there is nothing to learn")


async def _unavailable() -> Waiting:
    raise CoordinatorNotAvailable("nobody is there")


def test_the_local_cluster_knows_which_settings_are_only_ours() -> None:
    own = {f.replace("_", ".") for f in TransactionLimits.__dataclass_fields__}
    assert own == JUDGED_BY_ADMIN
