"""Why a decision is as it is, what would turn it, and who can: against the decisions themselves."""

from __future__ import annotations

from hypothesis import given
from libs.common.tests.kit import access as kit
from libs.common.tests.kit.access import ADMIN, ALICE, ALL_USERS, BOB, STAFF, allow, deny

from headrace_common.core.access.changes import apply
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.explain import Holder, Reason, explain, who_can
from headrace_common.core.access.grants import Effect, Scope
from headrace_common.core.access.principal import Everyone, Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal, prefix
from headrace_common.core.access.state import Access, Caller, grantees_of

TOPIC, READ, WRITE = ResourceType.TOPIC, Operation.READ, Operation.WRITE
Questions = list[tuple[Operation, ResourceType, str]]


@given(kit.accesses, kit.callers, kit.questions)
def test_explain_agrees_with_decide_and_its_remedy_works(access: Access, caller: Caller, asked: Questions) -> None:
    decisions = Decisions(access)
    for question in asked:
        told = explain(access, caller, *question)
        assert told.allowed is decisions.decide(caller, *question)
        assert (told.line is not None) is bool(told.remedy)
        places = [source.grant.effect is Effect.ALLOW for source in told.sources]
        assert places == sorted(places), "denies first"
        if told.remedy:
            assert not told.allowed
            assert Decisions(apply(access, told.remedy)).decide(caller, *question)


def found_for(found: dict[Grantee, Holder], who: Principal, host: str | None) -> bool:
    """What the list says of somebody from somewhere; who is not named in it is as everyone of its type."""
    holder = found.get(who) or found.get(Everyone(who.type))
    return holder is not None and holder.allowed and (holder.anywhere is not (host in holder.hosts))


@given(kit.accesses, kit.questions)
def test_who_can_agrees_with_decide_for_everybody_everywhere(access: Access, asked: Questions) -> None:
    stranger, member = Principal(PrincipalType.USER, "zoe"), Principal(PrincipalType.OIDC, "idp/zoe")
    decisions = Decisions(access)
    for question in asked:
        found = {holder.grantee: holder for holder in who_can(access, *question).holders}
        staff = found.get(STAFF)
        for host in (None, *kit.HOSTS):
            for who in (ALICE, BOB, kit.CERT, ADMIN, stranger):
                assert found_for(found, who, host) is decisions.decide(Caller(who, host=host), *question)
                never = staff is not None and not staff.allowed and staff.anywhere is not (host in staff.hosts)
                if never and (staff.reason is Reason.BLOCKED or not access.is_super({who, Everyone(who.type)})):
                    assert not decisions.decide(Caller(who, frozenset({STAFF}), host), *question)
            by_group = decisions.decide(Caller(member, frozenset({STAFF}), host), *question)
            own = question[1:] == (ResourceType.PRINCIPAL, str(member))
            assert own or by_group is (
                staff is not None and staff.allowed and staff.anywhere is not (host in staff.hosts)
            )


@given(kit.accesses, kit.questions)
def test_who_may_not_is_in_the_list_only_where_something_keeps_it_from_that(access: Access, asked: Questions) -> None:
    for question in asked:
        for one in who_can(access, *question).holders:
            effects = {source.grant.effect for source in one.sources}
            match one.reason:
                case Reason.BLOCKED:
                    assert one.grantee in access.blocked
                    assert access.is_super(grantees_of(one.grantee)) or one.grantee == STAFF or Effect.ALLOW in effects
                case Reason.DENIED:
                    assert Effect.DENY in effects
                    assert one.grantee == STAFF or Effect.ALLOW in effects
                case Reason.ALLOWED:
                    assert Effect.ALLOW in effects
                case _:
                    assert one.reason is Reason.SUPER_USER


def test_a_refusal_comes_with_the_line_that_would_allow_it() -> None:
    told = explain(Access(1), Caller(ALICE), WRITE, TOPIC, "orders")
    assert (told.allowed, told.reason) == (False, Reason.NOTHING_ALLOWS)
    assert told.line == "headrace access allow User:alice write topic orders"


def test_where_something_allows_it_the_denies_alone_are_in_the_line() -> None:
    rules = {ALICE: frozenset({allow(TOPIC, EVERY_NAME, WRITE), deny(TOPIC, literal("orders"), WRITE)})}
    told = explain(Access(1, rules), Caller(ALICE), WRITE, TOPIC, "orders")
    assert told.reason is Reason.DENIED
    assert told.line == "headrace access remove deny User:alice write topic orders"


def test_every_rule_in_the_way_is_in_the_line() -> None:
    access = Access(
        1,
        {
            ALICE: frozenset({deny(TOPIC, prefix("or"), Operation.ALL, host="10.0.0.1")}),
            ALL_USERS: frozenset({deny(TOPIC, literal("orders"), WRITE)}),
            STAFF: frozenset({deny(TOPIC, EVERY_NAME, WRITE), deny(TOPIC, EVERY_NAME, READ)}),
        },
        blocked=frozenset({STAFF}),
    )
    told = explain(access, Caller(ALICE, frozenset({STAFF}), "10.0.0.1"), WRITE, TOPIC, "orders")
    assert told.reason is Reason.BLOCKED
    assert told.line is not None
    assert told.line.split(" && ") == [
        "headrace access unblock Group:staff",
        "headrace access remove deny 'User:*' write topic orders",
        "headrace access remove deny User:alice all topic --prefix or --host 10.0.0.1",
        "headrace access remove deny Group:staff write topic '*'",
        "headrace access allow User:alice write topic orders",
    ]


def test_grants_are_told_from_the_narrowest_to_the_widest_and_with_their_role() -> None:
    rules = [allow(TOPIC, pattern, READ) for pattern in (EVERY_NAME, prefix("o"), literal("orders"), prefix("orde"))]
    access = Access(1, {ALICE: frozenset(rules)}, super_users=frozenset({BOB}))
    told = explain(access, Caller(ALICE), READ, TOPIC, "orders")
    assert told.reason is Reason.ALLOWED
    assert [str(source.grant.pattern) for source in told.sources] == ["orders", "orde*", "o*", "*"]
    assert explain(access, Caller(BOB), READ, TOPIC, "orders").reason is Reason.SUPER_USER
    bound = kit.Binding(ALICE, "auditor")
    told = explain(Access(1, bindings={ALICE: frozenset({bound})}), Caller(ALICE), READ, TOPIC, "__audit")
    assert [source.binding for source in told.sources] == [bound]


def test_no_line_is_promised_where_none_would_help() -> None:
    for caller, operation, name in (
        (Caller(ALICE, scope=Scope(frozenset())), READ, "orders"),
        (Caller(ALICE), READ, "a\nb"),
        (Caller(ALICE), Operation.CLUSTER_ACTION, "orders"),
        (Caller(ALICE), Operation.ESCALATE, "orders"),
        (Caller(Principal(PrincipalType.NODE, "broker")), READ, "orders"),
    ):
        told = explain(Access(1), caller, operation, TOPIC, name)
        assert (told.allowed, told.remedy, told.line) == (False, (), None)
    assert explain(Access(1), Caller(ALICE, scope=Scope(frozenset())), READ, TOPIC, "a").reason is Reason.OUT_OF_SCOPE
    assert explain(Access(1), Caller(ALICE), READ, TOPIC, "a\nb").reason is Reason.NO_SUCH_NAME


def test_names_are_quoted_for_a_shell() -> None:
    caller = Caller(Principal(PrincipalType.USER, "a; rm -rf $HOME"))
    told = explain(Access(1), caller, READ, ResourceType.GROUP, "it's")
    assert told.line == """headrace access allow 'User:a; rm -rf $HOME' read group 'it'"'"'s'"""


def test_who_can_marks_super_users_those_that_are_blocked_and_addresses() -> None:
    carol, dave = (Principal(PrincipalType.USER, name) for name in ("carol", "dave"))
    access = Access(
        1,
        {
            ALL_USERS: frozenset({allow(TOPIC, prefix("or"), READ)}),
            ALICE: frozenset({deny(TOPIC, literal("orders"), READ, host="10.0.0.1")}),
            BOB: frozenset({deny(TOPIC, EVERY_NAME, READ)}),
            kit.CERT: frozenset({allow(TOPIC, literal("orders"), READ, host="10.0.0.2")}),
            STAFF: frozenset({deny(TOPIC, literal("orders"), READ)}),
            dave: frozenset({allow(TOPIC, EVERY_NAME, WRITE)}),
        },
        blocked=frozenset({carol, Principal(PrincipalType.CERT, "nobody")}),  # who has no right is not kept from one
        super_users=frozenset({ADMIN}),
    )
    told = who_can(access, READ, TOPIC, "orders")
    assert [(str(one.grantee), one.reason.name, one.anywhere, one.hosts) for one in told.holders] == [
        ("Cert:alice", "ALLOWED", False, ("10.0.0.2",)),
        ("Group:staff", "DENIED", True, ()),
        ("User:*", "ALLOWED", True, ()),
        ("User:admin", "SUPER_USER", True, ()),
        ("User:alice", "ALLOWED", True, ("10.0.0.1",)),
        ("User:bob", "DENIED", True, ()),
        ("User:carol", "BLOCKED", True, ()),
    ]
    alice = told.holders[4]
    assert [str(source.grant) for source in alice.sources] == [
        "deny READ TOPIC orders from 10.0.0.1",
        "allow READ TOPIC or*",
    ]
    some = who_can(access, READ, TOPIC, "orders", shows=lambda one: one == ALICE, limit=1)
    assert ([one.grantee for one in some.holders], some.more) == ([ALICE], False)


def test_who_can_is_bounded_and_knows_ones_own_keys() -> None:
    users = [Principal(PrincipalType.USER, f"u{n}") for n in range(20)]
    access = Access(1, {one: frozenset({allow(TOPIC, literal("a"), READ)}) for one in users})
    told = who_can(access, READ, TOPIC, "a", limit=5)
    assert (len(told.holders), told.more) == (5, True)
    assert not who_can(access, READ, TOPIC, "a", limit=20).more

    def keepers(access: Access, name: str) -> list[Grantee]:
        told = who_can(access, Operation.CREATE_TOKENS, ResourceType.PRINCIPAL, name)
        return [one.grantee for one in told.holders]

    assert keepers(access, "User:bob") == [BOB]
    assert keepers(Access(1), "bob") == []
