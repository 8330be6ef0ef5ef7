"""When somebody is told that a certificate nears its end."""

from __future__ import annotations

import pytest

from headrace_common.core.served_certificates import WARN_CA_MS, WARN_MS, warns_from_ms

DAY = 86_400_000


@pytest.mark.parametrize(
    ("life", "warn_ms", "days_before"),
    [
        (1_095 * DAY, WARN_MS, 14.0),
        (56 * DAY, WARN_MS, 14.0),
        (8 * DAY, WARN_MS, 2.0),
        (DAY, WARN_MS, 0.25),
        (3_650 * DAY, WARN_CA_MS, 180.0),
        (90 * DAY, WARN_CA_MS, 22.5),
    ],
)
def test_days_before_its_end_or_a_quarter_of_a_short_life(life: int, warn_ms: int, days_before: float) -> None:
    assert warns_from_ms(5, 5 + life, warn_ms) == 5 + life - days_before * DAY
