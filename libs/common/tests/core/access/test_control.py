"""What nodes may do, what lists show, and where one right of several is enough."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from libs.common.tests.kit.access import ALICE, allow

from headrace_common.core.access.control import Control, Rights, node_may
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import TopicAuthorizationFailed

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALTER = (Operation.ALTER, CLUSTER, CLUSTER_NAME)
WRITE = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x")


def rights(mode: Mode, *grants: tuple[ResourceType, str, Operation]) -> Rights:
    control = Control()
    rules = frozenset(allow(type, literal(name), operation) for type, name, operation in grants)
    control.renew(View(mode, Access(1, {ALICE: rules})))
    return Rights(control, Caller(ALICE))


@pytest.mark.parametrize("node", ["coordinator", "coordinator-1"])
def test_coordinators_keep_internal_topics_and_ask_where_logs_end(node: str) -> None:
    may = {one for one in Operation if node_may(node, one, TOPIC, "__consumer_offsets")}
    assert may == {Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.FENCE}
    assert {one for one in Operation if node_may(node, one, TOPIC, "orders")} == {Operation.DESCRIBE}
    assert not any(node_may(node, one, type, "__x") for one in Operation for type in ResourceType if type is not TOPIC)


def test_admin_nodes_look_and_brokers_and_controllers_ask_nothing_of_this() -> None:
    looks = {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    for type in ResourceType:
        assert {one for one in Operation if node_may("admin-1", one, type, "x")} == looks
        assert not any(node_may(node, one, type, "__x") for node in ("broker-1", "controller-1") for one in Operation)


def test_a_list_shows_what_may_be_described_and_before_the_cluster_is_closed_all() -> None:
    described = (GROUP, "g", Operation.READ)
    closed = rights(Mode.CLOSED, described)
    assert [closed.shows(Operation.DESCRIBE, GROUP, name) for name in ("g", "h")] == [True, False]
    for mode in (Mode.OPEN, Mode.PERMISSIVE):
        all_of_it = rights(mode, described)
        assert all_of_it.shows(Operation.DESCRIBE, GROUP, "h")
        assert not all_of_it.control.report().refusals, "nobody asked for the group"


@pytest.mark.parametrize(
    ("mode", "grant", "may", "observed"),
    [
        (Mode.CLOSED, (CLUSTER, CLUSTER_NAME, Operation.ALTER), True, 0),
        (Mode.CLOSED, (ResourceType.TRANSACTIONAL_ID, "x", Operation.WRITE), True, 0),
        (Mode.CLOSED, (ResourceType.TRANSACTIONAL_ID, "y", Operation.WRITE), False, 0),
        (Mode.PERMISSIVE, (CLUSTER, CLUSTER_NAME, Operation.ALTER), True, 0),
        (Mode.PERMISSIVE, (ResourceType.TRANSACTIONAL_ID, "x", Operation.WRITE), True, 0),
        (Mode.PERMISSIVE, (ResourceType.TRANSACTIONAL_ID, "y", Operation.WRITE), True, 1),
        (Mode.OPEN, (ResourceType.TRANSACTIONAL_ID, "y", Operation.WRITE), True, 0),
    ],
)
def test_one_right_of_several_is_enough(
    mode: Mode, grant: tuple[ResourceType, str, Operation], may: bool, observed: int
) -> None:
    asking = rights(mode, grant)
    assert asking.may_any(ALTER, WRITE) is may
    assert [one.name for one in asking.control.report().refusals] == ["x"] * observed


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_where_the_name_does_not_matter_one_is_enough(mode: Mode, operation: Operation) -> None:
    asking = rights(mode, (TOPIC, "t", Operation.WRITE))
    if mode is Mode.CLOSED and operation is Operation.READ:
        with pytest.raises(TopicAuthorizationFailed, match="User:alice may READ no TOPIC"):
            asking.check_anywhere(operation, TOPIC)
    else:
        asking.check_anywhere(operation, TOPIC)
    written_down = mode is Mode.PERMISSIVE and operation is Operation.READ
    assert [str(one.name) for one in asking.control.report().refusals] == ["*"] * written_down


@pytest.mark.parametrize(("node", "may"), [("coordinator-1", True), ("admin-1", False), ("broker-1", False)])
def test_coordinators_write_somewhere(node: str, may: bool) -> None:
    control = Control()
    control.renew(View(Mode.CLOSED))
    caller = Caller(Principal(PrincipalType.NODE, node))
    assert control.may_anywhere(caller, Operation.WRITE, TOPIC) is may


def without_id(text: str) -> str:
    return re.sub(r" \(refusal \w{10}\)", "", text)


def test_a_refusal_without_a_name_says_what_would_allow_it_or_why_nothing_does() -> None:
    asking = rights(Mode.CLOSED)

    def said(caller: Caller) -> str:
        return without_id(str(asking.control.refusal_anywhere(caller, Operation.WRITE, TOPIC)))

    assert said(Caller(ALICE)) == (
        "User:alice may WRITE no TOPIC; who may change rules allows it with: headrace access allow User:alice write "
        "topic NAME"
    )
    narrow = scope_of([allow(TOPIC, literal("t"), Operation.READ)])
    assert said(Caller(ALICE, scope=narrow)) == "User:alice may WRITE no TOPIC: its key is not for that"
    assert said(Caller(Principal(PrincipalType.NODE, "admin-1"))) == "Node:admin-1 may WRITE no TOPIC"
    asking.control.renew(View(Mode.CLOSED, Access(2, blocked=frozenset({ALICE}))))
    assert said(Caller(ALICE)) == "User:alice may WRITE no TOPIC: it is blocked"


@pytest.mark.parametrize(("type", "wider"), [(TOPIC, "read or write"), (ResourceType.GROUP, "read"), (CLUSTER, None)])
def test_who_may_not_find_something_is_told_which_wider_right_it_may_need(
    type: ResourceType, wider: str | None
) -> None:
    asking, name = rights(Mode.CLOSED), CLUSTER_NAME if type is CLUSTER else "t"
    text = without_id(str(asking.refusal(Operation.DESCRIBE, type, name)))
    assert f"allows it{f' (allow {wider},' if wider else ' with:'}" in text
    assert text.endswith(f" with: headrace access allow User:alice describe {type.value.lower()} {name}")
    assert "(allow" not in without_id(str(asking.refusal(Operation.ALTER, type, name)))


def test_each_other_view_is_another_generation() -> None:
    control, view = Control(), View(Mode.CLOSED)
    seen = [control.generation]
    for one in (view, view, View(Mode.CLOSED)):
        control.renew(one)
        seen.append(control.generation)
    assert [later > earlier for earlier, later in pairwise(seen)] == [True, False, True]


def test_a_refusal_is_explained_where_that_is_asked_for() -> None:
    asking = rights(Mode.CLOSED)
    assert "headrace access allow" in str(asking.refusal(Operation.READ, TOPIC, "t"))
    assert str(asking.refusal(Operation.READ, TOPIC, "t", explained=False)) == "User:alice may not READ TOPIC t"


def test_in_an_open_cluster_nobody_needs_a_right() -> None:
    control = Control()
    assert Rights(control, Caller(ANONYMOUS)).may_any(ALTER, WRITE)
