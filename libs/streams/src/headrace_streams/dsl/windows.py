"""Windows as programs write them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.windows import Counting, Hopping, Session, Sliding
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.names import is_count


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


def sliding(size: Duration, *, grace: Duration = 0) -> Sliding:
    """
    Rows of a key that are at most ``size`` apart, both ends in: for each row the window that ends with it, and the one
    that begins 1 ms behind it, if that holds any. So there is a window for each combination of rows that are so near
    each other. As in Kafka, but that windows begin before 1970 too.

    Each result merges what the window holds, time by time: short windows of few rows, that is, or ``emit="final"``.

    Args:
        grace: how long after its end a window still takes rows, in event time.
    """
    return Sliding(to_ms(size, "the size of the window"), to_ms(grace, "the grace"))


def session(gap: Duration, *, grace: Duration = 0) -> Session:
    """
    Rows of a key without a longer pause than ``gap``: a window from the first row to the gap behind the last. A row at
    that very end is in it, as in Kafka.

    A row that comes between two sessions joins them; the rows of the earlier one count as having come first. With
    ``emit="every"`` and ``"changes"`` a row replaces those of the same key whose windows are within its own: the key of
    a record names no window, so nothing says that an earlier one has gone. With ``"final"`` each session is told once.

    Args:
        grace: how long after its end a session still takes rows, in event time.
    """
    return Session(to_ms(gap, "the gap", least=1), to_ms(grace, "the grace"))


def counting(rows: int) -> Counting:
    """
    So many rows of a key each, as they come: the next row begins another window. No row is late.

    ``window_start`` is the time of the earliest row and ``window_end`` that of the newest, which is the time of the
    result. With ``emit="final"`` only windows that are full are told.
    """
    if not is_count(rows):
        raise NotAllowed(f"windows of {rows} rows are not possible; counting() needs at least 1")
    return Counting(rows)


@dataclass(frozen=True, slots=True)
class AtMostEvery:
    """A result is told at most once in so many ms of event time."""

    ms: int


def at_most_every(interval: Duration) -> AtMostEvery:
    """
    For ``emit=`` of an aggregate: the first result of a key (of a key and window) waits until event time is
    ``interval`` beyond it, and those that come meanwhile take its place. What waits is state, of the name of the
    aggregate and ``.waiting``. As Kafka's ``suppress(untilTimeLimit)``, but that the row with which the interval ends
    begins the next, and that late rows wait too.
    """
    return AtMostEvery(to_ms(interval, "the interval of at_most_every", least=1))
