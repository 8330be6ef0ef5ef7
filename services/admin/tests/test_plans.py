"""Plans keep what must be kept and level what can be levelled, whatever the cluster looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_admin.core.placement import BrokerPlace, PartitionName, Placed, Placement
from headrace_admin.core.plans import Plan, evacuate, rebalance
from headrace_common.core.errors import InvalidReplicationFactor
from headrace_common.core.ids import NodeId


def brokers(*ids: int, racks: str = "") -> list[BrokerPlace]:
    return [BrokerPlace(NodeId(i), racks[n] if racks else None) for n, i in enumerate(ids)]


def topic(name: str, *replicas: Sequence[int], size: int = 10) -> list[Placed]:
    return [Placed(PartitionName(name, n), tuple(map(NodeId, r)), size) for n, r in enumerate(replicas)]


def after(partitions: list[Placed], plan: Plan) -> dict[PartitionName, tuple[NodeId, ...]]:
    moved = {move.name: move.after for move in plan.moves}
    return {p.name: moved.get(p.name, p.replicas) for p in partitions}


def spread(counts: Counter[NodeId], places: list[BrokerPlace]) -> int:
    found = [counts[b.id] for b in places if b.open]
    return max(found) - min(found)


@st.composite
def clusters(draw: st.DrawFn, racks: bool = False, one_factor: bool = False) -> tuple[list[BrokerPlace], list[Placed]]:
    count = draw(st.integers(2, 7))
    names = st.sampled_from("abc") if racks else st.none()
    places = [BrokerPlace(NodeId(n), draw(names)) for n in range(1, count + 1)]
    factor = draw(st.integers(1, min(3, count)))
    found: list[Placed] = []
    for t in range(draw(st.integers(1, 4))):
        rf = factor if one_factor else draw(st.integers(1, min(3, count)))
        among = draw(st.integers(rf, count))  # topics often lie on few brokers only: that is when people rebalance
        orders = st.permutations([NodeId(n) for n in range(1, among + 1)])
        found += [
            Placed(PartitionName(f"t{t}", n), tuple(draw(orders)[:rf]), draw(st.integers(0, 3)))
            for n in range(draw(st.integers(1, 9)))
        ]
    return places, found


def check_kept(places: list[BrokerPlace], partitions: list[Placed], plan: Plan) -> None:
    now = after(partitions, plan)
    for p in partitions:
        assert len(now[p.name]) == len(p.replicas)
        assert len(set(now[p.name])) == len(p.replicas)
        assert set(now[p.name]) <= {b.id for b in places}
    assert all(m.before != m.after for m in plan.moves)
    held = Counter(b for replicas in now.values() for b in replicas)
    led = Counter(replicas[0] for replicas in now.values())
    assert {x.broker: x.replicas_after for x in plan.loads if x.replicas_after} == {b: n for b, n in held.items() if n}
    assert {x.broker: x.leaders_after for x in plan.loads if x.leaders_after} == dict(led)


@given(clusters())
@settings(max_examples=200, deadline=None)
def test_replicas_are_level_within_each_topic_and_in_all(cluster: tuple[list[BrokerPlace], list[Placed]]) -> None:
    places, partitions = cluster
    plan = rebalance(places, partitions)
    check_kept(places, partitions, plan)
    now = after(partitions, plan)
    assert spread(Counter(b for replicas in now.values() for b in replicas), places) <= 1
    for name in {p.name.topic for p in partitions}:
        of_topic = [replicas for n, replicas in now.items() if n.topic == name]
        assert spread(Counter(b for replicas in of_topic for b in replicas), places) <= 1
        assert spread(Counter(replicas[0] for replicas in of_topic), places) <= 1


@given(clusters(one_factor=True))
@settings(max_examples=200, deadline=None)
def test_preferred_leaders_are_level_in_all_where_topics_have_alike_many_replicas(
    cluster: tuple[list[BrokerPlace], list[Placed]],
) -> None:
    places, partitions = cluster
    now = after(partitions, rebalance(places, partitions))
    assert spread(Counter(replicas[0] for replicas in now.values()), places) <= 1


@given(clusters(racks=True))
@settings(max_examples=200, deadline=None)
def test_replicas_are_in_as_many_racks_as_there_are(cluster: tuple[list[BrokerPlace], list[Placed]]) -> None:
    places, partitions = cluster
    plan = rebalance(places, partitions)
    check_kept(places, partitions, plan)
    rack = {b.id: b.rack for b in places}
    sizes = Counter(rack.values())
    for replicas in after(partitions, plan).values():
        used = Counter(rack[b] for b in replicas)
        assert len(used) == min(len(sizes), len(replicas))
        roomy = [n for r, n in used.items() if n < sizes[r]]
        assert not roomy or max(used.values()) <= min(roomy) + 1


@given(clusters(racks=True))
@settings(max_examples=100, deadline=None)
def test_a_second_plan_moves_nothing_and_the_order_of_the_input_plays_no_part(
    cluster: tuple[list[BrokerPlace], list[Placed]],
) -> None:
    places, partitions = cluster
    plan = rebalance(places, partitions)
    assert rebalance(places[::-1], partitions[::-1]) == plan
    now = after(partitions, plan)
    assert rebalance(places, [Placed(p.name, now[p.name], p.size_bytes) for p in partitions]).moves == ()


@given(st.integers(2, 6), st.data())
@settings(max_examples=150, deadline=None)
def test_one_topic_moves_no_more_replicas_than_any_level_placement_needs(count: int, data: st.DataObject) -> None:
    places = brokers(*range(1, count + 1))
    rf = data.draw(st.integers(1, min(3, count)))
    orders = st.permutations([NodeId(n) for n in range(1, count + 1)])
    partitions = topic("t", *(data.draw(orders)[:rf] for _ in range(data.draw(st.integers(1, 12)))))
    held = sorted((sum(b.id in p.replicas for p in partitions) for b in places), reverse=True)
    share, rest = divmod(sum(held), count)
    needed = sum(max(0, n - share - (at < rest)) for at, n in enumerate(held))
    assert sum(move.copies for move in rebalance(places, partitions).moves) == needed


@given(clusters(racks=True), st.data())
@settings(max_examples=200, deadline=None)
def test_a_leaving_broker_is_in_no_plan_and_nothing_else_moves(
    cluster: tuple[list[BrokerPlace], list[Placed]], data: st.DataObject
) -> None:
    places, partitions = cluster
    leaving = data.draw(st.sampled_from(places)).id
    if any(len(p.replicas) == len(places) for p in partitions):
        if any(len(p.replicas) == len(places) and leaving in p.replicas for p in partitions):
            with pytest.raises(InvalidReplicationFactor, match="start another broker"):
                evacuate(places, partitions, leaving)
        return
    plan = evacuate(places, partitions, leaving)
    check_kept(places, partitions, plan)
    assert {m.name for m in plan.moves} == {p.name for p in partitions if leaving in p.replicas}
    for move in plan.moves:
        assert leaving not in move.after
        assert set(move.before) - {leaving} <= set(move.after)
    others = [b for b in places if b.id != leaving]
    now = Placement(others, [])
    racks = {now.rack_of(b.id) for b in others}
    for move in plan.moves:
        kept = {now.rack_of(b) for b in move.before if b != leaving}
        assert len({now.rack_of(b) for b in move.after}) == min(len(kept) + 1, len(racks | kept))


def test_a_new_broker_gets_its_share_and_no_more_is_copied() -> None:
    partitions = topic("t", *([1, 2], [2, 1]) * 6)
    plan = rebalance(brokers(1, 2, 3), partitions)
    assert [(x.replicas_before, x.replicas_after) for x in plan.loads] == [(12, 8), (12, 8), (0, 8)]
    assert [x.leaders_after for x in plan.loads] == [4, 4, 4]
    assert sum(m.copies for m in plan.moves) == 8
    assert plan.bytes_to_copy == 80


def test_among_equals_the_smaller_partition_moves() -> None:
    partitions = [Placed(PartitionName("t", n), (NodeId(1),), size) for n, size in enumerate((50, 1, 70))]
    assert [m.name.partition for m in rebalance(brokers(1, 2), partitions).moves] == [1]


def test_brokers_that_are_away_keep_what_they_have_and_get_nothing() -> None:
    places = [*brokers(1, 2), BrokerPlace(NodeId(3), None, open=False)]
    partitions = topic("t", [1], [1], [1], [3], [1])
    plan = rebalance(places, partitions)
    assert [(x.broker, x.replicas_after) for x in plan.loads] == [(1, 2), (2, 2), (3, 1)]


def test_what_a_broker_held_that_is_gone_is_given_to_others() -> None:
    plan = rebalance(brokers(1, 2), topic("t", [9, 1], [1, 2]))
    assert {m.name.partition: set(m.after) for m in plan.moves if m.copies} == {0: {1, 2}}
    assert plan.loads[-1].broker == 9
    assert plan.loads[-1].replicas_after == 0


def test_a_large_cluster_is_planned_in_one_go() -> None:
    partitions = [
        Placed(PartitionName(f"t{t}", n), (NodeId(1 + n % 3), NodeId(1 + (n + 1) % 3), NodeId(1 + (n + 2) % 3)), 1)
        for t in range(40)
        for n in range(50)
    ]
    plan = rebalance(brokers(1, 2, 3, 4, 5), partitions)
    assert {x.replicas_after for x in plan.loads} == {1200}
    assert {x.leaders_after for x in plan.loads} == {400}
    assert sum(m.copies for m in plan.moves) == 2 * 1200
    assert ceil(plan.bytes_to_copy) == 2400
