"""How long deletions stay: at least the retention, at most a bit longer, with a list that does not grow."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.compaction.clean_points import POINTS_MAX, CleanPoint, add_point, find_passed_end
from headrace_common.core.ids import Offset

POINT = CleanPoint(Offset(10), 1000)


def test_an_offset_has_passed_once_the_retention_is_over() -> None:
    assert find_passed_end((), 5000, 0) == 0
    assert find_passed_end((POINT,), 1099, 100) == 0
    assert find_passed_end((POINT,), 1100, 100) == 10


def test_a_compaction_that_got_nowhere_changes_nothing() -> None:
    assert add_point((POINT,), Offset(10), 9999, 0) == (POINT,)


def test_only_the_newest_of_those_that_are_over_is_kept() -> None:
    points = (POINT, CleanPoint(Offset(20), 2000), CleanPoint(Offset(30), 9000))
    assert add_point(points, Offset(40), 9900, 1000) == (*points[1:], CleanPoint(Offset(40), 9900))


def test_a_clock_that_went_back_does_not_fill_the_list() -> None:
    assert add_point((POINT,), Offset(20), 900, 1_000_000) == (CleanPoint(Offset(20), 1000),)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-300, 300)), max_size=120), st.integers(0, 1000))
def test_never_early_and_never_many(compactions: list[tuple[int, int]], retention_ms: int) -> None:
    """``truth``: each compaction as it was. The clock may go back."""
    points: tuple[CleanPoint, ...] = ()
    truth: list[CleanPoint] = []
    now_ms, end = 10_000, 0
    for more, passed_ms in compactions:
        end, now_ms = end + more, now_ms + passed_ms
        points = add_point(points, Offset(end), now_ms, retention_ms)
        truth.append(CleanPoint(Offset(end), now_ms))
        assert len(points) <= POINTS_MAX
        assert list(points) == sorted(points)
        for later_ms in (now_ms, now_ms + retention_ms // 2, now_ms + retention_ms):
            assert find_passed_end(points, later_ms, retention_ms) <= find_passed_end(
                tuple(truth), later_ms, retention_ms
            )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=100), st.integers(1, 1000))
def test_not_much_later_than_they_must(waits: list[int], retention_ms: int) -> None:
    """An eighth of the retention, and the time between two compactions."""
    points: tuple[CleanPoint, ...] = ()
    now_ms = 0
    for end, wait in enumerate(waits, start=1):
        now_ms += wait
        points = add_point(points, Offset(end), now_ms, retention_ms)
        due_ms, passed = now_ms - retention_ms - retention_ms // 8 - max(waits), 0
        at_ms = 0
        for each, waited in enumerate(waits[:end], start=1):
            at_ms += waited
            if at_ms <= due_ms:
                passed = each
        assert find_passed_end(points, now_ms, retention_ms) >= passed
