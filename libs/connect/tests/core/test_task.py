"""The life of a task: its states, and when it is started again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault
from headrace_connect.core.retrying import FOR_EVER, Retrying
from headrace_connect.core.task import (
    Assigned,
    Close,
    Effect,
    Ended,
    Event,
    Failed,
    Launch,
    Opened,
    Progressed,
    RestartAsked,
    Resume,
    State,
    Suspend,
    Target,
    TargetChanged,
    TaskLife,
    Unassigned,
    WakeAt,
    Woken,
)


def away(now_ms: float = 0) -> Failed:
    return Failed(Fault.WORLD, "away", now_ms)


def after(*events: Event) -> TaskLife:
    life = TaskLife()
    for event in events:
        life.handle(event)
    return life


TARGETS = {target: TargetChanged(target) for target in Target}
RUNNING = (Assigned(), Opened())
PAUSED = (*RUNNING, TARGETS[Target.PAUSED])


@pytest.mark.parametrize(
    ("before", "event", "effects", "state"),
    [
        ([], Assigned(), [Launch()], State.STARTING),
        ([], Assigned(Target.STOPPED), [], State.STOPPED),
        ([Assigned()], Opened(), [], State.RUNNING),
        ([Assigned(Target.PAUSED)], Opened(), [Suspend()], State.PAUSED),
        (RUNNING, TARGETS[Target.PAUSED], [Suspend()], State.PAUSED),
        (PAUSED, TARGETS[Target.RUNNING], [Resume()], State.RUNNING),
        (RUNNING, TARGETS[Target.STOPPED], [Close()], State.RUNNING),
        ([*RUNNING, TARGETS[Target.STOPPED]], Ended(), [], State.STOPPED),
        ([*RUNNING, TARGETS[Target.STOPPED]], away(), [], State.STOPPED),
        ([*RUNNING, TARGETS[Target.STOPPED], Ended()], TARGETS[Target.RUNNING], [Launch()], State.STARTING),
        ([*RUNNING, TARGETS[Target.STOPPED], TARGETS[Target.RUNNING]], Ended(), [Launch()], State.STARTING),
        (RUNNING, Unassigned(), [Close()], State.RUNNING),
        ([*RUNNING, Unassigned()], Ended(), [], State.UNASSIGNED),
        (RUNNING, away(), [WakeAt(1_000)], State.RESTARTING),
        ([*RUNNING, away()], Woken(999), [], State.RESTARTING),
        ([*RUNNING, away()], Woken(1_000), [Launch()], State.STARTING),
        ([*RUNNING, away()], TARGETS[Target.STOPPED], [], State.STOPPED),
        ([*RUNNING, away()], Unassigned(), [], State.UNASSIGNED),
        ([*RUNNING, away()], RestartAsked(), [Launch()], State.STARTING),
        (RUNNING, Failed(Fault.CONFIG, "", 0), [], State.FAILED),
        (RUNNING, Failed(Fault.BUG, "", 0), [], State.FAILED),
        (RUNNING, Failed(Fault.DATA, "", 0), [], State.FAILED),
        (RUNNING, Failed(Fault.FENCED, "", 0), [], State.UNASSIGNED),
        ([*RUNNING, Failed(Fault.BUG, "", 0)], RestartAsked(), [Launch()], State.STARTING),
        ([*RUNNING, Failed(Fault.BUG, "", 0)], Woken(1e9), [], State.FAILED),
        (RUNNING, RestartAsked(), [Close()], State.RUNNING),
        ([*RUNNING, RestartAsked()], Ended(), [Launch()], State.STARTING),
    ],
)
def test_each_step(before: Sequence[Event], event: Event, effects: list[Effect], state: State) -> None:
    life = after(*before)
    assert life.handle(event) == effects
    assert life.state is state


def test_it_waits_twice_as_long_each_time_up_to_five_minutes_for_ever() -> None:
    life = after(Assigned())
    waits = []
    for _ in range(12):
        (wake,) = life.handle(away(1_000_000))
        assert isinstance(wake, WakeAt)
        waits.append((wake.at_ms - 1_000_000) / 1_000)
        life.handle(Woken(wake.at_ms))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_commit_makes_the_next_wait_short_again() -> None:
    life = after(Assigned(), away(), Woken(1_000), Opened())
    assert life.reason == "away"
    life.handle(Progressed())
    assert (life.reason, life.handle(away())) == ("", [WakeAt(1_000)])


def test_restarts_can_be_bounded() -> None:
    life = TaskLife(restarts_max=1)
    for event in (Assigned(), away(), Woken(1_000), away(2_000)):
        life.handle(event)
    assert life.state is State.FAILED


EVENTS = st.one_of(
    st.sampled_from([Unassigned(), RestartAsked(), Opened(), Progressed(), Ended(), Woken(1e9), *TARGETS.values()]),
    st.builds(Failed, st.sampled_from(Fault), st.just("x"), st.just(0.0)),
    st.builds(Assigned, st.sampled_from(Target)),
)


@given(st.lists(EVENTS, max_size=40))
def test_there_is_never_a_second_loop(events: list[Event]) -> None:
    life, loops, opened = TaskLife(), 0, False
    for event in events:
        possible = {
            Assigned: life.state is State.UNASSIGNED,
            Opened: loops == 1 and not opened,
            Progressed: opened,
            Ended: loops == 1,
            Failed: loops == 1,
        }
        if not possible.get(type(event), True):
            continue
        if isinstance(event, Ended | Failed):
            loops, opened = 0, False
        opened = opened or isinstance(event, Opened)
        effects = life.handle(event)
        loops += effects.count(Launch())
        assert loops <= 1
        assert (loops == 1) == (life.state in (State.STARTING, State.RUNNING, State.PAUSED))
        if effects:
            assert loops == 1 or isinstance(effects[0], WakeAt)


def test_backoff_and_retries_have_bounds() -> None:
    assert Backoff(1_000, 300_000).wait_ms(10_000) == 300_000
    retrying = Retrying(timeout_ms=1_000, delay_ms_max=500)
    assert [retrying.wait_ms(now_ms) for now_ms in (0, 300, 800, 1_000)] == [300, 500, 200, None]
    retrying.worked()
    assert retrying.wait_ms(2_000) == 300
    assert Retrying(timeout_ms=0, delay_ms_max=500).wait_ms(0) is None
    assert Retrying(FOR_EVER, 500).wait_ms(0) == 300
    assert [Retrying(1_000, 500).wait_ms(0, least_ms) for least_ms in (100, 700, 5_000)] == [300, 700, 1_000]
    assert Retrying(FOR_EVER, 500).wait_ms(0, 5_000) == 5_000
