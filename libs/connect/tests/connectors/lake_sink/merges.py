"""What ``lake_compact`` does, in one process."""

from __future__ import annotations

from headrace_connect.connectors.lake_sink.merging import clean, list_partitions, merge_files, plan_merge, take_merge
from headrace_connect.connectors.places import Place

TARGET = 1 << 20


def compact(place: Place, *, now_ms: int = 1_000, keep_ms: int = 1_000_000, target_bytes: int = TARGET) -> int:
    """How many merges were made; what they replaced is deleted after ``keep_ms``."""
    made = 0
    for directory in list_partitions(place):
        _, cleaned = clean(place, directory, now_ms - keep_ms)
        plan = plan_merge(place, directory, target_bytes, cleaned)
        if plan is not None:
            made += take_merge(place, plan, {each: merge_files(place, each) for each in plan.bins}, now_ms)
    return made
