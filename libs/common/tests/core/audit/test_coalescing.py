"""The first is written at once, the others once in a period with their count; and the number of keys is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit import audit as kit

from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.audit.coalescing import DUE_MAX, Coalescing, key_of
from headrace_common.core.audit.events import Actor, Event, Method, Resource
from headrace_common.core.audit.kinds import Kind

PERIOD_MS = 1_000


def refused(name: str = "orders", time_ms: int = kit.NOW_MS) -> Event:
    return kit.event(Kind.OPERATION_REFUSED, name, time_ms)


def test_the_first_at_once_and_the_others_together() -> None:
    some = Coalescing(PERIOD_MS)
    assert some.add(refused(), 0) == [refused()]
    assert some.add(refused(time_ms=kit.NOW_MS + 1), 1) == []
    assert some.add(refused(time_ms=kit.NOW_MS + 2), PERIOD_MS + 5) == []
    assert some.due(PERIOD_MS - 1) == []
    assert some.due(PERIOD_MS) == [replace(refused(time_ms=kit.NOW_MS + 2), count=2)]
    assert some.due(2 * PERIOD_MS - 1) == []


def test_the_next_period_begins_with_what_was_written() -> None:
    some = Coalescing(PERIOD_MS)
    some.add(refused(), 0)
    some.add(refused(), 1)
    assert [event.count for event in some.due(1_500)] == [1]
    assert some.add(refused(), 1_600) == []
    assert some.due(2_499) == []
    assert [event.count for event in some.due(2_500)] == [1]


def test_who_has_stopped_is_forgotten_and_seen_at_once_when_it_comes_back() -> None:
    some = Coalescing(PERIOD_MS)
    some.add(refused(), 0)
    assert some.due(PERIOD_MS) == []
    assert len(some) == 0
    assert some.add(refused(), PERIOD_MS) == [refused()]


def test_for_a_new_one_beyond_the_bound_the_oldest_goes_with_its_count() -> None:
    some = Coalescing(PERIOD_MS, keys_max=2)
    for name in ("a", "b", "a", "a"):
        some.add(refused(name), 0)
    assert some.add(refused("c"), 1) == [replace(refused("a"), count=2), refused("c")]
    assert some.add(refused("d"), 1) == [refused("d")], "b was written, and is not again"
    assert len(some) == 2


def test_at_one_time_so_many_and_no_more() -> None:
    some = Coalescing(PERIOD_MS)
    for n in range(DUE_MAX + 1):
        for _ in range(2):
            some.add(refused(f"t{n}"), 0)
    assert len(some.due(PERIOD_MS)) == DUE_MAX
    assert [event.resource for event in some.due(PERIOD_MS)] == [Resource(ResourceType.TOPIC, f"t{DUE_MAX}")]


def test_at_the_end_all_that_has_a_count_is_written() -> None:
    some = Coalescing(PERIOD_MS)
    for name in ("a", "b", "b"):
        some.add(refused(name), 0)
    assert some.rest() == [replace(refused("b"), count=1)]
    assert (len(some), some.rest()) == (0, [])


@pytest.mark.parametrize(
    "other",
    [
        replace(refused(), actor=replace(kit.ALICE, principal="User:bob")),
        replace(refused(), source="10.0.0.2"),
        replace(refused(), operation=Operation.ALTER),
        replace(refused(), operation=None),
        replace(refused(), resource=Resource(ResourceType.TOPIC, "other")),
        replace(refused(), resource=Resource(ResourceType.GROUP, "orders")),
        replace(refused(), resource=None),
    ],
)
def test_what_differs_in_these_is_another(other: Event) -> None:
    assert key_of(other) != key_of(refused())


def test_a_session_is_one_of_a_principal_method_and_address() -> None:
    begun = kit.event(Kind.SESSION_BEGUN)
    assert key_of(replace(begun, operation=Operation.READ, resource=None)) == key_of(begun)
    for other in (
        replace(begun, actor=Actor("User:alice", Method.TOKEN)),
        replace(begun, actor=Actor("User:bob", Method.API_KEY)),
        replace(begun, source="10.0.0.2"),
    ):
        assert key_of(other) != key_of(begun)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 700), st.booleans())), st.integers(1, 4))
def test_none_is_lost_and_none_comes_twice(steps: list[tuple[str, int, bool]], keys_max: int) -> None:
    some, now_ms = Coalescing(PERIOD_MS, keys_max), 0
    happened, written = dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 0)

    def count(events: list[Event]) -> None:
        for event in events:
            assert event.resource is not None
            written[event.resource.name] += event.count

    for name, pause_ms, ticks in steps:
        now_ms += pause_ms
        if ticks:
            count(some.due(now_ms))
        happened[name] += 1
        count(some.add(refused(name), now_ms))
        assert len(some) <= keys_max
    count(some.rest())
    assert written == happened


@pytest.mark.parametrize("kind", [Kind.RECORDS_READ, Kind.RECORDS_WRITTEN])
def test_records_of_a_topic_are_the_same_wherever_they_are_read(kind: Kind) -> None:
    one = kit.event(kind)
    for other in (replace(one, source="10.0.0.2"), replace(one, actor=replace(one.actor, method=Method.TOKEN))):
        assert key_of(other) == key_of(one)
    for other in (kit.event(kind, "payments"), replace(one, actor=replace(one.actor, principal="User:bob"))):
        assert key_of(other) != key_of(one)
