"""
Attacks of one writer of a topic on another one, over gRPC: the other's producer id, epoch and sequence stand in every
batch, and whoever writes as the other has its next record taken for a duplicate, or written into its transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import PRODUCER_KEY, bearing, key_of, user
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import topic_id_of, with_coordinator
from services.broker.tests.kit.guarded import ALICE, NOTHING, Guarded, Shows, guarded_broker, node
from services.broker.tests.rpc.test_access import ask

from headrace_broker.core.owned_ids import OWNED_BIT, is_owned_by
from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, ApiKey, digest_of, format_key, parse_key
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import ErrorCode
from headrace_common.core.image import Role
from headrace_proto.v1 import broker_pb2 as pb

TOPIC = topic_id_of("orders")
CAROL: Shows = (*bearing("carol").items(),)
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_PRODUCER_ID
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRITE = (
    allow(ResourceType.TOPIC, EVERY_NAME, Operation.WRITE),
    allow(ResourceType.TRANSACTIONAL_ID, EVERY_NAME, Operation.WRITE),
)
"""Alice and carol may use each other's transactional ids: what holds is the id that they name, not their right."""


@pytest.fixture
async def world() -> AsyncIterator[Guarded]:
    async with guarded_broker(orders=1) as one:
        await one.show(with_coordinator(one.cluster.image))
        for who in ("alice", "carol"):
            await one.allow(*WRITE, who=who)
        yield one


class Writer:
    """One produce stream of somebody."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.call = stub.Produce()

    async def init(self, previous: tuple[int, int] | None = None) -> tuple[int, int]:
        request = pb.InitProducerIdRequest()
        if previous is not None:
            request.producer_id, request.producer_epoch = previous
        answer = await self.stub.InitProducerId(request)
        return answer.producer_id, answer.producer_epoch

    async def send(
        self, value: bytes, sequence: int, identity: tuple[int, int], id: str | None = None
    ) -> tuple[ErrorCode, int]:
        producer_id, epoch = identity
        batch = batch_of([value], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=id is not None)
        entry = pb.ProducePartition(topic_id=TOPIC, partition=0, batch=batch)
        asked = pb.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=9_000, partitions=[entry], transactional_id=id)
        [one] = (await ask(self.call, asked)).partitions
        assert bool(one.message) == bool(one.error)
        return ErrorCode(one.error), one.base_offset


async def writer(world: Guarded, shows: Shows) -> Writer:
    return Writer(await world.stub(shows))


def log_end(world: Guarded) -> int:
    [replica] = [one for one in world.broker.replicas.all() if one.id.topic_id == TOPIC]
    return replica.core.log_end


async def test_the_next_record_of_another_is_not_taken_for_a_duplicate(world: Guarded) -> None:
    victim, attacker = await writer(world, ALICE), await writer(world, CAROL)
    identity = await victim.init()
    assert await victim.send(b"0", 0, identity) == (NONE, 0)
    for sequence in (1, 0):  # the next one, and another record under a sequence that is there
        for epoch in (0, 1, 32_767):
            code, _ = await attacker.send(b"false", sequence, (identity[0], epoch))
            assert code is UNKNOWN or (sequence, epoch) == (0, 0)
    assert await victim.send(b"1", 1, identity) == (NONE, 1)
    assert log_end(world) == 2


async def test_an_id_that_no_log_knows_yet_is_its_owners_too(world: Guarded) -> None:
    """Nobody wins by being first: not here, and so not at a leader that is new."""
    victim, attacker = await writer(world, ALICE), await writer(world, CAROL)
    identity = await victim.init()
    assert (await attacker.send(b"false", 0, identity))[0] is UNKNOWN
    assert await victim.send(b"0", 0, identity) == (NONE, 0)


async def test_who_asks_for_the_next_epoch_of_another_gets_an_id_of_his_own(world: Guarded) -> None:
    victim, attacker = await writer(world, ALICE), await writer(world, CAROL)
    identity = await victim.init()
    other, epoch = await attacker.init(identity)
    assert (other != identity[0], epoch) == (True, 0)
    assert await attacker.send(b"a", 0, (other, epoch)) == (NONE, 0)
    assert await victim.send(b"v", 0, identity) == (NONE, 1)
    assert await victim.init(identity) == (identity[0], 1)


async def test_nobody_writes_into_the_transaction_of_another(world: Guarded) -> None:
    victim, attacker = await writer(world, ALICE), await writer(world, CAROL)
    world.transactions.owners = {7: "alices", 8: "carols"}
    assert (await attacker.send(b"false", 0, (7, 0), "carols"))[0] is MAPPING
    assert await victim.send(b"0", 0, (7, 0), "alices") == (NONE, 0)
    assert (await attacker.send(b"false", 1, (7, 0), "carols"))[0] is MAPPING
    for epoch in (0, 1, 32_767):  # nor is it fenced
        assert (await attacker.send(b"false", 1, (7, epoch)))[0] is UNKNOWN
        assert (await attacker.send(b"false", 0, (7, min(epoch + 1, 32_767)), "carols"))[0] is MAPPING
    assert await victim.send(b"1", 1, (7, 0), "alices") == (NONE, 1)
    assert await attacker.send(b"own", 0, (8, 0), "carols") == (NONE, 2)
    assert log_end(world) == 3


async def test_a_producer_goes_on_with_another_key_of_its_user(world: Guarded) -> None:
    other = format_key(b"second".ljust(ID_BYTES, b"."), b"s" * SECRET_BYTES)
    id, secret = parse_key(other)
    world.rows.keys = [*world.rows.keys, ApiKey(id, user("alice"), digest_of(secret), 1_000)]
    await world.show()
    before, after = await writer(world, ALICE), await writer(world, (("authorization", f"Bearer {other}"),))
    identity = await before.init()
    assert await before.send(b"0", 0, identity) == (NONE, 0)
    world.rows.keys = [one for one in world.rows.keys if one.id != key_of("alice").id]
    await world.show()
    assert await after.send(b"0", 0, identity) == (NONE, 0), "what had no answer is known"
    assert await after.send(b"1", 1, identity) == (NONE, 1)
    assert await after.init(identity) == (identity[0], 1)


class TestModes:
    async def test_an_open_cluster_gives_small_numbers_and_asks_nobody(self, world: Guarded) -> None:
        await world.turn(Mode.OPEN)
        one, other = await writer(world, NOTHING), await writer(world, ALICE)
        identity = await one.init()
        assert identity[0] < 2**48
        assert await one.send(b"0", 0, identity) == (NONE, 0)
        assert await other.send(b"1", 1, identity) == (NONE, 1)
        assert await other.init(identity) == (identity[0], 1)
        world.transactions.owners = {7: "one"}
        assert await one.send(b"t", 0, (7, 0), "one") == (NONE, 2)
        assert await one.send(b"t", 1, (7, 0), "other") == (NONE, 3)

    async def test_what_was_given_out_while_all_was_open_is_given_up_once_it_is_closed(self, world: Guarded) -> None:
        await world.turn(Mode.OPEN)
        one = await writer(world, ALICE)
        identity = await one.init()
        assert await one.send(b"0", 0, identity) == (NONE, 0)
        await world.turn(Mode.CLOSED)
        one = await writer(world, ALICE)
        assert await one.send(b"0", 0, identity) == (NONE, 0), "what had no answer is known"
        assert (await one.send(b"1", 1, identity))[0] is UNKNOWN
        later = await one.init(identity)
        assert later[1] == 0
        assert await one.send(b"1", 0, later) == (NONE, 1)

    async def test_while_it_is_permissive_ids_are_made_that_last(self, world: Guarded) -> None:
        await world.turn(Mode.PERMISSIVE)
        alice, nobody = await writer(world, ALICE), await writer(world, NOTHING)
        mine, theirs = await alice.init(), await nobody.init()
        assert mine[0] & OWNED_BIT
        assert theirs[0] < 2**48, "as before, for a client of before"
        assert await alice.send(b"0", 0, theirs) == (NONE, 0)
        assert await nobody.send(b"1", 0, mine) == (NONE, 1), "nothing is refused yet"
        await world.turn(Mode.CLOSED)
        assert await alice.send(b"2", 1, mine) == (NONE, 2)
        assert (await alice.send(b"3", 1, theirs))[0] is UNKNOWN

    async def test_coordinators_get_ids_of_nobody(self, world: Guarded) -> None:
        coordinator = await writer(world, node(Role.COORDINATOR))
        given, _ = await coordinator.init()
        assert given < 2**48
        assert (await (await writer(world, ALICE)).send(b"0", 0, (given, 0)))[0] is UNKNOWN

    async def test_of_an_admin_node_the_caller_counts(self, world: Guarded) -> None:
        given, _ = await (await writer(world, node(Role.ADMIN, "alice"))).init()
        assert is_owned_by(given, "User:alice", PRODUCER_KEY)

    async def test_another_key_of_the_cluster_makes_ids_strange(self, world: Guarded) -> None:
        """As after a restore without it; producers then take new ids."""
        one = await writer(world, ALICE)
        identity = await one.init()
        assert await one.send(b"0", 0, identity) == (NONE, 0)
        world.rows.producer_key = b"K" * len(PRODUCER_KEY)
        await world.show()
        assert (await one.send(b"1", 1, identity))[0] is UNKNOWN
        assert await one.send(b"1", 0, await one.init(identity)) == (NONE, 1)


async def test_ids_of_one_stream_are_forgotten_but_not_their_owner(
    world: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_broker.engine.ownership.KNOWN_MAX", 2)
    one = await writer(world, ALICE)
    ids = [await one.init() for _ in range(5)]
    for sequence in (0, 1):
        for n, identity in enumerate(ids):
            assert await one.send(b"x", sequence, identity) == (NONE, 5 * sequence + n)
