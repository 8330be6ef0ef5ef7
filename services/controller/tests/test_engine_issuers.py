"""Keys of issuers over time: when they are fetched, what is written, what is said while an issuer is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.issuer import IDP_ISSUER, SigningIssuer
from services.controller.tests.kit.access import config
from services.controller.tests.kit.dialogue import Cell, FakeIssuers, broker, cell

from headrace_common.core.access.issuers import REFUSE_AFTER_MS, WARN_AFTER_MS, Issuer, IssuerKeys
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.tokens import verify
from headrace_common.core.errors import Unauthenticated
from headrace_common.core.features import ACCESS
from headrace_common.core.moments import iso_of
from headrace_controller.core import records
from headrace_controller.core.issuing import CONFIRM_EVERY_MS, Address, Fetched, WantedIssuer, of_kubernetes
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Outcome, Put, Transaction
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.issuers import FETCH_AGAIN_MS, FETCH_EVERY_MS, FETCH_WANTED_MS, SAY_AGAIN_MS, Issuers
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import StoreOutcomeUnknown, StoreUnavailable

IDP = SigningIssuer()
WANTED = WantedIssuer(IDP_ISSUER, Address("login.example.com", 443, "/keys"))
OTHER = WantedIssuer(Issuer("other", "https://other", frozenset({"a"})), Address("other", 443, "/"))


class Held:
    """A cluster at the level of access, whose controllers have issuers."""

    def __init__(self, world: Cell, engine: ControllerEngine) -> None:
        self.world = world
        self.engine = engine

    def publish(self, alias: str = "idp", *algorithms: str, iss: str = "") -> None:
        publish(self.world.issuers, self.world.clock, alias, *algorithms, iss=iss)

    @property
    def known(self) -> Mapping[str, IssuerKeys]:
        """What nodes have."""
        return self.engine.follower.access.issuers

    @property
    def keys(self) -> dict[str, list[str | None]]:
        """Ids of those keys, by issuer."""
        return {alias: [key.id for key in known.keys] for alias, known in self.known.items()}

    async def written(self) -> int:
        """Revision of the row of idp."""
        found = await self.world.store.get(records.access_key("issuers/idp"))
        return 0 if found is None else found.mod_revision


class Apart:
    """What a term does about issuers, by a clock and a source of its own: those of the term itself never answer."""

    def __init__(self, held: Held, wanted: Sequence[WantedIssuer]) -> None:
        term = held.engine.candidate.term
        assert term is not None, "it is active"
        self.held = held
        self.clock = FakeClock(held.world.clock.now_ms())
        self.source = FakeIssuers()
        self.issuers = Issuers(term.writer, held.engine.follower, self.source, self.clock, wanted)

    async def look(self, after_ms: float = 0) -> None:
        """Once, after that time."""
        await self.clock.advance(after_ms)
        looking = self.held.world.tasks.start(self.issuers.look(), name="look at issuers")
        await self.held.world.until(looking.done)

    def publish(self, alias: str = "idp", *algorithms: str) -> None:
        publish(self.source, self.clock, alias, *algorithms)


def publish(source: FakeIssuers, clock: FakeClock, alias: str, *algorithms: str, iss: str = "") -> None:
    keys = SigningIssuer(algorithms=algorithms or ["RS256"]).known.keys
    source.published[alias] = Fetched(keys, clock.now_ms(), iss)


@asynccontextmanager
async def held(*wanted: WantedIssuer) -> AsyncIterator[Held]:
    async with cell(config(Mode.PERMISSIVE, issuers=wanted)) as world:
        yield Held(world, await world.active())


@asynccontextmanager
async def apart(*wanted: WantedIssuer) -> AsyncIterator[Apart]:
    async with held(*wanted) as made:
        await made.world.until(lambda: len(made.world.issuers.asked) == len(wanted))
        await made.world.pass_ms(200)
        yield Apart(made, wanted)


async def test_keys_reach_the_image_and_tokens_are_verified_by_them() -> None:
    async with held(WANTED) as world:
        world.publish()
        await world.world.until(lambda: world.keys == {"idp": ["RS256-1"]}, ms=2 * FETCH_AGAIN_MS)
        now_ms = world.world.clock.now_ms()
        issuers = dict(world.known)
        assert str(verify(IDP.token(now_ms=now_ms), issuers, now_ms).principal) == "Oidc:idp/alice"
        with pytest.raises(Unauthenticated, match="signed with key"):
            verify(SigningIssuer(algorithms=["ES256"]).token(algorithm="ES256", now_ms=now_ms), issuers, now_ms)


async def test_new_keys_are_seen_in_ten_minutes_and_what_is_the_same_is_written_once_an_hour() -> None:
    async with apart(WANTED) as made:
        made.publish()
        await made.look()
        first = await made.held.written()
        for _ in range(5):
            await made.look(FETCH_AGAIN_MS)
            await made.look(FETCH_EVERY_MS - FETCH_AGAIN_MS - 1)
            made.publish()
            await made.look(1)
        assert len(made.source.asked) == 6
        assert await made.held.written() == first
        made.publish("idp", "RS256", "ES256")
        await made.look(FETCH_EVERY_MS)
        assert made.held.keys == {"idp": ["RS256-1", "ES256-1"]}
        second = await made.held.written()
        assert second > first
        confirmed_ms = made.held.known["idp"].confirmed_ms
        while made.clock.now_ms() + FETCH_EVERY_MS < confirmed_ms + CONFIRM_EVERY_MS:
            await made.clock.advance(FETCH_EVERY_MS)
            made.publish("idp", "RS256", "ES256")
            await made.look()
            assert await made.held.written() == second
        await made.clock.advance(FETCH_EVERY_MS)
        made.publish("idp", "RS256", "ES256")
        await made.look()
        assert await made.held.written() > second
        assert made.held.known["idp"].confirmed_ms == made.clock.now_ms()


async def test_who_meets_a_key_that_is_not_known_has_the_issuer_asked_half_a_minute_after_the_last_time() -> None:
    async with apart(WANTED, OTHER) as made:
        made.publish()
        made.publish("other")
        made.issuers.want(["idp"])
        await made.look()
        assert made.source.asked == ["idp", "other"], "it was due"
        made.publish("idp", "ES256")
        made.issuers.want(["idp", "idp", "nobody"])
        await made.look(FETCH_WANTED_MS - 1)
        assert made.source.asked == ["idp", "other"]
        await made.look(1)
        assert made.source.asked == ["idp", "other", "idp"]
        assert made.held.keys["idp"] == ["ES256-1"]
        await made.look(FETCH_EVERY_MS - 1)
        assert made.source.asked[3:] == ["other"], "once"
        made.issuers.want(["idp"])
        await made.look()
        assert made.source.asked[4:] == ["idp"], "at once, if the last time is long ago"


async def test_who_wants_keys_while_they_are_fetched_gets_those_of_later() -> None:
    async with apart(WANTED) as made:
        fetch = made.source.fetch

        async def slow(wanted: WantedIssuer) -> Fetched:
            made.issuers.want(["idp"])
            made.source.fetch = fetch  # type: ignore[method-assign]
            return await fetch(wanted)

        made.source.fetch = slow  # type: ignore[method-assign]
        made.publish()
        await made.look()
        await made.look(FETCH_WANTED_MS - 1)
        assert len(made.source.asked) == 1
        await made.look(1)
        assert len(made.source.asked) == 2


async def test_one_that_is_away_is_asked_no_more_often_than_it_is_wanted() -> None:
    async with apart(WANTED) as made:
        await made.look()
        for _ in range(FETCH_WANTED_MS // 1_000):
            assert len(made.source.asked) == 1
            made.issuers.want(["idp"])
            await made.look(1_000)
        assert len(made.source.asked) == 2


async def test_a_heartbeat_has_the_active_controller_ask() -> None:
    async with held(WANTED) as world:
        world.publish()
        await world.world.until(lambda: world.keys == {"idp": ["RS256-1"]}, ms=2 * FETCH_AGAIN_MS)
        node = broker(1, level=ACCESS.level)
        joined = await world.engine.register(Joining(node))
        world.publish("idp", "ES256")
        await world.engine.heartbeat(Heartbeat(node.key, joined.epoch, 0, keys_wanted=("idp",)))
        await world.world.until(lambda: world.keys == {"idp": ["ES256-1"]}, ms=FETCH_WANTED_MS + 5_000)


async def test_the_age_of_keys_is_that_of_the_oldest() -> None:
    async with apart(WANTED, OTHER) as made:
        assert made.issuers.keys_age_ms() == 0
        made.publish()
        made.publish("other")
        await made.look()
        assert made.issuers.keys_age_ms() == 0
        del made.source.published["other"]
        for _ in range(12):
            await made.clock.advance(FETCH_EVERY_MS)
            made.publish()
            await made.look()
        assert made.issuers.keys_age_ms() == 12 * FETCH_EVERY_MS


async def test_an_issuer_that_is_away_is_asked_each_minute_and_keeps_its_keys(caplog: Any) -> None:
    async with apart(WANTED) as made:
        made.publish()
        await made.look()
        made.source.published.clear()
        caplog.clear()
        with caplog.at_level(logging.INFO):
            await made.look(FETCH_EVERY_MS)
            for _ in range(5):
                await made.look(FETCH_AGAIN_MS - 1)
                await made.look(1)
            assert len(made.source.asked) == 7
            (said,) = caplog.records
            assert (said.levelname, said.issuer) == ("WARNING", "idp")
            assert made.held.keys == {"idp": ["RS256-1"]}
            await made.look(SAY_AGAIN_MS)
            assert len(caplog.records) == 2
            made.publish()
            await made.look(FETCH_AGAIN_MS)
            assert "can be read again" in caplog.text
            made.source.published.clear()
            await made.look(FETCH_EVERY_MS)
            assert caplog.records[-1].levelname == "WARNING", "and said at once when it is away again"


@pytest.mark.parametrize(("after_ms", "level"), [(WARN_AFTER_MS - 1, "WARNING"), (WARN_AFTER_MS, "ERROR")])
async def test_keys_that_nobody_saw_for_a_week_are_an_error_in_the_log(caplog: Any, after_ms: int, level: str) -> None:
    async with apart(WANTED) as made:
        made.publish()
        await made.look()
        made.source.published.clear()
        confirmed_ms = made.clock.now_ms()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await made.look(after_ms)
        (said,) = caplog.records
        assert said.levelname == level
        assert (said.confirmed, said.refused_from) == (iso_of(confirmed_ms), iso_of(confirmed_ms + REFUSE_AFTER_MS))
        assert made.held.known["idp"].confirmed_ms == confirmed_ms


async def test_one_that_never_answered_is_an_error_and_holds_up_no_other(caplog: Any) -> None:
    async with apart(WANTED, OTHER) as made:
        made.publish("other")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await made.look()
        assert made.held.keys == {"other": ["RS256-1"]}
        (said,) = caplog.records
        assert (said.levelname, said.issuer) == ("ERROR", "idp")


async def test_the_next_active_controller_has_other_settings() -> None:
    async with held(WANTED, OTHER) as world:
        world.publish()
        world.publish("other")
        await world.world.until(lambda: set(world.keys) == {"idp", "other"}, ms=2 * FETCH_AGAIN_MS)
        await world.engine.stop()
        world.world.issuers.published.clear()
        changed = replace(WANTED, issuer=replace(WANTED.issuer, audiences=frozenset({"new"})))
        world.world.config = replace(world.world.config, issuers=(changed,))
        next = await world.world.active(2)
        await world.world.until(lambda: set(next.follower.access.issuers) == {"idp"})
        await world.world.until(lambda: next.follower.access.issuers["idp"].issuer.audiences == {"new"})
        assert [key.id for key in next.follower.access.issuers["idp"].keys] == ["RS256-1"]


async def test_kubernetes_is_called_what_its_api_server_says() -> None:
    async with held(of_kubernetes("headrace:streams/main")) as world:
        world.publish("kubernetes", iss="https://kubernetes.default.svc")
        await world.world.until(lambda: "kubernetes" in world.keys, ms=2 * FETCH_AGAIN_MS)
        known = world.known["kubernetes"]
        assert (known.issuer.iss, known.issuer.audiences) == (
            "https://kubernetes.default.svc",
            {"headrace:streams/main"},
        )


async def test_below_the_level_of_access_nothing_is_asked_or_written() -> None:
    async with cell(config(Mode.OPEN, issuers=(WANTED,))) as world:
        engine = await world.active()
        await engine.register(Joining(broker(1, level=ACCESS.level - 1)))
        made = Held(world, engine)
        made.publish()
        await world.pass_ms(5_000)
        assert not world.issuers.asked
        assert not await made.written()
        await engine.register(Joining(broker(1, start=1, level=ACCESS.level)))
        await world.until(lambda: made.keys == {"idp": ["RS256-1"]})


async def test_where_rules_cannot_be_read_nothing_is_written() -> None:
    async with apart(WANTED) as made:
        world = made.held.world
        made.publish()
        key = records.access_key("grants/User:alice")
        for row, is_written in ((b'{"v":9}', False), (b'{"v":1,"rules":[],"bindings":[]}', True)):
            await world.store.commit(Transaction((), (Put(key, row),)))
            await world.pass_ms(200)
            assert bool(made.held.engine.follower.access.faults) is not is_written
            await made.look(FETCH_EVERY_MS)
            assert bool(await made.held.written()) is is_written


async def test_rules_that_cannot_be_read_while_keys_are_fetched_stop_nothing_but_the_write() -> None:
    async with apart(WANTED) as made:
        world = made.held.world

        async def fetch(wanted: WantedIssuer) -> Fetched:
            put = Put(records.access_key("grants/User:alice"), b'{"v":9}')
            await world.store.commit(Transaction((), (put,)))
            while not made.held.engine.follower.access.faults:
                await asyncio.sleep(0)
            return Fetched(IDP.known.keys, made.clock.now_ms())

        made.source.fetch = fetch  # type: ignore[method-assign]
        await made.look()
        assert not await made.held.written()


async def test_what_the_store_does_not_take_now_is_written_later() -> None:
    async with apart(WANTED) as made:
        made.publish()
        await made.look()
        made.publish("idp", "ES256")
        made.held.world.links[1].up = False
        await made.clock.advance(FETCH_EVERY_MS)
        with pytest.raises(StoreUnavailable):
            await made.issuers.look()
        made.held.world.links[1].up = True
        await made.look()
        assert made.held.keys == {"idp": ["ES256-1"]}
        assert len(made.source.asked) == 2, "what was fetched is not fetched again for it"


async def test_a_write_whose_answer_was_lost_is_looked_up() -> None:
    async with apart(WANTED) as made:
        made.publish()
        link = made.held.world.links[1]
        commit = link.commit

        async def forget(transaction: Transaction) -> Outcome:
            link.commit = commit  # type: ignore[method-assign]
            await commit(transaction)
            raise StoreOutcomeUnknown("the test lost the answer")

        link.commit = forget  # type: ignore[method-assign]
        await made.look()
        assert made.held.keys == {"idp": ["RS256-1"]}
