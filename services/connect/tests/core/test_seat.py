"""What a worker does about a task or a watcher that it has, told as dialogues."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connect.core.errors import Fault
from headrace_connect_worker.core.herd import Restart
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.core.seat import (
    STEADY_MS,
    Crashed,
    Effect,
    Ended,
    Event,
    Leave,
    Leaving,
    NotStarted,
    Reported,
    Say,
    Seat,
    Spec,
    Start,
    Started,
    Stop,
    Turn,
    WakeAt,
    Wanted,
    Woken,
)

STARTED, PAUSED, STOPPED = TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED


def spec(number: int = 1, target: TargetState = STARTED, restart: int = -1, *, only_failed: bool = False) -> Spec:
    return Spec(number, {}, (), target, Restart(restart, only_failed))


class Dialogue:
    """A seat, and a clock."""

    def __init__(self) -> None:
        self.seat = Seat()
        self.now = 1_000.0

    def tell(self, event: Event) -> list[Effect]:
        return self.seat.handle(event)

    def does(self, event: Event) -> list[Effect]:
        """What is done, without what is said."""
        return [effect for effect in self.tell(event) if not isinstance(effect, Say)]

    def runs(self, wanted: Spec) -> None:
        assert self.does(Wanted(wanted)) == [Start(wanted)]
        assert self.does(Started(self.now)) == []
        assert self.tell(Reported(wanted.number, RunState.RUNNING)) == [Say(RunState.RUNNING)]


def test_it_runs_what_is_wanted_and_says_so() -> None:
    d = Dialogue()
    assert d.tell(Wanted(None)) == []
    assert d.tell(Wanted(spec())) == [Say(RunState.STARTING), Start(spec())]
    assert d.tell(Wanted(spec())) == []
    assert d.tell(Started(d.now)) == []
    assert d.tell(Reported(1, RunState.STARTING)) == []
    assert d.tell(Reported(1, RunState.RUNNING)) == [Say(RunState.RUNNING)]


def test_a_new_generation_takes_the_place_of_the_old_one() -> None:
    d = Dialogue()
    d.runs(spec(1))
    assert d.tell(Wanted(spec(2))) == [Stop()]
    assert d.tell(Wanted(spec(3))) == []
    assert d.tell(Reported(1, RunState.FAILED, "late")) == [], "what it says while it ends is of no interest"
    assert d.tell(Ended()) == [Say(RunState.STARTING), Start(spec(3))]
    d.tell(Started(d.now))
    assert d.tell(Reported(1, RunState.RUNNING)) == [], "another generation's word"


def test_what_changes_while_it_starts_follows() -> None:
    d = Dialogue()
    d.does(Wanted(spec(1)))
    assert d.does(Wanted(spec(2))) == []
    assert d.does(Started(d.now)) == [Stop()]


def test_it_is_paused_resumed_and_stopped() -> None:
    d = Dialogue()
    d.runs(spec())
    assert d.tell(Wanted(spec(target=PAUSED))) == [Turn(PAUSED)]
    assert d.tell(Reported(1, RunState.PAUSED)) == [Say(RunState.PAUSED)]
    assert d.tell(Wanted(spec())) == [Turn(STARTED)]
    assert d.tell(Wanted(spec(target=STOPPED))) == [Stop()]
    assert d.tell(Ended()) == [Say(RunState.STOPPED)]
    assert d.tell(Wanted(spec(target=STOPPED))) == []
    assert d.does(Wanted(spec())) == [Start(spec())]


def test_a_restart_is_carried_out_once() -> None:
    d = Dialogue()
    d.runs(spec())
    assert d.does(Wanted(spec(restart=5))) == [Stop()]
    assert d.does(Ended()) == [Start(spec(restart=5))]
    d.tell(Started(d.now))
    assert d.does(Wanted(spec(restart=5))) == []


def test_a_restart_of_failed_ones_leaves_others_alone() -> None:
    d = Dialogue()
    d.runs(spec())
    assert d.tell(Wanted(spec(restart=5, only_failed=True))) == []
    d.tell(Reported(1, RunState.FAILED, "no rights", Fault.CONFIG))
    assert d.tell(Wanted(spec(restart=5, only_failed=True))) == [], "it was meant for what was failed then"
    assert d.does(Wanted(spec(restart=9, only_failed=True))) == [Stop()]


def test_a_crashed_host_is_started_again_ever_later() -> None:
    d = Dialogue()
    d.runs(spec())
    waits = []
    for _ in range(12):
        said, wake, stop = d.tell(Crashed("signal 11", d.now))
        assert stop == Stop(), "what it was said of may have begun anew by now"
        assert d.tell(Ended()) == []
        assert isinstance(said, Say)
        assert (said.state, said.trace.split("\n")[0]) == (RunState.RESTARTING, "signal 11")
        assert isinstance(wake, WakeAt)
        waits.append(wake.at_ms - d.now)
        assert d.tell(Woken(wake.at_ms - 1)) == []
        d.now = wake.at_ms
        assert d.does(Woken(d.now)) == [Start(spec())]
        d.tell(Started(d.now))
    assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
    assert waits[-1] == 300_000
    d.now += STEADY_MS
    (_, wake, _) = d.tell(Crashed("again", d.now))
    assert wake == WakeAt(d.now + 1_000), "it ran for long enough"


def test_what_cannot_be_started_waits_too_but_not_for_something_else() -> None:
    d = Dialogue()
    d.does(Wanted(spec()))
    (wake,) = d.does(NotStarted("no module", d.now))
    assert isinstance(wake, WakeAt)
    assert d.does(Wanted(spec())) == []
    assert d.does(Wanted(spec(restart=3))) == [Start(spec(restart=3))], "somebody does not want to wait"
    (wake,) = d.does(NotStarted("no module", d.now))
    assert d.does(Wanted(spec(2))) == [Start(spec(2))]
    assert d.does(Woken(d.now + 10_000)) == [], "a late wake does nothing"


def test_a_host_that_dies_while_it_starts() -> None:
    d = Dialogue()
    d.does(Wanted(spec()))
    assert d.tell(Crashed("signal 9", d.now)) == []
    said, wake, stop = d.tell(Started(d.now))
    assert isinstance(said, Say)
    assert said.state is RunState.RESTARTING
    assert isinstance(wake, WakeAt)
    assert stop == Stop()
    assert d.tell(Ended()) == []
    assert d.does(Woken(wake.at_ms)) == [Start(spec())]
    assert d.tell(Started(d.now)) == [], "the old crash is over"


def test_who_was_fenced_waits_for_a_new_generation() -> None:
    d = Dialogue()
    d.runs(spec(7))
    fenced = Reported(7, RunState.UNASSIGNED, "a newer owner", Fault.FENCED, d.now)
    assert d.tell(fenced) == [Say(RunState.UNASSIGNED, "a newer owner", 7), Stop()]
    assert d.tell(Ended()) == []
    assert d.tell(Wanted(spec(7))) == []
    assert d.does(Wanted(spec(8))) == [Start(spec(8))]
    assert d.tell(Reported(8, RunState.UNASSIGNED, "again", Fault.FENCED, d.now)) == []
    assert d.tell(Started(d.now)) == [Say(RunState.UNASSIGNED, "again", 8), Stop()]


def test_what_ends_unasked_is_begun_again() -> None:
    d = Dialogue()
    d.runs(spec())
    wake, stop = d.does(Reported(1, RunState.UNASSIGNED, "", None, d.now))
    assert isinstance(wake, WakeAt)
    assert stop == Stop()


def test_a_crash_before_a_start_that_failed_is_over_with_it() -> None:
    d = Dialogue()
    d.does(Wanted(spec()))
    d.tell(Crashed("signal 9", d.now))
    (wake,) = d.does(NotStarted("no memory", d.now))
    assert isinstance(wake, WakeAt)
    assert d.does(Woken(wake.at_ms)) == [Start(spec())]
    assert d.does(Started(d.now)) == []


def test_it_leaves_when_nothing_is_left() -> None:
    d = Dialogue()
    d.runs(spec())
    assert d.tell(Leaving()) == [Stop()]
    assert d.tell(Ended()) == [Say(RunState.UNASSIGNED), Leave()]
    assert d.tell(Wanted(spec(2))) == []
    e = Dialogue()
    assert e.tell(Leaving()) == [Leave()]
    f = Dialogue()
    f.does(Wanted(spec()))
    assert f.tell(Leaving()) == []
    assert f.does(Started(f.now)) == [Stop()]


def test_of_what_was_deleted_nothing_is_said() -> None:
    d = Dialogue()
    d.runs(spec())
    assert d.tell(Wanted(None)) == [Stop()]
    assert d.tell(Ended()) == []
    assert d.tell(Leaving()) == [Leave()]


SPECS = st.builds(
    spec,
    st.integers(1, 3),
    st.sampled_from([STARTED, PAUSED, STOPPED]),
    st.integers(-1, 3),
    only_failed=st.booleans(),
)
HAPPENS = st.one_of(
    st.builds(Wanted, st.one_of(st.none(), SPECS)),
    st.builds(
        Reported,
        st.integers(1, 3),
        st.sampled_from(list(RunState)),
        st.just("why"),
        st.sampled_from([None, *Fault]),
        st.just(0.0),
    ),
    st.builds(Crashed, st.just("why"), st.just(0.0)),
    st.builds(Woken, st.just(10.0**9)),
    st.just(Leaving()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(HAPPENS, st.booleans(), st.booleans()), max_size=40), SPECS)
def test_whatever_happens_one_copy_runs_and_in_the_end_what_is_wanted(
    happens: list[tuple[Event, bool, bool]], last: Spec
) -> None:
    """The host's side: a copy runs from ``Start`` to ``Stop``, a crash, or an end of its own."""
    seat = Seat()
    running: list[Spec] = []
    due: list[Event] = []
    left = False

    def do(event: Event, *, starts: bool) -> None:
        nonlocal left
        if isinstance(event, Crashed) or (
            isinstance(event, Reported)
            and event.state is RunState.UNASSIGNED
            and any(one.number == event.number for one in running)
        ):
            running.clear()
        for effect in seat.handle(event):
            match effect:
                case Start(spec):
                    assert not running, "one copy at a time"
                    assert not left
                    if starts:
                        running.append(spec)
                    due.append(Started(0.0) if starts else NotStarted("no", 0.0))
                case Stop():
                    running.clear()
                    due.append(Ended())
                case Turn(target):
                    assert target is not STOPPED
                case Leave():
                    assert not running
                    left = True

    for event, answers, starts in happens:
        if isinstance(event, Reported) and due:
            continue
        do(event, starts=starts)
        while due and answers:
            do(due.pop(0), starts=starts)
    if any(isinstance(event, Leaving) for event, _, _ in happens):
        while due:
            do(due.pop(0), starts=True)
        assert left
        return
    final = spec(last.number + 10, last.target, last.restart.offset)
    do(Wanted(final), starts=True)
    while due:
        do(due.pop(0), starts=True)
    assert [one.number for one in running] == ([] if final.target is STOPPED else [final.number])
