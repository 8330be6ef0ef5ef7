"""Pages of the access rules: whatever their size, all of them together are what there is."""

from __future__ import annotations

import base64
import json
from typing import Final

import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import user

from headrace_admin.core.access_pages import PAGE_MAX, Entry, make_page
from headrace_common.core.access.changes import Rule
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import Operation, ResourceType, Target, literal, operation_set
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.access.state import Access
from headrace_common.core.errors import Rejected


def grant(name: str) -> Grant:
    return allow(ResourceType.TOPIC, literal(name), Operation.READ)


def targets(count: int) -> frozenset[Target]:
    return frozenset(Target(ResourceType.TOPIC, literal(f"a-name-that-is-long-{n}")) for n in range(count))


BOB: Final = user("bob")
BINDINGS: Final[dict[Grantee, frozenset[Binding]]] = {
    BOB: frozenset({Binding(BOB, "own", targets(20)), Binding(BOB, "own", targets(21)), Binding(BOB, "viewer")}),
    user("carol"): frozenset({Binding(user("carol"), "producer", targets(3))}),
}
ACCESS: Final = Access(
    rules={user(name): frozenset(grant(f"{name}-{n}") for n in range(3)) for name in ("bob", "alice", "b")},
    bindings=BINDINGS,
    roles={name: Role(name, {ResourceType.TOPIC: operation_set(Operation.READ)}) for name in ("own", "another")},
    blocked=frozenset({user("x"), BOB}),
)


def read(access: Access, limit: int, *, of: Grantee | None = None, hidden: str = "?") -> list[list[Entry]]:
    pages, after = [], ""
    while True:
        page = make_page(access, lambda one: hidden not in str(one), of, limit, after)
        pages.append(list(page.entries))
        if not page.next:
            return pages
        after = page.next


def flat(pages: list[list[Entry]]) -> list[Entry]:
    return [entry for page in pages for entry in page]


@pytest.mark.parametrize("limit", [*range(1, 30), 0, PAGE_MAX])
def test_all_pages_are_all_there_is_in_one_order(limit: int) -> None:
    [whole] = read(ACCESS, 0)
    assert len(whole) == 9 + 4 + 2 + 2
    assert all(whole.count(one) == 1 for one in whole)
    pages = read(ACCESS, limit)
    assert flat(pages) == whole
    assert all(pages), "no page is empty but that of nothing"


def test_the_order_is_by_kind_and_name() -> None:
    whole = flat(read(ACCESS, 0))
    assert [str(one.grantee) for one in whole if isinstance(one, Rule)][::3] == ["User:alice", "User:b", "User:bob"]
    assert [one.name for one in whole if isinstance(one, Role)] == ["another", "own"]
    assert [type(one).__name__ for one in whole[:9]] == ["Rule"] * 9


def test_a_page_is_as_long_as_asked_and_roles_count_by_their_targets() -> None:
    pages = read(ACCESS, 4)
    assert [len(page) for page in pages[:2]] == [4, 4]
    assert all(len(page) <= 4 for page in pages)
    assert all(len(page) == 1 for page in pages if isinstance(page[0], Binding) and len(page[0].targets) > 3)
    assert read(Access(), 1) == [[]]


def test_what_is_not_shown_takes_no_room() -> None:
    assert flat(read(ACCESS, 2, hidden="bob")) == [one for one in flat(read(ACCESS, 0)) if "bob" not in whose(one)]


def whose(entry: Entry) -> str:
    return str(entry.grantee) if isinstance(entry, (Rule, Binding)) else str(entry)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_of_one_principal_there_is_what_is_said_of_it_and_its_roles(limit: int) -> None:
    found = flat(read(ACCESS, limit, of=BOB, hidden="User"))
    assert [one for one in found if not isinstance(one, Role)] == [
        one for one in flat(read(ACCESS, 0)) if whose(one) == "User:bob" and not isinstance(one, Role)
    ]
    assert [one.name for one in found if isinstance(one, Role)] == ["own"]
    assert read(ACCESS, limit, of=user("nobody")) == [[]]


def test_what_changes_between_pages_moves_nothing_else() -> None:
    first = make_page(ACCESS, lambda _: True, None, 4, "")
    less = Access(rules={user("bob"): ACCESS.rules[user("bob")]})
    assert len(make_page(less, lambda _: True, None, 0, first.next).entries) == 3


def test_a_place_is_short_whatever_a_role_is_given_on() -> None:
    pages = [make_page(ACCESS, lambda _: True, None, 9, "")]
    while pages[-1].next:
        assert len(pages[-1].next) < 1_000
        pages.append(make_page(ACCESS, lambda _: True, None, 1, pages[-1].next))


@pytest.mark.parametrize(
    "after",
    ["x", "§", "e30=", *(base64.b64encode(json.dumps(it).encode()).decode() for it in (["1"], 5, ["1", 2, "3"], None))],
)
def test_what_no_page_has_said_is_refused(after: str) -> None:
    with pytest.raises(Rejected, match="the page before"):
        make_page(ACCESS, lambda _: True, None, 0, after)


@pytest.mark.parametrize("limit", [-1, PAGE_MAX + 1])
def test_a_page_has_a_bound(limit: int) -> None:
    with pytest.raises(Rejected, match="1 to 1000"):
        make_page(ACCESS, lambda _: True, None, limit, "")
