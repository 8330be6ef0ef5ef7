"""Batches of changes: whole or not at all, within bounds."""

from __future__ import annotations

import pytest
from libs.common.tests.kit.access import ALICE, BOB, OWN, STAFF, allow

import headrace_common.core.access.changes as module
from headrace_common.core.access.changes import BATCH_MAX, Block, Change, Put, Remove, Rule, apply, find_touched
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, Target, literal, operation_set
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.access.state import Access
from headrace_common.core.errors import Conflict, ErrorCode, HeadraceError, NotFound, Rejected

TOPIC, READ = ResourceType.TOPIC, Operation.READ
RULE = Rule(ALICE, allow(TOPIC, literal("a"), READ))
OWN_ON_A = Binding(BOB, "own", frozenset({Target(TOPIC, literal("a"))}))
NODE = Principal(PrincipalType.NODE, "broker")


def test_what_is_put_is_there_and_what_is_removed_is_not() -> None:
    made = apply(Access(), [Put(RULE), Put(OWN), Put(OWN_ON_A), Put(Block(STAFF)), Put(RULE)])
    assert made == Access(
        1, {ALICE: frozenset({RULE.grant})}, {BOB: frozenset({OWN_ON_A})}, {"own": OWN}, frozenset({STAFF})
    )
    gone = apply(made, [Remove(RULE), Remove(OWN_ON_A), Remove(OWN), Remove(Block(STAFF))])
    assert gone == Access(2)


def test_one_of_several_rules_goes_and_the_others_stay() -> None:
    other = Rule(ALICE, allow(TOPIC, literal("b"), READ))
    left = apply(Access(), [Put(RULE), Put(other), Remove(RULE)])
    assert left.rules == {ALICE: frozenset({other.grant})}


def test_a_role_takes_the_place_of_the_one_of_its_name() -> None:
    wider = Role("own", {**OWN.operations, TOPIC: operation_set(READ)})
    before = apply(Access(), [Put(OWN), Put(OWN_ON_A)])
    after = apply(before, [Put(wider)])
    assert after.role("own") == wider
    assert find_touched(before, after) == [BOB]


def test_a_role_that_is_bound_goes_with_its_bindings_or_not_at_all() -> None:
    made = apply(Access(), [Put(OWN), Put(OWN_ON_A), Put(Binding(BOB, "auditor"))])
    with pytest.raises(Conflict, match="bound to User:bob"):
        apply(made, [Remove(OWN)])
    after = apply(made, [Remove(OWN, cascade=True)])
    assert (after.roles, after.bindings) == ({}, {BOB: frozenset({Binding(BOB, "auditor")})})


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (Remove(RULE), NotFound, "User:alice has no rule: allow READ TOPIC a"),
        (Remove(OWN_ON_A), NotFound, "User:bob does not have role own on TOPIC a"),
        (Remove(OWN), NotFound, "no role 'own'"),
        (Remove(Block(ALICE)), NotFound, "not blocked"),
        (Put(OWN_ON_A), NotFound, "no role 'own'; there are superuser"),
        (Put(Binding(BOB, "producer")), Rejected, "name resources of"),
        (Put(Role("superuser", {TOPIC: operation_set(READ)})), Rejected, "built in"),
        (Put(Role("mine", {}, everything=True)), Rejected, "nothing else"),
        (Put(Role("mine", {}, (RULE.grant,))), Rejected, "nothing else"),
        (Put(Rule(NODE, RULE.grant)), Rejected, "is a node"),
        (Put(Binding(NODE, "auditor")), Rejected, "is a node"),
        (Put(Block(NODE)), Rejected, "is a node"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(change: Change, kind: type[HeadraceError], says: str) -> None:
    before = Access(7)
    with pytest.raises(kind, match=says):
        apply(before, [Put(Block(BOB)), change])
    assert before == Access(7)


def test_a_role_keeps_what_its_bindings_are_on() -> None:
    made = apply(Access(), [Put(OWN), Put(OWN_ON_A)])
    with pytest.raises(Rejected, match="gives nothing on TOPIC"):
        apply(made, [Put(Role("own", {ResourceType.GROUP: operation_set(READ)}))])


def test_everything_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(batch: list[Change], says: str) -> None:
        with pytest.raises(Rejected, match=says) as error:
            apply(Access(), batch)
        assert error.value.code is ErrorCode.POLICY_VIOLATION

    def rules(count: int, host: bool = False) -> list[Change]:
        names = range(count)
        return [
            Put(Rule(ALICE, allow(TOPIC, literal(f"t{n}"), READ, host=f"10.0.0.{n}" if host else None))) for n in names
        ]

    refused([Put(RULE)] * (BATCH_MAX + 1), "a batch would have 1001 changes; 1000 is the most")
    refused(rules(101, host=True), "101 hosts")
    monkeypatch.setattr(module, "GRANTS_PER_GRANTEE_MAX", 3)
    assert apply(Access(), rules(3))
    refused(rules(4), "User:alice would have 4 grants; 3 is the most")
    refused([*rules(3), Put(OWN), Put(Binding(ALICE, "own", OWN_ON_A.targets))], "4 grants")
    monkeypatch.setattr(module, "GRANTS_MAX", 2)
    refused(rules(3), "the cluster would have 3 rules and bindings")
    monkeypatch.setattr(module, "ROLES_MAX", 1)
    refused([Put(OWN), Put(Role("b", OWN.operations))], "2 roles")
    monkeypatch.setattr(module, "BLOCKS_MAX", 1)
    refused([Put(Block(ALICE)), Put(Block(BOB))], "2 blocked")


def test_a_role_that_grows_counts_for_all_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    both = frozenset({Target(TOPIC, EVERY_NAME), Target(ResourceType.GROUP, EVERY_NAME)})
    made = apply(Access(), [Put(OWN), Put(Binding(BOB, "own", both))])
    monkeypatch.setattr(module, "GRANTS_PER_GRANTEE_MAX", 1)
    with pytest.raises(Rejected, match="User:bob would have 2 grants"):
        apply(made, [Put(Role("own", {**OWN.operations, TOPIC: operation_set(READ)}))])
