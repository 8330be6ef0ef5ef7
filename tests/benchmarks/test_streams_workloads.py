"""How benchmarks of Streams read output, compare two sides and wait for a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pytest
from bench.streams_long import Span, repeated, sustained
from bench.streams_peer import _compare
from bench.streams_workloads import WINDOWED, Counts, Records, Started, Sum, Totals, measure, running


def test_counts_are_the_last_of_each_word_in_either_form() -> None:
    ours, theirs = Counts(), Counts()
    for value in (b'{"n":8}', b'{"n":9}'):
        ours.add(b"a", value)
    theirs.add(b"a", b"9")
    ours.add(b"b", b'{"n":7}')
    theirs.add(b"b", b"7")

    assert ours.done == theirs.done == 2
    assert ours.answer() == theirs.answer()


def test_totals_and_sums_show_rows_that_are_missing_or_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = Totals(), Totals()
    for tally, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            tally.add(b"a", b'{"total":2.5,"n":3}')
    assert (once.done, once.answer()) == (3, (1, 2.5, 3))
    assert once.answer() != twice.answer()

    sums = Sum(lambda row: row["amount"])
    sums.add(b"a", b'{"amount":0.25}')
    sums.add(b"a", b'{"amount":0.5}')
    assert (sums.done, sums.answer()) == (2, (2, 0.75))
    monkeypatch.setattr(Sum, "KEPT", 2)
    for _ in range(3):
        sums.add(b"a", b'{"amount":0.25}')
    assert sums.answer() == (5, 1.5)


def test_windows_get_a_record_behind_all_others() -> None:
    made = WINDOWED.make(100)
    assert made.times_ms is not None
    assert made.times_ms == sorted(made.times_ms)
    assert made.times_ms[-1] - made.times_ms[0] < 50_000
    assert made.last_ms > made.times_ms[-1] + 10_000


def test_the_first_fifth_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(number) for number in range(0, 100, 2))
    monkeypatch.setattr("bench.streams_workloads.time.perf_counter", lambda: next(clock))
    records = iter([(b"", b'{"total":1.0,"n":1}')] * 10)

    def poll(most: int) -> Iterable[tuple[bytes, bytes]]:
        return [next(records)]

    with running([sys.executable, "-c", "import time; time.sleep(60)"], {}) as worker:
        found = measure(poll, Totals(), 10, [worker])

    assert found["rows_s"] == 4
    assert found["answer"] == (10, 10.0, 10)


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize(("total", "warm_s", "seconds"), [(1_000, 30.0, 60.0), (70, 30.0, 38.0), (20, 0.0, 18.0)])
def test_a_long_run_counts_what_is_done_when_it_is_warm(
    monkeypatch: pytest.MonkeyPatch, total: int, warm_s: float, seconds: float, *, by_output: bool
) -> None:
    """Or until all is done; a row a second after the tenth, and none before."""
    clock = iter(float(number) for number in range(0, 300, 2))
    at_s = [0.0]

    def now() -> float:
        at_s[0] = next(clock)
        return at_s[0]

    monkeypatch.setattr("bench.streams_long.LOOK_S", 0.0)
    monkeypatch.setattr("bench.streams_long.time.perf_counter", now)
    tally = Totals()

    def done() -> int:
        return min(total, max(0, int(at_s[0]) - 10))

    def poll(most: int) -> Iterable[tuple[bytes, bytes]]:
        assert by_output
        return [(b"", b'{"total":1.0,"n":1}')] * (done() - tally.done)

    with running([sys.executable, "-c", "import time; time.sleep(60)"], {}) as worker:
        found = sustained(Started(worker, poll, done), tally if by_output else None, total, Span(30, 60))

    assert (found["rows_s"], found["warm_s"], found["seconds"]) == (1.0, warm_s, seconds)


def test_a_long_run_repeats_what_it_has_later_in_time() -> None:
    block = Records([b"a", b"b"], [b"1", b"2"], [5, 6], last_ms=9)

    assert repeated(block, 1) == Records([b"a"], [b"1"], [5])
    more = repeated(block, 5)
    assert (more.count, more.rounds, more.round_ms, more.last_ms) == (6, 3, 50_000, 0)


def test_a_worker_that_ends_says_why() -> None:
    def nothing(most: int) -> Iterator[tuple[bytes, bytes]]:
        worker.process.wait(30)
        return iter(())

    with (
        running([sys.executable, "-c", "raise SystemExit('no such topic')"], {}) as worker,
        pytest.raises(RuntimeError, match="no such topic"),
    ):
        measure(nothing, Totals(), 1, [worker])


def test_sides_that_differ_are_not_compared() -> None:
    ours = {"answer": (1, 2.5), "rows_s": 2.0, "cpu_us": 1.0}
    theirs = ours | {"answer": (1, 2.0)}
    rate, cpu = _compare("words", [ours, ours], [ours, ours | {"rows_s": 1.0}], "≥ 2")
    assert (rate.ratio, rate.target, cpu.ratio) == (2.0, "≥ 2", 1.0)

    with pytest.raises(AssertionError, match="the sides differ"):
        _compare("words", [ours, ours], [theirs, theirs], "≥ 2")
