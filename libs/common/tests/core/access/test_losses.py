"""What was seen and would be refused: against the decisions themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit import access as kit
from libs.common.tests.kit.access import ALICE, BOB, STAFF, allow, deny

from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.losses import find_losses
from headrace_common.core.access.observed import Report, Times, Use
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal
from headrace_common.core.access.state import Access, Caller

TOPIC, READ = ResourceType.TOPIC, Operation.READ
SEEN = Times(1, 2)
Questions = list[tuple[Operation, ResourceType, str]]


@given(kit.accesses, kit.accesses, kit.questions, st.booleans())
def test_a_use_is_lost_where_some_address_had_the_right_and_has_it_no_more(
    before: Access, after: Access, asked: Questions, in_staff: bool
) -> None:
    groups = frozenset({STAFF} if in_staff else ())
    uses = {Use(str(ALICE), *question): SEEN for question in asked}
    report = Report(1, uses=uses, groups={str(ALICE): frozenset(map(str, groups))})
    lost = {loss.use: loss.host for loss in find_losses(before, after, report)}
    for use in uses:
        where = []
        for host in (None, *kit.HOSTS):
            caller, question = Caller(ALICE, groups, host), use[1:]
            if Decisions(before).decide(caller, *question) and not Decisions(after).decide(caller, *question):
                where.append(host)
        assert (use in lost) is bool(where)
        assert use not in lost or lost[use] == where[0]


def test_it_is_told_in_the_order_of_the_report_and_nothing_of_who_cannot_be() -> None:
    before = Access(1, {one: frozenset({allow(TOPIC, EVERY_NAME, READ)}) for one in (ALICE, BOB)})
    denied = deny(TOPIC, literal("t"), READ, host="10.0.0.1")
    after = Access(2, {ALICE: before.rules[ALICE] | {denied}})
    uses = {Use(who, READ, TOPIC, "t"): SEEN for who in ("User:bob", "User:alice", "nobody", "Group:staff")}
    losses = list(find_losses(before, after, Report(1, uses=uses)))
    assert [(loss.use.principal, loss.host, loss.times) for loss in losses] == [
        ("User:bob", None, SEEN),
        ("User:alice", "10.0.0.1", SEEN),
    ]
