"""Plans of work groups, whatever members and declarations there are: held against the rules, one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.core.values import Declaration, WorkItem
from headrace_coordinator.core.work_members import WorkMember
from headrace_coordinator.core.work_targets import Plan, make_plan

IDS = [f"i{n}" for n in range(12)]
LAG = 10


def member(name: str, declaration: int = 1, **said: object) -> WorkMember:
    given = {"process_id": name, "zone": "", **said}
    return WorkMember(
        member_id=name,
        instance_id=None,
        client_id="",
        client_address="",
        rebalance_timeout_ms=1,
        endpoint="",
        transactional_id="",
        declaration=declaration,
        **given,
    )


def declared(items: list[WorkItem], warmup: int = 2) -> Declaration:
    return Declaration("f", None, {item.id: item for item in items}, LAG, warmup)


items = st.builds(WorkItem, st.sampled_from(IDS), st.integers(1, 4), st.booleans(), st.integers(0, 2)).map(
    lambda i: i if i.stateful else WorkItem(i.id, i.weight)
)
lists = st.lists(items, max_size=12, unique_by=lambda item: item.id)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Declaration, dict[str, WorkMember], dict[int, set[str]], dict[str, str]]:
    """Of two declarations the second one counts. What members have to do and do is disjoint; all else is anything."""
    current = declared(draw(lists), draw(st.integers(1, 3)))
    count = draw(st.integers(1, 5))
    sets = st.frozensets(st.sampled_from(IDS), max_size=6)
    free = {"target": set(IDS), "assigned": set(IDS)}
    members: dict[str, WorkMember] = {}
    for name in "abcde"[:count]:
        shares = {}
        for field, left in free.items():
            shares[field] = draw(sets) & left
            left -= shares[field]
        members[name] = member(
            name,
            draw(st.sampled_from([1, 2, 2])) if name != "a" else 2,
            process_id=draw(st.sampled_from("pqr")),
            zone=draw(st.sampled_from(["", "y", "z"])),
            standby=draw(sets),
            warm_up=draw(sets),
            lags=draw(st.dictionaries(st.sampled_from(IDS), st.sampled_from([0, LAG, LAG + 1, 99]), max_size=6)),
            **shares,
        )
    known = {1: set(draw(sets)), 2: set(current.items)}
    known = {number: ids for number, ids in known.items() if any(m.declaration == number for m in members.values())}
    awaited = draw(st.dictionaries(st.sampled_from(IDS), st.sampled_from("abcde"), max_size=4))
    return current, members, known, awaited


def may(m: WorkMember, item: str, current: Declaration, known: dict[int, set[str]]) -> bool:
    return item in current.items and item in known[m.declaration]


@given(situations())
def test_plans_keep_the_rules(situation: tuple) -> None:
    current, members, known, awaited = situation
    plan = make_plan(current, members, known, awaited)
    assert make_plan(current, members, known, awaited) == plan, "the same, asked again"
    for item in current.items:
        able = {name for name, m in members.items() if may(m, item, current, known)}
        assert (item in plan.owners) == bool(able), "what can be done is done"
        assert plan.owners.get(item) in able | {None}
        before = [n for n in able if item in members[n].target] or [n for n in able if item in members[n].held]
        owner = plan.owners.get(item)
        if current.items[item].stateful and before and owner not in before:
            assert members[owner].lags[item] <= LAG, "it has caught up"
        if item in plan.awaited:
            assert plan.awaited[item] in able - {owner}
            assert current.items[item].stateful
            assert members[plan.awaited[item]].is_behind(item, LAG)
    assert plan.owners.keys() <= current.items.keys()
    check_followers(plan, *situation[:3])
    check_balance({**plan.owners, **plan.awaited}, *situation[:3])


def check_followers(
    plan: Plan, current: Declaration, members: dict[str, WorkMember], known: dict[int, set[str]]
) -> None:
    standbys = {item: [n for n in members if item in plan.standby[n]] for item in current.items}
    for item, names in standbys.items():
        processes = [members[n].process_id for n in (*names, plan.owners.get(item)) if n is not None]
        assert len(set(processes)) == len(processes), "each on another process"
        assert all(may(members[n], item, current, known) for n in names)
        able = {m.process_id for m in members.values() if may(m, item, current, known)}
        wanted = current.items[item].standbys if item in plan.owners else 0
        assert len(names) == min(wanted, max(len(able) - 1, 0))
    warm_up = [(item, n) for n in members for item in plan.warm_up[n]]
    unfollowed = [(item, n) for item, n in plan.awaited.items() if n not in standbys[item]]
    assert set(warm_up) <= set(unfollowed)
    assert len(warm_up) == min(len(unfollowed), current.max_warmup)


def check_balance(
    wanted: dict[str, str], current: Declaration, members: dict[str, WorkMember], known: dict[int, set[str]]
) -> None:
    """No item could go from a member to one that is lighter by 1.5 of its weight, in what that one knows."""
    for other, m in members.items():
        loads = dict.fromkeys(members, 0)
        for item, name in wanted.items():
            loads[name] += current.items[item].weight if may(m, item, current, known) else 0
        for item, name in wanted.items():
            if may(m, item, current, known):
                assert 2 * (loads[name] - loads[other]) < 3 * current.items[item].weight


@given(situations())
def test_a_plan_that_was_carried_out_stays(situation: tuple) -> None:
    current, members, known, awaited = situation
    plan = make_plan(current, members, known, awaited)
    for name, m in members.items():
        m.target = m.assigned = frozenset(item for item, owner in plan.owners.items() if owner == name)
        m.standby, m.warm_up = frozenset(plan.standby[name]), frozenset(plan.warm_up[name])
    again = make_plan(current, members, known, plan.awaited)
    assert again.owners == plan.owners
    assert again.awaited == plan.awaited


def test_the_fewest_items_move_when_one_joins() -> None:
    members = {
        name: member(name, target=frozenset(IDS[at::2]), assigned=frozenset(IDS[at::2])) for at, name in enumerate("ab")
    }
    members["c"] = member("c")
    plan = make_plan(declared([WorkItem(i) for i in IDS]), members, {1: set(IDS)}, {})
    moved = [item for item, owner in plan.owners.items() if item not in members[owner].target]
    assert len(moved) == 4


def holder(name: str, items: list[str], declaration: int = 1) -> WorkMember:
    """It has had them for long, the first ones longest."""
    held = frozenset(items)
    epochs = {item: at for at, item in enumerate(items)}
    return member(name, declaration, target=held, assigned=held, epochs=epochs)


def test_nothing_moves_because_something_new_is_declared() -> None:
    """Members say one after another that there is more: at first all of it is with who knows it."""
    new = ["a1", "a2"]
    members = {"a": holder("a", IDS[:4], 2), "b": holder("b", IDS[4:8]), "c": holder("c", IDS[8:])}
    now, known = declared([WorkItem(i) for i in (*IDS, *new)]), {1: set(IDS), 2: {*IDS, *new}}
    plan = make_plan(now, members, known, {})
    moved = [item for item, owner in plan.owners.items() if item not in members[owner].target]
    assert moved == new

    members["a"].target |= frozenset(new)
    members["b"].declaration = 2
    plan = make_plan(now, members, known, {})
    moved = [item for item, owner in plan.owners.items() if item not in members[owner].target]
    assert len(moved) == 1, "of two new ones on one member"
    assert moved[0] in new

    members["c"].declaration = 2
    assert len(set(new) & {item for item, owner in plan.owners.items() if owner == "b"}) == 1
    for name in "ab":
        members[name].target = frozenset(item for item, owner in plan.owners.items() if owner == name)
    assert make_plan(now, members, {2: known[2]}, {}).owners == plan.owners


def test_nothing_heavy_moves_because_something_light_is_new() -> None:
    """Before the light one: 30 and 20. A heavy one that moved would make that 21 and 30."""
    heavy = [WorkItem(i, 10) for i in IDS[:5]]
    members = {"a": holder("a", [*IDS[:3], IDS[5]]), "b": holder("b", IDS[3:5])}
    plan = make_plan(declared([*heavy, WorkItem(IDS[5], 1, stateful=True)]), members, {1: set(IDS[:6])}, {})
    assert [item for item, owner in plan.owners.items() if item not in members[owner].target] == []


def test_what_a_member_has_had_longest_moves_last() -> None:
    members = {"a": holder("a", IDS[::-1]), "b": member("b")}
    plan = make_plan(declared([WorkItem(i) for i in IDS]), members, {1: set(IDS)}, {})
    assert {item for item, owner in plan.owners.items() if owner == "b"} == set(IDS[:6])


def test_many_items_and_members_are_planned_at_once() -> None:
    """What grew with the square of items or members would take minutes."""
    many = {str(n): WorkItem(str(n), 1 + n % 3, stateful=True, standbys=1) for n in range(20_000)}
    members = {str(n): member(str(n), 1 + n % 2, zone=str(n % 3)) for n in range(1_000)}
    current = Declaration("f", None, many, LAG, 2)
    plan = make_plan(current, members, {1: many.keys(), 2: many.keys()}, {})
    assert len(plan.owners) == 20_000
    for name, m in members.items():
        m.standby = frozenset(plan.standby[name])
    for item, owner in plan.owners.items():
        members[owner].target |= {item}
    del members["7"]
    assert len(make_plan(current, members, {1: many.keys(), 2: many.keys()}, {}).owners) == 20_000
