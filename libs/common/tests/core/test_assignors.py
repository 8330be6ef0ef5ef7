"""Assignors: one owner each, subscribers only, balance, few moves; and the examples that users know by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.assignors import ASSIGNORS, Assignment, MemberSubscription, assign
from headrace_common.core.errors import UnsupportedAssignor

Pair = tuple[str, int]
Members = dict[str, MemberSubscription]

TOPICS = ("a", "b", "c", "d")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
some_topics = st.sets(st.sampled_from((*TOPICS, "ghost")))


def pairs(assignment: Assignment) -> set[Pair]:
    return {(topic, partition) for topic, numbers in assignment.items() for partition in numbers}


def loads(result: Mapping[str, Assignment]) -> list[int]:
    return [len(pairs(assignment)) for assignment in result.values()]


def holding(members: Members, result: Mapping[str, Assignment], generation: int) -> Members:
    """The members as they come to the next rebalance."""
    return {m: replace(s, owned=result.get(m, {}), generation=generation) for m, s in members.items()}


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False) -> tuple[Members, dict[str, int]]:
    """Members with any claims: overlapping, of topics and partitions that do not exist, of any generation."""
    partitions = draw(counts)
    shared = draw(some_topics)
    names = draw(st.sets(st.sampled_from("mnopqrs"), min_size=1))
    owned = st.dictionaries(st.sampled_from((*TOPICS, "ghost")), st.sets(st.integers(0, 11), max_size=9), max_size=4)
    members = {
        name: MemberSubscription(
            topics=shared if equal else draw(some_topics),
            owned=draw(owned),
            generation=draw(st.integers(-1, 2)),
            instance_id=draw(st.sampled_from([None, "i-" + name])),
        )
        for name in sorted(names)
    }
    return members, partitions


def wanted(members: Members, partitions: Mapping[str, int]) -> set[Pair]:
    read = set().union(*(s.topics for s in members.values()))
    return {(t, p) for t, n in partitions.items() if t in read for p in range(n)}


def newest_owners(members: Members) -> dict[Pair, str]:
    """Oracle: who holds what before the rebalance."""
    claims: dict[Pair, list[tuple[int, str]]] = {}
    for member, subscription in members.items():
        for topic, numbers in subscription.owned.items():
            for partition in numbers:
                claims.setdefault((topic, partition), []).append((subscription.generation, member))
    owners = {}
    for pair, by in claims.items():
        best = max(g for g, _ in by)
        if sum(g == best for g, _ in by) == 1:
            owners[pair] = max(by)[1]
    return owners


# --- what holds for all of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(ASSIGNORS) - {"cooperative-sticky"}))
@given(group=groups())
def test_every_partition_has_one_owner_who_subscribes_to_it(name: str, group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    result = assign(name, members, partitions)
    assert result.keys() == members.keys()
    owners = Counter(pair for assignment in result.values() for pair in pairs(assignment))
    assert set(owners) == wanted(members, partitions)
    assert all(n == 1 for n in owners.values())
    for member, assignment in result.items():
        assert set(assignment) <= set(members[member].topics)
        assert all(numbers and list(numbers) == sorted(numbers) for numbers in assignment.values())


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    name: str, group: tuple[Members, dict[str, int]], order: object
) -> None:
    members, partitions = group
    shuffled = list(members.items())
    order.shuffle(shuffled)  # hypothesis' Random
    turned = dict(reversed(list(partitions.items())))
    assert assign(name, dict(shuffled), turned) == assign(name, members, partitions)


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "uniform"])
@given(group=groups(equal=True))
def test_equal_subscriptions_are_balanced_within_one(name: str, group: tuple[Members, dict[str, int]]) -> None:
    result = loads(assign(name, *group))
    assert max(result) - min(result) <= 1


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "uniform", "range"])
@given(group=groups(equal=True))
def test_a_fresh_group_has_each_topic_balanced_within_one(name: str, group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    result = assign(name, {m: replace(s, owned={}) for m, s in members.items()}, partitions)
    for topic in partitions:
        numbers = [len(assignment.get(topic, ())) for assignment in result.values()]
        assert max(numbers) - min(numbers) <= 1


def test_an_assignor_that_is_not_known_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(UnsupportedAssignor, match=r"'best'.*cooperative-sticky.*uniform"):
        assign("best", {}, {})


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assert assign(name, {}, {"a": 3}) == {}
    assert assign(name, {"m": MemberSubscription(["a"])}, {}) == {"m": {}}
    assert assign(name, {"m": MemberSubscription([])}, {"a": 3}) == {"m": {}}


# --- range, roundrobin ----------------------------------------------------------------------------------------


def test_range_cuts_topics_of_one_size_alike() -> None:
    members = {m: MemberSubscription(["a", "b"]) for m in ("m1", "m2", "m3")}
    assert assign("range", members, {"a": 7, "b": 7}) == {
        "m1": {"a": (0, 1, 2), "b": (0, 1, 2)},
        "m2": {"a": (3, 4), "b": (3, 4)},
        "m3": {"a": (5, 6), "b": (5, 6)},
    }


def test_range_leaves_members_idle_that_are_more_than_there_are_partitions() -> None:
    members = {f"m{i}": MemberSubscription(["a"]) for i in range(4)}
    assert assign("range", members, {"a": 2}) == {"m0": {"a": (0,)}, "m1": {"a": (1,)}, "m2": {}, "m3": {}}


def test_static_members_come_first_by_instance_so_that_a_new_member_id_changes_nothing() -> None:
    def of(first_id: str) -> dict[str, Assignment]:
        members = {
            "dynamic": MemberSubscription(["a"]),
            first_id: MemberSubscription(["a"], instance_id="one"),
            "x-two": MemberSubscription(["a"], instance_id="two"),
        }
        return assign("range", members, {"a": 3})

    assert of("zz")["zz"] == of("aa")["aa"] == {"a": (0,)}
    assert of("zz")["dynamic"] == {"a": (2,)}


def test_roundrobin_goes_on_over_topics_and_skips_who_does_not_subscribe() -> None:
    everybody = {m: MemberSubscription(["a", "b"]) for m in ("m1", "m2")}
    assert assign("roundrobin", everybody, {"a": 3, "b": 3}) == {
        "m1": {"a": (0, 2), "b": (1,)},
        "m2": {"a": (1,), "b": (0, 2)},
    }
    uneven = {
        "m1": MemberSubscription(["a"]),
        "m2": MemberSubscription(["a", "b"]),
        "m3": MemberSubscription(["a", "b", "c"]),
    }
    assert assign("roundrobin", uneven, {"a": 1, "b": 2, "c": 3}) == {
        "m1": {"a": (0,)},
        "m2": {"b": (0,)},
        "m3": {"b": (1,), "c": (0, 1, 2)},
    }


# --- sticky, uniform ------------------------------------------------------------------------------------------


@given(group=groups(equal=True))
def test_sticky_moves_the_least_where_subscriptions_are_equal(group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    result = assign("sticky", members, partitions)
    possible = wanted(members, partitions)
    before = Counter(m for pair, m in newest_owners(members).items() if pair in possible)
    each, more = divmod(len(possible), len(members))
    # the most that any balanced assignment could leave in place
    richest = sorted((before[m] for m in members), reverse=True)
    best = sum(min(n, each + (i < more)) for i, n in enumerate(richest))
    stayed = sum(m == newest_owners(members).get(p) for m, assignment in result.items() for p in pairs(assignment))
    assert stayed == best


@given(group=groups())
def test_sticky_is_as_even_as_the_subscriptions_permit(group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    result = assign("sticky", members, partitions)
    held = {m: len(pairs(a)) for m, a in result.items()}
    for giver in members:
        reached, frontier = {giver}, [giver]
        while frontier:
            topics = set(result[frontier.pop()])
            for taker in members.keys() - reached:
                if topics & set(members[taker].topics):
                    reached.add(taker)
                    frontier.append(taker)
        assert all(held[giver] - held[taker] <= 1 for taker in reached)


@pytest.mark.parametrize("name", ["sticky", "uniform", "cooperative-sticky"])
@given(group=groups())
def test_a_balanced_group_is_left_alone(name: str, group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    first = assign("sticky", members, partitions)
    assert assign(name, holding(members, first, 3), partitions) == first


@given(group=groups(equal=True), leaver=st.integers(0, 6))
def test_when_a_member_leaves_only_its_partitions_move(group: tuple[Members, dict[str, int]], leaver: int) -> None:
    members, partitions = group
    first = assign("sticky", members, partitions)
    gone = sorted(members)[leaver % len(members)]
    rest = {m: s for m, s in holding(members, first, 3).items() if m != gone}
    for member, assignment in assign("sticky", rest, partitions).items():
        assert pairs(first[member]) <= pairs(assignment)


def test_sticky_takes_from_the_richest_and_takes_the_last_partitions_of_each_topic() -> None:
    members = {
        "m1": MemberSubscription(["a", "b"], owned={"a": [0, 1, 2], "b": [0, 1, 2]}, generation=1),
        "m2": MemberSubscription(["a", "b"]),
    }
    assert assign("sticky", members, {"a": 3, "b": 3}) == {
        "m1": {"a": (0, 1), "b": (0,)},
        "m2": {"a": (2,), "b": (1, 2)},
    }


def test_the_newer_of_two_claims_wins() -> None:
    members = {
        "m1": MemberSubscription(["a"], owned={"a": [0, 1]}, generation=4),
        "m2": MemberSubscription(["a"], owned={"a": [1]}, generation=5),
    }
    assert assign("sticky", members, {"a": 2}) == {"m1": {"a": (0,)}, "m2": {"a": (1,)}}


def test_load_goes_along_a_chain_where_no_single_move_helps() -> None:
    members = {
        "m1": MemberSubscription(["a"], owned={"a": [0, 1, 2]}, generation=1),
        "m2": MemberSubscription(["a", "b"], owned={"b": [0, 1]}, generation=1),
        "m3": MemberSubscription(["b"], owned={"b": [2]}, generation=1),
    }
    result = assign("sticky", members, {"a": 3, "b": 3})
    assert loads(result) == [2, 2, 2]
    assert result["m2"] == {"a": (2,), "b": (0,)}


# --- cooperative-sticky ---------------------------------------------------------------------------------------


@given(group=groups())
def test_cooperative_gives_nothing_that_another_member_still_holds(group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    owners = newest_owners(members)
    for member, assignment in assign("cooperative-sticky", members, partitions).items():
        for topic, partition in pairs(assignment):
            others = [o for o in members if o != member and partition in members[o].owned.get(topic, ())]
            assert not others or owners[(topic, partition)] == member


@given(group=groups(equal=True))
def test_cooperative_is_done_after_two_rebalances(group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    first = assign("cooperative-sticky", members, partitions)
    second = assign("cooperative-sticky", holding(members, first, 3), partitions)
    assert set().union(*(pairs(a) for a in second.values())) == wanted(members, partitions)
    assert all(pairs(first[m]) <= pairs(second[m]) for m in members), "what was kept is not moved later"
    numbers = loads(second)
    assert max(numbers) - min(numbers) <= 1


@given(group=groups())
def test_cooperative_settles_whatever_the_subscriptions(group: tuple[Members, dict[str, int]]) -> None:
    members, partitions = group
    generation = 3
    result = assign("cooperative-sticky", members, partitions)
    for _ in range(6):
        if set().union(*(pairs(a) for a in result.values())) == wanted(members, partitions):
            break
        members = holding(members, result, generation)
        generation += 1
        result = assign("cooperative-sticky", members, partitions)
    assert set().union(*(pairs(a) for a in result.values())) == wanted(members, partitions)


def test_cooperative_revokes_first_and_gives_in_the_next_rebalance() -> None:
    members = {
        "m1": MemberSubscription(["a"], owned={"a": [0, 1, 2, 3]}, generation=1),
        "m2": MemberSubscription(["a"]),
    }
    first = assign("cooperative-sticky", members, {"a": 4})
    assert first == {"m1": {"a": (0, 1)}, "m2": {}}
    second = assign("cooperative-sticky", holding(members, first, 2), {"a": 4})
    assert second == {"m1": {"a": (0, 1)}, "m2": {"a": (2, 3)}}


# --- racks ----------------------------------------------------------------------------------------------------

RACKS = ("", "x", "y", "z")
NEAR = sorted(set(ASSIGNORS) - {"roundrobin"})
Racked = tuple[Members, dict[str, int], dict[str, list[frozenset[str]]]]


@st.composite
def racked(draw: st.DrawFn, *, equal: bool = False) -> Racked:
    """A group whose members and replicas are in racks; of some of them none is known."""
    members, partitions = draw(groups(equal=equal))
    at = {m: replace(s, rack=draw(st.sampled_from(RACKS)) or None) for m, s in members.items()}
    sets = st.frozensets(st.sampled_from(RACKS[1:]), max_size=2)
    return at, partitions, {t: draw(st.lists(sets, min_size=n, max_size=n)) for t, n in partitions.items()}


def near(members: Members, result: Mapping[str, Assignment], racks: Mapping[str, list[frozenset[str]]]) -> int:
    """How many partitions are read in a rack that has a replica."""
    return sum(members[m].rack in racks[t][p] for m, assignment in result.items() for t, p in pairs(assignment))


def most_near(members: Members, loads: Mapping[str, int], racks: Mapping[Pair, frozenset[str]]) -> int:
    """Oracle: a maximum matching of partitions with places of members in their racks (augmenting paths)."""
    places = [m for m, n in loads.items() for _ in range(n)]
    taken: dict[int, Pair] = {}

    def seat(pair: Pair, tried: set[int]) -> bool:
        for i, member in enumerate(places):
            if members[member].rack in racks[pair] and i not in tried:
                tried.add(i)
                if i not in taken or seat(taken[i], tried):
                    taken[i] = pair
                    return True
        return False

    return sum(seat(pair, set()) for pair in racks)


@pytest.mark.parametrize("name", ["range", "sticky", "uniform"])
@given(group=racked())
def test_racks_change_nobodys_load_and_bring_more_near(name: str, group: Racked) -> None:
    members, partitions, racks = group
    without, result = assign(name, members, partitions), assign(name, members, partitions, racks)
    assert {m: len(pairs(a)) for m, a in result.items()} == {m: len(pairs(a)) for m, a in without.items()}
    owners = Counter(pair for assignment in result.values() for pair in pairs(assignment))
    assert set(owners) == wanted(members, partitions)
    assert all(n == 1 for n in owners.values())
    assert all(set(assignment) <= set(members[m].topics) for m, assignment in result.items())
    assert near(members, result, racks) >= near(members, without, racks)


@pytest.mark.parametrize("name", ["sticky", "uniform"])
@given(group=racked(equal=True))
def test_with_equal_subscriptions_no_sharing_of_these_loads_is_nearer(name: str, group: Racked) -> None:
    members, partitions, racks = group
    result = assign(name, members, partitions, racks)
    of_pair = {(t, p): racks[t][p] for t, p in wanted(members, partitions)}
    assert near(members, result, racks) == most_near(members, {m: len(pairs(a)) for m, a in result.items()}, of_pair)


@pytest.mark.parametrize("name", ["sticky", "uniform", "cooperative-sticky"])
@given(group=racked())
def test_with_racks_a_settled_group_stays_as_it_is(name: str, group: Racked) -> None:
    members, partitions, racks = group
    for generation in range(3, 7):
        result = assign(name, members, partitions, racks)
        members = holding(members, result, generation)
    assert assign(name, members, partitions, racks) == result
    assert {pair for a in result.values() for pair in pairs(a)} == wanted(members, partitions)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups(), known=st.sets(st.sampled_from("mnopqrs")))
def test_one_rack_for_all_is_as_none(name: str, group: tuple[Members, dict[str, int]], known: set[str]) -> None:
    members, partitions = group
    members = {m: replace(s, rack="x" if m in known else None) for m, s in members.items()}
    racks = {t: [frozenset("x")] * n for t, n in partitions.items()}
    assert assign(name, members, partitions, racks) == assign(name, members, partitions)


@pytest.mark.parametrize("name", NEAR)
def test_each_member_reads_what_has_a_replica_in_its_rack(name: str) -> None:
    members = {m: MemberSubscription(["a"], rack=r) for m, r in (("m1", "z"), ("m2", "x"), ("m3", "y"))}
    racks = {"a": [frozenset("x"), frozenset("y"), frozenset("z")] * 2}
    assert assign(name, members, {"a": 6}, racks) == {"m1": {"a": (2, 5)}, "m2": {"a": (0, 3)}, "m3": {"a": (1, 4)}}


def test_range_with_racks_still_cuts_topics_of_one_size_alike() -> None:
    members = {m: MemberSubscription(["a", "b"], rack=r) for m, r in (("m1", "y"), ("m2", "x"))}
    racks = {"a": [frozenset("x"), frozenset("xy"), frozenset("y")], "b": [frozenset("x")] * 2 + [frozenset("y")]}
    result = assign("range", members, {"a": 3, "b": 3}, racks)
    assert result == {"m1": {"a": (0, 2), "b": (0, 2)}, "m2": {"a": (1,), "b": (1,)}}


def test_cooperative_members_hand_over_before_others_take_what_is_near() -> None:
    racks = {"a": [frozenset("x"), frozenset("y")]}
    members = {
        "m1": MemberSubscription(["a"], {"a": [1]}, 1, rack="x"),
        "m2": MemberSubscription(["a"], {"a": [0]}, 1, rack="y"),
    }
    first = assign("cooperative-sticky", members, {"a": 2}, racks)
    assert first == {"m1": {}, "m2": {}}
    second = assign("cooperative-sticky", holding(members, first, 2), {"a": 2}, racks)
    assert second == {"m1": {"a": (0,)}, "m2": {"a": (1,)}}
