"""Owners of shards: balanced within one, fewest moves, a new epoch for each; leaving coordinators give up first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
)
from headrace_controller.core import shards

COUNT = 10


def shard(number: int, owner: int, epoch: int = 1) -> Shard:
    return Shard(ShardKey(ShardKind.GROUPS, number), NodeId(owner), epoch)


def owners(given: list[Shard]) -> dict[int, int]:
    return {s.key.number: s.owner for s in given}


def after(before: list[Shard], changes: list[Shard]) -> list[Shard]:
    now = {s.key: s for s in before} | {s.key: s for s in changes}
    return [now[s.key] for s in before]


def ids(*numbers: int) -> frozenset[NodeId]:
    return frozenset(map(NodeId, numbers))


class TestDialogues:
    def test_new_shards_go_round(self) -> None:
        fresh = [shard(n, NO_NODE, 0) for n in range(5)]
        changes = shards.reassign(fresh, ids(1, 2))
        assert Counter(s.owner for s in changes) == {1: 3, 2: 2}
        assert {s.epoch for s in changes} == {1}

    def test_without_coordinators_new_shards_are_written_without_an_owner_once(self) -> None:
        fresh = [shard(n, NO_NODE, 0) for n in range(3)]
        changes = shards.reassign(fresh, ids())
        assert owners(changes) == dict.fromkeys(range(3), NO_NODE)
        assert shards.reassign(changes, ids()) == []

    def test_a_dead_owner_loses_its_shards_though_nobody_is_there_to_take_them(self) -> None:
        held = [shard(0, 1, 4), shard(1, 1, 7)]
        changes = shards.reassign(held, ids())
        assert changes == [shard(0, NO_NODE, 5), shard(1, NO_NODE, 8)]
        assert shards.reassign(changes, ids(1)) == [shard(0, 1, 6), shard(1, 1, 9)]

    def test_a_second_coordinator_takes_half_and_no_more(self) -> None:
        held = [shard(n, 1) for n in range(COUNT)]
        changes = shards.reassign(held, ids(1, 2))
        assert len(changes) == COUNT // 2
        assert {(s.owner, s.epoch) for s in changes} == {(2, 2)}

    def test_the_shards_of_a_dead_one_are_shared_and_the_others_stay(self) -> None:
        held = [shard(n, 1 + n % 3) for n in range(9)]
        changes = shards.reassign(held, ids(1, 2))
        assert set(owners(changes)) == {2, 5, 8}
        assert sorted(Counter(s.owner for s in after(held, changes)).values()) == [4, 5]

    def test_who_has_one_more_keeps_it(self) -> None:
        held = [shard(0, 2), shard(1, 2), shard(2, 1)]
        assert shards.reassign(held, ids(1, 2)) == []


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Shard], frozenset[NodeId]]:
    count = draw(st.integers(0, 40))
    owner = st.sampled_from([NO_NODE, *map(NodeId, range(6))])
    held = [shard(n, draw(owner), draw(st.integers(1, 9))) for n in range(count)]
    return held, frozenset(draw(st.sets(st.integers(0, 5).map(NodeId), max_size=6)))


@given(situations())
def test_balanced_with_fewest_moves_and_a_new_epoch_for_each(situation: tuple[list[Shard], frozenset[NodeId]]) -> None:
    held, candidates = situation
    changes = shards.reassign(held, candidates)
    before, now = {s.key: s for s in held}, after(held, changes)
    for change in changes:
        assert change.epoch == before[change.key].epoch + 1
        assert change.owner != before[change.key].owner
    if not candidates:
        assert all(s.owner == NO_NODE for s in now)
        return
    sizes = Counter(dict.fromkeys(candidates, 0))
    sizes.update(s.owner for s in now)
    assert set(sizes) == candidates
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert len(changes) == len(held) - kept_at_most(held, candidates)
    assert shards.reassign(now, candidates) == []


def kept_at_most(held: list[Shard], candidates: frozenset[NodeId]) -> int:
    """The oracle: try every number of those that get one more, the best first by size."""
    sizes = sorted((sum(s.owner == c for s in held) for c in candidates), reverse=True)
    least, more = divmod(len(held), len(sizes))
    return sum(min(size, least + (place < more)) for place, size in enumerate(sizes))


def coordinator(number: int, *, fenced: bool = False, leaving: bool = False) -> Node:
    return Node(
        NodeKey(Role.COORDINATOR, NodeId(number)),
        Endpoint("h", 1),
        bytes(16),
        1,
        fenced=fenced,
        in_controlled_shutdown=leaving,
    )


def image(nodes: list[Node], held: list[Shard], partitions: int = COUNT) -> ClusterImage:
    topic = Topic("__consumer_offsets", TopicId(b"o" * 16), partitions, internal=True)
    delta = ImageDelta(b"i" * 16, None, 1, "c", nodes=tuple(nodes), topics=(topic,), shards=tuple(held))
    return EMPTY_IMAGE.apply(delta)


class TestOfAnImage:
    def test_brokers_and_those_that_do_not_take_part_get_nothing(self) -> None:
        broker = Node(NodeKey(Role.BROKER, NodeId(9)), Endpoint("h", 1), bytes(16), 1, fenced=False)
        nodes = [broker, coordinator(1), coordinator(2, fenced=True), coordinator(3, leaving=True)]
        changes = shards.find_due(image(nodes, []))
        assert {s.owner for s in changes} == {1}
        assert len(changes) == COUNT

    def test_what_nobody_serves_comes_before_what_only_balances(self) -> None:
        held = [shard(n, 1) for n in range(8)] + [shard(8, 3), shard(9, NO_NODE)]
        nodes = [coordinator(1), coordinator(2), coordinator(3, leaving=True)]
        changes = shards.find_due(image(nodes, held))
        assert [s.key.number for s in changes][:2] == [8, 9]
        assert len(changes) == 5

    def test_without_the_topic_there_are_no_shards(self) -> None:
        assert shards.find_due(EMPTY_IMAGE) == []
        assert shards.ownership(EMPTY_IMAGE) == shards.Ownership(0, 0)

    def test_unowned_are_those_without_a_record_an_owner_or_a_living_one(self) -> None:
        held = [shard(0, 1), shard(1, 2), shard(2, 3), shard(3, NO_NODE)]
        nodes = [coordinator(1), coordinator(2, fenced=True), coordinator(3, leaving=True)]
        found = shards.ownership(image(nodes, held, 5))
        assert found == shards.Ownership(shards=5, unowned=3)
