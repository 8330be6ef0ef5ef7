"""Members of the server-side protocol that may not know of all topics, as dialogues."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace_common.core.errors import ErrorCode

from .test_consumer_group import held
from .world import World, plain


@dataclass
class Rules:
    """Who may know of what; changed by the test."""

    of: dict[str, set[str]]


@dataclass(frozen=True, eq=False)
class Seen:
    """What one caller sees, by the newest rules."""

    rules: Rules
    who: str

    def filter_visible(self, topics: frozenset[str]) -> frozenset[str]:
        return topics & self.rules.of[self.who]


@pytest.fixture
def rules() -> Rules:
    return Rules({"all": {"a", "b", "c"}, "a": {"a"}, "b": {"b"}})


@pytest.fixture
def w() -> World:
    world = World({"a": 2, "b": 2})
    world.decided = True
    world.change_topics({"a": 2, "b": 2})
    return world


def enter(w: World, stream: int, member_id: str, sight: Seen, *topics: str, **more: object) -> dict[str, list[int]]:
    """Join and say that all that is given is held."""
    told = w.enter(stream, member_id, *(topics or ("a", "b")), sight=sight, **more)
    assert told.assignment is not None
    given = plain(told.assignment)
    w.pulse(stream, member_id, told.member_epoch, owned=given, sight=sight)
    w.heard(stream)
    return given


def targets(w: World) -> dict[str, dict[str, list[int]]]:
    return {m.member_id: plain(m.target) for m in w.description().members}


def test_a_member_is_given_what_it_sees(w: World, rules: Rules) -> None:
    assert enter(w, 1, "m", Seen(rules, "a")) == {"a": [0, 1]}
    assert w.description().members[0].topics == ("a", "b"), "what it said stays"


def test_members_with_one_subscription_see_different_topics(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "a"))
    enter(w, 2, "n", Seen(rules, "all"))
    assert targets(w) == {"m": {"a": [0, 1]}, "n": {"b": [0, 1]}}


def test_what_a_member_sees_changes_with_the_rules(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "a"))
    rules.of["a"] = {"b"}
    w.change_topics({"a": 2, "b": 2})
    epoch, given = held(w, 1)
    assert given == {}, "it gives up what it does not see any more"
    w.pulse(1, "m", epoch, owned={})
    assert held(w, 1)[1] == {"b": [0, 1]}
    appends = w.appends
    w.change_topics({"a": 2, "b": 2})
    assert w.appends == appends, "nothing has changed"


@pytest.mark.parametrize("moved", [False, True])
def test_what_one_member_sees_changes_and_another_goes_on_reading_it(w: World, rules: Rules, moved: bool) -> None:
    rules.of["m"] = {"a", "b"}
    enter(w, 1, "m", Seen(rules, "m"))
    enter(w, 2, "n", Seen(rules, "all"))
    w.pulse(1, "m", w.description().members[0].member_epoch, owned=targets(w)["m"])
    assert {name for target in targets(w).values() for name in target} == {"a", "b"}
    if moved:
        w.move()
        w.pulse(3, "m", w.description().members[0].member_epoch, sight=Seen(rules, "m"))
        w.pulse(4, "n", w.description().members[1].member_epoch, sight=Seen(rules, "all"))
    for seen in ({"a"}, {"b"}):
        rules.of["m"] = seen
        w.change_topics({"a": 2, "b": 2})
        assert targets(w)["m"].keys() <= seen


def test_a_new_topic_is_given_to_who_sees_it(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "a"), "a", pattern=".*", matched=("a", "b"))
    appends = w.appends
    w.change_topics({"a": 2, "b": 2, "c": 1}, matches={".*": "abc"})
    assert w.appends == appends
    enter(w, 2, "n", Seen(rules, "all"), "a", pattern=".*")
    assert "c" not in targets(w)["m"]
    assert targets(w)["n"]["c"] == [0]


def test_who_speaks_for_a_member_may_be_another(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "all"))
    w.drop(1)
    w.pulse(2, "m", 1, sight=Seen(rules, "a"))
    _, given = held(w, 2)
    assert given == {"a": [0, 1]}


def test_a_move_of_the_shard_alone_moves_nothing(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "a"))
    enter(w, 2, "n", Seen(rules, "all"))
    before, epoch = targets(w), w.description().generation
    appends = w.appends
    w.move()
    assert w.appends == appends, "nobody was heard, so nothing is decided anew"
    assert targets(w) == before
    w.pulse(3, "n", epoch, sight=Seen(rules, "all"))
    w.pulse(4, "m", w.description().members[0].member_epoch, sight=Seen(rules, "a"))
    assert targets(w) == before
    assert w.description().generation == epoch
    enter(w, 5, "o", Seen(rules, "b"))
    assert "b" not in targets(w)["m"]


def test_members_that_hold_little_do_not_feel_a_move_of_the_shard(w: World, rules: Rules) -> None:
    """Nobody has partitions of both topics, and the last one has none at all."""
    w.change_topics({"a": 1, "b": 1})
    for stream, name in enumerate("mno", start=1):
        enter(w, stream, name, Seen(rules, "all"))
    for stream, name in enumerate("mno", start=1):
        w.pulse(stream, name, w.description().members[stream - 1].member_epoch, owned=targets(w)[name])
    before, epoch = targets(w), w.description().generation
    assert sorted(map(len, before.values())) == [0, 1, 1]
    w.move()
    appends = w.appends
    for stream, name in enumerate("nom", start=4):
        w.pulse(stream, name, epoch, owned=before[name], sight=Seen(rules, "all"))
    assert targets(w) == before
    assert w.description().generation == epoch
    assert w.appends == appends


def test_who_sees_less_than_before_the_move_gives_it_up_when_it_is_heard(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "all"))
    w.move()
    w.pulse(2, "m", 1, sight=Seen(rules, "a"))
    assert targets(w) == {"m": {"a": [0, 1]}}


def test_who_sees_more_than_before_the_move_gets_it_when_it_is_heard(w: World, rules: Rules) -> None:
    enter(w, 1, "m", Seen(rules, "a"))
    w.move()
    w.pulse(2, "m", 1, sight=Seen(rules, "all"))
    assert targets(w) == {"m": {"a": [0, 1], "b": [0, 1]}}


def test_a_move_forgets_nobody_that_joins_meanwhile(w: World, rules: Rules) -> None:
    """Who was not heard yet keeps to what it was to read, whatever the others do."""
    enter(w, 1, "m", Seen(rules, "a"))
    w.move()
    assert enter(w, 5, "o", Seen(rules, "all")) == {"b": [0, 1]}
    assert "b" not in targets(w)["m"]


def test_in_an_open_cluster_a_new_topic_needs_nobody_to_be_heard(rules: Rules) -> None:
    w = World({"a": 2})
    w.enter(1, "m", "a", "b")
    w.move()
    w.change_topics({"a": 2, "b": 1})
    assert targets(w) == {"m": {"a": [0, 1], "b": [0]}}


def test_a_static_member_that_comes_back_has_its_own_unless_it_sees_something_else(w: World, rules: Rules) -> None:
    given = enter(w, 1, "m", Seen(rules, "all"), instance="i")
    w.pulse(1, "m", -2, instance="i")
    w.heard(1)
    epoch = w.description().generation
    assert enter(w, 2, "m2", Seen(rules, "all"), instance="i") == given
    assert w.description().generation == epoch
    w.pulse(2, "m2", -2, instance="i")
    w.heard(2)
    assert enter(w, 3, "m3", Seen(rules, "a"), instance="i") == {"a": [0, 1]}
    assert w.description().generation > epoch


def test_offsets_of_a_topic_that_no_member_sees_are_not_in_use(w: World, rules: Rules) -> None:
    for topic in ("a", "b"):
        assert w.commit(5, topic=topic) is ErrorCode.NONE
    enter(w, 1, "m", Seen(rules, "a"))
    kept, gone = (w.delete_offsets(topic, 0) for topic in ("a", "b"))
    assert [one.error is None for found in (kept, gone) for one in found.outcomes] == [False, True]  # type: ignore[attr-defined]
