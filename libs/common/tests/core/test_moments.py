"""Moments and durations as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import Rejected
from headrace_common.core.moments import TIMESTAMP_MS_MAX, iso_of, parse_duration_ms, parse_moment_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1763715600000", 1_763_715_600_000),
        ("2025-11-21T09:00:00Z", 1_763_715_600_000),
        ("2025-11-21T10:00+01:00", 1_763_715_600_000),
        (" 2025-11-21 09:00:00.250Z ", 1_763_715_600_250),
        ("20251121T090000Z", 1_763_715_600_000),
    ],
)
def test_moments(text: str, ms: int) -> None:
    assert parse_moment_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2025-11-21T09:00:00", "2025-11-21", "1969-12-31T23:59:59Z", "9" * 40, "-5", "٣"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_moment_ms(text)


def test_a_moment_without_a_zone_says_what_is_missing() -> None:
    with pytest.raises(Rejected, match="zone"):
        parse_moment_ms("2025-11-21T09:00:00")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("P2D", 172_800_000),
        ("P1DT0.5S", 86_400_500),
        ("p1w", 604_800_000),
        ("0s", 0),
        ("1m500ms", 60_500),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "h", "1h1h", "1y", "P1Y", "P1M", "-1h", "1h 30m", "9" * 15 + "w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_duration_ms(text)


@given(st.integers(0, TIMESTAMP_MS_MAX))
def test_what_is_printed_is_read_again(moment_ms: int) -> None:
    assert parse_moment_ms(iso_of(moment_ms)) == moment_ms


@given(st.text(max_size=30), st.sampled_from([parse_moment_ms, parse_duration_ms]))
def test_any_text_is_read_or_refused(text: str, parse: Callable[[str], int]) -> None:
    try:
        read = parse(text)
    except Rejected:
        return
    assert 0 <= read <= TIMESTAMP_MS_MAX
