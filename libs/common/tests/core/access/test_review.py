"""What a batch means: who may make it, who gains and loses, and that somebody can still change rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.common.tests.kit import access as kit
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, STAFF, allow, deny

from headrace_common.core.access.changes import Block, Change, Put, Remove, Rule, apply
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.gains import Shift, find_shifts
from headrace_common.core.access.grants import Grant, Scope
from headrace_common.core.access.principal import ANONYMOUS, Everyone, Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import (
    EVERY_NAME,
    OPERATIONS,
    Operation,
    Pattern,
    PatternKind,
    ResourceType,
    Target,
    literal,
    operation_set,
    operations_in,
    prefix,
)
from headrace_common.core.access.review import check_key, narrow_scope, plan
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import ClusterAuthorizationFailed, ErrorCode, NotFound, Rejected

TOPIC, PRINCIPAL = ResourceType.TOPIC, ResourceType.PRINCIPAL
READ, WRITE, ALTER, ESCALATE = Operation.READ, Operation.WRITE, Operation.ALTER, Operation.ESCALATE
KEEPER = allow(PRINCIPAL, EVERY_NAME, ALTER)
LEAD = Caller(BOB)
"""May change rules of everybody, without ESCALATE."""


def world(*of_lead: Grant, **more: frozenset[Grant]) -> Access:
    others = {ALICE: more.get("alice", frozenset())}
    return Access(1, {BOB: frozenset({KEEPER, *of_lead}), **others}, super_users=frozenset({ADMIN}))


def gives(grant: Grant) -> list[Change]:
    return [Put(Rule(ALICE, grant))]


def refused(access: Access, batch: list[Change], says: str, by: Caller = LEAD) -> None:
    with pytest.raises(ClusterAuthorizationFailed, match=says):
        plan(access, batch, by)


# --- who may make it ------------------------------------------------------------------------------------------


def test_a_change_needs_alter_on_whom_it_is_about() -> None:
    team = Access(
        1,
        {BOB: frozenset({allow(PRINCIPAL, prefix("User:team-"), Operation.ALL), allow(TOPIC, prefix("team-"), READ)})},
        roles={"own": kit.OWN},
        super_users=frozenset({ADMIN}),
    )
    grant = allow(TOPIC, literal("team-a"), READ)
    assert plan(team, [Put(Rule(Principal(PrincipalType.USER, "team-x"), grant))], LEAD)
    for item in (Rule(ALICE, grant), Binding(ALICE, "auditor"), Block(ALICE), Block(ADMIN)):
        refused(team, [Put(item)], "may not ALTER PRINCIPAL User:a")
    refused(team, [Put(kit.OWN)], "may not ALTER PRINCIPAL Role:own")
    refused(team, [Put(Rule(Everyone(PrincipalType.USER), grant))], r"may not ALTER PRINCIPAL User:\*")


def test_nobody_gives_more_than_it_has() -> None:
    access = world(allow(TOPIC, prefix("shop."), READ, WRITE))
    for grant in (
        allow(TOPIC, prefix("shop."), READ),
        allow(TOPIC, prefix("shop.a"), READ, WRITE, Operation.DESCRIBE),
        allow(TOPIC, literal("shop.a"), WRITE, host="10.0.0.1"),
        deny(TOPIC, EVERY_NAME, Operation.ALL),
    ):
        assert plan(access, gives(grant), LEAD)
    for grant in (
        allow(TOPIC, prefix("shop"), READ),
        allow(TOPIC, EVERY_NAME, READ),
        allow(TOPIC, literal("shop"), READ),
        allow(TOPIC, literal("shop.a"), READ, Operation.DELETE),
        allow(TOPIC, literal("shop.a"), Operation.ALL),
        allow(ResourceType.GROUP, literal("shop.a"), READ),
    ):
        refused(access, gives(grant), "would give User:alice more than it has itself")
    escalated = world(allow(PRINCIPAL, literal(str(ALICE)), ESCALATE))
    assert plan(escalated, gives(allow(TOPIC, EVERY_NAME, READ)), LEAD)
    refused(escalated, [Put(Rule(STAFF, allow(TOPIC, EVERY_NAME, READ)))], "would give Group:staff more")
    assert plan(access, gives(allow(TOPIC, EVERY_NAME, READ)), Caller(ADMIN))
    assert plan(access, gives(allow(TOPIC, EVERY_NAME, READ)), by=None)


def test_what_is_denied_of_some_names_or_hosts_is_not_had_of_all() -> None:
    for hole in (literal("shop.secret"), prefix("shop.s")):
        access = world(allow(TOPIC, prefix("shop."), READ), deny(TOPIC, hole, READ))
        refused(access, gives(allow(TOPIC, prefix("shop."), READ)), "more than it has")
        assert plan(access, gives(allow(TOPIC, literal("shop.a"), READ)), LEAD)
    here = world(allow(TOPIC, literal("a"), READ, host="10.0.0.1"))
    refused(here, gives(allow(TOPIC, literal("a"), READ)), "more than it has")
    assert plan(here, gives(allow(TOPIC, literal("a"), READ, host="10.0.0.1")), LEAD)
    but_there = world(allow(TOPIC, literal("a"), READ), deny(TOPIC, literal("a"), READ, host="10.0.0.1"))
    refused(but_there, gives(allow(TOPIC, literal("a"), READ)), "more than it has")
    assert plan(but_there, gives(allow(TOPIC, literal("a"), READ, host="10.0.0.2")), LEAD)


def test_to_take_a_deny_or_a_block_away_is_to_give() -> None:
    secret, read = deny(TOPIC, literal("secret"), READ), allow(TOPIC, EVERY_NAME, READ)
    access = world(alice=frozenset({secret, read}))
    refused(access, [Remove(Rule(ALICE, secret))], r"more than it has itself \(allow READ TOPIC secret\)")
    assert plan(access, [Remove(Rule(ALICE, read))], LEAD)
    assert plan(access, [Remove(Rule(ALICE, secret))], Caller(ADMIN))
    blocked = apply(access, [Put(Block(ALICE))])
    refused(blocked, [Remove(Block(ALICE))], "more than it has")
    assert plan(apply(world(), [Put(Block(ALICE))]), [Remove(Block(ALICE))], LEAD)
    refused(apply(world(), [Put(Block(ADMIN))]), [Remove(Block(ADMIN))], "everything")


@pytest.mark.parametrize("lifted", [EVERY_NAME, prefix("_"), prefix("__tr")])
@pytest.mark.parametrize("whose", [ALICE, STAFF])
def test_a_wide_deny_may_stand_before_an_internal_name(lifted: Pattern, whose: Grantee) -> None:
    """Who may read every topic may not read ``__transaction_state``, and gives it to nobody by lifting the deny."""
    denied, inner = deny(TOPIC, lifted, READ), allow(TOPIC, literal("__transaction_state"), READ)
    access = world(allow(TOPIC, EVERY_NAME, READ), alice=frozenset({denied}))
    access = replace(access, rules={**access.rules, whose: access.rules.get(whose, frozenset()) | {inner}})
    refused(access, [Remove(Rule(ALICE, denied))], r"more than it has itself \(allow READ TOPIC __transaction_state\)")
    assert plan(access, [Remove(Rule(ALICE, denied))], Caller(ADMIN))
    has = replace(access, rules={**access.rules, BOB: access.rules[BOB] | {inner}})
    assert plan(has, [Remove(Rule(ALICE, denied))], LEAD)
    other = deny(TOPIC, prefix("a"), READ)
    harmless = replace(access, rules={**access.rules, ALICE: access.rules[ALICE] | {other}})
    assert plan(harmless, [Remove(Rule(ALICE, other))], LEAD)


def test_a_role_that_goes_is_taken_only_from_whom_one_may_alter() -> None:
    on_a = frozenset({Target(TOPIC, literal("a"))})
    access = apply(world(), [Put(kit.OWN), Put(Binding(ALICE, "own", on_a))])
    keeps_role = allow(PRINCIPAL, literal(str(kit.OWN)), ALTER)
    of_role = replace(access, rules={BOB: frozenset({keeps_role})})
    gone = [Remove(kit.OWN, cascade=True)]
    refused(of_role, gone, "bound to somebody whom User:bob may not ALTER")
    both = replace(access, rules={BOB: frozenset({keeps_role, allow(PRINCIPAL, literal("User:alice"), ALTER)})})
    assert not plan(both, gone, LEAD).after.bindings
    assert not plan(access, gone, Caller(ADMIN)).after.bindings


def test_roles_are_no_way_around() -> None:
    access = apply(world(allow(TOPIC, literal("a"), WRITE)), [Put(kit.OWN)])
    on_a = frozenset({Target(TOPIC, literal("a"))})
    bound = plan(access, [Put(Binding(ALICE, "own", on_a))], LEAD).after
    refused(access, [Put(Binding(ALICE, "own", frozenset({Target(TOPIC, EVERY_NAME)})))], "more than it has")
    refused(access, [Put(Binding(BOB, "security"))], "would give User:bob more")
    refused(access, [Put(Binding(BOB, "superuser"))], "everything")
    refused(bound, [Put(Role("own", {TOPIC: operation_set(WRITE, READ)}))], "would give User:alice more")


def test_a_key_gives_no_more_than_its_scope() -> None:
    scope = Scope(frozenset({KEEPER, allow(TOPIC, literal("a"), READ)}))
    by = Caller(ADMIN, scope=scope)
    assert plan(world(), gives(allow(TOPIC, literal("a"), READ)), by)
    refused(world(), gives(allow(TOPIC, literal("b"), READ)), "more than it has", by)
    refused(world(), [Put(Binding(ALICE, "superuser"))], "everything", by)
    refused(world(), gives(allow(TOPIC, literal("a"), READ)), "may not ALTER", Caller(ADMIN, scope=Scope(frozenset())))


# --- somebody can change rules --------------------------------------------------------------------------------


def locked_out(access: Access, batch: list[Change]) -> None:
    with pytest.raises(Rejected, match="headrace access bind User:NAME security") as error:
        plan(access, batch, by=None)
    assert error.value.code is ErrorCode.POLICY_VIOLATION


def test_the_last_who_can_change_rules_stays() -> None:
    keeper = Access(1, {BOB: frozenset({KEEPER})})
    locked_out(keeper, [Remove(Rule(BOB, KEEPER))])
    locked_out(keeper, [Put(Block(BOB))])
    locked_out(keeper, [Put(Rule(BOB, deny(PRINCIPAL, EVERY_NAME, ALTER)))])
    locked_out(keeper, [Put(Rule(BOB, deny(PRINCIPAL, literal(str(BOB)), Operation.ALL)))])
    locked_out(keeper, [Put(Rule(Everyone(PrincipalType.USER), deny(PRINCIPAL, prefix("User:"), ALTER)))])
    assert plan(keeper, [Put(Rule(BOB, deny(PRINCIPAL, literal(str(ALICE)), ALTER)))], by=None)
    for item in (Binding(ALICE, "security"), Binding(STAFF, "superuser"), Rule(STAFF, KEEPER)):
        assert plan(keeper, [Remove(Rule(BOB, KEEPER)), Put(item)], by=None)
    for useless in (
        Rule(ALICE, allow(PRINCIPAL, prefix("User:"), ALTER)),
        Rule(ALICE, allow(PRINCIPAL, EVERY_NAME, Operation.DESCRIBE)),
        Rule(ANONYMOUS, KEEPER),
        Binding(ALICE, "operator"),
    ):
        locked_out(keeper, [Remove(Rule(BOB, KEEPER)), Put(useless)])


def test_super_users_of_the_settings_count_unless_they_are_blocked() -> None:
    access = Access(1, super_users=frozenset({ADMIN}))
    assert plan(access, [Put(Block(BOB))], by=None)
    locked_out(access, [Put(Block(ADMIN))])
    locked_out(Access(), gives(allow(TOPIC, literal("a"), READ)))
    only_here = Rule(BOB, allow(PRINCIPAL, EVERY_NAME, ALTER, host="10.0.0.1"))
    assert plan(Access(), [Put(only_here)], by=None)


def test_what_cannot_be_applied_is_no_plan() -> None:
    with pytest.raises(NotFound):
        plan(world(), [Remove(Block(ALICE))], Caller(ADMIN))


def test_who_may_not_ask_is_told_nothing_of_what_there_is() -> None:
    """The same for what is there and for what is not."""
    access = replace(
        world(alice=frozenset({allow(TOPIC, literal("a"), READ)})),
        roles={"own": Role("own", {TOPIC: operation_set(READ)})},
        blocked=frozenset({ALICE}),
    )
    stranger = Caller(Principal(PrincipalType.CERT, "alice"))
    for grant in (allow(TOPIC, literal("a"), READ), allow(TOPIC, literal("b"), READ)):
        refused(access, [Remove(Rule(ALICE, grant))], "may not ALTER PRINCIPAL User:alice", stranger)
    for name in ("own", "none"):
        role = Role(name, {TOPIC: operation_set(READ)})
        refused(access, [Remove(role)], f"may not ALTER PRINCIPAL Role:{name}", stranger)
        bound = Binding(ALICE, name, frozenset({Target(TOPIC, literal("a"))}))
        refused(access, [Put(bound)], "may not ALTER PRINCIPAL User:alice", stranger)
    for principal in (ALICE, BOB):
        refused(access, [Remove(Block(principal))], f"may not ALTER PRINCIPAL {principal}", stranger)


# --- who gains, who loses -------------------------------------------------------------------------------------


def shifts(access: Access, *batch: Change) -> list[tuple[str, list[str], list[str]]]:
    told = plan(access, batch, by=None).shifts
    return [(str(one.grantee), [str(r) for r in one.gains], [str(r) for r in one.loses]) for one in told]


def test_gains_and_losses_are_what_changes_not_what_is_written() -> None:
    grant = allow(TOPIC, prefix("a"), READ)
    access = world(alice=frozenset({grant}))
    assert shifts(access, Put(Rule(ALICE, allow(TOPIC, literal("ab"), READ)))) == []
    assert shifts(access, Put(Rule(ALICE, allow(TOPIC, literal("b"), READ)))) == [
        ("User:alice", ["READ,DESCRIBE TOPIC b"], [])
    ]
    assert shifts(access, Put(Rule(ALICE, deny(TOPIC, literal("ab"), READ)))) == [("User:alice", [], ["READ TOPIC ab"])]
    assert shifts(access, Remove(Rule(ALICE, grant))) == [("User:alice", [], ["READ,DESCRIBE TOPIC a*"])]
    assert shifts(access, Put(Rule(ALICE, allow(TOPIC, literal("c"), WRITE, host="10.0.0.1")))) == [
        ("User:alice", ["WRITE,DESCRIBE TOPIC c from 10.0.0.1"], [])
    ]


def test_what_was_had_from_one_host_alone_is_lost_there() -> None:
    access = world(alice=frozenset({allow(TOPIC, literal("a"), READ, host="10.0.0.1")}))
    lost = [("User:alice", [], ["READ TOPIC a from 10.0.0.1"])]
    assert shifts(access, Put(Rule(ALICE, deny(TOPIC, literal("a"), READ)))) == lost


def test_a_role_a_block_and_a_super_user_shift_all_that_they_are_about() -> None:
    access = world(alice=frozenset({allow(TOPIC, literal("a"), WRITE)}))
    loss = [("User:alice", [], ["WRITE,DESCRIBE TOPIC a", "CREATE_TOKENS,DESCRIBE_TOKENS PRINCIPAL User:alice"])]
    assert shifts(access, Put(Block(ALICE))) == loss
    gains = {who: gained for who, gained, _ in shifts(access, Put(Binding(ALICE, "superuser")))}["User:alice"]
    assert "READ,WRITE,CREATE,DELETE,ALTER,DESCRIBE,ALTER_CONFIGS,DESCRIBE_CONFIGS,FENCE TOPIC *" in gains
    bound = apply(access, [Put(kit.OWN), Put(Binding(STAFF, "own", frozenset({Target(TOPIC, prefix("b"))})))])
    role = Role("own", {TOPIC: operation_set(READ)})
    assert shifts(bound, Put(role)) == [("Group:staff", ["READ TOPIC b*"], ["WRITE TOPIC b*"])]


def test_a_dry_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace_common.core.access.review as module

    monkeypatch.setattr(module, "SHIFTS_MAX", 3)
    users = [Principal(PrincipalType.USER, f"u{n}") for n in range(4)]
    batch = [Put(Rule(one, allow(TOPIC, literal("a"), READ))) for one in users]
    few, many = plan(world(), batch[:3], by=None), plan(world(), batch, by=None)
    assert (len(few.shifts), few.more) == (3, False)
    assert (len(many.shifts), many.more) == (3, True)


changes = st.lists(
    st.builds(lambda who, grant: Put(Rule(who, grant)), st.sampled_from([ALICE, BOB]), kit.grants)
    | st.sampled_from([Put(Block(ALICE)), Put(Binding(ALICE, "superuser")), Put(Binding(BOB, "auditor"))]),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(kit.accesses, changes, kit.hosts)
def test_what_is_told_is_what_the_decisions_say(access: Access, batch: list[Change], host: str | None) -> None:
    after = apply(access, batch)
    told: dict[object, Shift] = {shift.grantee: shift for shift in find_shifts(access, after)}
    old, new = Decisions(access), Decisions(after)
    for who in (ALICE, BOB):
        gained = lost = False
        for name in (*kit.NAMES, "zz", *kit.PRINCIPALS):
            for type in (TOPIC, PRINCIPAL):
                for operation in operations_in(OPERATIONS[type]):
                    caller = Caller(who, host=host)
                    was, is_ = old.decide(caller, operation, type, name), new.decide(caller, operation, type, name)
                    gained, lost = gained or (is_ and not was), lost or (was and not is_)
        shift = told.get(who, Shift(who, (), ()))
        assert not gained or shift.gains
        assert not lost or shift.loses
        for one, other, reaches in ((old, new, shift.loses), (new, old, shift.gains)):
            for type, pattern, operations, at in reaches:
                if pattern.kind is PatternKind.LITERAL:
                    caller = Caller(who, host=at)
                    for operation in operations_in(operations):
                        assert one.decide(caller, operation, type, pattern.name)
                        assert not other.decide(caller, operation, type, pattern.name)


@given(kit.accesses, changes, st.none() | st.sampled_from([ALICE, BOB]), st.none() | st.just(kit.HOSTS[0]))
def test_who_has_no_escalate_never_makes_anybody_more_than_itself(
    access: Access, batch: list[Change], freed: Principal | None, host: str | None
) -> None:
    rules = {**access.rules, BOB: access.rules.get(BOB, frozenset()) | {KEEPER}}
    access = replace(access, rules=rules, blocked=frozenset(), roles={"own": kit.OWN})
    if freed is not None:
        batch = [*(Remove(Rule(freed, grant)) for grant in access.rules.get(freed, ()) if grant != KEEPER), *batch]
    by = Caller(BOB, host=host)
    try:
        after = plan(access, batch, by).after
    except (ClusterAuthorizationFailed, Rejected):
        return
    old, new = Decisions(access), Decisions(after)
    for who in (ALICE, BOB):
        if old.decide(by, ESCALATE, PRINCIPAL, str(who)):
            continue
        for name in (*kit.NAMES, "zz"):
            for operation in operations_in(OPERATIONS[TOPIC]):
                question = Caller(who, host=host), operation, TOPIC, name
                gained = new.decide(*question) and not old.decide(*question)
                assert not gained or old.decide(by, operation, TOPIC, name)


# --- keys -----------------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(
    kit.accesses, kit.callers, st.sampled_from([ALICE, BOB, ADMIN]), kit.scopes | st.none(), kit.hosts, kit.questions
)
def test_a_key_lets_nobody_do_more_than_before(
    access: Access,
    by: Caller,
    owner: Principal,
    scope: Scope | None,
    host: str | None,
    questions: list[tuple[Operation, ResourceType, str]],
) -> None:
    try:
        scope = narrow_scope(scope, by)
        check_key(access, owner, scope, by)
    except ClusterAuthorizationFailed:
        return
    decisions = Decisions(access)
    if owner != by.principal and decisions.decide(by, ESCALATE, PRINCIPAL, str(owner)):
        return
    for operation, type, name in questions:
        own = (type, name) == (PRINCIPAL, str(owner))  # whoever may make its keys may make more of them
        if not own and decisions.decide(Caller(owner, host=host, scope=scope), operation, type, name):
            assert decisions.decide(replace(by, host=host), operation, type, name), (operation, type, name)


def test_a_key_of_somebody_who_may_more_needs_escalate() -> None:
    access = world()
    more = replace(access, rules={**access.rules, ALICE: frozenset({allow(TOPIC, literal("a"), READ)})})
    check_key(access, ALICE, None, LEAD)
    with pytest.raises(
        ClusterAuthorizationFailed, match=r"more than it has itself \(allow READ TOPIC a\).*No key was made"
    ):
        check_key(more, ALICE, None, LEAD)
    check_key(more, ALICE, Scope(frozenset({KEEPER})), LEAD)
    with pytest.raises(ClusterAuthorizationFailed, match="everything"):
        check_key(access, ADMIN, None, LEAD)
    check_key(more, ALICE, None, Caller(ADMIN))
    free = replace(
        more, rules={**more.rules, BOB: frozenset({KEEPER, allow(PRINCIPAL, literal(str(ALICE)), ESCALATE)})}
    )
    check_key(free, ALICE, None, LEAD)
