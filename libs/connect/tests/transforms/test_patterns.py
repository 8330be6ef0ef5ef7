"""Patterns of dates and of topics as Java writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import BadOption
from headrace_connect.transforms.date_patterns import DatePattern
from headrace_connect.transforms.paths import parse_path

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT = datetime(2026, 2, 3, 15, 4, 5, 6000, UTC)


def ms_of(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "2026-02-03T15:04:05.006Z"),
        ("yyyyMMdd", "20260203"),
        ("yy/M/d", "26/2/3"),
        ("EEE, d MMM yyyy HH:mm:ss Z", "Tue, 3 Feb 2026 15:04:05 +0000"),
        ("EEEE, MMMM", "Tuesday, February"),
        ("hh:mm a", "03:04 PM"),
        ("K k h H", "3 15 3 15"),
        ("D u", "34 2"),
        ("''yyyy'' 'o''clock' z", "'2026' o'clock UTC"),
        ("LL", "02"),
        ("", ""),
    ],
)
def test_times_as_text(pattern: str, text: str) -> None:
    assert DatePattern("format", pattern).format_ms(np.array([ms_of(AT)])).to_pylist() == [text]


@pytest.mark.parametrize("hour", [0, 1, 11, 12, 13, 23])
def test_hours_of_half_days(hour: int) -> None:
    at = AT.replace(hour=hour)
    for pattern in ("yyyy-MM-dd h:mm:ss.SSS a", "yyyy-MM-dd K:mm:ss.SSS a", "yyyy-MM-dd k:mm:ss.SSS"):
        made = DatePattern("format", pattern)
        text = made.format_ms(np.array([ms_of(at)]))
        assert made.parse_ms(text).to_pylist() == [ms_of(at)], text


@given(
    st.lists(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), min_size=1, max_size=5),  # noqa: DTZ001
    st.sampled_from(["yyyy-MM-dd HH:mm:ss.SSS", "yyyyMMddHHmmssSSS", "EEE dd MMMM yyyy hh:mm:ss.SSS a XXX"]),
)
def test_text_that_was_written_is_read_back(times: list[datetime], pattern: str) -> None:
    given_ms = [ms_of(at.replace(tzinfo=UTC)) for at in times]
    made = DatePattern("format", pattern)
    assert made.parse_ms(made.format_ms(np.array(given_ms))).to_pylist() == given_ms


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yyyy-MM-dd", "2026-02-03", "2026-02-03T00:00:00"),
        ("d MMM yyyy", "3 february 2026", "2026-02-03T00:00:00"),
        ("HH:mm", "15:04", "1970-01-01T15:04:00"),
        ("yyyy-MM-dd'T'HH:mmX", "2026-02-03T15:04+0130", "2026-02-03T13:34:00"),
        ("yyyy-MM-dd'T'HH:mmXXX", "2026-02-03T15:04-01:30", "2026-02-03T16:34:00"),
        ("yyyy-MM-dd HH:mm Z", "2026-02-03 15:04 -0100", "2026-02-03T16:04:00"),
        ("yyyy-MM-dd HH z", "2026-02-03 15 GMT", "2026-02-03T15:00:00"),
    ],
)
def test_text_as_times(pattern: str, text: str, expected: str) -> None:
    made = DatePattern("format", pattern).parse_ms(pa.array([text, None]))
    assert made.to_pylist() == [ms_of(datetime.fromisoformat(expected).replace(tzinfo=UTC)), None]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd", "2026-02-30"),
        ("yyyy-MM-dd", "2026-13-01"),
        ("yyyy-MM-dd", "2026-02-03 "),
        ("yyyy-MM-dd", "26-02-03"),
        ("yyyy-MM-dd", "2026-2-3"),
        ("yyyy-MM-dd", "\u0662026-02-03"),
        ("hh a", "13 PM"),
        ("HH Z", "10 +2500"),
        ("yyyy Z", "0001 +0100"),
        ("yy-MM-dd", "26-02-03"),
        ("yyyy-D", "2026-34"),
        ("yyyy yyyy", "2026 2027"),
    ],
)
def test_text_that_is_no_time_fails(pattern: str, text: str) -> None:
    with pytest.raises(Unfit):
        DatePattern("format", pattern).parse_ms(pa.array([text]))


@pytest.mark.parametrize("pattern", ["yyyy 'x", "GGG", "yyyy-ww", "SSSSSS", "S", "t"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(BadOption):
        DatePattern("format", pattern)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", ("",)),
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        (".a.", ("", "a", "")),
        ("`a.b`", ("a.b",)),
        ("a.`b.c`.d", ("a", "b.c", "d")),
        ("`a`b`.c", ("a`b", "c")),
        ("`a\\`.b`.c", ("a`.b", "c")),
        ("a`b.c", ("a`b", "c")),
    ],
)
def test_paths(text: str, steps: tuple[str, ...]) -> None:
    assert parse_path("field", text) == steps


@pytest.mark.parametrize("text", ["`a", "a.`b", "`a`b", "`a\\`"])
def test_paths_that_are_refused(text: str) -> None:
    with pytest.raises(BadOption):
        parse_path("field", text)
