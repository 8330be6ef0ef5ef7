"""Users with passwords: who may make and change them, what goes with them, and logins for a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

import pytest
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, allow
from libs.common.tests.kit.passwords import CORRECT, client, verifiers
from services.controller.tests.kit.access import Office, called_by, config, office

from headrace_common.core.access.changes import Block, Put, Rule
from headrace_common.core.access.grants import Scope
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.access.roles import Binding
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.scram import WRONG
from headrace_common.core.access.slowing import FREE
from headrace_common.core.access.state import Caller
from headrace_common.core.access.users import GRACE_MS_MAX
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    Conflict,
    CredentialsRevoked,
    HeadraceError,
    NotFound,
    Rejected,
    Unauthenticated,
)
from headrace_controller.engine.keys import LOGINS_PER_OWNER_MAX
from headrace_controller.engine.logins import LOGIN_MS, PENDING_PER_ADDRESS_MAX

OTHER = "another good one"
READS = allow(ResourceType.TOPIC, literal("a"), Operation.READ)


@pytest.fixture
async def held() -> AsyncIterator[Office]:
    """A closed cluster."""
    async with office(config(Mode.CLOSED)) as made:
        yield made


async def refused(held: Office, call: Awaitable[object]) -> HeadraceError:
    """That a call is, and has changed nothing."""
    before = await held.rows()
    with pytest.raises(HeadraceError) as caught:
        await call
    assert await held.rows() == before
    return caught.value


class TestMaking:
    async def test_nothing_that_logs_in_is_kept(self, held: Office) -> None:
        user = await held.make_user()
        rows = await held.rows()
        assert not any(CORRECT.encode() in row for row in rows.values())
        assert {"users/alice", "salting"} <= rows.keys()
        assert (user.name, [one.mechanism for one in user.password.verifiers]) == (
            "alice",
            ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        )
        await held.make_user("bob")
        assert (await held.rows())["salting"] == rows["salting"], "or who is not there would have another salt"

    async def test_there_is_one_of_a_name(self, held: Office) -> None:
        await held.make_user()
        assert isinstance(await refused(held, held.make_user(password=OTHER)), Conflict)

    @pytest.mark.parametrize("name", ["", "a\nb", "*", "ﬁne", "ANONYMOUS", "e\u0301"])
    async def test_nobody_is_called_so(self, held: Office, name: str) -> None:
        assert isinstance(await refused(held, held.make_user(name)), Rejected)

    async def test_a_password_has_a_verifier_of_each_mechanism(self, held: Office) -> None:
        for given in (verifiers()[:1], verifiers()[:1] * 2, ()):
            call = held.engine.create_user("alice", given, called_by(ADMIN))
            assert isinstance(await refused(held, call), Rejected)

    async def test_who_sets_a_password_may_act_as_its_user_and_so_needs_all_that_it_may(self, held: Office) -> None:
        await held.alter(Put(Rule(ALICE, READS)))
        assert isinstance(await refused(held, held.make_user(by=BOB)), ClusterAuthorizationFailed)
        assert isinstance(await refused(held, held.make_user(by=ALICE)), ClusterAuthorizationFailed), "not one's own"
        keeps = allow(ResourceType.PRINCIPAL, literal(str(ALICE)), Operation.ALTER)
        await held.alter(Put(Rule(BOB, keeps)))
        assert "more than it has" in str(await refused(held, held.make_user(by=BOB)))
        await held.alter(Put(Rule(BOB, READS)))
        await held.make_user(by=BOB)

    async def test_a_narrowed_key_and_a_session_set_none(self, held: Office) -> None:
        scoped = called_by(
            ADMIN, Scope(frozenset({allow(ResourceType.PRINCIPAL, literal(str(ALICE)), Operation.ALTER)}))
        )
        vouched = called_by(ADMIN)
        object.__setattr__(vouched, "caller", Caller(ADMIN, vouched=True))
        for rights in (scoped, vouched):
            call = held.engine.create_user("alice", verifiers(), rights)
            assert isinstance(await refused(held, call), ClusterAuthorizationFailed)


class TestChanging:
    async def test_everybody_changes_their_own(self, held: Office) -> None:
        await held.make_user()
        before = held.view.access.generation
        await held.change_password(OTHER, by=ALICE, name="")
        await held.log_in(OTHER)
        assert held.view.access.generation == before + 1
        with pytest.raises(Unauthenticated, match=WRONG):
            await held.log_in(CORRECT)
        assert isinstance(await refused(held, held.change_password(CORRECT, by=BOB)), ClusterAuthorizationFailed)
        assert isinstance(await refused(held, held.change_password(CORRECT, name="nobody")), NotFound)

    async def test_with_a_grace_both_count_until_it_is_over(self, held: Office) -> None:
        await held.make_user()
        early = await held.log_in()
        await held.change_password(OTHER, grace_ms=60_000)
        user = held.view.users["alice"]
        for password in (CORRECT, OTHER):
            await held.log_in(password)
        assert early.key.login != user.password.id
        assert user.end_of(early.key.login) == user.old_until_ms
        await held.world.pass_ms(60_001)
        await held.log_in(OTHER)
        with pytest.raises(Unauthenticated):
            await held.log_in(CORRECT)
        await held.forget()
        assert held.view.users["alice"].old is None
        assert b'"old":null' in (await held.rows())["users/alice"], "nothing of it is kept"

    async def test_a_grace_needs_the_salts_of_before_and_has_bounds(self, held: Office) -> None:
        await held.make_user()
        other = b"salt of another twenty.."
        assert "ListUsers" in str(await refused(held, held.change_password(OTHER, 1, salt=other)))
        for grace_ms in (-1, GRACE_MS_MAX + 1):
            assert isinstance(await refused(held, held.change_password(OTHER, grace_ms)), Rejected)
        await held.change_password(OTHER, GRACE_MS_MAX)
        await held.change_password(CORRECT, salt=other)
        assert held.view.users["alice"].old is None


class TestTakingAway:
    async def test_who_has_rules_or_keys_stays_unless_these_go_too(self, held: Office) -> None:
        for said in (Put(Rule(ALICE, READS)), Put(Binding(ALICE, "auditor")), Put(Block(ALICE)), None):
            await held.make_user()
            if said is None:
                await held.create(ALICE)
            else:
                await held.alter(said)
            assert isinstance(await refused(held, held.delete_user()), Conflict)
            await held.delete_user(cascade=True)
            assert not any("alice" in row for row in await held.rows()), said
            assert ALICE not in {key.owner for key in held.view.keys.values()}

    async def test_one_of_the_same_name_has_nothing_of_it(self, held: Office) -> None:
        first = await held.make_user()
        login = await held.log_in()
        await held.delete_user()
        with pytest.raises(Unauthenticated):
            await held.log_in()
        again = await held.make_user()
        assert again.id != first.id
        assert again.end_of(login.key.login) == 0, "its logins are over"

    async def test_who_may_not_changes_and_learns_nothing(self, held: Office) -> None:
        await held.make_user()
        there = await refused(held, held.delete_user("alice", by=BOB))
        not_there = await refused(held, held.delete_user("carol", by=BOB))
        assert isinstance(there, ClusterAuthorizationFailed)
        assert str(there).replace("alice", "carol") == str(not_there)
        assert isinstance(await refused(held, held.delete_user("carol")), NotFound)


class TestLoggingIn:
    async def test_it_gives_a_key_for_half_a_day(self, held: Office) -> None:
        await held.make_user()
        made = await held.log_in()
        key = held.view.keys[made.key.id]
        assert (key.owner, key.login) == (ALICE, held.view.users["alice"].password.id)
        assert key.expires_ms == key.created_ms + LOGIN_MS

    async def test_a_wrong_password_and_a_stranger_are_told_the_same_and_get_nothing(self, held: Office) -> None:
        await held.make_user()
        said = [await refused(held, held.log_in("wrong password")), await refused(held, held.log_in(name="mallory"))]
        assert [type(one) for one in said] == [Unauthenticated] * 2
        assert {str(one) for one in said} == {WRONG}

    async def test_who_is_blocked_is_told_so_once_the_password_is_right(self, held: Office) -> None:
        await held.make_user()
        await held.alter(Put(Block(ALICE)))
        assert isinstance(await refused(held, held.log_in()), CredentialsRevoked)
        assert str(await refused(held, held.log_in("wrong password"))) == WRONG

    async def test_an_exchange_is_good_once_and_for_half_a_minute(self, held: Office) -> None:
        await held.make_user()
        asks = client()
        begun = held.engine.begin_login(asks.mechanism, asks.first(), "10.0.0.1")
        last = asks.last(begun.message)
        await held.engine.finish_login(begun.exchange_id, last)
        for id in (begun.exchange_id, "", "unknown"):
            assert isinstance(await refused(held, held.engine.finish_login(id, last)), Unauthenticated)
        late = client()
        begun = held.engine.begin_login(late.mechanism, late.first(), "10.0.0.1")
        await held.world.pass_ms(30_000)
        call = held.engine.finish_login(begun.exchange_id, late.last(begun.message))
        assert "too long ago" in str(await refused(held, call))

    async def test_a_password_that_is_changed_between_the_steps_logs_nobody_in(self, held: Office) -> None:
        await held.make_user()
        asks = client()
        begun = held.engine.begin_login(asks.mechanism, asks.first(), "10.0.0.1")
        await held.change_password(OTHER)
        call = held.engine.finish_login(begun.exchange_id, asks.last(begun.message))
        assert isinstance(await refused(held, call), CredentialsRevoked)

    async def test_guesses_are_slowed_also_those_that_were_begun_before(self, held: Office) -> None:
        await held.make_user()
        guesses = [client(password=f"guess number {n}") for n in range(FREE + 1)]
        begun = [held.engine.begin_login(one.mechanism, one.first(), "10.0.0.1") for one in guesses]
        said = [
            str(await refused(held, held.engine.finish_login(step.exchange_id, one.last(step.message))))
            for one, step in zip(guesses, begun, strict=True)
        ]
        assert said[:FREE] == [WRONG] * FREE
        assert "try again in 60 s" in said[FREE]
        assert "try again" in str(await refused(held, held.log_in()))
        await held.log_in(address="10.0.0.2")
        await held.world.pass_ms(60_000)
        await held.log_in()

    async def test_one_address_keeps_nobody_else_from_logging_in(self, held: Office) -> None:
        await held.make_user()
        asks = client()
        for _ in range(PENDING_PER_ADDRESS_MAX):
            held.engine.begin_login(asks.mechanism, client().first(), "10.0.0.1")
        with pytest.raises(Unauthenticated, match="under way"):
            held.engine.begin_login(asks.mechanism, client().first(), "10.0.0.1")
        await held.log_in(address="10.0.0.2")

    async def test_the_oldest_login_goes_for_a_new_one(self, held: Office, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace_controller.engine.keys.LOGINS_PER_OWNER_MAX", 2)
        assert LOGINS_PER_OWNER_MAX < 1_000
        await held.make_user()
        made = []
        for _ in range(3):
            made.append((await held.log_in()).key.id)
            await held.world.pass_ms(1)
        kept = [key.id for key in held.view.keys.values() if key.login]
        assert sorted(kept) == sorted(made[1:])


async def test_users_may_be_made_before_a_cluster_is_closed() -> None:
    async with office(config(Mode.OPEN)) as held:
        await held.make_user()
        await held.log_in()
