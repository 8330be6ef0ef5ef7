"""What principals, resources, patterns, hosts and grants can be, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, IMPOSSIBLE, STAFF, allow, deny

from headrace_common.core.access.grants import Effect, Grant, Scope, host_of
from headrace_common.core.access.principal import (
    ANONYMOUS,
    Everyone,
    Principal,
    PrincipalType,
    parse_grantee,
    parse_principal,
)
from headrace_common.core.access.resources import (
    CLUSTER_NAME,
    EVERY_NAME,
    OPERATIONS,
    Operation,
    Pattern,
    PatternKind,
    ResourceType,
    literal,
    operation_set,
    operations_in,
    prefix,
)
from headrace_common.core.access.state import GROUPS_PER_CALLER_MAX, Caller
from headrace_common.core.errors import Rejected

GOOD = (
    "User:alice",
    "User:ANONYMOUS",
    "User:a:b c",
    "User:José",
    "ServiceAccount:shop/orders",
    "Oidc:corp/auth0|1/2",
    "Cert:spiffe://example.org/orders",
    "Group:staff",
    "Node:broker",
    "Node:broker-1",
)


@pytest.mark.parametrize("text", GOOD)
def test_a_principal_is_read_as_it_is_written(text: str) -> None:
    assert str(parse_principal(text)) == text
    assert parse_grantee(text) == parse_principal(text)


@pytest.mark.parametrize(
    "text",
    [
        "User:bob*",
        "Oidc:okta/bob*",
        "",
        "alice",
        "user:alice",
        "USER:alice",
        " User:alice",
        "Token:alice",
        "ServiceAccount:orders",
        "ServiceAccount:/orders",
        "ServiceAccount:a/b/c",
        "Oidc:corp",
        "Oidc:corp/",
        "Node:king",
        "Node:broker-",
        "Node:broker-x",
        *(f"User:{name}" for name in IMPOSSIBLE),
    ],
)
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_principal(text)


def test_names_have_1_to_255_characters_and_types_never_mix() -> None:
    assert Principal(PrincipalType.USER, "é" * 255)
    with pytest.raises(Rejected, match="256 characters"):
        Principal(PrincipalType.USER, "a" * 256)
    assert Principal(PrincipalType.USER, "alice") != Principal(PrincipalType.CERT, "alice")
    assert Principal(PrincipalType.USER, "alice") != Principal(PrincipalType.USER, "Alice")
    assert parse_principal("User:ANONYMOUS") == ANONYMOUS
    with pytest.raises(Rejected, match="text"):
        Principal(PrincipalType.USER, b"alice")  # type: ignore[arg-type]


def test_everyone_is_for_rules_alone() -> None:
    assert parse_grantee("User:*") == Everyone(PrincipalType.USER)
    assert str(parse_grantee("Oidc:*")) == "Oidc:*"
    with pytest.raises(Rejected, match="name of none"):
        parse_principal("User:*")
    for text in ("Group:*", "Node:*"):
        with pytest.raises(Rejected, match="nobody"):
            parse_grantee(text)


@given(st.text(max_size=300))
def test_no_text_at_all_makes_an_error_of_another_kind(text: str) -> None:
    for parse in (parse_principal, parse_grantee, literal, prefix, host_of):
        for shown in (text, f"User:{text}", f"Node:{text}"):
            with suppress(Rejected):
                parse(shown)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_no_pattern_has_a_name_that_cannot_be(name: str) -> None:
    for make in (literal, prefix):
        with pytest.raises(Rejected):
            make(name)


def test_patterns_say_what_they_are() -> None:
    assert [str(one) for one in (literal("a"), prefix("a"), EVERY_NAME)] == ["a", "a*", "*"]
    with pytest.raises(Rejected, match="as a prefix"):
        literal("orders*")
    with pytest.raises(Rejected, match="no name of its own"):
        Pattern(PatternKind.ANY, "a")


def test_patterns_cover_what_is_narrower() -> None:
    a, ab = prefix("a"), prefix("ab")
    assert a.covers(ab)
    assert a.covers(a)
    assert not ab.covers(a)
    assert ab.covers(literal("ab"))
    assert not ab.covers(literal("a"))
    assert EVERY_NAME.covers(a)
    assert not a.covers(EVERY_NAME)
    assert literal("ab").covers(literal("ab"))
    assert not literal("ab").covers(ab)


def test_grants_that_could_never_count_are_refused() -> None:
    topic = ResourceType.TOPIC
    with pytest.raises(Rejected, match="no operation"):
        allow(topic, literal("a"))
    with pytest.raises(Rejected, match="there is no grant of ESCALATE"):
        allow(topic, literal("a"), Operation.ESCALATE)
    with pytest.raises(Rejected, match="there is no grant of FENCE"):
        allow(ResourceType.GROUP, literal("a"), Operation.READ, Operation.FENCE)
    with pytest.raises(Rejected, match="one by one"):
        allow(topic, prefix("__"), Operation.READ)
    assert deny(topic, prefix("__"), Operation.READ)
    with pytest.raises(Rejected, match=CLUSTER_NAME):
        allow(ResourceType.CLUSTER, literal("other"), Operation.ALTER)
    with pytest.raises(Rejected, match="names no principal"):
        allow(ResourceType.PRINCIPAL, literal("alice"), Operation.ALTER)
    assert allow(ResourceType.PRINCIPAL, literal("Role:own"), Operation.ALTER)
    assert allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.IDEMPOTENT_WRITE, Operation.CLUSTER_ACTION)
    with pytest.raises(Rejected, match="IDEMPOTENT_WRITE"):
        allow(topic, literal("a"), Operation.IDEMPOTENT_WRITE)


def test_hosts_are_addresses_in_one_form() -> None:
    assert host_of("::FFFF:10.0.0.1") == host_of("10.0.0.1") == "10.0.0.1"
    assert host_of("2001:DB8:0::1") == "2001:db8::1"
    for text in ("", "*", "localhost", "10.0.0.0/8", "010.0.0.1", "10.0.0.1\n"):
        with pytest.raises(Rejected, match="no IP address"):
            host_of(text)
    with pytest.raises(Rejected, match=r"is written 10\.0\.0\.1"):
        allow(ResourceType.TOPIC, literal("a"), Operation.READ, host="::ffff:10.0.0.1")
    with pytest.raises(Rejected, match="is written"):
        Caller(ALICE, host="::ffff:10.0.0.1")


def test_callers_are_no_groups_and_their_groups_are() -> None:
    with pytest.raises(Rejected, match="nobody calls as one"):
        Caller(STAFF)
    with pytest.raises(Rejected, match="is no group"):
        Caller(ALICE, frozenset({ANONYMOUS}))
    groups = frozenset(Principal(PrincipalType.GROUP, f"g{n}") for n in range(GROUPS_PER_CALLER_MAX + 1))
    with pytest.raises(Rejected, match="200 is the most"):
        Caller(ALICE, groups)


def test_scopes_are_bounded_and_have_no_denies() -> None:
    with pytest.raises(Rejected, match="no denies"):
        Scope(frozenset({deny(ResourceType.TOPIC, literal("a"), Operation.READ)}))
    many = frozenset(allow(ResourceType.TOPIC, literal(f"t{n}"), Operation.READ) for n in range(1_001))
    with pytest.raises(Rejected, match="at most 1000"):
        Scope(many)


def test_what_stands_for_a_set_of_operations_is_read_back() -> None:
    for type in ResourceType:
        some = operations_in(OPERATIONS[type])
        assert operation_set(*some) == OPERATIONS[type]
        assert Operation.ALL not in some
    assert str(Grant(Effect.DENY, operation_set(Operation.READ), ResourceType.TOPIC, prefix("a"), "10.0.0.1")) == (
        "deny READ TOPIC a* from 10.0.0.1"
    )
    assert sorted(type.slot for type in ResourceType) == list(range(len(ResourceType)))
    assert len({operation.bit for operation in Operation}) == len(Operation)


UNSEEN = ("a\u3164", "\u115f", "a\ufe0f", "a\u2800", "\u0301a", "a\u034fb", "\u20dda", "a\u200bb", "a\u00a0b")


@pytest.mark.parametrize("name", [" a", "a ", "a  b", *UNSEEN])
def test_a_principal_has_no_name_that_looks_like_another_one(name: str) -> None:
    for type in (PrincipalType.USER, PrincipalType.GROUP, PrincipalType.CERT):
        with pytest.raises(Rejected):
            Principal(type, name)


@pytest.mark.parametrize("name", ["a b", "José", "Иван", "أحمد", "李 小龙", "नमस्ते"])
def test_names_of_people_stay(name: str) -> None:
    assert str(Principal(PrincipalType.USER, name)) == f"User:{name}"
