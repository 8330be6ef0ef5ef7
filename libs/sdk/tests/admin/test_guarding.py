"""Whether a program that others ask lets them in, by what brokers say, and how long that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace.aio import guarding
from headrace.aio.guarding import FRESH_MS, Guard
from headrace.errors import CredentialInPlainText
from headrace.ticket_types import AccessAnswer, AccessQuestion, AnnouncedChange, TicketAudience
from headrace_common.core.errors import (
    AuditUnavailable,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    HeadraceError,
    NetworkFailed,
    Overloaded,
    Unauthenticated,
)
from headrace_common.core.secret import Secret

WORKER = TicketAudience("billing", "10.0.0.1:7000", "totals")
READ = (AccessQuestion("READ", "GROUP", "billing"),)
TICKET = b"ticket"


class Brokers:
    """Says what a test says."""

    def __init__(self) -> None:
        self.mode = "closed"
        self.refusal = ""
        self.ticket_refused = ""
        self.failure: HeadraceError | None = None
        self.asked = 0
        self.bearers: list[Secret | None] = []
        self.announced: list[AnnouncedChange] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def check_access(
        self,
        questions: Iterable[AccessQuestion] = (),
        *,
        ticket: bytes = b"",
        audience: TicketAudience | None = None,
        bearer: Secret | None = None,
        change: AnnouncedChange | None = None,
    ) -> AccessAnswer:
        self.asked += 1
        if change is not None:
            self.announced.append(change)
        self.bearers.append(bearer)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        if ticket and self.ticket_refused:
            return AccessAnswer(self.mode, "", (), self.ticket_refused)
        return AccessAnswer(self.mode, "User:alice", tuple(self.refusal for _ in questions))


class World:
    def __init__(self) -> None:
        self.brokers = Brokers()
        self.clock = FakeClock()
        self.guard = Guard(self.brokers, self.clock)

    async def lets_in(self, ticket: bytes = TICKET, audience: TicketAudience = WORKER) -> HeadraceError | None:
        try:
            await self.guard.check_ticket(ticket, audience, READ)
        except HeadraceError as error:
            return error
        return None


@pytest.fixture
def world() -> World:
    return World()


async def test_who_shows_no_ticket_is_not_let_in(world: World) -> None:
    error = await world.lets_in(b"")
    assert isinstance(error, Unauthenticated)
    assert "show a ticket for billing at 10.0.0.1:7000" in str(error)


async def test_what_brokers_say_counts_for_five_seconds(world: World) -> None:
    assert await world.lets_in() is None
    asked = world.brokers.asked
    world.brokers.ticket_refused = "alice is blocked"
    await world.clock.advance(FRESH_MS - 1)
    assert await world.lets_in() is None
    assert world.brokers.asked == asked
    await world.clock.advance(1)
    assert isinstance(await world.lets_in(), Unauthenticated)


async def test_who_may_not_does_not(world: World) -> None:
    world.brokers.refusal = "User:alice may not READ GROUP billing"
    assert isinstance(await world.lets_in(), ClusterAuthorizationFailed)
    asked = world.brokers.asked
    assert isinstance(await world.lets_in(), ClusterAuthorizationFailed)
    assert world.brokers.asked == asked, "refusals are remembered too"


async def test_each_ticket_and_audience_is_asked_about(world: World) -> None:
    assert await world.lets_in() is None
    world.brokers.ticket_refused = "it is another's"
    assert await world.lets_in(b"other") is not None
    assert await world.lets_in(TICKET, WORKER._replace(purpose="secrets")) is not None
    assert await world.lets_in() is None


async def test_where_it_is_open_nobody_is_asked_for_anything(world: World) -> None:
    for mode in ("open", "permissive"):
        world.brokers.mode = mode
        assert await world.lets_in(b"") is None
        await world.clock.advance(FRESH_MS)
    assert world.brokers.asked == 2


async def test_a_cluster_that_is_closed_meanwhile_is_noticed(world: World) -> None:
    world.brokers.mode = "open"
    assert await world.lets_in(b"") is None
    world.brokers.mode = "closed"
    await world.clock.advance(FRESH_MS - 1)
    assert await world.lets_in(b"") is None
    await world.clock.advance(1)
    assert isinstance(await world.lets_in(b""), Unauthenticated)


async def test_who_has_never_heard_of_the_cluster_lets_nobody_in(world: World) -> None:
    world.brokers.failure = NetworkFailed("nobody is there")
    assert isinstance(await world.lets_in(b""), CoordinatorNotAvailable)
    assert isinstance(await world.lets_in(), CoordinatorNotAvailable)


async def test_an_open_cluster_that_is_away_stays_open(world: World) -> None:
    world.brokers.mode = "open"
    assert await world.lets_in(b"") is None
    world.brokers.failure = NetworkFailed("nobody is there")
    await world.clock.advance(FRESH_MS)
    assert await world.lets_in(b"") is None
    asked = world.brokers.asked
    assert await world.lets_in(b"") is None
    assert world.brokers.asked == asked, "it is not asked for each question"


async def test_a_closed_cluster_that_is_away_lets_nobody_in(world: World) -> None:
    assert await world.lets_in() is None
    world.brokers.failure = NetworkFailed("nobody is there")
    await world.clock.advance(FRESH_MS)
    assert isinstance(await world.lets_in(), CoordinatorNotAvailable)
    assert isinstance(await world.lets_in(b""), CoordinatorNotAvailable)


async def test_a_ticket_of_a_broker_that_is_gone_is_over(world: World) -> None:
    assert not await world.guard.is_open()
    world.brokers.failure = NetworkFailed("there is no such broker now")
    error = await world.lets_in()
    assert isinstance(error, Unauthenticated)
    assert "show another one" in str(error)
    world.brokers.failure = Unauthenticated("the worker's own key was deleted")
    assert isinstance(await world.lets_in(), CoordinatorNotAvailable)


async def test_those_who_ask_the_same_ask_once_and_not_too_many_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "ASKING_MAX", 1)
    assert not await world.guard.is_open()
    world.brokers.answers.clear()
    first, second = (asyncio.ensure_future(world.lets_in()) for _ in range(2))
    await asyncio.sleep(0)
    assert isinstance(await world.lets_in(b"other"), Overloaded)
    first.cancel()
    world.brokers.answers.set()
    assert await second is None
    assert world.brokers.asked == 2, "one for the mode"
    assert await world.lets_in(b"other") is None


async def test_what_is_remembered_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "KNOWN_MAX", 3)
    for n in range(10):
        await world.lets_in(b"%d" % n)
    assert len(world.guard._known) <= 3


KEY = Secret("hrk_alice")


async def test_who_shows_a_credential_is_asked_about_by_that_for_five_seconds(world: World) -> None:
    world.brokers.refusal = "she may not"
    assert (await world.guard.ask_by_bearer(KEY, READ)).refusals == ("she may not",)
    world.brokers.refusal = ""
    await world.clock.advance(FRESH_MS - 1)
    assert (await world.guard.ask_by_bearer(KEY, READ)).refusals == ("she may not",)
    assert world.brokers.bearers == [KEY]
    await world.clock.advance(1)
    assert (await world.guard.ask_by_bearer(KEY, READ)).refusals == ("",)
    await world.guard.ask_by_bearer(Secret("hrk_bob"), READ)
    assert world.brokers.bearers == [KEY, KEY, Secret("hrk_bob")], "each is asked about"


async def test_what_is_done_next_is_announced_each_time(world: World) -> None:
    change = AnnouncedChange("PUT /connectors/shop/pause", "10.0.0.9")
    await world.guard.ask_by_bearer(KEY, READ)
    for _ in range(2):
        assert (await world.guard.ask_by_bearer(KEY, READ, change)).refusals == ("",)
    assert (world.brokers.asked, world.brokers.announced) == (3, [change, change])
    world.brokers.failure = AuditUnavailable("the disk is full")
    with pytest.raises(AuditUnavailable):
        await world.guard.ask_by_bearer(KEY, READ, change)


async def test_so_much_is_announced_at_one_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "ASKING_MAX", 1)
    world.brokers.answers.clear()
    first = asyncio.ensure_future(world.guard.ask_by_bearer(KEY, READ, AnnouncedChange("a")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await world.guard.ask_by_bearer(KEY, READ, AnnouncedChange("b"))
    world.brokers.answers.set()
    await first
    await world.guard.ask_by_bearer(KEY, READ, AnnouncedChange("b"))


async def test_a_credential_that_brokers_do_not_know_is_not_remembered(world: World) -> None:
    world.brokers.failure = Unauthenticated("there is no such key")
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="no such key"):
            await world.guard.ask_by_bearer(KEY, READ)
    assert world.brokers.asked == 2


@pytest.mark.parametrize("failure", [NetworkFailed("nobody is there"), CredentialInPlainText("to a broker")])
async def test_who_cannot_be_asked_about_is_not_let_in_and_is_not_told_that_it_is_unknown(
    world: World, failure: HeadraceError
) -> None:
    world.brokers.failure = failure
    with pytest.raises(CoordinatorNotAvailable):
        await world.guard.ask_by_bearer(KEY, READ)


async def test_no_ticket_asks_nothing_in_the_name_of_the_program(world: World) -> None:
    with pytest.raises(Unauthenticated):
        await world.guard.ask_by_ticket(b"", WORKER, READ)
    assert world.brokers.asked == 0


async def test_answers_to_many_questions_count_as_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "KNOWN_MAX", 4)
    for name in ("a", "b", "c"):
        await world.guard.ask_by_bearer(Secret(name), [*READ, *READ])
    asked = world.brokers.asked
    await world.guard.ask_by_bearer(Secret("c"), [*READ, *READ])
    assert world.brokers.asked == asked
    await world.guard.ask_by_bearer(Secret("a"), [*READ, *READ])
    assert world.brokers.asked == asked + 1
