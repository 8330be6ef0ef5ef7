"""Quotas: set by batches, whole or nothing; topics and partitions beyond them are not made, and nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from libs.common.tests.kit.access import ALICE, BOB
from services.controller.tests.kit.access import Office, called_by, config, office
from services.controller.tests.kit.dialogue import broker, cell

from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    Rejected,
    ThrottlingQuotaExceeded,
    UnsupportedVersion,
)
from headrace_common.core.features import ACCESS
from headrace_common.core.quotas.entities import DEFAULT, Clients, Prefix
from headrace_common.core.quotas.kinds import Limit, Rate
from headrace_common.core.quotas.state import Change, Quotas
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.access import ROWS_MAX

WRITES = Rate.PRODUCER_BYTE_RATE
ORDERS = Prefix("orders.")


@pytest.fixture
async def held() -> AsyncIterator[Office]:
    """Quotas hold in an open cluster too."""
    async with office(config(Mode.OPEN)) as made:
        await made.world.join(made.engine, broker(2, level=ACCESS.level))
        yield made


async def alter(held: Office, *changes: Change, validate_only: bool = False) -> None:
    await held.engine.alter_quotas(changes, called_by(ALICE), validate_only=validate_only)


async def create(held: Office, name: str, partitions: int = 1, *, validate_only: bool = False) -> None:
    wanted = Wanted(name, partitions, 1)
    await held.engine.create_topic(wanted, called_by(ALICE), validate_only=validate_only, timeout_ms=30_000)


async def test_a_batch_is_set_and_taken_away_whole(held: Office) -> None:
    await alter(held, (Clients(DEFAULT), {WRITES: 5}), (ORDERS, {Limit.TOPICS: 2}))
    assert held.view.quotas == Quotas({Clients(DEFAULT): {WRITES: 5}, ORDERS: {Limit.TOPICS: 2}})
    await alter(held, (Clients(DEFAULT), {WRITES: None}), (ORDERS, {Limit.TOPICS: 1}))
    assert held.view.quotas == Quotas({ORDERS: {Limit.TOPICS: 1}})
    before = await held.rows()
    await alter(held, (ORDERS, {Limit.TOPICS: 1}), (ORDERS, {Limit.PARTITIONS: None}))
    await alter(held, (ORDERS, {Limit.TOPICS: 7}), validate_only=True)
    with pytest.raises(Rejected, match="takes a whole number"):
        await alter(held, (ORDERS, {Limit.TOPICS: 7}), (Clients(None, "app"), {WRITES: 0.5}))
    assert await held.rows() == before


async def test_two_who_change_at_one_time_lose_nothing(held: Office) -> None:
    await asyncio.gather(*(alter(held, (Clients(f"User:u{n}"), {WRITES: n + 1})) for n in range(8)))
    await asyncio.gather(
        alter(held, (Clients("User:u0"), {WRITES: 9})), alter(held, (Clients("User:u0"), {Rate.CONSUMER_BYTE_RATE: 3}))
    )
    assert held.view.quotas.values[Clients("User:u0")] == {WRITES: 9, Rate.CONSUMER_BYTE_RATE: 3}
    assert len(held.view.quotas.values) == 8


async def test_more_than_fits_into_one_transaction_is_refused(held: Office) -> None:
    many: list[Change] = [(Clients(None, f"c{n}"), {WRITES: 1}) for n in range(ROWS_MAX + 1)]
    with pytest.raises(Rejected, match="send them in parts"):
        await alter(held, *many)
    await alter(held, *many[:-1])
    assert len(held.view.quotas.values) == ROWS_MAX


async def test_below_the_level_of_access_there_are_none() -> None:
    async with cell(config(Mode.OPEN)) as world:
        engine = await world.active()
        with pytest.raises(UnsupportedVersion):
            await engine.alter_quotas([(ORDERS, {Limit.TOPICS: 2})], called_by(ALICE), validate_only=False)


async def refused(held: Office, name: str, partitions: int = 1, *, validate_only: bool = False) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await create(held, name, partitions, validate_only=validate_only)
    assert held.engine.image.topic(name) is None
    return caught.value


async def test_prefixes_have_as_many_topics_and_partitions_as_they_may(held: Office) -> None:
    await alter(held, (ORDERS, {Limit.TOPICS: 2}), (Prefix("orders.eu."), {Limit.PARTITIONS: 4}))
    await create(held, "orders.eu.a", 3)
    for validate_only in (True, False):
        error = await refused(held, "orders.eu.b", 2, validate_only=validate_only)
        assert "there are 3 of partitions with names that begin with orders.eu., and 4 is the most" in str(error)
        assert error.code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(Rejected, match="4 is the most"):
        await held.engine.create_partitions("orders.eu.a", 5, (), called_by(ALICE), validate_only=False)
    await held.engine.create_partitions("orders.eu.a", 4, (), called_by(ALICE), validate_only=False)
    await create(held, "orders.us")
    assert "2 is the most (prefixes/orders.: topics.max)" in str(await refused(held, "orders.jp"))
    await create(held, "orders")
    await held.engine.delete_topic("orders.us", called_by(ALICE))
    await create(held, "orders.jp")
    await alter(held, (ORDERS, {Limit.TOPICS: 1}))
    await held.engine.create_partitions("orders.jp", 2, (), called_by(ALICE), validate_only=False)


async def test_topics_that_are_made_at_one_time_count_too(held: Office) -> None:
    await alter(held, (ORDERS, {Limit.TOPICS: 3}))
    made = await asyncio.gather(*(create(held, f"orders.{n}") for n in range(8)), return_exceptions=True)
    assert [one for one in made if one is None] == [None] * 3
    assert all(one is None or isinstance(one, Rejected) for one in made)
    assert len(held.engine.image.topics) == 3


async def test_who_makes_and_deletes_many_has_to_wait(held: Office) -> None:
    """A bucket of 11 partitions: what is more makes a debt, and while there is one nothing is done."""
    await alter(held, (Clients(str(ALICE)), {Rate.CONTROLLER_MUTATION_RATE: 1}))
    await create(held, "a", 12)
    error = await refused(held, "b")
    assert isinstance(error, ThrottlingQuotaExceeded)
    assert (error.retriable, error.code) == (True, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert "try again in 1000 ms" in str(error)
    await create(held, "b", validate_only=True)
    with pytest.raises(ThrottlingQuotaExceeded):
        await held.engine.delete_topic("a", called_by(ALICE))
    with pytest.raises(ThrottlingQuotaExceeded):
        await held.engine.create_partitions("a", 13, (), called_by(ALICE), validate_only=False)
    await held.engine.create_topic(Wanted("bobs", 1, 1), called_by(BOB), validate_only=False, timeout_ms=30_000)
    await held.world.pass_ms(1_000)
    await create(held, "b")
    await held.world.pass_ms(1_000)
    await held.engine.delete_topic("a", called_by(ALICE))
    assert isinstance(await refused(held, "c"), ThrottlingQuotaExceeded)
