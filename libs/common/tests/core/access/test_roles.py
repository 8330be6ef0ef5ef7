"""The built-in roles, one line each of what they may and what they may not; and bindings."""

from __future__ import annotations

import pytest
from libs.common.tests.kit.access import ALICE

from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.resources import (
    CLUSTER_NAME,
    EVERY_NAME,
    OPERATIONS,
    Operation,
    ResourceType,
    Target,
    literal,
    operation_set,
    operations_in,
    prefix,
)
from headrace_common.core.access.roles import BUILT_IN_ROLES, TARGETS_PER_BINDING_MAX, Binding, Role, targets_for
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import Rejected

GIVEN_ON = {"developer": "shop.", "producer": "shop.", "consumer": "shop.", "viewer": "shop.", "streams": "shop"}
MAY = """
superuser  all TOPIC x | all CLUSTER kafka-cluster | READ TOPIC __audit | ESCALATE PRINCIPAL User:bob
operator   all CLUSTER kafka-cluster | CREATE TOPIC x | ALTER TOPIC x | DELETE TOPIC x | ALTER_CONFIGS TOPIC x
operator   DESCRIBE GROUP x | DELETE GROUP x | ALTER GROUP x | ALTER TRANSACTIONAL_ID x | DESCRIBE_CONFIGS TOPIC x
security   all PRINCIPAL User:bob | READ TOPIC __audit
auditor    DESCRIBE TOPIC x | DESCRIBE_CONFIGS CLUSTER kafka-cluster | DESCRIBE PRINCIPAL User:bob | READ TOPIC __audit
developer  READ TOPIC shop.a | DELETE TOPIC shop.a | all GROUP shop.a | all TRANSACTIONAL_ID shop.a
producer   WRITE TOPIC shop.a | DESCRIBE TOPIC shop.a | WRITE TRANSACTIONAL_ID shop.a
consumer   READ TOPIC shop.a | READ GROUP shop.a | DESCRIBE GROUP shop.a
streams    FENCE TOPIC shop.a | CREATE TOPIC shop.a | READ GROUP shop | WRITE TRANSACTIONAL_ID shop-1
streams    WRITE TRANSACTIONAL_ID shop@reset | CREATE_TOKENS PRINCIPAL User:alice
connect    READ TOPIC connect-configs | READ GROUP c | READ GROUP connect-x | WRITE TRANSACTIONAL_ID connect.c.x/1
connect    WRITE TRANSACTIONAL_ID connect-dlq.c.x.1 | WRITE TRANSACTIONAL_ID connect-leader.c
connect    WRITE TRANSACTIONAL_ID connect-leader.c/leader | WRITE TRANSACTIONAL_ID connect.c.x/offsets
viewer     DESCRIBE TOPIC shop.a | DESCRIBE_CONFIGS TOPIC shop.a | DESCRIBE GROUP shop.a
"""
MAY_NOT = """
operator   READ TOPIC x | WRITE TOPIC x | READ GROUP x | ALTER PRINCIPAL User:bob | ESCALATE PRINCIPAL User:bob
operator   DELETE TOPIC __audit
security   READ TOPIC x | ALTER CLUSTER kafka-cluster | WRITE TOPIC __audit | DELETE TOPIC __audit
auditor    READ TOPIC x | ALTER PRINCIPAL User:bob | WRITE TOPIC __audit | READ GROUP x
developer  FENCE TOPIC shop.a | READ TOPIC shop | READ TOPIC x
producer   READ TOPIC shop.a | CREATE TOPIC shop.a
consumer   WRITE TOPIC shop.a | DELETE GROUP shop.a
streams    READ TOPIC shopping | READ TOPIC shop | READ GROUP shop2 | WRITE TRANSACTIONAL_ID shop2
connect    READ TOPIC x | WRITE TRANSACTIONAL_ID connect.other.x/1 | READ GROUP other
connect    WRITE TRANSACTIONAL_ID connect-leader.c2 | WRITE TRANSACTIONAL_ID connect-leader.c2/leader
viewer     READ TOPIC shop.a | READ GROUP shop.a | DESCRIBE TOPIC x
"""


def rows(table: str) -> list[tuple[str, str]]:
    return [tuple(row.split(maxsplit=1)) for row in table.strip().splitlines()]  # type: ignore[misc]


def decide_all(role: str, requests: str) -> list[bool]:
    targets: frozenset[Target] = frozenset()
    if BUILT_IN_ROLES[role].operations:
        targets = targets_for(role, GIVEN_ON.get(role, "c"))
    decisions = Decisions(Access(1, bindings={ALICE: frozenset({Binding(ALICE, role, targets)})}))
    found = []
    for request in requests.split(" | "):
        word, type, name = request.split()
        kind = ResourceType[type]
        asked = operations_in(OPERATIONS[kind]) if word == "all" else [Operation[word]]
        found.append(all(decisions.decide(Caller(ALICE), operation, kind, name) for operation in asked))
    return found


@pytest.mark.parametrize(("role", "requests"), rows(MAY))
def test_what_a_role_gives(role: str, requests: str) -> None:
    assert all(decide_all(role, requests)), decide_all(role, requests)


@pytest.mark.parametrize(("role", "requests"), rows(MAY_NOT))
def test_what_a_role_does_not_give(role: str, requests: str) -> None:
    assert not any(decide_all(role, requests)), decide_all(role, requests)


def test_every_role_stands_in_the_tables() -> None:
    assert {role for role, _ in rows(MAY)} == set(BUILT_IN_ROLES)
    assert {role for role, _ in rows(MAY_NOT)} == set(BUILT_IN_ROLES) - {"superuser"}


def test_a_role_that_covers_all_takes_no_name() -> None:
    for role in ("superuser", "operator", "security", "auditor", "own"):
        with pytest.raises(Rejected, match="no single name"):
            targets_for(role, "shop")


def test_bindings_name_what_the_role_has() -> None:
    producer = BUILT_IN_ROLES["producer"]
    producer.check_targets(frozenset({Target(ResourceType.TOPIC, literal("a"))}))
    with pytest.raises(Rejected, match="gives nothing on GROUP"):
        producer.check_targets(frozenset({Target(ResourceType.GROUP, literal("a"))}))
    with pytest.raises(Rejected, match="name resources of TOPIC, TRANSACTIONAL_ID"):
        producer.check_targets(frozenset())
    with pytest.raises(Rejected, match="gives nothing on TOPIC"):
        BUILT_IN_ROLES["superuser"].check_targets(frozenset({Target(ResourceType.TOPIC, literal("a"))}))


def test_bindings_and_roles_are_bounded_and_checked() -> None:
    many = frozenset(Target(ResourceType.TOPIC, literal(f"t{n}")) for n in range(TARGETS_PER_BINDING_MAX + 1))
    with pytest.raises(Rejected, match="at most 100"):
        Binding(ALICE, "producer", many)
    with pytest.raises(Rejected, match="one by one"):
        Binding(ALICE, "producer", frozenset({Target(ResourceType.TOPIC, prefix("__"))}))
    with pytest.raises(Rejected, match=CLUSTER_NAME):
        Binding(ALICE, "own", frozenset({Target(ResourceType.CLUSTER, literal("x"))}))
    with pytest.raises(Rejected, match="gives nothing"):
        Role("own", {})
    with pytest.raises(Rejected, match="no grant of FENCE"):
        Role("own", {ResourceType.GROUP: operation_set(Operation.FENCE)})
    with pytest.raises(Rejected, match="printable"):
        Role("o\nwn", {ResourceType.GROUP: operation_set(Operation.READ)})
    assert str(Binding(ALICE, "producer", frozenset({Target(ResourceType.TOPIC, EVERY_NAME)}))) == (
        "role producer on TOPIC *"
    )


def test_a_connect_cluster_is_named_as_it_is_and_stands_otherwise_in_ids() -> None:
    targets = {str(target.pattern) for target in targets_for("connect", "of shop.eu")}
    assert {"of shop.eu", "connect.of%20shop%2Eeu.*", "connect-leader.of%20shop%2Eeu/leader"} <= targets
