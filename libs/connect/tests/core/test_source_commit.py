"""A source's task: what it does at each step, and what follows from each failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.core.errors import Fault
from headrace_connect.core.source_commit import Boundary, Phase, Rules, SourceCommit
from headrace_connect.core.source_steps import (
    Abort,
    Aborted,
    Arrived,
    Begin,
    Claim,
    Claimed,
    CloseAsked,
    Commit,
    Committed,
    Confirm,
    End,
    Halt,
    IdForgotten,
    Locate,
    Located,
    NotDelivered,
    OutcomeUnknown,
    Read,
    ReadFailed,
    Refused,
    ResumeAsked,
    Send,
    SendPositions,
    Started,
    SuspendAsked,
    Ticked,
    Unwritable,
)


def at(n: int) -> dict[str, Any]:
    return {"n": n}


def chunk(n: int, *, split: str = "a", rows: int = 1, now_ms: float = 0, **more: Any) -> Arrived:
    given = {"bytes": 10, "boundary": False, "drained": False} | more
    return Arrived(split, at(n), rows, now_ms=now_ms, **given)


def reading(**rules: Any) -> SourceCommit:
    task = SourceCommit(["a", "b"], Rules(**rules))
    task.handle(Started())
    task.handle(Claimed())
    task.handle(Located({}))
    return task


def test_it_claims_then_finds_its_positions_then_reads() -> None:
    task = SourceCommit(["a", "b"])
    assert task.handle(Started()) == [Claim()]
    assert task.handle(Claimed()) == [Locate()]
    assert task.handle(Located({"a": at(7)})) == [Confirm({"a": at(7)}), Read({"a": at(7), "b": None})]


def test_rows_and_positions_are_one_transaction() -> None:
    task = reading()
    assert task.handle(chunk(1)) == [Begin(), Send()]
    assert task.handle(chunk(2, split="b", now_ms=10)) == [Send()]
    assert task.due_ms() == 1_000
    assert task.handle(Ticked(999)) == []
    assert task.handle(Ticked(1_000)) == [SendPositions({"a": at(1), "b": at(2)}), Commit()]
    assert task.due_ms() is None
    assert task.handle(Committed()) == [Confirm({"a": at(1), "b": at(2)})]
    assert task.handle(chunk(3, now_ms=2_000)) == [Begin(), Send()]


@pytest.mark.parametrize("full", [{"rows": 10_000}, {"bytes": 64 << 20}])
def test_a_full_transaction_is_committed_at_once(full: dict[str, int]) -> None:
    assert reading().handle(chunk(1, **full)) == [Begin(), Send(), SendPositions({"a": at(1)}), Commit()]


def test_a_drained_source_is_committed_when_twenty_ms_have_passed() -> None:
    task = reading()
    task.handle(chunk(1, drained=True, now_ms=100))
    assert task.due_ms() == 120
    assert task.handle(Ticked(119)) == []
    assert task.handle(Ticked(120))[-1] == Commit()


def test_drained_is_no_reason_to_write_a_position_that_has_not_moved() -> None:
    task = reading()
    task.handle(Located({"a": at(1)}))
    assert task.handle(chunk(1, rows=0, drained=True)) == []
    assert task.due_ms() is None


def test_a_position_that_moved_without_rows_is_committed_too() -> None:
    task = reading()
    assert task.handle(chunk(1, rows=0)) == [Begin(), Send()]
    assert task.handle(Ticked(1_000)) == [SendPositions({"a": at(1)}), Commit()]


def test_boundary_poll_commits_behind_each_chunk() -> None:
    assert reading(boundary=Boundary.POLL).handle(chunk(1))[-1] == Commit()


def test_boundary_connector_is_cut_only_where_the_connector_says() -> None:
    task = reading(boundary=Boundary.CONNECTOR)
    assert task.handle(chunk(1, rows=20_000)) == [Begin(), Send()]
    assert task.handle(Ticked(5_000)) == []
    assert task.handle(chunk(2, boundary=True, now_ms=5_000))[-1] == Commit()


def test_a_source_is_left_alone_for_as_long_as_it_says() -> None:
    failed = ReadFailed("a", retriable=True, fault=Fault.WORLD, reason="busy", now_ms=10, after_ms=5_000)
    assert reading().handle(failed) == [Read({"a": None}, at_ms=5_010)]


# --- failures, by the step that fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [[], [Claimed()], [Claimed(), Located({})], [Claimed(), Located({}), chunk(1)]])
def test_a_newer_generation_ends_it_at_any_step(events: list[Any]) -> None:
    task = SourceCommit(["a"])
    for event in [Started(), *events]:
        task.handle(event)
    halt, end = task.handle(Refused())
    assert (halt, getattr(end, "fault", None)) == (Halt(), Fault.FENCED)
    assert task.handle(chunk(2)) == []


def test_an_id_that_was_forgotten_is_taken_again_and_positions_are_read_again() -> None:
    task = reading()
    task.handle(chunk(1))
    assert task.handle(IdForgotten()) == [Halt(), Claim()]
    assert task.handle(Claimed()) == [Locate()]
    assert task.handle(Located({}))[-1] == Read({"a": None, "b": None})
    assert task.pending == {}


def test_an_id_that_is_forgotten_again_and_again_is_a_failure() -> None:
    task = reading()
    for _ in range(3):
        assert task.handle(IdForgotten()) == [Halt(), Claim()]
    end = task.handle(IdForgotten())[-1]
    assert isinstance(end, End)
    assert end.fault is Fault.WORLD


def test_what_is_not_delivered_is_aborted_and_read_again_from_the_last_commit() -> None:
    task = reading()
    task.handle(chunk(1, rows=10_000))
    task.handle(Committed())
    task.handle(chunk(2))
    assert task.handle(NotDelivered("gone", 0)) == [Halt(), Abort()]
    assert task.handle(chunk(3)) == [], "it was on its way"
    assert task.handle(Aborted()) == [Read({"a": at(1), "b": None}, at_ms=300)]


def test_what_is_not_delivered_again_and_again_waits_longer() -> None:
    task = reading()
    waits = []
    for now_ms in (0, 1_000, 2_000):
        task.handle(chunk(1, now_ms=now_ms))
        task.handle(NotDelivered("gone", now_ms))
        (read,) = task.handle(Aborted())
        assert isinstance(read, Read)
        assert read.at_ms is not None
        waits.append(read.at_ms - now_ms)
    assert waits == [300, 600, 1_200]
    task.handle(chunk(1, now_ms=4_000))
    task.handle(CloseAsked())
    assert task.handle(Committed()) == [Confirm({"a": at(1)}), Halt(), End()]


def test_a_suspension_within_the_wait_ends_it() -> None:
    task = reading()
    task.handle(chunk(1))
    task.handle(NotDelivered("gone", 0))
    task.handle(Aborted())
    assert task.handle(SuspendAsked()) == [Halt()]
    assert task.handle(ResumeAsked()) == [Read({"a": None, "b": None})]


def test_what_is_never_delivered_fails_the_task() -> None:
    task = reading(retry_timeout_ms=1_000)
    for now_ms in (0, 500):
        task.handle(chunk(1, now_ms=now_ms))
        assert task.handle(NotDelivered("gone", now_ms)) == [Halt(), Abort()]
        task.handle(Aborted())
    task.handle(chunk(1, now_ms=1_000))
    assert task.handle(NotDelivered("gone", 1_000)) == [Halt(), Abort()]
    assert task.handle(Aborted()) == [Halt(), End(Fault.WORLD, "gone")]


def test_an_unknown_outcome_is_asked_for_until_it_is_known() -> None:
    task = reading()
    task.handle(chunk(1, rows=10_000))
    assert task.handle(OutcomeUnknown()) == [Commit()]
    assert task.handle(OutcomeUnknown()) == [Commit()]
    assert task.handle(Committed()) == [Confirm({"a": at(1)})]


def test_a_source_that_fails_is_read_again_behind_its_last_chunk() -> None:
    task = reading()
    task.handle(chunk(1, now_ms=0))
    failed = ReadFailed("a", retriable=True, fault=Fault.WORLD, reason="away", now_ms=10)
    assert task.handle(failed) == [Read({"a": at(1)}, at_ms=310)]
    assert task.handle(failed) == [Read({"a": at(1)}, at_ms=610)]
    task.handle(chunk(2, now_ms=700))
    assert task.handle(failed) == [Read({"a": at(2)}, at_ms=310)], "it worked meanwhile"


def test_a_source_that_stays_away_fails_the_task_and_nothing_stays_open() -> None:
    task = reading(retry_timeout_ms=1_000)
    task.handle(chunk(1))
    task.handle(ReadFailed("a", retriable=True, fault=Fault.WORLD, reason="away", now_ms=0))
    failed = ReadFailed("a", retriable=True, fault=Fault.WORLD, reason="away", now_ms=1_000)
    assert task.handle(failed) == [Halt(), Abort()]
    assert task.handle(Aborted()) == [Halt(), End(Fault.WORLD, "away")]


def test_a_bug_of_the_source_is_not_tried_again() -> None:
    failed = ReadFailed("a", retriable=False, fault=Fault.BUG, reason="KeyError: 'x'", now_ms=0)
    assert reading().handle(failed) == [Halt(), End(Fault.BUG, "KeyError: 'x'")]


# --- pause and end --------------------------------------------------------------------------------------------------


def test_suspending_commits_first_and_resuming_reads_on() -> None:
    task = reading()
    task.handle(chunk(1))
    assert task.handle(SuspendAsked()) == [Halt(), SendPositions({"a": at(1)}), Commit()]
    assert task.handle(Committed()) == [Confirm({"a": at(1)}), Halt()]
    assert task.phase is Phase.SUSPENDED
    assert task.handle(ResumeAsked()) == [Read({"a": at(1), "b": None})]


def test_closing_commits_first() -> None:
    task = reading()
    task.handle(chunk(1))
    assert task.handle(CloseAsked()) == [Halt(), SendPositions({"a": at(1)}), Commit()]
    assert task.handle(Committed()) == [Confirm({"a": at(1)}), Halt(), End()]


def test_closing_within_a_transaction_of_the_source_gives_it_up() -> None:
    task = reading(boundary=Boundary.CONNECTOR)
    task.handle(chunk(1))
    assert task.handle(CloseAsked()) == [Halt(), Abort()]
    assert task.handle(Aborted()) == [Halt(), End()]


def test_closing_before_anything_was_read() -> None:
    assert SourceCommit(["a"]).handle(CloseAsked()) == [Halt(), End()]
    assert reading().handle(CloseAsked()) == [Halt(), End()]


def test_suspended_before_it_reads() -> None:
    task = SourceCommit(["a"])
    task.handle(Started())
    assert task.handle(SuspendAsked()) == []
    task.handle(Claimed())
    assert task.handle(Located({})) == [Halt()]
    assert task.phase is Phase.SUSPENDED
    assert task.handle(CloseAsked()) == [Halt(), End()]


# --- any history ----------------------------------------------------------------------------------------------------

CHANCES = st.sampled_from(["chunk", "chunk", "tick", "undelivered", "forgotten", "failed", "suspend", "resume", "dies"])


@given(st.lists(CHANCES, max_size=60), st.data())
def test_whatever_happens_each_row_is_committed_once(history: list[str], data: st.DataObject) -> None:
    """The world keeps what is committed: rows and position together. A row is a number, the position is the next."""
    rows: list[int] = []
    position: dict[str, int] = {}
    written: list[int] = []
    moved: dict[str, Any] = {}
    reads = 0
    now = 0.0

    def run(task: SourceCommit, event: Any) -> None:
        nonlocal reads, moved, written
        for effect in task.handle(event):
            match effect:
                case Claim():
                    written = []
                    return run(task, Claimed())
                case Locate():
                    return run(task, Located({"a": at(position["n"])} if position else {}))
                case Read(after):
                    reads = (after["a"] or at(0))["n"]
                case Begin():
                    assert written == []
                case Send():
                    written.append(reads - 1)
                case SendPositions(positions):
                    moved = dict(positions)
                case Commit():
                    if data.draw(st.booleans(), label="lost"):
                        return run(task, NotDelivered("lost", now))
                    rows.extend(written)
                    position["n"] = moved["a"]["n"]
                    written = []
                    run(task, Committed())
                case Abort():
                    written = []
                    run(task, Aborted())
        return None

    task = SourceCommit(["a"], Rules(interval_ms=5, retry_timeout_ms=-1))
    run(task, Started())
    for what in [*history, "resume", "chunk", "tick"]:
        now += 3
        if what == "chunk" and task.phase is Phase.READING:
            reads += 1
            run(task, chunk(reads, now_ms=now))
        elif what == "tick":
            run(task, Ticked(now))
        elif what == "undelivered" and task.pending:
            run(task, NotDelivered("lost", now))
        elif what == "forgotten" and task.phase is Phase.READING:
            run(task, IdForgotten())
        elif what == "failed":
            run(task, ReadFailed("a", retriable=True, fault=Fault.WORLD, reason="away", now_ms=now))
        elif what in ("suspend", "resume"):
            run(task, SuspendAsked() if what == "suspend" else ResumeAsked())
        elif what == "dies" or task.phase is Phase.ENDED:
            task = SourceCommit(["a"], task.rules)
            run(task, Started())
        assert rows == list(range(len(rows)))
        assert position.get("n", 0) == len(rows)


@pytest.mark.parametrize("due", [False, True])
def test_a_record_that_nobody_takes_fails_the_task_and_is_not_tried_again(due: bool) -> None:
    """Also where the commit was to follow: nothing of the transaction is committed."""
    task = reading(rows_max=1 if due else 10)
    assert task.handle(chunk(1))[-1] == (Commit() if due else Send())
    assert task.handle(Unwritable("it is too large")) == [Halt(), Abort()]
    assert task.handle(Aborted()) == [Halt(), End(Fault.DATA, "it is too large")]


# --- what takes long --------------------------------------------------------------------------------------------------


def waiting(**rules: Any) -> SourceCommit:
    """For a boundary, since 100."""
    task = reading(boundary=Boundary.CONNECTOR, open_ms_max=11_000, **rules)
    assert task.handle(chunk(1, now_ms=100)) == [Begin(), Send()]
    return task


def overdue(task: SourceCommit, event: Any) -> Abort | End:
    """How the task ends a transaction that is open for too long."""
    halt, abort = task.handle(event)
    assert halt == Halt()
    assert isinstance(abort, Abort)
    found = task.handle(Aborted())
    return found[-1] if isinstance(found[-1], End) else abort


TOO_LATE = [Ticked(11_100), chunk(2, boundary=True, now_ms=11_100), NotDelivered("timed out", 11_100)]


@pytest.mark.parametrize("event", TOO_LATE)
def test_a_transaction_that_cannot_end_in_time_is_aborted_and_the_second_time_the_settings_are_wrong(
    event: Any,
) -> None:
    task = waiting()
    assert task.due_ms() == 11_100
    assert task.handle(Ticked(11_099)) == []
    first = overdue(task, event)
    assert isinstance(first, Abort)
    assert "within 11 s" in first.reason
    assert "transaction.boundary=interval" in first.reason
    task.handle(chunk(1, now_ms=20_000))
    end = overdue(task, Ticked(31_000))
    assert end == End(Fault.CONFIG, first.reason)


def test_what_was_committed_in_between_begins_to_count_anew() -> None:
    task = waiting()
    for start_ms in (20_000, 60_000):
        assert isinstance(overdue(task, Ticked(start_ms - 5_000)), Abort)
        task.handle(chunk(1, boundary=True, now_ms=start_ms))
        assert task.handle(Ticked(start_ms + 1_000))[-1] == Commit()
        task.handle(Committed())
        task.handle(chunk(2, now_ms=start_ms + 2_000))


def test_without_tries_the_first_time_says_it() -> None:
    end = overdue(waiting(retry_timeout_ms=0), Ticked(11_100))
    assert isinstance(end, End)
    assert end.fault is Fault.CONFIG


def test_a_chunk_that_is_not_sent_in_time_may_be_the_machine_s_fault() -> None:
    task = reading(open_ms_max=11_000, retry_timeout_ms=0)
    task.handle(chunk(1, last=False, now_ms=100))
    end = overdue(task, chunk(1, last=False, now_ms=11_100))
    assert isinstance(end, End)
    assert end.fault is Fault.WORLD, "it is begun again, later and later"
    assert "smaller chunks" in end.reason


def test_what_can_end_is_committed_however_late_it_is_and_other_failures_are_the_world_s() -> None:
    task = reading(open_ms_max=11_000)
    task.handle(chunk(1))
    assert task.handle(Ticked(50_000))[-1] == Commit()
    for now_ms in (50_000, 70_000, 90_000):
        assert task.handle(NotDelivered("away", now_ms)) == [Halt(), Abort()]
        task.handle(Aborted())
        task.handle(chunk(1, now_ms=now_ms))
        task.handle(Ticked(now_ms + 1_000))


@pytest.mark.parametrize("boundary", list(Boundary))
def test_the_position_counts_with_the_last_part_of_a_chunk(boundary: Boundary) -> None:
    task = reading(boundary=boundary, rows_max=1)
    assert task.handle(chunk(1, last=False)) == [Begin(), Send()]
    assert task.handle(Ticked(5_000)) == []
    assert task.due_ms() is None
    assert task.handle(chunk(1, last=False)) == [Send()]
    assert task.handle(chunk(1, boundary=True)) == [Send(), SendPositions({"a": at(1)}), Commit()]
    task.handle(Committed())
    assert task.handle(chunk(1, rows=1, last=False)) == [Begin(), Send()]
    last = task.handle(chunk(1, rows=0, boundary=True))
    assert last[-1] == Commit(), "also where the position is the one that is known"


def test_a_chunk_that_is_sent_in_part_is_aborted_with_all_else() -> None:
    for event, last in ((CloseAsked(), End()), (Unwritable("x"), End(Fault.DATA, "x"))):
        task = reading()
        task.handle(chunk(1, last=False))
        assert task.handle(event) == [Halt(), Abort()]
        assert task.handle(Aborted())[-1] == last
    task = reading(open_ms_max=11_000)
    task.handle(chunk(1, last=False))
    _, abort = task.handle(chunk(1, now_ms=11_000))
    assert isinstance(abort, Abort)
    assert "smaller chunks" in abort.reason
