"""
Who waits for an offset of a log: to be written, or to be committed. The partition machine asks; it decides nothing.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from headrace_broker.core.partition_events import Answer, Effect
from headrace_common.core.ids import Offset


@dataclass(slots=True, order=True)
class Waiting:
    """One batch whose sender waits until the log is as safe as it asked for up to ``end``."""

    end: Offset
    ref: object = field(compare=False)
    base_offset: Offset = field(compare=False)
    log_append_time_ms: int = field(compare=False)


def put(queue: list[Waiting], waiting: Waiting) -> None:
    """Keep ``queue`` ascending; only what is answered again comes out of order."""
    if queue and waiting.end < queue[-1].end:
        insort(queue, waiting)
    else:
        queue.append(waiting)


def release(queue: list[Waiting], end: Offset, effects: list[Effect]) -> None:
    """Answer those who waited for ``end`` or less."""
    done = 0
    for waiting in queue:
        if waiting.end > end:
            break
        effects.append(Answer(waiting.ref, waiting.base_offset, waiting.log_append_time_ms))
        done += 1
    del queue[:done]
