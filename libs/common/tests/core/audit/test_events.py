"""What is in an event, how long it can become, and what is never in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.core.audit.test_canonical import CREDENTIALS, KEY, NODE_TOKEN, pieces
from libs.common.tests.kit import access as rules
from libs.common.tests.kit import audit as kit

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.authentication import Shown, node_shown
from headrace_common.core.access.grants import Effect
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Caller
from headrace_common.core.audit.canonical import LINE_BYTES_MAX, write_line
from headrace_common.core.audit.events import (
    CHANGE_CHARS_MAX,
    GROUPS_MAX,
    NAME_CHARS_MAX,
    TEXT_CHARS_MAX,
    Actor,
    Change,
    Decision,
    Event,
    Method,
    Resource,
    actor_of,
    change_of,
    fields_of,
)
from headrace_common.core.audit.kinds import TREATMENTS, Kind
from headrace_common.core.errors import ErrorCode
from headrace_common.core.secret import Secret


def big(text: str) -> Event:
    """Everything that a caller can choose is this text."""
    return Event(
        Kind.ADMINISTERED,
        kit.NOW_MS,
        Actor(text, Method.TOKEN, text, tuple(f"{n}{text}" for n in range(200))),
        text,
        text,
        Operation.ALTER,
        Resource(ResourceType.TOPIC, text),
        Decision(Effect.ALLOW, text),
        ErrorCode.NONE,
        Change({f"{n}{text}": text for n in range(200)}, {text: text}),
    )


def test_an_event_has_every_name_whatever_is_known() -> None:
    full = fields_of(kit.event(Kind.OPERATION_REFUSED))
    bare = fields_of(Event(Kind.AUTHENTICATION_FAILED, kit.NOW_MS, Actor("", Method.NOTHING)))
    assert bare.keys() == full.keys()
    assert full == {
        "class_uid": 6003,
        "kind": "operation_refused",
        "time": kit.NOW_MS,
        "actor": {
            "principal": "User:alice",
            "groups": [],
            "groups_more": 0,
            "credential": "0123456789ABCD",
            "method": "api_key",
        },
        "source": "10.0.0.1",
        "rpc": "Controller/DeleteTopics",
        "operation": "DELETE",
        "resource": {"type": "TOPIC", "name": "orders"},
        "decision": {"effect": "deny", "rule": "allow DELETE TOPIC *"},
        "status": "TOPIC_AUTHORIZATION_FAILED",
        "change": None,
        "count": 1,
    }
    assert (bare["class_uid"], bare["resource"], bare["operation"]) == (3002, None, None)


def test_every_kind_has_its_class_in_the_event() -> None:
    for kind in Kind:
        fields = fields_of(kit.event(kind))
        assert (fields["kind"], fields["class_uid"]) == (kind.value, TREATMENTS[kind].event_class)


def test_who_has_shown_what_is_the_actor() -> None:
    key = ApiKey(KeyId("0123456789ABCD"), rules.ALICE, b"d" * 32, 1)
    caller = Caller(rules.ALICE, frozenset({rules.STAFF}))
    assert actor_of(Shown(caller, "bearer", key)) == Actor("User:alice", Method.API_KEY, key.id, ("Group:staff",))
    assert actor_of(Shown(caller)).method is Method.NOTHING
    assert actor_of(node_shown(kit.BROKER)) == Actor("Node:broker-1", Method.NODE)


def test_many_groups_are_counted() -> None:
    actor = Actor("User:a", Method.TOKEN, groups=tuple(f"Group:{n:03}" for n in reversed(range(GROUPS_MAX + 5))))
    assert actor.groups == tuple(f"Group:{n:03}" for n in range(GROUPS_MAX))
    assert actor.groups_more == 5


@pytest.mark.parametrize("char", ["a", "\x00", "é", "\U0001f600", "\ud800", '"', "\\"])
@pytest.mark.parametrize("length", [0, 1, NAME_CHARS_MAX, NAME_CHARS_MAX + 1, TEXT_CHARS_MAX, 100_000])
def test_it_is_bounded_whatever_a_caller_sends(char: str, length: int) -> None:
    event = big(char * length)
    assert len(event.actor.principal) <= NAME_CHARS_MAX
    assert event.resource is not None
    assert len(event.resource.name) <= NAME_CHARS_MAX
    assert len(write_line(fields_of(event))) + 1_000 < LINE_BYTES_MAX


def test_what_is_cut_says_so_and_can_be_told_apart() -> None:
    one, other = (Resource(ResourceType.TOPIC, "t" * 1_000 + end).name for end in ("a", "b"))
    assert one != other
    assert len(one) == NAME_CHARS_MAX
    assert "... 1001 characters, SHA-256 " in one
    assert Resource(ResourceType.TOPIC, "t" * NAME_CHARS_MAX).name == "t" * NAME_CHARS_MAX


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_credential_as_a_name_is_cut_out_and_its_event_written(credential: str) -> None:
    line = write_line(fields_of(big(credential)))
    assert b"***" in line
    for secret in (KEY[19:], NODE_TOKEN[4:], "c2lnbmF0dXJl", "MIIE", "hunter2"):
        assert secret.encode() not in line


def named(text: str) -> Event:
    """A caller's name of a resource, and a rule of that text."""
    decision = Decision(Effect.DENY, text)
    return Event(
        Kind.OPERATION_REFUSED, kit.NOW_MS, kit.ALICE, resource=Resource(ResourceType.TOPIC, text), decision=decision
    )


@given(st.lists(pieces, max_size=8).map("".join), st.integers(0, 1_100))
def test_no_name_makes_its_event_impossible(text: str, before: int) -> None:
    """Else whoever is refused would call a topic so."""
    write_line(fields_of(named("a" * before + text + "b" * 2_000)))
    write_line(fields_of(named("a" * before + text)))


def test_a_change_says_what_is_another_now() -> None:
    before = {"retention.ms": "1", "cleanup.policy": "delete", "gone": "x"}
    after = {"retention.ms": "2", "cleanup.policy": "delete", "new": "y"}
    change = change_of(before, after)
    assert change == Change({"retention.ms": "1", "gone": "x"}, {"retention.ms": "2", "new": "y"})


def test_a_secret_that_has_changed_is_named_and_not_shown() -> None:
    before = {"ssl.key.password": "old-one", "a": Secret("old-one"), "b": Secret("same"), "c": "old-one"}
    after = {"ssl.key.password": "new-one", "a": Secret("new-one"), "b": Secret("same"), "c": "new-one"}
    shown = {"ssl.key.password": "***", "a": "***", "c": "***"}
    assert change_of(before, after, lambda name: name in {"ssl.key.password", "c"}) == Change(shown, shown)
    assert change_of(before, after).after["c"] == "new-one"


def test_members_beyond_the_bound_are_counted() -> None:
    values = {f"setting.{n:04}": "v" * 1_000 for n in range(20)}
    event = Event(Kind.ADMINISTERED, kit.NOW_MS, kit.ALICE, change=Change({}, values))
    after = fields_of(event)["change"]["after"]
    assert len(after["values"]) + after["more"] == 20
    assert list(after["values"]) == sorted(values)[: len(after["values"])]
    assert 0 < CHANGE_CHARS_MAX - sum(len(n) + len(v) for n, v in after["values"].items()) < 1_012
    assert fields_of(event)["change"]["before"] == {"values": {}, "more": 0}
