"""
Checks how long a caller wants to wait. Both twins call this at the start of every public wait.

``…_ms`` are milliseconds, ``timeout`` is seconds. A number of the other unit is refused, not waited for: ``poll(1.0)``
would look for 1 ms and find nothing, ``flush(30000)`` might last eight hours.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.errors import Rejected

WRITTEN_MS_MAX: Final = 50
"""A number with a point below this, as people write one, was meant in seconds."""

SECONDS_MAX: Final = 3_600
"""More was meant in milliseconds."""


def check_wait_ms(given: float | None, name: str = "timeout_ms") -> float | None:
    """
    A time to wait in ms; None: for as long as it takes.

    A float below 50 that has at most two decimals is one that somebody wrote. What a program computes
    (``(deadline - time.monotonic()) * 1000``) has more of them, and whole numbers are taken as they are.

    Raises:
        Rejected: negative, no number, or meant in seconds.
    """
    if given is None:
        return None
    _check_number(name, given, "milliseconds")
    if isinstance(given, float) and 0 < given < WRITTEN_MS_MAX and given == round(given, 2):
        raise Rejected(
            f"{name}={given:g}: {name} is in milliseconds, and {given:g} looks like seconds; "
            f"for {given:g} s give {name}={given * 1000:g}, for milliseconds a whole number"
        )
    return given


def check_seconds(given: float | None, name: str = "timeout") -> float | None:
    """
    A time to wait in seconds; None: until the client's own limits end it.

    Raises:
        Rejected: negative, no number, or meant in milliseconds.
    """
    if given is None or given == math.inf:
        return None
    if type(given) in (int, float) and 0 <= given <= SECONDS_MAX:
        return given
    _check_number(name, given, "seconds")
    if given > SECONDS_MAX:
        raise Rejected(
            f"{name}={given:g}: {name} is in seconds, at most {SECONDS_MAX}; for {given:g} ms give "
            f"{name}={given / 1000:g}, to wait as long as it takes None"
        )
    return given


def _check_number(name: str, given: float, unit: str) -> None:
    takes = f"{name} takes a number of {unit} or None, not"
    try:
        if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
            raise Rejected(f"{takes} {given!r}")
    except OverflowError:
        raise Rejected(f"{takes} one that no float holds") from None
    if given < 0:
        raise Rejected(
            f"{name}={given:g}: {name} is in {unit}, 0 or more; 0 does not wait, None waits as long as it takes"
        )
