"""Windows as programs write them."""

from __future__ import annotations

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.windows import Hopping
from headrace_streams.dsl.durations import Duration, to_ms


def tumbling(size: Duration, *, grace: Duration = 0, offset: Duration = 0) -> Hopping:
    """
    Windows side by side: each row is in one.

    Args:
        grace: how long after its end a window still takes rows, in event time.
        offset: moves the bounds: windows of a day with ``offset="2h"`` begin at two o'clock UTC.
    """
    ms = to_ms(size, "the size of the window", least=1)
    return Hopping(ms, ms, to_ms(grace, "the grace"), to_ms(offset, "the offset", least=None))


def hopping(size: Duration, advance: Duration, *, grace: Duration = 0, offset: Duration = 0) -> Hopping:
    """Windows of ``size`` that begin each ``advance``: a row is in each that spans it."""
    ms, step = to_ms(size, "the size of the window", least=1), to_ms(advance, "the advance", least=1)
    if step > ms:
        raise NotAllowed(f"windows of {ms} ms that begin each {step} ms leave rows between them out; advance ≤ size")
    if ms > 1_000 * step:
        raise NotAllowed(f"each row would be in {ms // step} windows; at most 1,000 are possible")
    return Hopping(ms, step, to_ms(grace, "the grace"), to_ms(offset, "the offset", least=None))
