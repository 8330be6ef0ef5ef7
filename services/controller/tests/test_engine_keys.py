"""API keys: who may make and delete them, what they may be used for, how many there are, and what is kept of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, allow
from services.controller.tests.kit.access import ADMIN_KEY, Office, config, office

from headrace_common.core.access.api_keys import KEYS_PER_OWNER_MAX, ApiKey, KeyId, parse_key
from headrace_common.core.access.changes import Put, Rule
from headrace_common.core.access.grants import Scope
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal, prefix
from headrace_common.core.access.roles import Binding
from headrace_common.core.access.rows import Mode, write_key
from headrace_common.core.errors import ClusterAuthorizationFailed, ErrorCode, HeadraceError, NotFound, Rejected
from headrace_controller.core import records, store
from headrace_controller.core.store import Transaction
from headrace_controller.engine import keys as keys_module
from headrace_controller.engine.keys import DAY_MS, FOR_EVER, LIFETIME_MS_MAX, YEAR_MS

READS = allow(ResourceType.TOPIC, literal("a"), Operation.READ)
TOKENS = allow(ResourceType.PRINCIPAL, literal(str(ALICE)), Operation.CREATE_TOKENS)
OWNED = {ALICE: literal(str(ALICE)), BOB: literal(str(BOB))}


@pytest.fixture
async def held() -> AsyncIterator[Office]:
    """A closed cluster."""
    async with office(config(Mode.CLOSED)) as made:
        yield made


async def refused(
    held: Office, by: Principal = ALICE, with_scope: Scope | None = None, **wanted: object
) -> HeadraceError:
    before = await held.rows()
    with pytest.raises(HeadraceError) as caught:
        await held.create(by, with_scope, **wanted)
    assert await held.rows() == before
    return caught.value


def keeper(owner: Principal) -> Put:
    """Lets bob keep the keys of somebody."""
    return Put(Rule(BOB, allow(ResourceType.PRINCIPAL, OWNED[owner], Operation.ALTER)))


async def stored(held: Office, *keys: ApiKey) -> None:
    """These are there, whoever made them."""
    for start in range(0, len(keys), 100):
        rows = (write_key(key) for key in keys[start : start + 100])
        puts = tuple(store.Put(records.access_key(name), row) for name, row in rows)
        await held.world.store.commit(Transaction((), puts))
    await held.world.until(lambda: all(key.id in held.view.keys for key in keys))


class TestMaking:
    async def test_it_opens_at_once_for_its_owner_and_only_its_hash_is_kept(self, held: Office) -> None:
        generation = held.view.access.generation
        made = await held.create(ALICE, note="for tests")
        id, secret = parse_key(made.text)
        kept = held.view.keys[id]
        assert (kept, kept.owner, kept.scope, kept.matches(secret)) == (made.key, ALICE, None, True)
        assert not any(secret in item.value.decode() for item in (await held.world.store.list_all()).items)
        assert secret not in repr(made)
        assert (made.key.note, made.key.expires_ms) == ("for tests", made.key.created_ms + YEAR_MS)
        assert held.view.access.generation == generation, "no decision of before is another one now"

    async def test_no_two_are_alike(self, held: Office) -> None:
        assert len({(await held.create()).text for _ in range(20)}) == 20

    async def test_how_long_it_lasts(self, held: Office) -> None:
        assert (await held.create(lifetime_ms=FOR_EVER)).key.expires_ms is None
        assert (await held.create(lifetime_ms=LIFETIME_MS_MAX)).key.expires_ms is not None
        brief = (await held.create(lifetime_ms=1)).key
        assert brief.expires_ms == brief.created_ms + 1
        for wrong in (-2, LIFETIME_MS_MAX + 1, 2**62):
            assert "lifetime_ms takes" in str(await refused(held, lifetime_ms=wrong))

    async def test_one_that_is_made_with_a_short_one_ends_with_it(self, held: Office) -> None:
        short = (await held.create(lifetime_ms=DAY_MS)).key
        await held.world.pass_ms(1_000)
        assert (await held.create(with_key=short)).key.expires_ms == short.expires_ms
        within = (await held.create(with_key=short, lifetime_ms=1_000)).key
        assert within.expires_ms == within.created_ms + 1_000
        for longer in (FOR_EVER, DAY_MS, YEAR_MS):
            with pytest.raises(ClusterAuthorizationFailed, match="ends no later"):
                await held.create(with_key=short, lifetime_ms=longer)
        long = (await held.create(lifetime_ms=DAY_MS + 1)).key
        for with_key in (long, (await held.create(lifetime_ms=FOR_EVER)).key, None):
            assert (await held.create(with_key=with_key, lifetime_ms=FOR_EVER)).key.expires_ms is None
        lasts = await held.create(ADMIN, with_key=short, owner=BOB)
        assert lasts.key.expires_ms == lasts.key.created_ms + YEAR_MS, "to give keys to others is a right of its own"

    async def test_who_is_nobody_has_none(self, held: Office) -> None:
        node = Principal(PrincipalType.NODE, "admin-1")
        for by in (ANONYMOUS, node):
            assert "name the owner" in str(await refused(held, by))
            assert "name the owner" in str(await refused(held, ADMIN, owner=by))
        assert "has no keys" in str(await refused(held, ADMIN, owner=Principal(PrincipalType.GROUP, "staff")))

    async def test_while_it_is_open_everybody_makes_them_for_anybody(self) -> None:
        async with office(config(Mode.OPEN)) as held:
            assert (await held.create(ANONYMOUS, owner=ALICE)).key.owner == ALICE


class TestForOthers:
    async def test_it_takes_alter_on_whose_they_are(self, held: Office) -> None:
        assert "User:bob may not ALTER" in str(await refused(held, BOB, owner=ALICE))
        await held.alter(keeper(ALICE))
        assert (await held.create(BOB, owner=ALICE)).key.owner == ALICE
        await refused(held, BOB, owner=ADMIN)

    async def test_nobody_makes_itself_a_key_of_somebody_who_may_more(self, held: Office) -> None:
        await held.alter(keeper(ALICE), Put(Rule(ALICE, READS)))
        error = await refused(held, BOB, owner=ALICE)
        assert isinstance(error, ClusterAuthorizationFailed)
        assert "more than it has itself" in str(error)
        writes = allow(ResourceType.TOPIC, literal("a"), Operation.WRITE)
        await held.alter(Put(Rule(BOB, writes)))
        await held.create(BOB, owner=ALICE, scope=Scope(frozenset({writes})))
        await refused(held, BOB, owner=ALICE, scope=Scope(frozenset({READS})))
        await held.alter(Put(Rule(BOB, READS)))
        await held.create(BOB, owner=ALICE)

    async def test_nor_of_a_super_user_but_with_escalate(self, held: Office) -> None:
        await held.alter(keeper(ALICE), Put(Binding(ALICE, "superuser")))
        assert "(everything)" in str(await refused(held, BOB, owner=ALICE))
        await held.alter(Put(Binding(BOB, "security")))
        await held.create(BOB, owner=ALICE)


class TestScopes:
    async def test_a_key_made_with_a_scoped_one_has_its_scope_at_most(self, held: Office) -> None:
        wide = Scope(frozenset({TOKENS, allow(ResourceType.TOPIC, prefix("a"), Operation.READ, Operation.WRITE)}))
        assert (await held.create(ALICE, wide)).key.scope == wide
        narrow = Scope(frozenset({READS}))
        assert (await held.create(ALICE, wide, scope=narrow)).key.scope == narrow
        for more in (
            allow(ResourceType.TOPIC, prefix("b"), Operation.READ),
            allow(ResourceType.TOPIC, literal("a"), Operation.DELETE),
        ):
            assert "has a scope without" in str(await refused(held, ALICE, wide, scope=Scope(frozenset({READS, more}))))

    async def test_a_key_that_is_not_for_making_keys_makes_none(self, held: Office) -> None:
        assert "may not CREATE_TOKENS" in str(await refused(held, ALICE, Scope(frozenset({READS}))))

    async def test_the_scope_holds_while_the_cluster_is_open(self) -> None:
        async with office(config(Mode.OPEN)) as held:
            scope = Scope(frozenset({READS}))
            assert (await held.create(ALICE, scope)).key.scope == scope


class TestHowMany:
    async def test_an_owner_at_the_bound_makes_room_by_what_is_over_or_is_refused(self, held: Office) -> None:
        now_ms = round(held.world.clock.now_ms())
        full = [ApiKey(KeyId(f"{n:014}"), ALICE, bytes(32), 0, now_ms + 1_000) for n in range(KEYS_PER_OWNER_MAX)]
        await stored(held, *full)
        error = await refused(held)
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert f"has {KEYS_PER_OWNER_MAX} API keys" in str(error)
        await held.create(BOB)
        await held.world.pass_ms(1_000)
        made = await held.create()
        assert made.key.id in held.view.keys
        assert sum(key.owner == ALICE for key in held.view.keys.values()) == KEYS_PER_OWNER_MAX - 100 + 1

    async def test_all_together_have_a_bound(self, held: Office, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keys_module, "KEYS_MAX", 2)
        await held.create()
        assert "there are 2 API keys" in str(await refused(held))

    async def test_what_is_over_is_told_for_a_day_and_then_forgotten(self, held: Office) -> None:
        day_ago_ms = round(held.world.clock.now_ms()) - DAY_MS
        over = [ApiKey(KeyId(f"{n:014}"), ALICE, bytes(32), 0, day_ago_ms) for n in range(150)]
        recent = ApiKey(KeyId("R" * 14), ALICE, bytes(32), 0, day_ago_ms + 500)
        await stored(held, *over, recent)
        lasting = await held.create(lifetime_ms=FOR_EVER)
        await held.forget()
        assert set(held.view.keys) == {ADMIN_KEY.id, lasting.key.id, recent.id}
        await held.world.pass_ms(500)
        await held.forget()
        assert set(held.view.keys) == {ADMIN_KEY.id, lasting.key.id}
        other = await held.world.controller(2)
        assert other.image.revision == held.engine.image.revision, "a list shows as much as the watch"


class TestDeleting:
    async def test_a_deleted_key_opens_nothing_and_is_a_new_generation(self, held: Office) -> None:
        made, other = await held.create(), await held.create()
        generation = held.view.access.generation
        await held.delete([made.key.id, made.key.id])
        assert set(held.view.keys) == {ADMIN_KEY.id, other.key.id}
        assert held.view.access.generation == generation + 1
        assert (await held.rows()).keys() == {"state", "configured", "producers", f"keys/{other.key.id}"}

    async def test_one_that_is_not_there_keeps_all(self, held: Office) -> None:
        made = await held.create()
        before = await held.rows()
        with pytest.raises(NotFound, match="no API key '00000000000000'; nothing was deleted"):
            await held.delete([made.key.id, KeyId("0" * 14)])
        assert await held.rows() == before

    async def test_who_may_not_see_a_key_is_told_the_same_as_of_none(self, held: Office) -> None:
        made = await held.create()
        with pytest.raises(NotFound) as hidden:
            await held.delete([made.key.id], by=BOB)
        with pytest.raises(NotFound) as unknown:
            await held.delete([KeyId("0" * 14)], by=BOB)
        assert str(hidden.value).replace(made.key.id, "0" * 14) == str(unknown.value)
        await held.alter(Put(Rule(BOB, allow(ResourceType.PRINCIPAL, OWNED[ALICE], Operation.DESCRIBE_TOKENS))))
        with pytest.raises(ClusterAuthorizationFailed, match="may not ALTER PRINCIPAL User:alice"):
            await held.delete([made.key.id], by=BOB)
        await held.alter(keeper(ALICE))
        await held.delete([made.key.id], by=BOB)
        assert made.key.id not in held.view.keys

    async def test_one_of_a_file_is_taken_out_there(self, held: Office) -> None:
        with pytest.raises(Rejected, match="admin_key_file"):
            await held.delete([ADMIN_KEY.id], by=ADMIN)

    async def test_more_than_fit_into_one_transaction_are_refused(self, held: Office) -> None:
        with pytest.raises(Rejected, match="127 keys are the most"):
            await held.delete([KeyId(f"{n:014}") for n in range(128)], by=ADMIN)
        some = [ApiKey(KeyId(f"{n:014}"), ALICE, bytes(32), 0) for n in range(127)]
        await stored(held, *some)
        await held.delete([key.id for key in some])
        assert set(held.view.keys) == {ADMIN_KEY.id}
