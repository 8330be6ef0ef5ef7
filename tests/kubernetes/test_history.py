"""What the load writes down is read back as it was, and histories that are broken on purpose are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_verify.availability import SECOND
from headrace_verify.checker import Assign, Outcome, Poll, Send

from .history import History, Sample, back_after, below_minimum, gap, judge, operations, read_histories, read_line
from .pod.written import FINAL, PRODUCER, READER, STEP, Writer, outcomes, runs

KEY = "load-a-0"


def value(n: int) -> int:
    """The n-th of the producer."""
    return n * STEP + PRODUCER


def history(*lines: str) -> History:
    found = History()
    for line in lines:
        read_line(found, line.split())
    return found


def sent(n: int, offset: int, *, count: int = 1, outcome: str = "ok", key: str = KEY, at: int = 0) -> str:
    began = at or 100 * n
    return f"S {PRODUCER} {key} {value(n)} {count} {outcome} {offset} {began} {began + 50}"


def polled(process: int, offset: int, n: int, count: int = 1, at: int = 10_000, key: str = KEY) -> str:
    return f"P {process} {at} {key}:{offset}:{value(n)}:{count}"


SOUND = (sent(1, 0, count=3), sent(4, 3), f"A {READER}", polled(READER, 0, 1, 4), f"A {FINAL}", polled(FINAL, 0, 1, 4))


# --- writing and reading ----------------------------------------------------------------------------------------


def test_runs_end_where_offsets_or_values_jump() -> None:
    points = [(KEY, 0, 17), (KEY, 1, 33), (KEY, 3, 49), (KEY, 4, 81), ("other-1", 5, 97)]
    assert list(runs(points)) == [(KEY, 0, 17, 2), (KEY, 3, 49, 1), (KEY, 4, 81, 1), ("other-1", 5, 97, 1)]
    assert list(runs([])) == []


def test_outcomes_of_a_row_end_where_they_change() -> None:
    found = [("ok", 5, 17), ("ok", 6, 33), ("ok", 8, 49), ("info", -1, 65), ("info", -1, 81), ("fail", -1, 97)]
    assert list(outcomes(found)) == [("ok", 5, 17, 2), ("ok", 8, 49, 1), ("info", -1, 65, 2), ("fail", -1, 97, 1)]
    assert list(outcomes([])) == []


def test_what_a_part_writes_is_read_back(tmp_path: Path) -> None:
    produced, read = Writer(tmp_path / "produce.history"), Writer(tmp_path / "read.history")
    produced.sent(KEY, value(1), 2, "ok", 0, 5)
    produced.sent(KEY, value(3), 1, "info", -1, 6)
    produced.failed(PRODUCER, "it\nbroke")
    read.line(f"A {READER}")
    read.polled(READER, [(KEY, 0, value(1), 2), ("load-b-1", 7, value(9), 1)])
    read.line("I 5 load-a 0 2 3 3")
    produced.close()
    read.close()
    with (tmp_path / "read.history").open("a") as cut:
        cut.write(f"P {READER} 99 {KEY}:2")
    found = read_histories([tmp_path / "produce.history", tmp_path / "read.history"])
    first, second, third, anew, poll = operations(found, KEY)
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert isinstance(third, Send)
    assert [(one.value, one.offset, one.outcome) for one in (first, second, third)] == [
        (value(1), 0, Outcome.OK),
        (value(2), 1, Outcome.OK),
        (value(3), None, Outcome.INFO),
    ]
    assert first.began_ns == 5
    assert first.time_ns > 5
    assert isinstance(anew, Assign)
    assert isinstance(poll, Poll)
    assert poll.points == ((KEY, 0, value(1)), (KEY, 1, value(2)))
    assert found.errors == [f"process {PRODUCER}: it broke"]
    assert found.samples == [Sample(5, KEY, 2, 3, 3)]
    assert found.acknowledged == 2
    assert found.wall_offset_ns > 0


def test_a_line_that_is_none_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="no line of a history"):
        history("X 1 2 3")


# --- judging ----------------------------------------------------------------------------------------------------


def test_a_sound_history_passes() -> None:
    verdict = judge(history(*SOUND))
    assert verdict.counts == {}
    assert (verdict.sends_ok, verdict.read) == (4, 4)


@pytest.mark.parametrize(
    ("anomaly", "lines"),
    [
        ("unseen", [*SOUND, sent(5, 4)]),
        ("lost-write", [*SOUND, sent(5, 4), sent(6, 5), polled(FINAL, 5, 6)]),
        ("duplicate", [*SOUND, sent(5, 4), polled(FINAL, 4, 5), polled(FINAL, 5, 5)]),
        ("nonmonotonic-send", [sent(1, 1), sent(2, 0), polled(FINAL, 0, 2), polled(FINAL, 1, 1)]),
        ("inconsistent-offsets", [*SOUND, sent(9, 2), polled(FINAL, 4, 9)]),
        ("g1a", [*SOUND, sent(5, -1, outcome="fail"), polled(FINAL, 4, 5)]),
        ("poll-skip", [*SOUND, sent(5, 4), sent(6, 5), polled(READER, 5, 6), polled(FINAL, 4, 5, 2)]),
        ("nonmonotonic-poll", [*SOUND, polled(READER, 1, 2)]),
        ("missed-by-group", ["G 12", *SOUND, polled(12, 0, 1, 3)]),
    ],
)
def test_what_is_broken_is_found(anomaly: str, lines: list[str]) -> None:
    assert anomaly in judge(history(*lines)).counts


def test_the_broken_partition_is_found_among_sound_ones() -> None:
    other = "load-b-3"
    lines = [*SOUND, sent(7, 0, key=other), sent(8, 1, key=other), polled(FINAL, 1, 8, key=other)]
    verdict = judge(history(*lines))
    assert list(verdict.counts) == ["lost-write"]
    assert other in verdict.describe()


def test_members_may_poll_again_after_a_rebalance_and_nobody_else_may() -> None:
    assert judge(history("G 12", *SOUND, polled(12, 0, 1, 4), "A 12", polled(12, 2, 3, 2))).counts == {}
    assert judge(history("G 12", *SOUND, polled(12, 0, 1, 4), polled(12, 2, 3, 2))).counts == {"nonmonotonic-poll": 1}


def test_a_choice_of_positions_counts_for_polls_after_it_alone() -> None:
    lines = ["A 11", *SOUND[:2], polled(READER, 0, 1, 4), polled(READER, 0, 1), f"A {READER}", polled(READER, 0, 1, 4)]
    assert judge(history(*lines)).counts == {"nonmonotonic-poll": 1}


def test_what_may_have_happened_may_be_read_or_not() -> None:
    assert judge(history(*SOUND, sent(5, -1, outcome="info"))).counts == {}
    assert judge(history(*SOUND, sent(5, -1, outcome="info"), polled(FINAL, 4, 5))).counts == {}


# --- figures ----------------------------------------------------------------------------------------------------


def at(seconds: float) -> int:
    return int(seconds * SECOND) - 50


def test_the_longest_gap_names_its_partition() -> None:
    lines = [sent(n, n, at=at(second)) for n, second in enumerate((1, 2, 3, 4), start=1)]
    lines += [sent(n + 10, n, at=at(second), key="load-b-1") for n, second in enumerate((1, 3.5, 4), start=1)]
    key, worst = gap(history(*lines), SECOND, 4 * SECOND)
    assert (key, worst.seconds) == ("load-b-1", 2.5)


def test_sends_that_fail_end_no_gap() -> None:
    lines = [sent(1, 1, at=at(1)), sent(2, -1, outcome="info", at=at(2)), sent(3, 2, at=at(4))]
    assert gap(history(*lines), SECOND, 4 * SECOND)[1].seconds == 3


def test_service_is_back_when_the_last_partition_is() -> None:
    lines = [sent(n, n, at=at(n / 2)) for n in (1, 2, 3, 10, 11, 12)]
    lines += [sent(n, n, at=at(n / 2), key="b-0") for n in (1, 2, 3, 4, 9, 10, 11, 12)]
    assert back_after(history(*lines), SECOND, int(6.5 * SECOND)) == 4
    assert back_after(history(*lines), 5 * SECOND, int(6.5 * SECOND)) == 0
    assert back_after(history(*lines), SECOND, 8 * SECOND) is None


def test_times_of_the_outside_are_on_the_clock_of_the_pod() -> None:
    assert history("C 1000 5000").at(5500) == 1500


def sample(second: float, in_sync: int, replicas: int = 3, key: str = KEY) -> Sample:
    return Sample(int(second * SECOND), key, 1, in_sync, replicas)


def test_too_few_in_sync_is_found_with_how_long_it_lasted() -> None:
    samples = [sample(1, 3), sample(2, 1), sample(4.5, 2), sample(5, 1, key="b-0"), sample(1, 1, 1, key="c-0")]
    first, second = below_minimum(samples, 0, 7 * SECOND)
    assert (first.key, first.in_sync, first.seconds) == (KEY, 1, 2.5)
    assert (second.key, second.seconds) == ("b-0", 2)


def test_too_few_in_sync_outside_of_the_time_does_not_count() -> None:
    assert below_minimum([sample(1, 1), sample(2, 3), sample(5, 1)], int(2.5 * SECOND), 4 * SECOND) == []
    [thin] = below_minimum([sample(1, 1), sample(4, 3)], 2 * SECOND, 3 * SECOND)
    assert thin.seconds == 1


def test_one_replica_needs_one() -> None:
    assert below_minimum([sample(1, 1, 1), sample(1, 1, 2, key="b-0")], 0, 2 * SECOND) == []
    assert below_minimum([sample(1, 1, 2)], 0, 2 * SECOND, {2: 2})
