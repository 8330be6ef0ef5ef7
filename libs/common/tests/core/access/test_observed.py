"""What is seen of who calls: bounded, for a day, together over nodes, and which rules nobody needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, BOB, accesses, allow, asked_names, callers, deny, operations, types

from headrace_common.core.access import observed as observing
from headrace_common.core.access.changes import Rule
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.names import WILDCARD
from headrace_common.core.access.observed import (
    DAY_MS,
    Observed,
    Refusal,
    Report,
    Stranger,
    Times,
    Use,
    together,
    unused,
)
from headrace_common.core.access.principal import ANONYMOUS, Everyone, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal, prefix
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access, Caller
from headrace_common.rpc.convert_observed import report_from_proto, report_to_proto
from headrace_proto.v1 import access_pb2 as pb

TOPIC = ResourceType.TOPIC
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
STAFF = Principal(PrincipalType.GROUP, "staff")
NOW = 10 * DAY_MS


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> float:
        return self.ms


def world(mode: Mode, *grants: object) -> tuple[Control, Clock]:
    clock = Clock()
    control = Control(clock)
    control.renew(View(mode, Access(1, {ALICE: frozenset(grants)})))  # type: ignore[arg-type]
    return control, clock


def test_what_rules_refuse_is_seen_with_its_times_and_goes_when_they_allow_it() -> None:
    control, clock = world(Mode.PERMISSIVE)
    caller = Caller(ALICE, host="10.0.0.1")
    assert Rights(control, caller).may(READ, TOPIC, "t")
    clock.ms += 5
    assert Rights(control, caller).may(READ, TOPIC, "t")
    report = control.report()
    assert report.refusals == {Refusal("User:alice", "10.0.0.1", READ, TOPIC, "t"): Times(NOW, NOW + 5, 2)}
    assert report.since_ms == NOW
    assert report.loses
    control.renew(View(Mode.PERMISSIVE, Access(2, {ALICE: frozenset({allow(TOPIC, literal("t"), READ)})})))
    assert not control.report().loses
    assert control.report().since_ms == NOW


def test_a_right_on_any_name_is_seen_until_there_is_one() -> None:
    control, _ = world(Mode.PERMISSIVE)
    assert control.may_anywhere(Caller(ALICE), WRITE, TOPIC)
    assert [one.name for one in control.report().refusals] == ["*"]
    control.renew(View(Mode.PERMISSIVE, Access(2, {ALICE: frozenset({allow(TOPIC, literal("t"), WRITE)})})))
    assert not control.report().refusals


@pytest.mark.parametrize("mode", [Mode.PERMISSIVE, Mode.CLOSED])
def test_rights_that_are_used_are_seen(mode: Mode) -> None:
    control, clock = world(mode, allow(TOPIC, literal("t"), READ))
    rights = Rights(control, Caller(ALICE, groups=frozenset({STAFF})))
    rights.may(READ, TOPIC, "t")
    clock.ms += 7
    rights.may_any((WRITE, TOPIC, "t"), (READ, TOPIC, "t"))
    rights.may_any((READ, TOPIC, "t"), (WRITE, TOPIC, "t"))
    report = control.report()
    assert report.uses == {Use("User:alice", READ, TOPIC, "t"): Times(NOW, NOW + 7, 3)}
    assert report.groups == {"User:alice": frozenset({"Group:staff"})}
    assert not report.loses


def test_an_open_cluster_sees_nothing_and_nodes_use_no_rules() -> None:
    control, _ = world(Mode.OPEN)
    assert control.may(Caller(ALICE), READ, TOPIC, "t")
    assert control.report() == Report()
    control, _ = world(Mode.CLOSED)
    control.may(Caller(Principal(PrincipalType.NODE, "admin-1")), DESCRIBE, TOPIC, "t")
    assert control.report() == Report(NOW)


def test_it_has_looked_since_the_mode_that_sees_refusals() -> None:
    control, clock = world(Mode.CLOSED)
    for ms, mode, since in (
        (10, Mode.CLOSED, NOW),
        (20, Mode.PERMISSIVE, NOW + 20),
        (30, Mode.PERMISSIVE, NOW + 20),
        (40, Mode.CLOSED, NOW + 20),
    ):
        clock.ms = NOW + ms
        control.renew(View(mode))
        assert control.report().since_ms == since, mode


def test_who_comes_without_a_credential_is_seen_by_address() -> None:
    seen = Observed()
    for host, wrong, ms in (("10.0.0.1", False, 1), ("10.0.0.1", True, 2), ("10.0.0.1", False, 3), (None, False, 4)):
        seen.stranger(Stranger(host or "", wrong), NOW + ms)
    report = seen.report(lambda *_: True, NOW + 5)
    assert list(report.strangers.items()) == [
        (Stranger("", False), Times(NOW + 4, NOW + 4, 1)),
        (Stranger("10.0.0.1", False), Times(NOW + 1, NOW + 3, 2)),
        (Stranger("10.0.0.1", True), Times(NOW + 2, NOW + 2, 1)),
    ]
    assert report.loses


def test_after_a_day_it_is_forgotten() -> None:
    seen = Observed()
    seen.stranger(Stranger("10.0.0.1", False), NOW)
    assert seen.report(lambda *_: True, NOW + DAY_MS - 1).strangers
    assert not seen.report(lambda *_: True, NOW + DAY_MS).loses


def test_what_has_no_room_is_said_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "OBSERVED_MAX", 3)
    seen = Observed()
    for number in range(5):
        seen.refused(Caller(ALICE), READ, TOPIC, f"t{number}", NOW + number)
        seen.used(Caller(ALICE), READ, TOPIC, f"t{number}", NOW + number)
    report = seen.report(lambda *_: True, NOW + 9)
    assert {one.name for one in report.refusals} == {"t0", "t1", "t2"}, "the first: whoever comes later is told by more"
    assert {one.name for one in report.uses} == {"t2", "t3", "t4"}, "the latest"
    assert report.more
    assert report.without(["User:alice"]).loses, "nobody knows who had no room"
    later = NOW + 2 * DAY_MS
    seen.refused(Caller(BOB), READ, TOPIC, "u", later)
    report = seen.report(lambda *_: True, later)
    assert [one.principal for one in report.refusals] == ["User:bob"]
    assert not report.more


def test_long_names_are_cut() -> None:
    seen = Observed()
    seen.refused(Caller(ALICE), READ, TOPIC, "x" * 1_000, NOW)
    assert [len(one.name) for one in seen.report(lambda *_: True, NOW).refusals] == [255]


REFUSED = Refusal("User:alice", "10.0.0.1", READ, TOPIC, "t")
OTHER = Refusal(str(ANONYMOUS), "10.0.0.2", READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("accepted", "left"),
    [
        ([], [REFUSED, OTHER, Stranger("10.0.0.2", False)]),
        (["User:alice"], [OTHER, Stranger("10.0.0.2", False)]),
        (["10.0.0.2"], [REFUSED]),
        (["User:ANONYMOUS"], [REFUSED]),
        (["User:alice", "10.0.0.2"], []),
        (["User:bob", ""], [REFUSED, OTHER, Stranger("10.0.0.2", False)]),
    ],
)
def test_whose_loss_is_taken_does_not_count(accepted: list[str], left: list[object]) -> None:
    times = Times(NOW, NOW)
    report = Report(NOW, {REFUSED: times, OTHER: times}, {Stranger("10.0.0.2", False): times}).without(accepted)
    assert [*report.refusals, *report.strangers] == left
    assert report.loses == bool(left)


def test_several_nodes_together() -> None:
    one = Report(5, {REFUSED: Times(1, 4, 2)}, {}, {Use("User:alice", READ, TOPIC, "t"): Times(1, 2)})
    two = Report(
        7,
        {REFUSED: Times(2, 9, 3)},
        {Stranger("", True): Times(3, 3)},
        groups={"User:alice": frozenset({"Group:a"})},
        more=True,
    )
    whole = together([one, two])
    assert (whole.since_ms, whole.refusals, whole.more) == (7, {REFUSED: Times(1, 9, 5)}, True)
    assert list(whole.strangers) == [Stranger("", True)]
    assert whole.groups == {"User:alice": frozenset({"Group:a"})}
    assert together([one, Report()]).since_ms is None, "one of them does not look"
    assert not together([one]).more
    assert together([]).since_ms is None


def test_only_what_may_be_shown_is_shown() -> None:
    times = Times(NOW, NOW)
    whole = Report(
        NOW, {REFUSED: times, OTHER: times}, {Stranger("", False): times}, {Use("User:bob", READ, TOPIC, "t"): times}
    )
    mine = whole.of(lambda principal: principal == "User:alice")
    assert (list(mine.refusals), mine.strangers, mine.uses) == ([REFUSED], {}, {})
    assert list(whole.of(lambda principal: principal == str(ANONYMOUS)).strangers) == [Stranger("", False)]


@pytest.mark.parametrize(
    ("grantee", "grant", "needed"),
    [
        (ALICE, allow(TOPIC, literal("t"), READ), True),
        (ALICE, allow(TOPIC, prefix("t"), READ), True),
        (Everyone(PrincipalType.USER), allow(TOPIC, literal("t"), READ), True),
        (STAFF, allow(TOPIC, literal("t"), READ), True),
        (BOB, allow(TOPIC, literal("t"), READ), False),
        (Everyone(PrincipalType.OIDC), allow(TOPIC, literal("t"), READ), False),
        (ALICE, allow(TOPIC, literal("u"), READ), False),
        (ALICE, allow(TOPIC, literal("t"), WRITE), False),
    ],
)
def test_rules_that_nothing_needed(grantee: object, grant: object, needed: bool) -> None:
    uses = {Use("User:alice", READ, TOPIC, "t"): Times(NOW, NOW)}
    report = Report(NOW, uses=uses, groups={"User:alice": frozenset({"Group:staff"})})
    rule = Rule(grantee, grant)  # type: ignore[arg-type]
    assert list(unused([rule], report)) == ([] if needed else [rule])


def test_a_deny_is_never_unused() -> None:
    assert not list(unused([Rule(ALICE, deny(TOPIC, literal("t"), READ))], Report(NOW)))


@given(access=accesses, caller=callers, operation=operations, type=types, name=asked_names)
def test_what_is_done_is_either_a_use_or_what_closed_refuses(
    access: Access, caller: Caller, operation: Operation, type: ResourceType, name: str
) -> None:
    control = Control(lambda: NOW)
    control.renew(View(Mode.PERMISSIVE, access))
    assert control.may(caller, operation, type, name)
    report = control.report()
    written = name != WILDCARD and len(name) <= 255  # that is written down of any name; of longer ones the beginning is
    if caller.principal.type is not PrincipalType.NODE and written:
        allowed = Decisions(access).decide(caller, operation, type, name)
        assert (len(report.uses), len(report.refusals)) == (allowed, not allowed)
    if not any("\ud800" <= char <= "\udfff" for char in name):  # no message has such a name
        told = report_to_proto(report)
        assert report_from_proto(pb.ObservedResponse.FromString(told.SerializeToString())) == report


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3 * DAY_MS)), max_size=30).map(
        lambda some: sorted(some, key=lambda pair: pair[1])
    )
)
def test_nothing_of_the_last_day_is_missing_without_being_said(calls: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observing, "OBSERVED_MAX", 3)
        seen = Observed()
        for number, ms in calls:
            seen.refused(Caller(ALICE), READ, TOPIC, f"t{number}", ms)
        now = calls[-1][1] if calls else 0
        report = seen.report(lambda *_: True, now)
    lately = {f"t{number}" for number, ms in calls if ms > now - DAY_MS}
    told = {one.name for one in report.refusals}
    assert told <= lately
    assert told == lately or report.more
