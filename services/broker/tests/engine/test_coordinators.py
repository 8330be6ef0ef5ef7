"""FindCoordinator: by the image; the topic is made when it is missing, once however many ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services.broker.tests.kit.cluster import image_of
from services.broker.tests.kit.dialogue import running_engine

from headrace_broker.core.coordination import coordinator_of
from headrace_broker.engine.coordinators import KEYS_PER_REQUEST_MAX
from headrace_common.core.errors import CoordinatorNotAvailable, InvalidGroupId, Rejected, RequestTimedOut
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Role, Shard, ShardKey, ShardKind
from headrace_common.core.murmur2 import murmur2

TOPIC = "__consumer_offsets"
AT = Endpoint("127.0.0.1", 9700)


def image(owners: list[int], *, fenced: bool = False, topic: str = TOPIC) -> ClusterImage:
    node = Node(NodeKey(Role.COORDINATOR, NodeId(3)), AT, b"c" * 16, 9, fenced=fenced)
    shards = [Shard(ShardKey(ShardKind.GROUPS, n), NodeId(o), 10 + n) for n, o in enumerate(owners)]
    return replace(image_of({topic: len(owners)}, nodes=[node]), shards={s.key: s for s in shards})


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=249), st.integers(1, 60))
def test_the_shard_is_the_hash_of_the_utf8_name(group: str, count: int) -> None:
    found = coordinator_of(ShardKind.GROUPS, group, image([3] * count))
    assert found.error is None
    assert found.shard == (murmur2(group.encode()) & 0x7FFFFFFF) % count
    assert found.shard_epoch == 10 + found.shard
    assert found.node is not None
    assert found.node.grpc == AT


@pytest.mark.parametrize(("owner", "fenced"), [(NO_NODE, False), (3, True), (8, False)])
def test_without_a_living_owner_there_is_no_coordinator(owner: int, fenced: bool) -> None:
    found = coordinator_of(ShardKind.GROUPS, "g", image([owner] * 4, fenced=fenced))
    assert isinstance(found.error, CoordinatorNotAvailable)
    assert found.error.retriable
    assert found.node is None


def test_a_shard_without_a_record_has_no_coordinator() -> None:
    found = coordinator_of(ShardKind.GROUPS, "g", replace(image([3] * 4), shards={}))
    assert isinstance(found.error, CoordinatorNotAvailable)


@pytest.mark.parametrize("group", ["", "g" * 250])
def test_group_ids_have_a_length(group: str) -> None:
    assert isinstance(coordinator_of(ShardKind.GROUPS, group, image([3])).error, InvalidGroupId)


async def test_the_topic_is_made_once_however_many_ask() -> None:
    async with running_engine() as engine:
        asks = [asyncio.ensure_future(engine.broker.coordinators.find(ShardKind.GROUPS, ["g"])) for _ in range(5)]
        await engine.settle()
        assert engine.cluster.ensured == 1
        assert not any(ask.done() for ask in asks)
        engine.cluster.ensuring.set()
        answers = await asyncio.gather(*asks)
        assert {a[0].shard for a in answers} == {murmur2(b"g") % 4}
        assert all(isinstance(a[0].error, CoordinatorNotAvailable) for a in answers), "no shard has an owner yet"
        engine.cluster.show(replace(image([3] * 4), partitions=engine.cluster.image.partitions))
        await engine.broker.follower.wait_for_image(engine.cluster.image.revision)
        found = await engine.broker.coordinators.find(ShardKind.GROUPS, ["g", "", "h"])
        assert [one.node is not None for one in found] == [True, False, True]
        assert engine.cluster.ensured == 1


async def test_what_keeps_the_controller_from_making_it_is_told_and_asked_again() -> None:
    async with running_engine() as engine:
        engine.cluster.ensuring.set()
        engine.cluster.not_ensured = RequestTimedOut("no controller was active for 5000 ms")
        for times in (1, 2):
            found = await engine.broker.coordinators.find(ShardKind.GROUPS, ["g", ""])
            assert isinstance(found[0].error, CoordinatorNotAvailable)
            assert "no controller was active" in str(found[0].error)
            assert isinstance(found[1].error, InvalidGroupId)
            assert engine.cluster.ensured == times


async def test_the_number_of_keys_is_bounded() -> None:
    async with running_engine() as engine:
        for keys in ([], ["g"] * (KEYS_PER_REQUEST_MAX + 1)):
            with pytest.raises(Rejected):
                await engine.broker.coordinators.find(ShardKind.GROUPS, keys)
