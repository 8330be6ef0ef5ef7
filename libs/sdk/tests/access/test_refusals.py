"""What the state machines of clients do when they are refused: nothing is asked again, and each is told its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.sdk.tests.consumer.fetching import T0, T1, TOPIC_ID, A
from libs.sdk.tests.producer.test_lane import LEADER, LOST, ME, drain, filled

from headrace._core import phases
from headrace._core.batch import Identity
from headrace._core.chunk import Chunk
from headrace._core.conversation import Conversation
from headrace._core.effects import Settle
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_positions import FetchPositions
from headrace._core.group_messages import (
    Broke,
    Connect,
    GroupSettings,
    Opened,
    Polled,
    Subscribed,
    Told,
    WorkReported,
)
from headrace._core.lane import LaneRules
from headrace._core.membership_classic import ClassicMembership
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.phases import Phase
from headrace._core.producing import BatchSizes, ProducerCore
from headrace._core.remedies import Asker, Remedy, is_refusal, remedy_for
from headrace._core.transaction import Call, State, TransactionCore
from headrace._core.work_membership import WorkMembership
from headrace._transport.port import Coordinator
from headrace.aio import WorkGroup
from headrace.aio._client import ClusterClient
from headrace.aio._coordinators import CoordinatorLink
from headrace.errors import (
    CredentialInPlainText,
    CredentialsExpired,
    CredentialsRevoked,
    Denied,
    ErrorCode,
    GroupAuthorizationFailed,
    HeadraceError,
    NetworkFailed,
    Rejected,
    Then,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    Unauthenticated,
    UnknownOutcome,
    error_for,
)
from headrace.settings import ClientSettings
from headrace.work_types import GivenItem, WorkChange, WorkShare
from headrace_common.core.batch import Codec
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_proto.v1 import broker_pb2 as pb

REFUSALS = [
    Unauthenticated,
    CredentialsExpired,
    CredentialsRevoked,
    CredentialInPlainText,
    Denied,
    TopicAuthorizationFailed,
    GroupAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
]
each = pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
ONE = Coordinator(NodeId(1), "127.0.0.1:1")


@each
def test_nobody_asks_again(kind: type[HeadraceError]) -> None:
    error = kind("no")
    assert is_refusal(error)
    assert not error.retriable
    assert {remedy_for(asker, error.code) for asker in Asker} == {Remedy.RAISE}


def test_nothing_else_is_a_refusal() -> None:
    kinds = {type(error) for code in ErrorCode if code and is_refusal(error := error_for(code))}
    assert all(issubclass(kind, Unauthenticated | Denied) for kind in kinds)
    assert not is_refusal(LOST)


# --- producers ----------------------------------------------------------------------------------------------------


def test_an_entry_that_is_refused_fails_its_records_alone() -> None:
    lane = filled(2, 1)
    first, second = drain(lane)
    [settled] = lane.refused(first, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "User:a may not WRITE TOPIC t", 0)
    assert isinstance(settled, Settle)
    assert first.outcome is not None
    assert isinstance(first.outcome.error, TopicAuthorizationFailed)
    assert "User:a may not WRITE TOPIC t" in str(first.outcome.error)
    assert second.outcome is None


@each
def test_what_was_under_way_on_a_stream_that_was_refused_fails_with_that(kind: type[HeadraceError]) -> None:
    lane = filled(1, 1)
    sent = drain(lane)
    error = kind("no")
    for batch in sent:
        assert [type(effect) for effect in lane.lost(batch, error, 0)] == [Settle]
        assert batch.outcome is not None
        told = batch.outcome.error
        if kind in (CredentialsRevoked, CredentialsExpired):  # they end a stream at any moment
            assert isinstance(told, kind)
            assert isinstance(told, UnknownOutcome)
            assert str(told) == "no; the records were under way and may have been written"
            assert (told.code, told.kind, told.then) == (error.code, error.kind, error.then)
        else:
            assert told is error
    assert lane.idle
    lane.join(filled(1).waiting[0].pieces[0], 0, 20)
    assert drain(lane, identity=ME) == [], "its sequences may be written: what comes next needs another epoch"
    assert len(drain(lane, identity=Identity(7, 1))) == 1


def test_what_an_attempt_before_may_have_written_is_told_so_whatever_the_refusal() -> None:
    lane = filled(1)
    [batch] = drain(lane)
    lane.lost(batch, LOST, 0)
    [batch] = drain(lane, 5_000)
    lane.lost(batch, Denied("no"), 5_001)
    assert batch.outcome is not None
    assert isinstance(batch.outcome.error, UnknownOutcome)
    assert "may have been written" in str(batch.outcome.error)


def test_a_batch_that_expired_on_such_a_stream_is_told_once() -> None:
    lane = filled(1)
    [batch] = drain(lane)
    assert len(lane.expire(20_000)) == 1
    assert lane.lost(batch, Unauthenticated("no"), 20_001) == []
    assert lane.idle


def core_of(*topics: str) -> ProducerCore:
    rules = LaneRules(True, 5, 2**31 - 1, 10_000, 100, 1_000, Codec.NONE)
    core = ProducerCore(rules, BatchSizes(16, 16, 1 << 20), request_bytes=1 << 20)
    for topic in topics:
        chunk = Chunk(topic, opened_ms=0, record_max=1 << 20)
        chunk.values, chunk.keys, chunk.clock = [b"v"], [None], [(0, 1_000)]
        chunk.granted = 100
        core.take(chunk, 1, 1 << 20)
    return core


def test_without_an_identity_or_a_leader_all_that_waits_fails_and_nothing_that_is_under_way() -> None:
    core = core_of("led", "unled")
    core.identified(ME)
    core.drain(0, lambda topic, partition: (LEADER, 0) if topic == "led" else (-1, -1))
    effects = core.refused(Unauthenticated("no"))
    [settled] = effects
    assert isinstance(settled, Settle)
    assert settled.batch.topic == "unled"
    assert settled.batch.outcome is not None
    assert isinstance(settled.batch.outcome.error, Unauthenticated)
    assert [batch.topic for batch in core.list_unsettled()] == ["led"]


def test_after_a_refused_identity_another_is_asked_for() -> None:
    core = core_of("t")
    assert len(core.drain(0, lambda *_: (LEADER, 0))) == 1
    assert core.drain(0, lambda *_: (LEADER, 0)) == [], "one is asked for already"
    core.refused(Denied("no"))
    assert core.idle
    chunk = Chunk("t", opened_ms=0, record_max=1 << 20)
    chunk.values, chunk.keys, chunk.clock = [b"v"], [None], [(0, 1_000)]
    chunk.granted = 100
    core.take(chunk, 1, 1 << 20)
    assert len(core.drain(0, lambda *_: (LEADER, 0))) == 1


# --- metadata -----------------------------------------------------------------------------------------------------


class Refusing:
    """Of ``port.Transport`` what is asked here; ``error`` None: it knows the topic."""

    def __init__(self, error: HeadraceError | None) -> None:
        self.error = error
        self.asked = 0

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        del elsewhere
        self.asked += 1
        if self.error is not None:
            raise self.error
        answer = pb.MetadataResponse(cluster_id="c", revision=self.asked)
        for name in request.topics:
            answer.topics.add(name=name, topic_id=b"t" * 16).partitions.add(partition=0, leader=-1)
        return answer


async def wait_for(client: ClusterClient, clock: FakeClock) -> Any:
    waiting = asyncio.ensure_future(client.topic("t", 1e9))
    await clock.advance(200)
    assert waiting.done(), "nobody waits longer"
    return await waiting


@each
async def test_who_waits_for_a_topic_is_told_at_once(kind: type[HeadraceError]) -> None:
    clock, refusing = FakeClock(), Refusing(kind("no"))
    client: ClusterClient = ClusterClient(refusing, ClientSettings(), clock=clock)  # type: ignore[arg-type]
    with pytest.raises(kind, match="no"):
        await wait_for(client, clock)
    assert client.refusal is refusing.error
    asked = refusing.asked
    await clock.advance(10_000)
    assert refusing.asked == asked, "it is not asked again by itself"
    refusing.error = None
    assert (await wait_for(client, clock)).partitions == 1
    assert client.refusal is None
    await client.close()


# --- groups -------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize(
    "machine",
    [
        lambda settings: ConsumerMembership(settings, "me"),
        ClassicMembership,
        lambda settings: WorkMembership(settings, lambda: "me"),
    ],
    ids=["consumer", "classic", "work"],
)
def test_a_member_that_is_refused_says_so_and_the_next_poll_tries_anew(
    kind: type[HeadraceError], machine: Callable[[GroupSettings], Conversation]
) -> None:
    settings = GroupSettings("g")
    member = machine(settings)
    member.handle(Subscribed(("t",), None, 0.0))
    error = kind("no")
    effects = member.handle(Broke(error, 1.0))
    assert not any(isinstance(effect, Connect) for effect in effects)
    assert member.phase is Phase.FAILED
    assert not member.handle(Polled(1.5)), "the application does not know yet"
    pauses = []
    for n in range(12):
        assert member.take_failure(2.0) is error
        [again] = [one for one in member.handle(Polled(3.0)) if isinstance(one, Connect)]
        pauses.append(again.after_ms)
        assert member.take_failure(4.0) is None
        assert not member.handle(Polled(5.0)), f"one attempt at a time, attempt {n}"
        member.handle(Broke(error, 6.0))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (settings.retry_backoff_ms, phases.QUICK_RETRY_MS)
    assert member.take_failure(7.0) is error
    member.handle(Subscribed(("t",), None, 8.0))
    assert member.take_failure(9.0) is None


class NoCoordinator:
    """Of ``port.Transport`` what a group asks first, which is refused."""

    def __init__(self) -> None:
        self.found = 0

    async def find_coordinator(self, key: str) -> Coordinator:
        self.found += 1
        raise GroupAuthorizationFailed(f"User:alice may not DESCRIBE GROUP {key}")

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_work_group_that_is_refused_asks_again_when_it_is_polled_again() -> None:
    refusing: Any = NoCoordinator()
    group = WorkGroup("g", ["a"], "127.0.0.1:1", transport=refusing)
    for asked in (1, 2, 3):
        with pytest.raises(GroupAuthorizationFailed):
            await group.poll(20_000)
        assert refusing.found == asked
    await group.close()


def test_a_worker_that_is_refused_gives_up_what_it_did_before_it_joins_anew() -> None:
    worker = WorkMembership(GroupSettings("g"), lambda: "me")
    worker.handle(Subscribed((), None, 0.0))
    worker.handle(Opened(0.0))
    share = WorkShare(active=(GivenItem("a", 1, ()),))
    worker.handle(Told(WorkReported(None, "me", 1, 5_000, 45_000, share), 0.0))
    assert worker.poll() is not None
    error = GroupAuthorizationFailed("no")
    worker.handle(Broke(error, 1.0))
    assert worker.poll() == WorkChange(lost=frozenset("a"))
    assert worker.take_failure(2.0) is error
    assert not [one for one in worker.handle(Polled(3.0)) if isinstance(one, Connect)], "it may still run"
    assert worker.take_failure(3.0) is None
    worker.give_up(["a"])
    assert [type(one) for one in worker.handle(Polled(4.0))] == [Connect]
    assert not worker.lost


def test_another_failure_is_told_at_each_poll() -> None:
    member = ConsumerMembership(GroupSettings("g"), "me")
    member.handle(Subscribed(("t",), None, 0.0))
    member.handle(Broke(Rejected("no"), 1.0))
    for _ in range(2):
        assert isinstance(member.take_failure(2.0), Rejected)
        assert not member.handle(Polled(3.0))


@each
async def test_a_coordinator_that_refuses_is_asked_once(kind: type[HeadraceError]) -> None:
    asked = []

    async def find() -> Coordinator:
        return ONE

    async def attempt(coordinator: Coordinator, timeout_ms: float) -> str:
        asked.append(coordinator)
        raise kind("no")

    link = CoordinatorLink(find, ClientSettings(), FakeClock())
    with pytest.raises(kind):
        await link.ask("it", attempt, 60_000)
    assert asked == [ONE]


@each
async def test_a_coordinator_that_nobody_tells_is_looked_for_once(kind: type[HeadraceError]) -> None:
    looked = []

    async def find() -> Coordinator:
        looked.append(1)
        raise kind("no")

    async def attempt(coordinator: Coordinator, timeout_ms: float) -> str:
        raise AssertionError("nobody is known")

    with pytest.raises(kind):
        await CoordinatorLink(find, ClientSettings(), FakeClock()).ask("it", attempt, 60_000)
    assert looked == [1]


# --- transactions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Unauthenticated, CredentialsExpired, CredentialsRevoked, Denied])
def test_a_producer_that_may_not_have_its_id_is_over(kind: type[HeadraceError]) -> None:
    core = TransactionCore("billing")
    error = kind("no")
    assert core.refused(Call.INIT, error) is error
    assert core.state is State.OVER
    assert error.then is Then.FENCED


@each
def test_a_commit_that_is_refused_can_only_be_aborted(kind: type[HeadraceError]) -> None:
    core = TransactionCore("billing")
    core.initialized(ME)
    core.begins()
    core.wrote = True
    core.ends(Call.COMMIT)
    assert core.asks()
    core.refused(Call.COMMIT, kind("no"))
    assert core.state is State.BROKEN


# --- readers ------------------------------------------------------------------------------------------------------


def test_a_reader_that_nobody_tells_its_leader_is_told_why() -> None:
    core = FetchPositions(FetchLimits(), None)
    for tp, leader in ((T0, A), (T1, NO_NODE)):
        core.add(tp, 0)
        core.placed(tp, TOPIC_ID, leader, 0, 0.0)
    error = Unauthenticated("no")
    core.refused(error)
    assert core.take_failure(0.0) is error
    core.placed(T1, TOPIC_ID, A, 1, 0.0)
    core.refused(error)
    assert core.take_failure(0.0) is None, "all is known that is read"


def test_a_reader_that_can_ask_nobody_before_it_has_logged_in_is_told_why_it_may_not() -> None:
    core = FetchPositions(FetchLimits(), None)
    core.add(T0, 0)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    plan = core.fetch(A)
    assert plan is not None
    core.answers.fail(plan, NetworkFailed("alice has to log in again; nothing was sent"), 0.0)
    assert core.take_failure(0.0) is None
    error = CredentialsRevoked("no")
    core.refused(error)
    assert core.take_failure(0.0) is error
    core.tick(1_000.0)
    assert core.fetch(A) is not None, "it asks on: the credential may be let in again"


@each
def test_a_reader_that_is_refused_is_told_once_and_asks_again_after_a_pause(kind: type[HeadraceError]) -> None:
    core = FetchPositions(FetchLimits(), None)
    for tp in (T0, T1):
        core.add(tp, 0)
        core.placed(tp, TOPIC_ID, A, 0, 0.0)
    plan = core.fetch(A)
    assert plan is not None
    error = kind("no")
    core.answers.fail(plan, error, 0.0)
    assert core.take_failure(0.0) is error
    assert core.take_failure(0.0) is None
    assert core.fetch(A) is None, "not at once"
    core.tick(1_000.0)
    assert core.fetch(A) is not None
