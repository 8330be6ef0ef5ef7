"""Transactions over coordinators and brokers in memory: who is asked, what hangs, and what is ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators
from services.admin.tests.twin.memory_messages import MemoryMessages
from services.admin.tests.twin.memory_transactions import MemoryTransactions

from headrace_admin.adapters.otel_waiting import GAUGES
from headrace_admin.config import Limits, TransactionLimits
from headrace_admin.core.status import State
from headrace_admin.core.transactions import Standing, Waiting
from headrace_admin.engine import open_transactions
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.leaders import Patience
from headrace_admin.engine.messages import Messages
from headrace_admin.engine.open_transactions import EndedHanging
from headrace_admin.engine.transactions import Detail, Listing, PreparedListing
from headrace_admin.engine.waiting_watch import WaitingWatch
from headrace_admin.ports import CoordinatorPlace
from headrace_admin.rpc.engines import Engines, Ports
from headrace_cli.local.plan import JUDGED_BY_ADMIN
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidTxnState,
    NetworkFailed,
    NotFound,
    Rejected,
    TransactionalIdNotFound,
    TxnVerdictUnknown,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import PartitionId, TopicPartition
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1 import transaction_pb2 as pb

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Hurried(FakeClock):
    """Waiting moves the time."""

    async def sleep_ms(self, ms: float) -> None:
        self._move_to(self._monotonic_ms + ms)
        await asyncio.sleep(0)


@dataclass
class World:
    cluster: MemoryCluster
    coordinators: MemoryTransactions
    engines: Engines

    def holds(self, partition: int, end: int) -> None:
        self.cluster.ends[PartitionId(self.cluster.image.topic_ids["t"], partition)] = end

    def stable(self, partition: int) -> int:
        return self.cluster.stable_end(PartitionId(self.cluster.image.topic_ids["t"], partition))

    def hang(self, partition: int, producer_id: int = 4711, *, minutes: int = 20, first_offset: int = 100) -> None:
        """Open in the log, and nobody knows of it."""
        since_ms = NOW_MS - minutes * MINUTE_MS
        self.cluster.write("t", partition, producer_id, 3, first_offset=first_offset, since_ms=since_ms)


@pytest.fixture
async def world() -> World:
    cluster, clock = MemoryCluster(), Hurried()
    new = controller_pb2.NewTopic(name="t", partition_count=2)
    await cluster.create_topics(controller_pb2.CreateTopicsRequest(topics=[new]))
    cluster.start_coordinators(1, 2)
    cluster.make_shards(ShardKind.TRANSACTIONS)
    coordinators = MemoryTransactions(cluster)
    engines = Engines.over(
        Administration(cluster, cluster, cluster),
        Messages(MemoryMessages(), cluster, Limits()),
        Ports(MemoryCoordinators(cluster), coordinators, clock),
        TransactionLimits(),
    )
    made = World(cluster, coordinators, engines)
    made.holds(0, 123)
    made.holds(1, 900)
    return made


def ids(listed: Listing | PreparedListing) -> list[str]:
    return [t.transaction.transactional_id for t in listed.transactions]


class TestLooking:
    async def test_looking_makes_nothing(self) -> None:
        cluster, clock = MemoryCluster(), Hurried()
        engines = Engines.over(
            Administration(cluster, cluster, cluster),
            Messages(MemoryMessages(), cluster, Limits()),
            Ports(MemoryCoordinators(cluster), MemoryTransactions(cluster), clock),
            TransactionLimits(),
        )
        assert (await engines.transactions.listing(pb.ListTransactionsRequest())).transactions == ()
        assert isinstance((await engines.transactions.describe(["a"]))["a"], TransactionalIdNotFound)
        assert (await engines.transactions.prepared()).transactions == ()
        with pytest.raises(TransactionalIdNotFound):
            await engines.transactions.abort("a")
        token = pb.PreparedToken(transactional_id="a", nonce=1)
        with pytest.raises(TransactionalIdNotFound):
            await engines.transactions.decide(pb.DecidePreparedRequest(token=token))
        assert cluster.image.topic(INTERNAL_TOPICS[ShardKind.TRANSACTIONS]) is None

    async def test_lists_come_from_all_coordinators_by_state_producer_and_age(self, world: World) -> None:
        for n in range(8):
            world.coordinators.begin(f"id-{n}", n, started_ms=NOW_MS - n * MINUTE_MS)
        world.coordinators.end("id-7", commit=True)
        listing = world.engines.transactions.listing
        everything = await listing(pb.ListTransactionsRequest())
        assert ids(everything) == [f"id-{n}" for n in range(8)]
        assert {t.coordinator for t in everything.transactions} == {1, 2}
        assert ids(await listing(pb.ListTransactionsRequest(states=[pb.TXN_COMPLETE_COMMIT]))) == ["id-7"]
        assert ids(await listing(pb.ListTransactionsRequest(producer_ids=[3, 5]))) == ["id-3", "id-5"]
        assert ids(await listing(pb.ListTransactionsRequest(older_than_ms=5 * MINUTE_MS))) == ["id-5", "id-6"]
        for wrong in (pb.ListTransactionsRequest(states=[pb.TXN_STATE_UNSPECIFIED]), {"older_than_ms": -1}):
            with pytest.raises(Rejected):
                await listing(wrong if not isinstance(wrong, dict) else pb.ListTransactionsRequest(**wrong))

    async def test_a_list_says_which_shards_are_missing(self, world: World) -> None:
        world.coordinators.down.add(2)
        world.coordinators.loading.add(0)
        world.cluster.give_shard(2, -1, ShardKind.TRANSACTIONS)
        listed = await world.engines.transactions.listing(pb.ListTransactionsRequest())
        assert [(u.shard, u.coordinator) for u in listed.unanswered] == [(0, 1), (1, 2), (2, None), (3, 2)]

    async def test_partitions_are_named_also_where_the_topic_is_gone(self, world: World) -> None:
        topic_id = world.cluster.image.topic_ids["t"]
        world.coordinators.begin("pay", 4, partitions=[T1, T0])
        world.coordinators.ending("pay", commit=True, without_marker=[T1])
        one = await world.engines.transactions.one("pay")
        assert (one.partitions, one.without_marker) == ((T0, T1), {T1})
        await world.cluster.delete_topics(controller_pb2.DeleteTopicsRequest(names=["t"]))
        one = await world.engines.transactions.one("pay")
        assert [p.topic for p in one.partitions] == [topic_id.hex()] * 2

    async def test_prepared_ones_come_oldest_first_with_their_tokens(self, world: World) -> None:
        for n, minutes in enumerate((5, 90, 30)):
            world.coordinators.begin(f"id-{n}", n, started_ms=NOW_MS - 99 * MINUTE_MS)
            world.coordinators.prepare(f"id-{n}", prepared_ms=NOW_MS - minutes * MINUTE_MS)
        world.coordinators.begin("other", 7)
        assert ids(await world.engines.transactions.prepared()) == ["id-1", "id-2", "id-0"]
        old = await world.engines.transactions.prepared(60 * MINUTE_MS)
        assert [d.transaction.token.transactional_id for d in old.transactions] == ["id-1"]
        world.coordinators.begin("id-3", 3, started_ms=NOW_MS - 90 * MINUTE_MS)
        world.coordinators.prepare("id-3", prepared_ms=NOW_MS - MINUTE_MS)
        assert ids(await world.engines.transactions.prepared(60 * MINUTE_MS)) == ["id-1"], "open for long, not prepared"


class TestEnding:
    @pytest.mark.parametrize("lost", [0, 1])
    @pytest.mark.parametrize("commit", [True, False])
    async def test_a_token_decides_once_and_tells_the_verdict_again(
        self, world: World, commit: bool, lost: int
    ) -> None:
        world.coordinators.begin("pay", 4, partitions=[T0])
        token = world.coordinators.prepare("pay")
        world.coordinators.lost = lost
        decide = world.engines.transactions.decide
        assert (await decide(pb.DecidePreparedRequest(token=token, commit=commit))).committed == commit
        assert (await decide(pb.DecidePreparedRequest(token=token, commit=not commit))).committed == commit
        assert world.stable(0) == 125
        world.coordinators.begin("pay", 4, 1, partitions=[T0])
        world.coordinators.prepare("pay")
        await decide(pb.DecidePreparedRequest(token=(await self.detail(world, "pay")).transaction.token))
        with pytest.raises(TxnVerdictUnknown):
            await decide(pb.DecidePreparedRequest(token=token, commit=commit))

    async def detail(self, world: World, i: str) -> Detail:
        return await world.engines.transactions.one(i)

    async def test_an_abort_ends_what_was_seen_open(self, world: World) -> None:
        world.coordinators.begin("pay", 4, partitions=[T0, T1])
        abort = world.engines.transactions.abort
        planned = await abort("pay", validate_only=True)
        assert (planned.aborted, world.coordinators.state("pay")) == (False, pb.TXN_ONGOING)
        for wrong in ({"producer_id": 5}, {"producer_epoch": 1}):
            with pytest.raises(InvalidTxnState):
                await abort("pay", **wrong)
        done = await abort("pay", 4, 0)
        assert (done.aborted, done.before.partitions) == (True, (T0, T1))
        assert (world.stable(0), world.stable(1)) == (125, 902)

    async def test_an_abort_whose_answer_is_lost_is_told_again_and_leaves_the_next_transaction_alone(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.coordinators.begin("pay", 4, partitions=[T0])
        tell = world.coordinators.abort_transaction
        told: list[pb.AbortTransactionRequest] = []

        async def lost_abort(
            place: CoordinatorPlace, request: pb.AbortTransactionRequest
        ) -> pb.AbortTransactionResponse:
            answer = await tell(place, request)
            told.append(request)
            if len(told) == 1:
                world.coordinators.begin("pay", 4, 1, partitions=[T0])  # the next transaction
                raise NetworkFailed("the connection broke before the answer came")
            return answer

        monkeypatch.setattr(world.coordinators, "abort_transaction", lost_abort)
        assert (await world.engines.transactions.abort("pay")).aborted
        assert [(r.producer_id, r.producer_epoch) for r in told] == [(4, 0), (4, 0)]
        assert world.coordinators.state("pay") == pb.TXN_ONGOING, "the next one was left alone"

    async def test_what_cannot_be_aborted_says_what_can_be_done(self, world: World) -> None:
        world.coordinators.begin("pay", 4, partitions=[T0])
        world.coordinators.prepare("pay")
        await self.refused(world, "pay", "headrace txn abort TOKEN")
        world.coordinators.ending("pay", commit=True, without_marker=[T0])
        await self.refused(world, "pay", "committed already, and 1 of its partitions")
        world.coordinators.begin("pay", 4, 5)
        world.coordinators.end("pay", commit=True)
        await self.refused(world, "pay", "no transaction open")

    async def refused(self, world: World, i: str, says: str) -> None:
        with pytest.raises(InvalidTxnState, match=says):
            await world.engines.transactions.abort(i, validate_only=True)


class TestOpen:
    async def test_what_a_coordinator_will_end_is_its_own(self, world: World) -> None:
        world.coordinators.begin("long", 4, partitions=[T0], started_ms=NOW_MS - 14 * MINUTE_MS)
        world.coordinators.begin("kept", 5, partitions=[T1], started_ms=NOW_MS - 60 * MINUTE_MS)
        world.coordinators.prepare("kept")
        listed = await world.engines.open_transactions.listing()
        assert [(t.partition, t.producer_id, t.standing, t.held_back) for t in listed.transactions] == [
            (T1, 5, Standing.COORDINATED, 1),
            (T0, 4, Standing.COORDINATED, 1),
        ]
        assert [t.owner and t.owner.transactional_id for t in listed.transactions] == ["kept", "long"]
        assert (await self.hanging(world)) == []
        recent = await world.engines.open_transactions.listing(older_than_ms=20 * MINUTE_MS)
        assert [t.producer_id for t in recent.transactions] == [5]

    async def hanging(self, world: World, **how: int) -> list[tuple[TopicPartition, int, Standing]]:
        listed = await world.engines.open_transactions.listing(hanging_only=True, **how)
        return [(t.partition, t.producer_id, t.standing) for t in listed.transactions]

    async def test_what_no_coordinator_knows_hangs_when_it_is_old(self, world: World) -> None:
        world.hang(0, minutes=20)
        world.hang(1, 4712, minutes=15, first_offset=7)
        assert await self.hanging(world) == [(T0, 4711, Standing.HANGING)]
        assert [p for p, _, _ in await self.hanging(world, older_than_ms=15 * MINUTE_MS)] == [T0, T1]
        everything = await world.engines.open_transactions.listing()
        assert [(t.producer_id, t.standing) for t in everything.transactions] == [
            (4711, Standing.HANGING),
            (4712, Standing.YOUNG),
        ]

    async def test_what_its_coordinator_has_ended_and_forgotten_here_hangs(self, world: World) -> None:
        world.coordinators.begin("pay", 4711)
        world.coordinators.end("pay", commit=True)
        world.hang(0)
        assert await self.hanging(world) == [(T0, 4711, Standing.HANGING)]

    async def test_what_its_coordinator_does_not_count_among_its_partitions_hangs(self, world: World) -> None:
        world.coordinators.begin("pay", 4711, partitions=[T1], started_ms=NOW_MS - 20 * MINUTE_MS)
        world.hang(0)
        assert await self.hanging(world) == [(T0, 4711, Standing.HANGING)]

    async def test_it_is_not_called_hanging_while_a_coordinator_might_know_it(self, world: World) -> None:
        world.hang(0)
        world.coordinators.down.add(1)
        assert await self.hanging(world) == [(T0, 4711, Standing.UNKNOWN)]
        with pytest.raises(CoordinatorNotAvailable, match="start a coordinator, or force it"):
            await self.end(world)
        assert (await self.end(world, force=True)).aborted

    async def end(
        self, world: World, producer_id: int | None = None, *, validate_only: bool = False, force: bool = False
    ) -> EndedHanging:
        return await world.engines.open_transactions.abort_hanging(
            T0, producer_id, validate_only=validate_only, force=force
        )

    async def test_what_ended_while_coordinators_were_asked_does_not_hang(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.hang(0)
        ask = world.coordinators.list_transactions

        async def slowly(*given: Any) -> pb.ListTransactionsResponse:
            i = PartitionId(world.cluster.image.topic_ids["t"], 0)
            world.cluster.end_transaction(i, 4711, 4, commit=True)
            return await ask(*given)

        monkeypatch.setattr(world.coordinators, "list_transactions", slowly)
        assert await self.hanging(world) == []

    @pytest.mark.parametrize("lost", [0, 1])
    async def test_what_hangs_is_ended_and_readers_go_on(self, world: World, lost: int) -> None:
        world.hang(0)
        world.cluster.lost_markers = lost
        assert world.stable(0) == 100
        planned = await self.end(world, validate_only=True)
        assert (planned.aborted, planned.before.held_back, world.stable(0)) == (False, 23, 100)
        assert (await self.end(world)).aborted
        assert world.stable(0) == 124
        with pytest.raises(NotFound):
            await self.end(world)
        with pytest.raises(NotFound):
            await self.end(world, 4711)

    async def test_one_of_several_has_to_be_named(self, world: World) -> None:
        world.hang(0)
        world.hang(0, 4712, first_offset=110)
        with pytest.raises(Rejected, match="4711, 4712"):
            await self.end(world)
        await self.end(world, 4712)
        assert world.stable(0) == 100
        await self.end(world)
        assert world.stable(0) == 125

    async def test_what_has_a_coordinator_is_never_ended_here_and_what_is_young_only_by_force(
        self, world: World
    ) -> None:
        world.coordinators.begin("pay", 4, partitions=[T0], started_ms=NOW_MS - 20 * MINUTE_MS)
        for force in (False, True):
            with pytest.raises(InvalidTxnState, match="headrace txn abort pay"):
                await self.end(world, 4, force=force)
        world.coordinators.prepare("pay")
        with pytest.raises(InvalidTxnState, match="headrace txn prepared"):
            await self.end(world, 4, force=True)
        world.hang(0, 5, minutes=1)
        with pytest.raises(InvalidTxnState, match="wait, or force it"):
            await self.end(world, 5)
        assert (await self.end(world, 5, force=True)).aborted

    async def test_partitions_that_cannot_be_asked_are_named(self, world: World) -> None:
        world.hang(0)
        world.cluster.down.add(2)
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
    async def test_without_transactions_nobody_is_asked_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster, clock = MemoryCluster(), Hurried()
        engines = Engines.over(
            Administration(cluster, cluster, cluster),
            Messages(MemoryMessages(), cluster, Limits()),
            Ports(MemoryCoordinators(cluster), MemoryTransactions(cluster), clock),
            TransactionLimits(),
        )
        monkeypatch.setattr(cluster, "newer", _waits)
        monkeypatch.setattr(cluster, "describe_producers", _waits)
        assert (await engines.statuses.now()).state is State.HEALTHY

    async def test_it_names_what_holds_readers_back(self, world: World) -> None:
        assert (await world.engines.statuses.now()).state is State.HEALTHY
        world.coordinators.begin("pay", 4, partitions=[T1], started_ms=NOW_MS - 9_000)
        assert "pay" not in (await world.engines.statuses.now()).verdict, "a moment is not noticed"
        world.coordinators.begin("long", 5, partitions=[T1], started_ms=NOW_MS - 65_000)
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        assert "readers of read_committed wait in t-1: 'long' (producer 5) is open since 2023-11-14" in judged.verdict
        assert "headrace txn abort long" in judged.verdict
        world.hang(0)
        judged = await world.engines.statuses.now()
        assert judged.state is State.DEGRADED
        assert (
            "degraded: 1 hanging transaction holds readers of read_committed back in t-0: producer 4711, open since "
            "2023-11-14 21:53:20 UTC, 23 records held back, and no coordinator is going to end it; "
            "`headrace txn abort --partition t-0 --producer-id 4711` does" in judged.verdict
        )
        assert "'long'" in judged.verdict

    async def test_it_alarms_what_is_prepared_for_too_long(self, world: World) -> None:
        world.coordinators.begin("sink", 4, partitions=[T0], started_ms=NOW_MS - 1_450 * MINUTE_MS)
        world.coordinators.prepare("sink", prepared_ms=NOW_MS - 1_430 * MINUTE_MS)
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        assert "it is prepared, and the holder of its token decides it" in judged.verdict
        world.coordinators.prepare("sink", prepared_ms=NOW_MS - 1_440 * MINUTE_MS)
        judged = await world.engines.statuses.now()
        assert judged.state is State.DEGRADED
        assert "1 transaction is prepared for long and decided by nobody: 'sink' (producer 4)" in judged.verdict
        assert "wait in t-0" not in judged.verdict, "it is said once"

    async def test_it_waits_for_nobody_who_is_silent(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.hang(0)

        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(open_transactions, "HURRIED", Patience(1, 1.0))
        monkeypatch.setattr(open_transactions, "HURRIED_LIST_MS", 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(world.cluster, "describe_producers", silent)
            assert "is not known of 2 partitions" in (await world.engines.statuses.now()).verdict
        with monkeypatch.context() as patched:
            patched.setattr(world.coordinators, "list_transactions", silent)
            assert "headrace txn find-hanging" in (await world.engines.statuses.now()).verdict

    async def test_partitions_that_nobody_leads_are_not_also_unknown(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.hang(0)
        world.cluster.lead("t", 1, -1)
        monkeypatch.setattr(world.cluster, "newer", _waits)
        judged = await world.engines.statuses.now()
        assert judged.state is State.UNAVAILABLE
        assert "hanging transaction" in judged.verdict
        assert "not known" not in judged.verdict

    async def test_it_is_told_also_when_leaders_or_coordinators_do_not_answer(self, world: World) -> None:
        world.hang(0)
        world.cluster.down |= {1, 2}
        judged = await world.engines.statuses.now()
        assert "whether transactions hold readers back is not known of 2 partitions" in judged.verdict
        world.cluster.down.clear()
        world.coordinators.down |= {1, 2}
        judged = await world.engines.statuses.now()
        assert judged.state is State.HEALTHY
        assert "headrace txn find-hanging" in judged.verdict


class TestWatch:
    async def test_what_waits_is_counted_and_what_hangs_is_logged_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = WaitingWatch(world.engines.open_transactions, FakeClock(NOW_MS))
        await watch.look()
        assert (watch.hanging(), watch.held_back(), watch.held_back_seconds(), watch.overdue()) == (0, 0, 0.0, 0)
        world.hang(0)
        world.coordinators.begin("pay", 4, partitions=[T1], started_ms=NOW_MS - 2 * 1_440 * MINUTE_MS)
        world.coordinators.prepare("pay", prepared_ms=NOW_MS - 1_441 * MINUTE_MS)
        for _ in range(2):
            await watch.look()
        assert (watch.hanging(), watch.held_back(), watch.held_back_records(), watch.overdue()) == (1, 2, 24, 1)
        assert watch.held_back_seconds() == 2 * 86_400
        assert watch.readings().keys() == GAUGES.keys()
        assert [r.levelname for r in caplog.records if "producer 4711" in r.getMessage()] == ["WARNING"]
        await world.engines.open_transactions.abort_hanging(T0, None, validate_only=False, force=False)
        await watch.look()
        assert (watch.hanging(), watch.held_back()) == (0, 1)

    async def test_it_goes_on_when_nobody_answers(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = FakeClock(NOW_MS)
        watch = WaitingWatch(world.engines.open_transactions, clock)
        world.hang(0)
        running = asyncio.create_task(watch.follow())
        try:
            await clock.until_asleep()
            await clock.advance(30_000)
            await clock.until_asleep()
            assert watch.hanging() == 1
            monkeypatch.setattr(world.engines.open_transactions, "waiting", _unavailable)
            await clock.advance(30_000)
            await clock.until_asleep()
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
