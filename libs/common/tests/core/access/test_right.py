"""What streams ask for each batch: a right that is given or taken counts from the next question."""

from __future__ import annotations

import traceback
from unittest.mock import patch

import pytest
from libs.common.tests.kit.access import ALICE, allow

from headrace_common.core.access import right as module
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.resources import Operation, ResourceType, literal, prefix
from headrace_common.core.access.right import EXPLAINED_MAX, Right
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import TopicAuthorizationFailed

TOPIC, WRITE = ResourceType.TOPIC, Operation.WRITE
ORDERS = allow(TOPIC, literal("orders"), WRITE)


def closed(*grants: object, super_users: frozenset[object] = frozenset()) -> View:
    access = Access(1, {ALICE: frozenset(grants)} if grants else {}, super_users=super_users)  # type: ignore[arg-type]
    return View(Mode.CLOSED, access)


def right_in(view: View) -> tuple[Control, Right]:
    control = Control()
    control.renew(view)
    return control, Right(Rights(control, Caller(ALICE)), WRITE, TOPIC)


def test_what_is_given_and_taken_counts_from_the_next_question() -> None:
    control, right = right_in(View())
    assert right.may("orders"), "the cluster is open"
    control.renew(closed())
    assert not right.may("orders")
    control.renew(closed(ORDERS))
    assert right.may("orders")
    assert not right.may("payments")
    control.renew(closed())
    assert not right.may("orders")


def test_super_users_change_without_a_generation_of_the_rows() -> None:
    control, right = right_in(closed())
    assert not right.may("orders")
    control.renew(closed(super_users=frozenset({ALICE})))
    assert right.may("orders")


def test_a_name_is_decided_once() -> None:
    control, right = right_in(closed(ORDERS))
    with patch.object(control, "allows", wraps=control.allows) as decided:
        assert [right.may(name) for name in ("orders", "payments") * 3] == [True, False] * 3
        assert decided.call_count == 2
        control.renew(closed(ORDERS))
        assert [right.may("orders") for _ in range(3)] == [True] * 3
    assert decided.call_count == 3, "and once more for another generation"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 3)
    control, right = right_in(closed(allow(TOPIC, prefix("a"), WRITE)))
    with patch.object(control, "allows", wraps=control.allows) as decided:
        assert all(right.may(f"a{number}") for number in range(4))
        assert right.may("a3")
        assert right.may("a0"), "forgotten, not refused"
    assert decided.call_count == 5


def test_a_refusal_says_what_would_allow_it_and_is_a_new_one_each_time() -> None:
    control, right = right_in(closed())
    errors = []
    for _ in range(3):
        with pytest.raises(
            TopicAuthorizationFailed, match="headrace access allow User:alice write topic orders"
        ) as one:
            right.check("orders")
        errors.append(one.value)
    assert len({id(error) for error in errors}) == 3
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1
    control.renew(closed(ORDERS))
    right.check("orders")


def test_few_refusals_of_one_generation_are_explained() -> None:
    control, right = right_in(closed())
    texts = [str(right.refusal(f"t{number}")) for number in range(EXPLAINED_MAX + 5)]
    assert ["headrace access" in text for text in texts] == [True] * EXPLAINED_MAX + [False] * 5
    assert all("User:alice may not WRITE TOPIC t" in text for text in texts)
    assert "headrace access" in str(right.refusal("t0")), "as it was said before"
    control.renew(closed(ORDERS))
    assert "headrace access" in str(right.refusal("new"))
