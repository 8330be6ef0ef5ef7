"""Rules, roles, blocks and the mode: who may change them, that a batch is whole or nothing, what the settings do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, CERT, allow
from services.controller.tests.kit.access import ADMIN_KEY, Office, called_by, config, office
from services.controller.tests.kit.dialogue import Link, broker, cell

from headrace_common.core.access.changes import Block, Change, Put, Remove, Rule
from headrace_common.core.access.grants import Scope
from headrace_common.core.access.issuers import Issuer, IssuerKeys
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal
from headrace_common.core.access.roles import Binding
from headrace_common.core.access.rows import STATE, Mode, Reader, read_state, write_issuer, write_state
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    HeadraceError,
    NotFound,
    Rejected,
    UnsupportedVersion,
)
from headrace_common.core.features import ACCESS
from headrace_common.runtime.service import ServerConfig
from headrace_controller.core import records, store
from headrace_controller.core.records import Cluster
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Outcome, Transaction
from headrace_controller.engine.access import ROWS_MAX, Altered
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import StoreOutcomeUnknown

READS = allow(ResourceType.TOPIC, literal("a"), Operation.READ)
GIVE = Put(Rule(ALICE, READS))
SECURITY = Put(Binding(BOB, "security"))


@pytest.fixture
async def held() -> AsyncIterator[Office]:
    """A cluster in mode permissive."""
    async with office() as made:
        yield made


async def refused(held: Office, *changes: Change, by: Principal = ADMIN, mode: Mode | None = None) -> HeadraceError:
    """Why; and nothing was changed."""
    before = await held.rows()
    with pytest.raises(HeadraceError) as caught:
        await held.alter(*changes, by=by, mode=mode)
    assert await held.rows() == before
    return caught.value


def people(count: int) -> list[Change]:
    return [Put(Rule(Principal(PrincipalType.USER, f"u{n}"), READS)) for n in range(count)]


class TestBatches:
    async def test_a_batch_is_one_revision_and_one_generation_and_reaches_the_image(self, held: Office) -> None:
        generation, revision = held.view.access.generation, held.engine.image.revision
        altered = await held.alter(GIVE, SECURITY)
        assert (altered.generation, held.view.access.generation) == (generation + 1, generation + 1)
        assert {str(shift.grantee) for shift in altered.shifts} == {"User:alice", "User:bob"}
        assert (held.view.access.rules, held.view.mode) == ({ALICE: frozenset({READS})}, Mode.PERMISSIVE)
        written = {item.mod_revision for item in (await held.world.store.list_all()).items if "access/" in item.key}
        assert len([one for one in written if one > revision]) == 1
        assert Reader().read(await held.rows()) == held.view

    async def test_what_is_so_already_is_no_new_generation(self, held: Office) -> None:
        first = await held.alter(GIVE)
        before = await held.rows()
        assert (await held.alter(GIVE)).generation == first.generation
        assert await held.rows() == before

    async def test_what_is_taken_away_is_gone_from_the_store(self, held: Office) -> None:
        await held.alter(GIVE, Put(Block(BOB)))
        assert {"grants/User:alice", "blocked/User:bob"} <= (await held.rows()).keys()
        await held.alter(Remove(Rule(ALICE, READS)), Remove(Block(BOB)))
        assert (await held.rows()).keys() == {"state", "configured", "producers"}
        assert (held.view.access.rules, held.view.access.blocked) == ({}, frozenset())

    async def test_to_try_it_writes_nothing_and_says_the_same(self, held: Office) -> None:
        before, generation = await held.rows(), held.view.access.generation
        tried = await held.alter(GIVE, validate_only=True)
        assert (tried.generation, await held.rows()) == (generation, before)
        with pytest.raises(NotFound):
            await held.alter(Remove(Rule(BOB, READS)), validate_only=True)
        assert (await held.alter(GIVE)).shifts == tried.shifts

    async def test_one_wrong_change_undoes_all(self, held: Office) -> None:
        error = await refused(held, GIVE, Remove(Rule(BOB, READS)))
        assert isinstance(error, NotFound)

    async def test_batches_that_meet_are_both_made(self, held: Office) -> None:
        generation = held.view.access.generation
        one = held.world.tasks.start(held.alter(GIVE), name="one")
        two = held.world.tasks.start(held.alter(SECURITY), name="two")
        await held.world.until(lambda: one.done() and two.done())
        assert {one.result().generation, two.result().generation} == {generation + 1, generation + 2}
        assert (set(held.view.access.rules), set(held.view.access.bindings)) == ({ALICE}, {BOB})


async def test_nodes_that_a_change_does_not_reach_are_told_of(held: Office) -> None:
    world, engine = held.world, held.engine
    nodes = [broker(number, level=ACCESS.level) for number in (7, 8)]
    epochs = [(await engine.register(Joining(node))).epoch for node in nodes]
    stuck = engine.image.revision
    await held.alter(GIVE)
    for _ in range(12):
        for node, epoch, revision in zip(nodes, epochs, (engine.image.revision, stuck), strict=True):
            await engine.heartbeat(Heartbeat(node.key, epoch, revision))
        await world.pass_ms(1_000)
    [(key, ms)] = engine.describe_cluster().behind.items()
    assert key == nodes[1].key
    assert 10_000 < ms <= 12_000


class TestWho:
    async def test_who_has_no_right_changes_nothing(self, held: Office) -> None:
        for by in (ALICE, ANONYMOUS, Principal(PrincipalType.NODE, "admin-1")):
            error = await refused(held, GIVE, by=by)
            assert isinstance(error, ClusterAuthorizationFailed), "in mode permissive, too: rules outlast it"
            assert f"{by} may not ALTER PRINCIPAL User:alice" in str(error)

    async def test_nobody_gives_more_than_it_has(self, held: Office) -> None:
        keeper = Put(Rule(BOB, allow(ResourceType.PRINCIPAL, EVERY_NAME, Operation.ALTER)))
        await held.alter(keeper)
        assert "more than it has" in str(await refused(held, GIVE, by=BOB))
        await held.alter(Put(Rule(BOB, READS)))
        await held.alter(GIVE, by=BOB)
        assert ALICE in held.view.access.rules

    async def test_a_right_that_is_taken_back_meanwhile_does_not_count(self, held: Office) -> None:
        await held.alter(SECURITY)
        taken = held.world.tasks.start(held.alter(Remove(SECURITY.item)), name="take")
        given = held.world.tasks.start(_result(held.alter(GIVE, by=BOB)), name="give")
        await held.world.until(lambda: taken.done() and given.done())
        assert isinstance(given.result(), ClusterAuthorizationFailed)
        assert ALICE not in held.view.access.rules

    async def test_while_it_is_open_everybody_may(self) -> None:
        async with office(config(Mode.OPEN)) as held:
            await held.alter(GIVE, by=ANONYMOUS)
            assert held.view.access.rules == {ALICE: frozenset({READS})}

    async def test_the_last_who_can_change_rules_stays(self) -> None:
        async with office(config(Mode.OPEN, admin_keys=())) as held:
            error = await refused(held, GIVE, by=ANONYMOUS)
            assert error.code is ErrorCode.POLICY_VIOLATION
            await held.alter(GIVE, SECURITY, by=ANONYMOUS)


class TestBounds:
    async def test_as_many_as_fit_into_one_transaction_are_made_and_one_more_is_told_what_to_do(
        self, held: Office
    ) -> None:
        error = await refused(held, *people(ROWS_MAX + 1))
        assert f"about {ROWS_MAX + 1} principals and roles; {ROWS_MAX} are the most" in str(error)
        with pytest.raises(Rejected, match="send them in parts"):
            await held.alter(*people(ROWS_MAX + 1), validate_only=True)
        await held.alter(*people(ROWS_MAX))
        assert len(held.view.access.rules) == ROWS_MAX

    async def test_rows_that_are_too_long_together_are_told_what_to_do(self, held: Office) -> None:
        def rules(who: Principal, batch: int) -> list[Change]:
            names = (f"{batch:04}{n:04}".ljust(249, "é") for n in range(1_000))
            return [Put(Rule(who, allow(ResourceType.TOPIC, literal(name), Operation.READ))) for name in names]

        await held.alter(*rules(ALICE, 0))
        await held.alter(*rules(ALICE, 1))
        error = await refused(held, *rules(ALICE, 2))
        assert isinstance(error, Rejected)
        assert "by roles and prefixes" in str(error)


class TestMode:
    async def test_it_rises_with_rules_in_one_step(self, held: Office) -> None:
        generation = held.view.access.generation
        altered = await held.alter(GIVE, mode=Mode.CLOSED)
        assert (held.view.mode, altered.generation, set(held.view.access.rules)) == (
            Mode.CLOSED,
            generation + 1,
            {ALICE},
        )
        assert (await held.alter(mode=Mode.CLOSED)).generation == generation + 1, "it is already"

    async def test_it_never_falls(self, held: Office) -> None:
        error = await refused(held, mode=Mode.OPEN)
        assert "never falls" in str(error)
        assert "breakglass --mode permissive" in str(error)

    async def test_to_close_it_asks_for_alter_on_the_cluster(self, held: Office) -> None:
        await held.alter(SECURITY)
        assert isinstance(await refused(held, mode=Mode.CLOSED, by=BOB), ClusterAuthorizationFailed)
        await held.alter(Put(Rule(BOB, allow(ResourceType.CLUSTER, EVERY_NAME, Operation.ALTER))))
        await held.alter(mode=Mode.CLOSED, by=BOB)

    async def test_it_is_not_closed_where_nodes_prove_nothing(self) -> None:
        async with office(config(Mode.PERMISSIVE, server=ServerConfig())) as held:
            error = await refused(held, mode=Mode.CLOSED)
            assert (error.code, "certificates" in str(error)) == (ErrorCode.POLICY_VIOLATION, True)

    async def test_it_is_not_closed_while_who_can_change_rules_has_no_key(self) -> None:
        async with office(config(Mode.PERMISSIVE, admin_keys=(), super_users=("User:alice",))) as held:
            assert "nobody could change rules" in str(await refused(held, mode=Mode.CLOSED, by=ALICE))
            await held.create(ALICE, owner=BOB)
            await held.create(ALICE, scope=Scope(frozenset({READS})))
            await held.create(ALICE, lifetime_ms=1_000)
            await held.world.pass_ms(1_000)
            assert "nobody could change rules" in str(await refused(held, mode=Mode.CLOSED, by=ALICE))
            await held.create(ALICE)
            await held.alter(mode=Mode.CLOSED, by=ALICE)

    async def test_who_is_named_by_tokens_needs_no_key(self) -> None:
        async with office(config(Mode.PERMISSIVE, admin_keys=(), super_users=("Oidc:idp/alice",))) as held:
            alice = Principal(PrincipalType.OIDC, "idp/alice")
            assert "nobody could change rules" in str(await refused(held, mode=Mode.CLOSED, by=alice))
            name, row = write_issuer(
                IssuerKeys(Issuer("idp", "https://login.example.com", frozenset({"headrace"})), (), 1)
            )
            await held.world.store.commit(Transaction((), (store.Put(records.access_key(name), row),)))
            await held.world.until(lambda: bool(held.view.issuers))
            await held.alter(mode=Mode.CLOSED, by=alice)


class TestSettings:
    async def test_a_new_closed_cluster_has_its_rows_and_its_level_from_its_first_revision(self) -> None:
        async with cell(config(Mode.CLOSED, super_users=("User:alice",))) as world:
            engine = await world.controller(1)
            items = (await world.store.list_all()).items
            born = {item.key: item.create_revision for item in items}
            assert born["access/state"] == born["access/configured"] == born["cluster"]
            assert (engine.image.feature_level, engine.follower.access.mode) == (ACCESS.level, Mode.CLOSED)
            assert engine.follower.access.access.super_users == {ALICE, ADMIN}
            await world.until(lambda: engine.candidate.term is not None)
            for old in range(ACCESS.level):
                with pytest.raises(UnsupportedVersion):
                    await engine.register(Joining(broker(1, level=old)))
            await engine.register(Joining(broker(1, level=ACCESS.level)))
            await world.pass_ms(1_000)
            assert engine.follower.access.access.generation == 1, "nothing is written again"

    async def test_a_new_open_cluster_begins_as_ever(self) -> None:
        async with cell(config(Mode.OPEN)) as world:
            engine = await world.active()
            await world.pass_ms(1_000)
            assert (engine.image.feature_level, engine.image.access) == (0, {})

    async def test_below_the_level_nothing_is_written_or_asked_and_at_it_the_settings_come(self) -> None:
        async with cell(config(Mode.CLOSED)) as world:
            await world.store.commit(
                Transaction(
                    (),
                    (
                        store.Put(records.FORMAT_KEY, b"1"),
                        store.Put(records.CLUSTER_KEY, records.encode(Cluster("c1", b"i" * 16))),
                    ),
                )
            )
            engine = await world.active()
            await engine.register(Joining(broker(1, level=ACCESS.level)))
            await engine.register(Joining(broker(2, level=ACCESS.level - 1)))
            await world.until(lambda: engine.image.feature_level == ACCESS.level - 1)
            await world.pass_ms(1_000)
            assert engine.image.access == {}
            with pytest.raises(UnsupportedVersion, match=f"needs feature level {ACCESS.level}"):
                await engine.alter_access([GIVE], None, called_by(ADMIN), validate_only=False)
            await engine.register(Joining(broker(2, start=1, level=ACCESS.level)))
            await world.until(lambda: engine.follower.access.mode is Mode.CLOSED)
            assert set(engine.follower.access.keys) == {ADMIN_KEY.id}

    async def test_the_next_term_brings_its_own_settings(self, held: Office) -> None:
        await held.alter(GIVE)
        held.world.config = config(Mode.CLOSED, super_users=("Cert:alice",), admin_keys=())
        second = await held.world.controller(2)
        await held.engine.stop()
        await held.world.until(lambda: second.follower.access.mode is Mode.CLOSED)
        view = second.follower.access
        assert (view.access.super_users, view.keys, set(view.access.rules)) == ({CERT}, {}, {ALICE})

    async def test_what_a_newer_version_wrote_is_kept_and_nothing_is_changed(self, held: Office) -> None:
        newer = store.Put(records.access_key("grants/User:x"), b'{"v":9}')
        await held.world.store.commit(Transaction((), (newer,)))
        await held.world.until(lambda: "grants/User:x" in held.engine.image.access)
        error = await refused(held, GIVE)
        assert "cannot read" in str(error)
        assert "grants/User:x" in str(error)

    async def test_a_state_that_cannot_be_read_is_not_overwritten(self) -> None:
        async with cell(config(Mode.CLOSED)) as world:
            engine = await world.active()
            await world.store.commit(Transaction((), (store.Put(records.access_key(STATE), b'{"v":9}'),)))
            await world.pass_ms(2_000)
            assert engine.image.access[STATE] == b'{"v":9}'


class Forgetful(Link):
    """The next write of access is made or not, and its answer is lost; another's may come first."""

    made = True
    armed = False
    foreign: Transaction | None = None

    async def commit(self, transaction: Transaction) -> Outcome:
        touches = any(isinstance(o, store.Put) and o.key.startswith("access/") for o in transaction.operations)
        if not (self.armed and touches):
            return await super().commit(transaction)
        self.armed = False
        if self.foreign is not None:
            await super().commit(self.foreign)
        if self.made:
            await super().commit(transaction)
        raise StoreOutcomeUnknown("the test lost the answer")


class TestLostAnswers:
    @pytest.mark.parametrize("made", [True, False])
    async def test_a_batch_whose_answer_was_lost_is_made_once(self, made: bool) -> None:
        async with cell(config(Mode.PERMISSIVE)) as world:
            link = world.links[1] = Forgetful(world.store)
            engine = await world.active()
            held = Office(world, engine)
            link.made, link.armed = made, True
            altered = await held.alter(GIVE)
            assert (altered.generation, held.view.access.generation) == (2, 2)
            assert held.view.access.rules == {ALICE: frozenset({READS})}

    async def test_another_batch_of_the_same_generation_is_not_taken_for_this_one(self) -> None:
        async with cell(config(Mode.PERMISSIVE)) as world:
            link = world.links[1] = Forgetful(world.store)
            engine = await world.active()
            held = Office(world, engine)
            theirs = store.Put(records.access_key(STATE), write_state(Mode.PERMISSIVE, 2))
            link.foreign, link.made, link.armed = Transaction((), (theirs,)), False, True
            altered = await held.alter(GIVE)
            assert (altered.generation, set(held.view.access.rules)) == (3, {ALICE})
            assert read_state(engine.image.access) == (Mode.PERMISSIVE, 3)


async def _result(work: Coroutine[Any, Any, Altered]) -> Altered | HeadraceError:
    try:
        return await work
    except HeadraceError as error:
        return error
