"""Dialogues with the restart policy: deaths in, decisions out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_cli.local.restarts import DELAY_MS_MAX, GIVE_UP_AFTER, Died, GiveUp, RestartPolicy, StartAgain

KILLED = Died(ready_for_ms=100, signalled=True)
OLD = Died(ready_for_ms=60_000, signalled=False)
YOUNG = Died(ready_for_ms=10, signalled=False)
NEVER_READY = Died(ready_for_ms=None, signalled=False)


def test_what_is_killed_from_outside_is_started_after_the_plain_delay_every_time() -> None:
    policy = RestartPolicy(500)
    assert [policy.handle(KILLED) for _ in range(20)] == [StartAgain(500)] * 20


def test_what_dies_young_is_started_ever_later() -> None:
    policy = RestartPolicy(500)
    delays = [policy.handle(YOUNG) for _ in range(7)]
    assert delays == [StartAgain(ms) for ms in (500, 1000, 2000, 4000, 8000, DELAY_MS_MAX, DELAY_MS_MAX)]


def test_a_long_life_forgives() -> None:
    policy = RestartPolicy(500)
    for _ in range(4):
        policy.handle(YOUNG)
    assert policy.handle(OLD) == StartAgain(500)
    assert policy.handle(YOUNG) == StartAgain(500)


def test_what_never_gets_ready_is_given_up() -> None:
    policy = RestartPolicy(0)
    decisions = [policy.handle(NEVER_READY) for _ in range(GIVE_UP_AFTER)]
    assert decisions[:-1] == [StartAgain(0)] * (GIVE_UP_AFTER - 1)
    assert decisions[-1] == GiveUp(GIVE_UP_AFTER)


def test_getting_ready_once_starts_the_count_anew() -> None:
    policy = RestartPolicy(10)
    for _ in range(GIVE_UP_AFTER - 1):
        policy.handle(NEVER_READY)
    policy.handle(OLD)
    assert isinstance(policy.handle(NEVER_READY), StartAgain)


@given(st.lists(st.sampled_from([KILLED, OLD, YOUNG, NEVER_READY]), max_size=40), st.integers(0, 60_000))
def test_delays_are_bounded_and_a_process_that_served_is_never_given_up(deaths: list[Died], delay_ms: int) -> None:
    policy = RestartPolicy(delay_ms)
    for death in deaths:
        decision = policy.handle(death)
        if isinstance(decision, GiveUp):
            assert death.ready_for_ms is None
            return
        assert delay_ms <= decision.delay_ms <= max(DELAY_MS_MAX, delay_ms)
