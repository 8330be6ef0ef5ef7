"""Who guesses passwords waits longer and longer, and nobody else does."""

from __future__ import annotations

import pytest

from headrace_common.core.access.slowing import FREE, MINUTE_MS, REMEMBERED_MAX, WAIT_MS_MAX, FailedLogins
from headrace_common.core.errors import Unauthenticated


def waits(failures: FailedLogins, now_ms: float, user: str = "alice", address: str = "10.0.0.1") -> bool:
    try:
        failures.check(user, address, now_ms)
    except Unauthenticated:
        return True
    return False


def fail(failures: FailedLogins, times: int, now_ms: float = 0, address: str = "10.0.0.1") -> None:
    for _ in range(times):
        failures.failed("alice", address, now_ms)


def test_after_five_in_a_minute_each_costs_a_minute_more() -> None:
    failures, now_ms = FailedLogins(), 0.0
    fail(failures, FREE - 1)
    assert not waits(failures, 0)
    for minutes in (1, 2, 3):
        fail(failures, 1, now_ms)
        assert waits(failures, now_ms + minutes * MINUTE_MS - 1)
        now_ms += minutes * MINUTE_MS
        assert not waits(failures, now_ms)


def test_it_counts_for_that_user_from_that_address_alone() -> None:
    failures = FailedLogins()
    fail(failures, FREE)
    assert waits(failures, 1)
    assert not waits(failures, 1, user="bob")
    assert not waits(failures, 1, address="10.0.0.2"), "nobody locks out somebody else"


def test_a_minute_without_a_failure_and_a_login_begin_anew() -> None:
    failures = FailedLogins()
    fail(failures, FREE - 1)
    fail(failures, FREE - 1, MINUTE_MS)
    assert not waits(failures, MINUTE_MS)
    failures.succeeded("alice", "10.0.0.1")
    fail(failures, FREE - 1, MINUTE_MS)
    assert not waits(failures, MINUTE_MS)


def test_the_wait_and_what_is_remembered_have_bounds() -> None:
    failures = FailedLogins()
    fail(failures, 1_000)
    assert not waits(failures, WAIT_MS_MAX)
    for number in range(REMEMBERED_MAX):
        failures.failed("alice", f"host-{number}", 0)
    assert not waits(failures, 1), "who failed longest ago is forgotten"
    assert len(failures._failures) == REMEMBERED_MAX


@pytest.mark.parametrize("left_ms", [1, 400, 1_400])
def test_it_says_when(left_ms: int) -> None:
    failures = FailedLogins()
    fail(failures, FREE)
    with pytest.raises(Unauthenticated, match=f"in {max(1, round(left_ms / 1_000))} s"):
        failures.check("alice", "10.0.0.1", MINUTE_MS - left_ms)
