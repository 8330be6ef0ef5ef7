"""Work groups as dialogues: who does what, epochs of items, declarations, warm-up, fencing, time, moves."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.records import DeclarationKey, read_key
from headrace_coordinator.core.values import GroupProtocol, GroupState

from .work_world import Workers, declare, stateful
from .world import TODAY, WALL, G

E = ErrorCode
DAY = 86_400_000


@pytest.fixture
def w() -> Workers:
    return Workers()


def two(w: Workers) -> None:
    """Members a on stream 1 and b on stream 2 with two items each, settled."""
    w.start(1, "a", tid="t-a")
    w.start(2, "b", tid="t-b")
    w.agree((1, "a"), (2, "b"))
    assert len(w.items("a")) == len(w.items("b")) == 2


def parts(w: Workers) -> list[DeclarationKey]:
    """Of declarations, in the log."""
    keys = [read_key(key) for key, value in w.log.items() if value is not None]
    return sorted(key for key in keys if isinstance(key, DeclarationKey))


# --- who does what --------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(w: Workers) -> None:
    share = w.start(1, "a")
    assert w.items("a") == ["w", "x", "y", "z"]
    assert len({one.epoch for one in share.active}) == 1
    d = w.description()
    assert (d.protocol, d.state) == (GroupProtocol.WORK, GroupState.STABLE)
    assert [(one.item.id, one.owner, one.epoch) for one in d.items] == [
        (i, "a", share.active[0].epoch) for i in ("x", "y", "z", "w")
    ]


def test_a_second_member_waits_until_the_first_has_given_up_its_share(w: Workers) -> None:
    w.start(1, "a")
    w.work(1, "a", owned="wxyz")
    w.news(1, "a")
    assert w.start(2, "b").active == ()
    w.news(1, "a")
    kept = w.items("a")
    assert len(kept) == 2, "told at once"
    w.work(1, "a")
    assert not w.heard(2), "a has not said that it gave up anything"
    w.work(1, "a", owned=kept)
    w.news(2, "b")
    assert sorted(kept + w.items("b")) == ["w", "x", "y", "z"]
    assert w.given("b", w.items("b")[0]).epoch > w.given("a", kept[0]).epoch


def test_each_item_that_was_given_up_is_another_ones_at_once(w: Workers) -> None:
    w.start(1, "a")
    w.work(1, "a", owned="wxyz")
    w.news(1, "a")
    w.start(2, "b")
    w.news(1, "a")
    kept = w.items("a")
    first, second = sorted(set("wxyz") - set(kept))
    w.work(1, "a", owned=[*kept, second])
    w.news(2, "b")
    assert w.items("b") == [first]
    w.work(1, "a", owned=[*kept, second])
    assert not w.heard(2), "it says the same again"
    w.work(1, "a", owned=kept)
    w.news(2, "b")
    assert w.items("b") == [first, second]


def test_who_declares_nothing_gives_up_what_it_has_one_by_one(w: Workers) -> None:
    """As a member that leaves in order does; what it declares is older than what the others do."""
    everything = declare("w", "x", "y", "z", version=7)
    w.start(1, "a", everything)
    w.work(1, "a", owned="wxyz")
    w.news(1, "a")
    w.start(2, "b", everything)
    w.news(1, "a")
    first, second = w.items("a")
    w.work(1, "a", owned=[first, second])
    w.news(2, "b")
    had = w.items("b")
    w.work(1, "a", owned=[first, second], declaration=declare(version=1))
    w.news(1, "a")
    assert w.items("a") == []
    assert [one.share for one in w.heard(2)] == [None], "nothing is free yet"
    w.work(1, "a", owned=[second])
    w.news(2, "b")
    assert w.items("b") == sorted([*had, first])
    w.work(1, "a", owned=[])
    w.news(2, "b")
    assert w.items("b") == ["w", "x", "y", "z"]


def test_what_was_not_confirmed_is_not_taken_away(w: Workers) -> None:
    w.start(1, "a")
    w.start(2, "b")
    assert not w.heard(1), "what a was given may still be on its way"
    w.work(1, "a", owned=())
    w.news(1, "a")
    assert len(w.items("a")) == 4, "an early report is no release"
    assert not w.heard(2)
    w.agree((1, "a"), (2, "b"))
    assert len(w.items("b")) == 2


def test_a_heartbeat_without_news_writes_nothing_and_has_no_lists(w: Workers) -> None:
    two(w)
    appends = w.appends
    w.work(1, "a")
    assert w.last(1).share is None
    w.work(1, "a", lags={"w": 5})
    assert w.last(1).share is None
    assert w.appends == appends


def test_who_leaves_makes_room_at_once(w: Workers) -> None:
    two(w)
    w.work(2, "b", -1)
    assert w.last(2).member_epoch == -1
    assert 2 in w.closed
    w.news(1, "a")
    assert w.items("a") == ["w", "x", "y", "z"]
    assert all(not one.unended for one in w.shares["a"].active), "it has ended its own transaction"


def test_leave_group_is_the_same(w: Workers) -> None:
    two(w)
    assert w.leave(2, "b") is E.NONE
    w.news(1, "a")
    assert len(w.items("a")) == 4
    assert w.leave(9, "b") is E.UNKNOWN_MEMBER_ID


def test_weights_count(w: Workers) -> None:
    heavy = [*stateful("big", weight=10), *stateful("one", "two", "six", "ten")]
    w.start(1, "a", declare(*heavy), lags={})
    w.start(2, "b", declare(*heavy), lags=dict.fromkeys(("big", "one", "two", "six", "ten"), 0))
    w.agree((1, "a"), (2, "b"))
    assert ["big"] in (w.items("a"), w.items("b"))


def test_sticky(w: Workers) -> None:
    two(w)
    before = {m: {one.id: one.epoch for one in w.shares[m].active} for m in "ab"}
    w.start(3, "c")
    w.agree((1, "a"), (2, "b"), (3, "c"))
    w.work(3, "c", -1)
    w.agree((1, "a"), (2, "b"))
    stayed = [
        item
        for m in "ab"
        for item, epoch in before[m].items()
        if item in w.items(m) and w.given(m, item).epoch == epoch
    ]
    assert len(stayed) == 3, "only what c had has moved"


def test_more_members_than_items(w: Workers) -> None:
    for stream, member in enumerate("abcdef", 1):
        w.start(stream, member)
    w.agree(*enumerate("abcdef", 1))
    assert sorted(len(w.items(m)) for m in "abcdef") == [0, 0, 1, 1, 1, 1]
    assert w.description().state is GroupState.STABLE


def test_an_item_that_nobody_may_do_has_no_owner(w: Workers) -> None:
    w.start(1, "a", declare("x"))
    w.start(2, "b", declare("y"))
    w.agree((1, "a"), (2, "b"))
    assert (w.items("a"), w.items("b")) == ([], ["y"]), "x is of an older declaration"


# --- declarations ---------------------------------------------------------------------------------------------


def test_an_older_declaration_gets_only_what_both_have(w: Workers) -> None:
    old, new = declare("x", "y", fingerprint="v1"), declare("y", "z", fingerprint="v2")
    w.start(1, "a", old)
    w.work(1, "a", owned="xy")
    w.start(2, "b", new)
    w.agree((1, "a"), (2, "b"))
    assert (w.items("a"), w.items("b")) == (["y"], ["z"])
    w.work(1, "a", -1)
    w.news(2, "b")
    assert w.items("b") == ["y", "z"]


def test_rolling_back_is_a_newer_declaration_again(w: Workers) -> None:
    old, new = declare("x", "y", fingerprint="v1"), declare("y", "z", fingerprint="v2")
    w.start(1, "a", old)
    w.start(2, "b", new)
    w.work(1, "a", -1)
    w.start(3, "c", old)
    w.agree((2, "b"), (3, "c"))
    assert (w.items("b"), w.items("c")) == (["y"], ["x"])


def test_versions_that_members_give_decide(w: Workers) -> None:
    old, new = declare("x", "y", version=7), declare("y", "z", version=9)
    w.start(1, "a", new)
    w.start(2, "b", old)
    w.agree((1, "a"), (2, "b"))
    assert sorted(w.items("a") + w.items("b")) == ["y", "z"]
    w.work(3, "c", 0, owned=(), declaration=declare("v", version=9, fingerprint="other"))
    assert w.error(3) is E.INVALID_REQUEST


def test_one_fingerprint_is_one_declaration(w: Workers) -> None:
    w.start(1, "a", declare("x", fingerprint="f"))
    w.work(2, "b", 0, owned=(), declaration=declare("y", fingerprint="f"))
    assert w.error(2) is E.INVALID_REQUEST


OURS = declare("x", "y", fingerprint="ours", terms={"rows": "a bigint", "more": "1"})
THEIRS = declare("x", "y", "z", fingerprint="theirs", terms={"rows": "a text", "else": "2"})


def test_who_has_other_terms_than_a_member_that_is_there_does_not_join(w: Workers) -> None:
    w.start(1, "a", OURS)
    w.work(2, "b", 0, owned=(), declaration=THEIRS)
    error = w.last(2).error
    assert error.code is E.INCONSISTENT_GROUP_PROTOCOL
    assert "rows is a bigint, and this one says that it is a text" in str(error)
    w.move()
    w.work(3, "b", 0, owned=(), declaration=THEIRS)
    assert w.error(3) is E.INCONSISTENT_GROUP_PROTOCOL, "they are written with the declaration"
    assert w.description().terms == OURS.terms
    w.start(4, "c", declare("x", "y", fingerprint="none"))
    w.start(5, "d", declare("x", "y", fingerprint="new", terms={"else": "2"}))
    assert w.description().terms == {**OURS.terms, "else": "2"}, "who says nothing of it agrees"
    w.work(4, "c", -1)
    w.work(5, "d", -1)
    w.start(6, "a", OURS)
    w.work(6, "a", -1)
    assert w.description().terms == {}
    w.start(7, "b", THEIRS)
    assert w.items("b") == ["x", "y", "z"], "nobody else is there"


def test_a_member_changes_its_own_terms_and_not_those_of_others(w: Workers) -> None:
    w.start(1, "a", OURS)
    w.work(1, "a", owned=w.items("a"), declaration=THEIRS)
    assert w.description().terms == THEIRS.terms
    w.start(2, "b", THEIRS)
    w.work(2, "b", declaration=OURS)
    assert w.error(2) is E.INCONSISTENT_GROUP_PROTOCOL
    assert w.description().terms == THEIRS.terms


def test_who_replaces_a_member_need_not_agree_with_it(w: Workers) -> None:
    w.start(1, "a", OURS, instance="i")
    w.start(2, "a2", THEIRS, instance="i")
    assert w.items("a2") == ["x", "y", "z"]
    w.work(3, "b", 0, owned=(), declaration=OURS, instance="j")
    assert w.error(3) is E.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_may_declare_something_else(w: Workers) -> None:
    two(w)
    w.work(1, "a", declaration=declare("x", "v"))
    w.agree((1, "a"), (2, "b"))
    assert (w.items("a"), w.items("b")) == (["v", "x"], []), "nothing moves to who has not declared it"
    w.work(2, "b", declaration=declare("x", "v"))
    w.agree((1, "a"), (2, "b"))
    assert (w.items("a"), w.items("b")) == (["x"], ["v"])


def test_declarations_are_written_once_and_go_with_their_last_member(w: Workers) -> None:
    big = declare(*[f"{'i' * 200}{n}" for n in range(4_000)], fingerprint="big")
    w.start(1, "a", big)
    assert [key.part for key in parts(w)] == [0, 1, 2, 3]
    assert isinstance(read_key(w.written[-1][0]), DeclarationKey), "before the record that needs them"
    assert read_key(w.written[-1][-1]) == G
    w.start(2, "b")
    assert len(w.written[-1]) == 2
    w.work(1, "a", -1)
    assert read_key(w.written[-1][0]) == G, "they go after it"
    assert len(w.written[-1]) == 5
    assert [key.part for key in parts(w)] == [0]
    w.move()
    assert w.description().items[0].owner == "b"


def test_what_an_append_that_was_cut_off_has_left_is_taken_away(w: Workers) -> None:
    w.start(1, "a")
    before = dict(w.log)
    w.start(2, "b", declare("v"))
    w.log = before | {key: value for key, value in w.log.items() if isinstance(read_key(key), DeclarationKey)}
    w.move()
    assert [key.part for key in parts(w)] == [0]
    w.log = {key: value for key, value in w.log.items() if read_key(key) != G}
    w.move()
    assert not parts(w)


# --- stateful items -------------------------------------------------------------------------------------------


def test_a_stateful_item_moves_when_the_other_one_has_caught_up(w: Workers) -> None:
    w.declared = declare(*stateful("x", "y"))
    w.start(1, "a")
    w.agree((1, "a"))
    share = w.start(2, "b")
    assert (share.active, len(share.warm_up)) == ((), 1)
    (item,) = share.warm_up
    w.work(2, "b", lags={item: 101})
    assert w.last(2).share is None
    w.agree((1, "a"), (2, "b"))
    assert w.items("a") == ["x", "y"]
    w.work(2, "b", lags={item: 100})
    w.agree((1, "a"), (2, "b"))
    assert w.items("b") == [item]
    assert not w.shares["b"].warm_up


def test_only_so_many_are_prepared_at_one_time(w: Workers) -> None:
    w.declared = declare(*stateful(*"abcdefgh"), warmup=3)
    w.start(1, "m")
    w.agree((1, "m"))
    assert len(w.start(2, "n").warm_up) == 3
    seen = set(w.shares["n"].warm_up)
    for _ in range(4):
        w.work(2, "n", lags=dict.fromkeys([*w.shares["n"].warm_up], 0))
        w.agree((1, "m"), (2, "n"))
        seen |= set(w.shares["n"].warm_up)
    assert len(w.items("n")) == 4
    assert set(w.items("n")) == seen


def test_who_comes_with_the_state_gets_its_share_at_once(w: Workers) -> None:
    w.declared = declare(*stateful("x", "y"))
    w.start(1, "a")
    w.agree((1, "a"))
    w.start(2, "b", lags={"x": 3, "y": 0})
    w.agree((1, "a"), (2, "b"))
    assert w.items("b") == ["y"], "that of which it lacks the least"


def test_the_standby_with_the_least_lag_takes_over(w: Workers) -> None:
    w.declared = declare(*stateful("x", standbys=2))
    for stream, member in ((1, "a"), (2, "b"), (3, "c"), (4, "d")):
        w.start(stream, member)
    w.agree((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    followers = [m for m in "bcd" if w.shares[m].standby == ("x",)]
    assert len(followers) == 2
    far, near = followers
    w.work("abcd".index(far) + 1, far, lags={"x": 50})
    w.work("abcd".index(near) + 1, near, lags={"x": 5})
    w.drop(1)
    w.sleep(w.settings.group_rejoin_grace_ms)
    for stream, member in ((2, "b"), (3, "c"), (4, "d")):
        w.news(stream, member)
    assert w.items(near) == ["x"]
    assert {m for m in "bcd" if w.shares[m].standby} == set("bcd") - {near}


def test_standbys_are_on_other_processes_and_if_possible_in_other_zones(w: Workers) -> None:
    w.declared = declare(*stateful("x", standbys=1))
    w.start(1, "a", process="p", zone="z1")
    w.start(2, "b", process="p", zone="z2")
    w.agree((1, "a"), (2, "b"))
    assert not w.shares["b"].standby
    w.start(3, "c", process="q", zone="z1")
    w.agree((1, "a"), (2, "b"), (3, "c"))
    assert w.shares["c"].standby == ("x",)
    w.start(4, "d", process="r", zone="z2")
    w.agree((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    assert (w.shares["c"].standby, w.shares["d"].standby) == ((), ("x",))


def test_who_had_an_item_follows_it(w: Workers) -> None:
    w.declared = declare(*stateful("x", "y", standbys=1))
    for stream, member in ((1, "a"), (2, "b"), (3, "c")):
        w.start(stream, member, lags={"x": 0, "y": 0})
    w.agree((1, "a"), (2, "b"), (3, "c"))
    standbys = {m: w.shares[m].standby for m in "abc"}
    assert sorted(len(s) for s in standbys.values()) in ([0, 1, 1], [0, 0, 2])


# --- epochs of items, and what was left open ------------------------------------------------------------------


def test_a_token_that_is_higher_is_passed(w: Workers) -> None:
    first = w.start(1, "a").active[0].epoch
    w.work(1, "a", owned="wxyz", refused={"x": 5_000, "y": 0, "unknown": 9})
    w.news(1, "a")
    assert (w.given("a", "x").epoch, w.given("a", "y").epoch) == (5_001, first)
    w.work(1, "a", refused={"x": 5_000})
    assert w.last(1).share is None, "that is an old report"
    w.start(2, "b")
    w.agree((1, "a"), (2, "b"))
    assert all(one.epoch > 5_001 for one in w.shares["b"].active)


def test_a_new_process_has_new_epochs(w: Workers) -> None:
    w.start(1, "a", instance="i")
    w.agree((1, "a"))
    before = w.given("a", "x").epoch
    w.drop(1)
    w.start(2, "a2", instance="i")
    assert w.given("a2", "x").epoch > before


def test_the_same_instance_of_another_process_puts_the_old_one_out_at_once(w: Workers) -> None:
    w.start(1, "a", instance="i", tid="t-a")
    w.start(2, "b", tid="t-b")
    w.agree((1, "a"), (2, "b"))
    had = w.items("a")
    share = w.start(3, "a2", instance="i", tid="t-a2")
    assert w.error(1) is E.FENCED_INSTANCE_ID
    assert 1 in w.closed
    assert w.items("a2") == had, "what its name had"
    assert {one.unended for one in share.active} == {("t-a",)}
    w.work(4, "a", instance="i")
    assert w.error(4) is E.FENCED_INSTANCE_ID


def test_what_a_member_that_was_put_out_has_left_open_is_told_until_it_is_ended(w: Workers) -> None:
    two(w)
    had = w.items("b")
    w.drop(2)
    w.sleep(w.settings.group_rejoin_grace_ms)
    w.news(1, "a")
    assert {one.id: one.unended for one in w.shares["a"].active if one.unended} == dict.fromkeys(had, ("t-b",))
    w.move()
    w.work(5, "a", owned="wxyz")
    w.news(5, "a")
    assert w.given("a", had[0]).unended == ("t-b",), "another coordinator knows it"
    w.start(6, "c", tid="t-c")
    w.agree((5, "a"), (6, "c"))
    moved = [one for one in w.shares["c"].active if one.id in had]
    assert all(one.unended == ("t-b",) for one in moved), "and so does who gets them next"
    w.work(5, "a", ended=["t-b", "nobody"])
    w.news(5, "a")
    assert not any(one.unended for one in w.shares["a"].active)
    w.news(6, "c")
    assert not any(one.unended for one in w.shares["c"].active)


def test_what_was_left_open_is_told_although_the_item_was_not_there_meanwhile(w: Workers) -> None:
    w.start(1, "a", declare("x"), tid="t-a")
    w.drop(1)
    w.sleep(w.settings.group_rejoin_grace_ms)
    w.start(2, "b", declare("y"))
    w.move()
    w.work(3, "b", -1)
    assert w.start(4, "c", declare("x")).active[0].unended == ("t-a",)


def test_of_what_was_left_open_the_oldest_is_forgotten(w: Workers) -> None:
    big = declare(*(f"i{n}" for n in range(15_000)), fingerprint="big")
    for number in range(4):
        w.start(number, f"m{number}", big, tid=f"t-{number}")
        w.drop(number)
        w.sleep(w.settings.group_rejoin_grace_ms)
    assert w.start(9, "m", big).active[0].unended == ("t-2", "t-3")


def test_who_is_slow_to_give_up_is_out(w: Workers) -> None:
    w.start(1, "a", tid="t-a", rebalance_ms=1_000)
    w.agree((1, "a"))
    w.start(2, "b")
    w.news(1, "a")
    w.sleep(1_000)
    assert w.error(1) is E.FENCED_MEMBER_EPOCH
    w.news(2, "b")
    assert len(w.items("b")) == 4
    assert {one.unended for one in w.shares["b"].active} == {("t-a",)}


# --- time and streams -----------------------------------------------------------------------------------------


def test_a_broken_stream_counts_the_grace_named_or_not(w: Workers) -> None:
    w.start(1, "a", instance="i")
    w.drop(1)
    w.sleep(w.settings.group_rejoin_grace_ms - 1)
    assert len(w.description().members) == 1
    w.work(2, "a", instance="i")
    assert w.news(2, "a").active, "it is told all over a new stream"
    w.drop(2)
    w.sleep(w.settings.group_rejoin_grace_ms)
    assert not w.description().members


def test_silence_on_a_stream_counts_the_session(w: Workers) -> None:
    w.start(1, "a")
    w.sleep(w.settings.group_consumer_session_timeout_ms - 1)
    assert w.description().members
    w.sleep(1)
    assert w.error(1) is E.UNKNOWN_MEMBER_ID


def test_the_first_answer_may_be_lost(w: Workers) -> None:
    w.start(1, "a", tid="t-a")
    share = w.start(2, "a", tid="t-a")
    assert len(share.active) == 4
    assert not any(one.unended for one in share.active), "it does not end its own"
    share = w.start(2, "a", tid="t-a")
    assert len(share.active) == 4


def test_another_coordinator_knows_everything(w: Workers) -> None:
    w.declared = declare(*stateful("x", "y", "z", standbys=1))
    w.start(1, "a", zone="z1", tid="t-a", instance="i")
    w.agree((1, "a"))
    w.start(2, "b")
    w.news(1, "a")
    before = w.description()
    w.move()
    after = w.description()
    assert after == before
    w.work(3, "a", owned="xyz")
    assert w.news(3, "a") == w.shares["a"]
    w.sleep(w.settings.group_consumer_session_timeout_ms - 1)
    assert len(w.description().members) == 2, "each has a full session"


# --- refusals -------------------------------------------------------------------------------------------------


def test_wrong_joins(w: Workers) -> None:
    w.work(1, "a", 0, owned=())
    assert w.error(1) is E.INVALID_REQUEST
    w.work(1, "a", 0, owned=("x",), declaration=w.declared)
    assert w.error(1) is E.INVALID_REQUEST
    w.work(1, "", 0, owned=(), declaration=w.declared)
    assert w.error(1) is E.INVALID_REQUEST
    w.work(1, "a", 3)
    assert w.error(1) is E.UNKNOWN_MEMBER_ID
    assert not w.log, "nothing was written"


def test_epochs_that_the_member_does_not_have(w: Workers) -> None:
    two(w)
    w.work(1, "a", w.epochs["a"] + 1)
    assert w.error(1) is E.FENCED_MEMBER_EPOCH
    w.work(1, "a", 1, owned=("x",))
    assert w.error(1) is E.FENCED_MEMBER_EPOCH


def test_no_more_members_than_the_limit() -> None:
    w = Workers(group_max_size=1)
    w.start(1, "a", instance="i")
    w.work(2, "b", 0, owned=(), declaration=w.declared)
    assert w.error(2) is E.GROUP_MAX_SIZE_REACHED
    w.start(2, "b", instance="i")


def test_other_protocols_are_refused(w: Workers) -> None:
    w.start(1, "a")
    w.pulse(2, "c", 0, topics=("t",), owned={})
    assert w.last(2).error.code is E.INCONSISTENT_GROUP_PROTOCOL
    w.join(3)
    assert w.last(3).error.code is E.INCONSISTENT_GROUP_PROTOCOL
    w.work(1, "a", -1)
    w.heard(1)
    w.pulse(2, "c", 0, topics=("t",), owned={})
    assert w.last(2).error.code is E.INCONSISTENT_GROUP_PROTOCOL, "for the epochs of its items"
    assert w.delete_group() is E.NONE
    w.enter(2, "c")
    w.work(1, "a", 0, owned=(), declaration=w.declared)
    assert w.error(1) is E.INCONSISTENT_GROUP_PROTOCOL


# --- positions ------------------------------------------------------------------------------------------------


def test_members_commit_at_their_epoch(w: Workers) -> None:
    two(w)
    assert w.commit(5, "a", w.epochs["a"]) is E.NONE
    assert w.commit(6, "a", w.epochs["a"] - 1) is E.STALE_MEMBER_EPOCH
    assert w.commit(6, "nobody", w.epochs["a"]) is E.UNKNOWN_MEMBER_ID
    assert w.commit(6) is E.UNKNOWN_MEMBER_ID
    w.pend(7, member_id="a", generation=w.epochs["a"])
    w.mark(commit=True)
    assert w.committed() == 7


def test_positions_stay_as_long_as_there_are_members() -> None:
    w = Workers(group_consumer_session_timeout_ms=DAY)
    w.start(1, "a")
    w.commit(5, "a", w.epochs["a"])
    for _ in range(20):
        w.sleep(DAY / 2)
        w.work(1, "a")
        w.heard(1)
    assert w.committed() == 5
    assert w.delete_offsets("t", 0).outcomes[0].error.code is E.GROUP_SUBSCRIBED_TO_TOPIC
    w.work(1, "a", -1)
    w.sleep(8 * DAY)
    assert w.committed() is None


def test_only_deletion_buries_a_work_group(w: Workers) -> None:
    w.start(1, "a")
    w.work(1, "a", -1)
    w.sleep(30 * DAY)
    d = w.description()
    assert (d.state, len(d.items)) == (GroupState.EMPTY, 4)
    w.move()
    assert len(w.description().items) == 4
    assert w.delete_group() is E.NONE
    assert not parts(w)


def test_not_while_it_has_members(w: Workers) -> None:
    w.start(1, "a")
    assert w.delete_group() is E.NON_EMPTY_GROUP


# --- epochs outlast their group -------------------------------------------------------------------------------


def last_epoch(w: Workers) -> int:
    """A member joins and leaves."""
    epoch = w.start(1, f"m{w.refs}-{w.appends}").active[0].epoch
    w.work(1, next(reversed(w.shares)), -1)
    w.heard(1)
    return epoch


@pytest.mark.parametrize("wall", [WALL, TODAY])
@pytest.mark.parametrize("moved", [False, True])
def test_a_group_that_was_deleted_goes_on_above(w: Workers, wall: int, moved: bool) -> None:
    w.wall = wall
    last = last_epoch(w)
    w.work(1, "a", 0, owned=(), declaration=w.declared)
    w.news(1, "a")
    w.work(1, "a", owned=w.items("a"), refused={"x": last + 10**9})
    w.news(1, "a")
    raised = w.given("a", "x").epoch
    assert raised == last + 10**9 + 1
    w.work(1, "a", -1)
    w.heard(1)
    assert w.delete_group() is E.NONE
    assert not w.shard.list_groups()
    if moved:
        w.move()
    assert last_epoch(w) > raised


def test_an_older_copy_of_the_log_is_taken_for_the_whole_one(w: Workers) -> None:
    """As after a restore from a backup."""
    w.wall = TODAY
    last_epoch(w)
    backup = dict(w.log)
    w.sleep(DAY)
    last = last_epoch(w)
    w.log = backup
    w.sleep(60_000)
    w.move()
    w.wall += 50_000_000
    assert last_epoch(w) > last


def test_eight_days_away(w: Workers) -> None:
    w.wall = TODAY
    last = last_epoch(w)
    w.sleep(8 * DAY)
    assert last_epoch(w) > last


def test_a_clock_that_goes_back_takes_no_epochs_with_it(w: Workers) -> None:
    w.wall = TODAY
    last = last_epoch(w)
    w.wall -= DAY
    assert last_epoch(w) == last + 1
