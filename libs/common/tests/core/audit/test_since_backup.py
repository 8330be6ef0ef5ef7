"""What a restore has brought back, by the audit: each way to have been shut out since is found, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.audit.since_backup import SKEW_MS, Found, Known, SinceBackup, find_since_backup

BACKUP, RESTORE = 1_000_000, 2_000_000
THEN, AFTER = BACKUP + 10_000, RESTORE + 10_000
NOW = Known("closed", frozenset(), frozenset(), {})
Event = dict[str, Any]
_numbers = iter(range(10**9))


def event(
    name: str, before: Mapping[str, str] | None = None, after: Mapping[str, str] | None = None, **more: Any
) -> Event:
    rpc = more.pop("rpc", "AlterAccess")
    return {
        "node": "controller-1",
        "start": "s",
        "seq": next(_numbers),
        "kind": "access_changed",
        "time": THEN,
        "actor": {"principal": "User:boss"},
        "rpc": f"Controller/{rpc}",
        "resource": {"type": "PRINCIPAL", "name": name},
        "status": "NONE",
        "change": {
            "before": {"values": dict(before or {}), "more": 0},
            "after": {"values": dict(after or {}), "more": 0},
        },
        **more,
    }


def look(*events: Event, known: Known = NOW) -> SinceBackup:
    return find_since_backup(events, known, BACKUP, RESTORE)


def found(*events: Event, known: Known = NOW) -> list[tuple[Found, str]]:
    return [(one.found, one.name) for one in look(*events, known=known).findings]


BLOCKED = {"blocked": "True"}


def rules(*names: str) -> dict[str, str]:
    return {"rules": json.dumps([{"on": name} for name in names])}


@pytest.mark.parametrize(
    ("events", "known", "says", "command"),
    [
        ([event("blocked User:a", {}, BLOCKED)], NOW, Found.BLOCK_GONE, "headrace access block User:a"),
        (
            [event("blocked User:a", BLOCKED, {})],
            Known("closed", frozenset({"User:a"}), frozenset(), {}),
            Found.BLOCK_BACK,
            "headrace access unblock User:a",
        ),
        (
            [event("key k", {"owner": "User:a"}, {}, rpc="DeleteKeys")],
            Known("closed", frozenset(), frozenset({"k"}), {}),
            Found.KEY_BACK,
            "headrace key delete k",
        ),
        (
            [event("key k", {}, {"owner": "User:a"}, rpc="CreateKey")],
            NOW,
            Found.KEY_GONE,
            "headrace key create --owner User:a",
        ),
        (
            [event("User:a", rpc="DeleteUser")],
            Known("closed", frozenset(), frozenset(), {"a": (1, 1)}),
            Found.USER_BACK,
            "headrace user remove a --cascade",
        ),
        (
            [event("User:a", rpc="ChangePassword")],
            Known("closed", frozenset(), frozenset(), {"a": (1, 1)}),
            Found.PASSWORD_BACK,
            "headrace user passwd a",
        ),
        (
            [event("", rpc="ChangePassword", actor={"principal": "User:a"})],  # of itself
            Known("closed", frozenset(), frozenset(), {"a": (1, 1)}),
            Found.PASSWORD_BACK,
            "headrace user passwd a",
        ),
        ([event("User:a", rpc="CreateUser")], NOW, Found.USER_GONE, "headrace user create a"),
        ([event("User:a", rules("x", "y"), rules("x"))], NOW, Found.RIGHTS_BACK, "headrace access show User:a"),
        ([event("User:a", rules("x"), {})], NOW, Found.RIGHTS_BACK, "headrace access show User:a"),
        ([event("User:a", rules("x"), rules("x", "y"))], NOW, Found.RIGHTS_GONE, "headrace access show User:a"),
        ([event("User:a", {}, {"bindings": '[["a", []]]'})], NOW, Found.RIGHTS_GONE, "headrace access show User:a"),
        ([event("role r", {"operations": "1"}, {"operations": "2"})], NOW, Found.ROLE_BACK, "headrace access show"),
        (
            [event("quotas users/User:a", {}, {"values": "2"}, rpc="AlterQuotas")],
            NOW,
            Found.QUOTAS_BACK,
            "headrace quota list",
        ),
        (
            [
                event("mode", {"mode": "open"}, {"mode": "permissive"}),
                event("mode", {"mode": "permissive"}, {"mode": "closed"}),
            ],
            Known("permissive", frozenset(), frozenset(), {}),
            Found.MODE_BACK,
            "headrace access mode closed",
        ),
    ],
)
def test_each_change_is_found_with_what_makes_it_right(
    events: list[Event], known: Known, says: Found, command: str
) -> None:
    result = look(*events, known=known)
    (one,) = result.findings
    by = events[-1]["actor"]["principal"]
    assert (one.found, one.time_ms, one.by, one.command) == (says, THEN, by, command)
    assert (result.lets_in, result.changed) == (says.lets_in, 1)
    assert result.to_block == (["User:a"] if says is Found.BLOCK_GONE else [])
    assert not look(*events, *(one | {"time": AFTER, "seq": next(_numbers)} for one in events), known=known).findings
    assert not look(*(one | {"status": "CLUSTER_AUTHORIZATION_FAILED"} for one in events), known=known).findings
    assert not look(*(one | {"time": BACKUP - SKEW_MS - 1} for one in events), known=known).findings
    assert look(*(one | {"time": BACKUP - SKEW_MS} for one in events), known=known).findings


@pytest.mark.parametrize(
    ("events", "known"),
    [
        ([event("blocked User:a", {}, BLOCKED)], Known("closed", frozenset({"User:a"}), frozenset(), {})),
        ([event("blocked User:a", {}, BLOCKED), event("blocked User:a", BLOCKED, {})], NOW),
        ([event("key k", {"owner": "User:a"}, {}, rpc="DeleteKeys")], NOW),
        (
            [event("key k", {}, {"owner": "User:a"}, rpc="CreateKey"), event("key k", {"owner": "User:a"}, {})],
            NOW,
        ),
        ([event("User:a", rpc="DeleteUser")], Known("closed", frozenset(), frozenset(), {"a": (THEN + 1, THEN + 1)})),
        (
            [event("User:a", rpc="ChangePassword")],
            Known("closed", frozenset(), frozenset(), {"a": (BACKUP, THEN - SKEW_MS)}),
        ),
        ([event("User:a", rules("x"), rules("y")), event("User:a", rules("y"), rules("x"))], NOW),
        ([event("mode", {"mode": "open"}, {"mode": "permissive"}), event("mode")], NOW),
        ([event("User:a", {}, {"owner": "User:a"}, rpc="CreateKey")], NOW),
        ([event("User:a", {}, {"block": "User:a", "remove": "True"})], NOW),
        ([event("users a", rpc="ChangePassword")], NOW),
        ([event("User:a", {}, rules("x"), kind="administered")], NOW),
        ([event("x") | {"resource": None}, {**event("x"), "signature": "y"}], NOW),
    ],
)
def test_what_is_as_it_was_is_not_found(events: list[Event], known: Known) -> None:
    assert found(*events, known=known) == []


def test_of_many_changes_of_one_the_ends_count() -> None:
    first, second = event("User:a", rules("x"), rules("y")), event("User:a", rules("y"), {}, time=THEN + 1)
    binding = event("User:a", {}, {"bindings": "[1]"}, time=THEN + 2)
    assert found(binding, second, first) == [(Found.RIGHTS_BACK, "User:a")]
    assert found(binding) == [(Found.RIGHTS_GONE, "User:a")]


def test_who_was_blocked_again_after_the_restore_may_still_have_rights_back() -> None:
    taken = event("User:a", rules("x"), {})
    again = [event("User:a", {}, {"block": "User:a"}, time=AFTER), event("blocked User:a", {}, BLOCKED, time=AFTER)]
    key = event("User:a", {}, {"owner": "User:a"}, rpc="CreateKey", time=AFTER)
    assert found(taken, *again, key) == [(Found.RIGHTS_BACK, "User:a")]


@pytest.mark.parametrize("cut", [{"rules": "[{... 5000 characters, SHA-256 ab"}, None])
def test_what_was_not_written_whole_may_have_been_taken_away(cut: dict[str, str] | None) -> None:
    one = event("User:a", {}, cut or rules("x"))
    if cut is None:
        one["change"]["after"]["more"] = 1
    assert found(one) == [(Found.RIGHTS_BACK, "User:a")]


def test_a_change_without_an_end_may_have_been_made() -> None:
    begun = event("User:a", {}, {"block": "User:a"}, status=None, time=THEN)
    assert found(begun) == [(Found.UNFINISHED, "User:a")]
    assert found(begun, event("User:a", {}, {"block": "User:a"}, time=THEN + 1)) == []
    assert found(begun, event("User:a", status="NOT_CONTROLLER", time=THEN + 1)) == []
    other = event("User:a", {}, {"block": "User:a"}, time=THEN + 1, start="another")
    assert found(begun, other) == [(Found.UNFINISHED, "User:a")]
    assert found(begun, event("User:a", {}, {"block": "User:a"}, time=AFTER, start="another")) == []
    assert found(begun | {"time": RESTORE + 1}) == found(begun | {"time": BACKUP - SKEW_MS - 1}) == []


def test_the_worst_comes_first_and_the_same_event_counts_once() -> None:
    events = [
        event("key k", {}, {"owner": "User:a"}),
        event("blocked User:b", {}, BLOCKED),
        event("blocked User:a", {}, BLOCKED),
    ]
    result = look(*events, *events)
    assert [(one.found, one.name) for one in result.findings] == [
        (Found.BLOCK_GONE, "User:a"),
        (Found.BLOCK_GONE, "User:b"),
        (Found.KEY_GONE, "k"),
    ]
    assert (result.changed, result.to_block) == (3, ["User:a", "User:b"])


def test_only_what_was_changed_is_counted() -> None:
    item = event("User:a", {}, {"block": "User:a"})
    assert (
        look(item, event("blocked User:a", {}, BLOCKED), event("mode"), event("users a", rpc="CreateUser")).changed == 1
    )


def test_how_far_the_audit_knows() -> None:
    assert look().known_until_ms is None
    counted = [event("", kind="nodes_counted", time=time) for time in (THEN, RESTORE, AFTER)]
    broker = event("", kind="nodes_counted", time=RESTORE, node="broker-1")
    assert look(*counted).known_until_ms == RESTORE
    assert look(broker, counted[0]).known_until_ms == THEN


@given(st.lists(st.sampled_from(["block", "unblock"]), min_size=1, max_size=8), st.booleans())
def test_a_block_is_found_by_its_last_change(steps: list[str], now: bool) -> None:
    events = [
        event("blocked User:a", *(({}, BLOCKED) if step == "block" else (BLOCKED, {})), time=THEN + at)
        for at, step in enumerate(steps)
    ]
    known = Known("closed", frozenset({"User:a"} if now else ()), frozenset(), {})
    wanted = steps[-1] == "block"
    expected = [] if wanted is now else [(Found.BLOCK_GONE if wanted else Found.BLOCK_BACK, "User:a")]
    assert found(*reversed(events), known=known) == expected
