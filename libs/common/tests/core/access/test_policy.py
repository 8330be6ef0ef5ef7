"""The compiled policy and its caches against the plain reading of all grants."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.common.tests.kit import access as kit
from libs.common.tests.kit.access import ADMIN, ALICE, ALL_USERS, BOB, CERT, STAFF, allow, decide_plainly, deny

from headrace_common.core.access.decisions import DECISIONS_MAX, Decisions
from headrace_common.core.access.grants import Grant, Scope
from headrace_common.core.access.policy import GRANTS_PER_CALLER_MAX, compile_policy
from headrace_common.core.access.principal import ANONYMOUS
from headrace_common.core.access.resources import (
    EVERY_NAME,
    OPERATIONS,
    Operation,
    ResourceType,
    literal,
    operation_set,
    operations_in,
    prefix,
)
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import ErrorCode, Rejected

TOPIC = ResourceType.TOPIC
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
Questions = list[tuple[Operation, ResourceType, str]]


def may(*grants: Grant, name: str = "a", operation: Operation = READ, type: ResourceType = TOPIC) -> bool:
    return Decisions(Access(1, {ALICE: frozenset(grants)})).decide(Caller(ALICE), operation, type, name)


@given(kit.accesses, kit.callers, kit.questions)
def test_the_policy_decides_as_all_grants_read_one_by_one(access: Access, caller: Caller, asked: Questions) -> None:
    decisions = Decisions(access)
    for operation, type, name in asked:
        expected = decide_plainly(access, caller, operation, type, name)
        assert decisions.decide(caller, operation, type, name) is expected
        assert decisions.decide(caller, operation, type, name) is expected, "remembered"


@given(st.lists(kit.grants, max_size=8), st.randoms(use_true_random=False), kit.questions)
def test_the_order_of_grants_does_not_count(grants: list[Grant], random: Random, asked: Questions) -> None:
    shuffled = list(grants)
    random.shuffle(shuffled)
    one, other = compile_policy(grants), compile_policy(shuffled)
    assert [one.decide(*question) for question in asked] == [other.decide(*question) for question in asked]


@given(st.frozensets(kit.grants, max_size=8), kit.grants, kit.questions)
def test_a_deny_takes_and_an_allow_gives(grants: frozenset[Grant], grant: Grant, asked: Questions) -> None:
    before, after = compile_policy(grants), compile_policy({*grants, grant})
    for question in asked:
        was, is_ = before.decide(*question), after.decide(*question)
        assert was is is_ or is_ is (grant.effect.value == "allow")


@given(st.lists(st.text(alphabet="ab\U00030000", min_size=1, max_size=5), max_size=12), st.data())
def test_prefixes_within_prefixes(prefixes: list[str], data: st.DataObject) -> None:
    some = operations_in(OPERATIONS[TOPIC] & ~operation_set(DESCRIBE, Operation.DESCRIBE_CONFIGS))
    given_ = [(some[at % len(some)], name) for at, name in enumerate(prefixes)]
    policy = compile_policy(allow(TOPIC, prefix(name), operation) for operation, name in given_)
    for name in data.draw(st.lists(st.text(alphabet="abc\U00030000", min_size=1, max_size=6), min_size=5)):
        for operation in some:
            expected = any(operation is other and name.startswith(one) for other, one in given_)
            assert policy.decide(operation, TOPIC, name) is expected


@given(st.frozensets(kit.grants, max_size=8))
def test_a_name_that_may_is_found_wherever_there_is_one(grants: frozenset[Grant]) -> None:
    """In these worlds a name is at most as long as here before the next letter says nothing new."""
    policy = compile_policy(grants)
    names = {grant.pattern.name for grant in grants} | {"zzz"}
    tried = {name + more for name in names for more in ("", "0", "zz")}
    for type in ResourceType:
        for operation in operations_in(OPERATIONS[type]):
            expected = any(policy.decide(operation, type, name) for name in tried)
            assert policy.decide_anywhere(operation, type) is expected


def test_a_right_anywhere_is_one_that_no_deny_takes_whole() -> None:
    def anywhere(*grants: Grant) -> bool:
        return Decisions(Access(1, {ALICE: frozenset(grants)})).decide_anywhere(Caller(ALICE), WRITE, TOPIC)

    some = (literal("a"), prefix("a"), EVERY_NAME, literal("__a"))
    assert all(anywhere(allow(TOPIC, pattern, WRITE)) for pattern in some)
    assert not anywhere()
    assert not anywhere(allow(TOPIC, EVERY_NAME, READ), allow(ResourceType.TRANSACTIONAL_ID, EVERY_NAME, WRITE))
    assert not any(anywhere(allow(TOPIC, one, WRITE), deny(TOPIC, one, WRITE)) for one in some)
    assert anywhere(allow(TOPIC, prefix("a"), WRITE), deny(TOPIC, prefix("ab"), WRITE))
    assert not anywhere(allow(TOPIC, prefix("ab"), WRITE), deny(TOPIC, prefix("a"), WRITE))


def test_a_right_anywhere_needs_scope_and_owner_and_no_block() -> None:
    grant = allow(TOPIC, literal("a"), WRITE)
    rules = {ALICE: frozenset({grant})}

    def anywhere(access: Access, scope: Scope | None) -> bool:
        return Decisions(access).decide_anywhere(Caller(ALICE, scope=scope), WRITE, TOPIC)

    wide, narrow = Scope(frozenset({grant})), Scope(frozenset({allow(TOPIC, literal("a"), READ)}))
    assert anywhere(Access(1, rules), wide)
    assert not anywhere(Access(1, rules), narrow)
    assert not anywhere(Access(1), wide)
    assert anywhere(Access(1, super_users=frozenset({ALICE})), None)
    assert not anywhere(Access(1, rules, blocked=frozenset({ALICE})), None)
    assert not anywhere(Access(1, blocked=frozenset({ALICE}), super_users=frozenset({ALICE})), None)


def test_a_prefix_within_another_one_adds_to_it_and_ends_before_it() -> None:
    policy = compile_policy([allow(TOPIC, prefix("a"), READ), allow(TOPIC, prefix("ab"), WRITE)])
    for name in ("a", "aa", "ab", "abc", "ac", "ad", "az"):
        assert policy.decide(READ, TOPIC, name)
        assert policy.decide(WRITE, TOPIC, name) is (name in {"ab", "abc"})


def test_a_prefix_ends_where_its_names_end() -> None:
    grant = allow(TOPIC, prefix("ab"), READ)
    assert [name for name in ("a", "aa", "ab", "abz", "ac", "b", "AB") if may(grant, name=name)] == ["ab", "abz"]


def test_deny_wins_however_narrow_the_allow_is() -> None:
    for wide in (EVERY_NAME, prefix("a"), literal("a")):
        for narrow in (EVERY_NAME, prefix("a"), literal("a")):
            assert not may(allow(TOPIC, narrow, READ), deny(TOPIC, wide, READ))
            assert not may(allow(TOPIC, narrow, READ), deny(TOPIC, wide, Operation.ALL))


def test_a_deny_of_a_group_or_of_everyone_wins_too() -> None:
    mine = {ALICE: frozenset({allow(TOPIC, literal("a"), READ)})}
    for whose in (STAFF, ALL_USERS):
        decisions = Decisions(Access(1, {**mine, whose: frozenset({deny(TOPIC, EVERY_NAME, READ)})}))
        assert not decisions.decide(Caller(ALICE, frozenset({STAFF})), READ, TOPIC, "a")
    assert Decisions(Access(1, mine)).decide(Caller(ALICE, frozenset({STAFF})), READ, TOPIC, "a")


def test_implied_operations_are_allowed_and_not_denied() -> None:
    for operation in (READ, WRITE, Operation.DELETE, Operation.ALTER):
        assert may(allow(TOPIC, literal("a"), operation), operation=DESCRIBE)
        assert not may(allow(TOPIC, literal("a"), DESCRIBE), operation=operation)
        assert may(allow(TOPIC, literal("a"), DESCRIBE), deny(TOPIC, literal("a"), operation), operation=DESCRIBE)
    assert not may(allow(TOPIC, literal("a"), Operation.CREATE), operation=DESCRIBE)
    assert may(allow(TOPIC, literal("a"), Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    both = allow(TOPIC, literal("a"), READ), deny(TOPIC, literal("a"), DESCRIBE)
    assert may(*both)
    assert not may(*both, operation=DESCRIBE)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__audit", "__", "__a"])
def test_internal_names_are_allowed_one_by_one_and_denied_by_any_pattern(name: str) -> None:
    wide = (allow(TOPIC, EVERY_NAME, Operation.ALL), allow(TOPIC, prefix("_"), Operation.ALL))
    assert not may(*wide, name=name)
    assert may(*wide, name="_a")
    assert may(allow(TOPIC, literal(name), READ), name=name)
    for pattern in (EVERY_NAME, prefix("_"), prefix("__"), literal(name)):
        assert not may(allow(TOPIC, literal(name), READ), deny(TOPIC, pattern, READ), name=name)


@pytest.mark.parametrize("name", kit.IMPOSSIBLE)
def test_names_that_cannot_be_are_refused_whatever_the_patterns(name: str) -> None:
    assert not may(allow(TOPIC, EVERY_NAME, Operation.ALL), allow(TOPIC, prefix("a"), Operation.ALL), name=name)


def test_a_grant_for_a_host_counts_from_there_alone() -> None:
    here, there = kit.HOSTS
    decisions = Decisions(
        Access(
            1,
            {
                ALICE: frozenset({allow(TOPIC, literal("a"), READ, host=here)}),
                BOB: frozenset({allow(TOPIC, literal("a"), READ), deny(TOPIC, literal("a"), READ, host=here)}),
            },
        )
    )
    for who, host, allowed in ((ALICE, here, True), (ALICE, there, False), (ALICE, None, False)):
        assert decisions.decide(Caller(who, host=host), READ, TOPIC, "a") is allowed
    for who, host, allowed in ((BOB, here, False), (BOB, there, True), (BOB, None, True)):
        assert decisions.decide(Caller(who, host=host), READ, TOPIC, "a") is allowed


def test_a_scope_narrows_even_a_super_user_and_gives_nothing() -> None:
    scope = Scope(frozenset({allow(TOPIC, literal("a"), READ)}))
    decisions = Decisions(Access(1, super_users=frozenset({ADMIN})))
    assert decisions.decide(Caller(ADMIN, scope=scope), READ, TOPIC, "a")
    assert not decisions.decide(Caller(ADMIN, scope=scope), READ, TOPIC, "b")
    assert not decisions.decide(Caller(ADMIN, scope=Scope(frozenset())), READ, TOPIC, "a")
    assert not decisions.decide(Caller(ALICE, scope=scope), READ, TOPIC, "a")


def test_blocked_is_asked_first_and_super_users_need_no_rules() -> None:
    world = Access(1, super_users=frozenset({ADMIN}), blocked=frozenset({ADMIN}))
    assert not Decisions(world).decide(Caller(ADMIN), READ, TOPIC, "a")
    rules = {ADMIN: frozenset({deny(TOPIC, EVERY_NAME, Operation.ALL)})}
    world = Access(1, rules, super_users=frozenset({ADMIN}))
    assert Decisions(world).decide(Caller(ADMIN), READ, TOPIC, "__audit")
    world = Access(1, {ALICE: frozenset({allow(TOPIC, literal("a"), READ)})}, blocked=frozenset({STAFF}))
    assert Decisions(world).decide(Caller(ALICE), READ, TOPIC, "a")
    assert not Decisions(world).decide(Caller(ALICE, frozenset({STAFF})), READ, TOPIC, "a")


def test_everyone_is_of_one_type_and_has_keys_of_ones_own() -> None:
    decisions = Decisions(Access(1, {ALL_USERS: frozenset({allow(TOPIC, literal("a"), READ)})}))
    assert decisions.decide(Caller(ALICE), READ, TOPIC, "a")
    assert not decisions.decide(Caller(CERT), READ, TOPIC, "a")
    principal, tokens = ResourceType.PRINCIPAL, Operation.CREATE_TOKENS
    assert decisions.decide(Caller(ALICE), tokens, principal, "User:alice")
    assert not decisions.decide(Caller(ALICE), tokens, principal, "Cert:alice")
    assert not decisions.decide(Caller(ANONYMOUS), tokens, principal, "User:ANONYMOUS")


def test_what_means_nothing_allows_nothing() -> None:
    cluster = ResourceType.CLUSTER
    grant = allow(cluster, EVERY_NAME, Operation.ALL, Operation.IDEMPOTENT_WRITE, Operation.CLUSTER_ACTION)
    for operation in (Operation.IDEMPOTENT_WRITE, Operation.CLUSTER_ACTION, Operation.ALL):
        assert not may(grant, operation=operation, type=cluster, name="kafka-cluster")
    only = allow(cluster, EVERY_NAME, Operation.CLUSTER_ACTION)
    assert not may(only, operation=Operation.ALTER, type=cluster, name="kafka-cluster")


@settings(max_examples=30)
@given(kit.accesses, kit.accesses, kit.callers, kit.questions)
def test_a_new_generation_forgets_what_was_decided(old: Access, new: Access, caller: Caller, asked: Questions) -> None:
    decisions = Decisions(old)
    for question in asked:
        decisions.decide(caller, *question)
    decisions.renew(new)
    assert decisions.generation == new.generation
    for question in asked:
        assert decisions.decide(caller, *question) is decide_plainly(new, caller, *question)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace_common.core.access.decisions as module

    assert DECISIONS_MAX == 100_000
    monkeypatch.setattr(module, "DECISIONS_MAX", 10)
    monkeypatch.setattr(module, "POLICIES_MAX", 3)
    decisions = Decisions(Access(1, {ALICE: frozenset({allow(TOPIC, prefix("a"), READ)})}))
    for number in range(100):
        assert decisions.decide(Caller(ALICE, host=f"10.0.0.{number}"), READ, TOPIC, f"a{number}")
        assert not decisions.decide(Caller(ALICE), READ, TOPIC, "a" * 1_000)
        sizes = [len(cache) for cache in (decisions._decisions, decisions._standings, decisions._policies)]
        assert sizes[0] <= 10
        assert max(sizes[1:]) <= 3
    assert all(len(key[3]) < 1_000 for key in decisions._decisions)
    assert len(decisions._policies) == 1, "places that no rule names share one"


def test_more_grants_than_a_policy_takes_are_refused() -> None:
    grants = [allow(TOPIC, literal(f"t{n}"), READ) for n in range(GRANTS_PER_CALLER_MAX)]
    assert compile_policy(grants).decide(READ, TOPIC, "t7")
    with pytest.raises(Rejected, match="is the most") as refused:
        compile_policy([*grants, allow(TOPIC, literal("u"), READ)])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
