"""
The judge of rows that were copied: each input is in the output exactly once, whole, and no other row is.

Pure: what was written, what a reader found and what the checkpoint says go in, anomalies come out. ``test_judging`` has
histories made by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from headrace_verify.checker import Verdict
from headrace_verify.checker_txn import check_exactly_once

Place: TypeAlias = tuple[int, int]
"""Partition and offset of the source."""


def places(rows: Iterable[str]) -> list[tuple[Place, str]]:
    """Of rows as the application writes them: ``partition:offset:value``."""
    cut = (row.split(":", 2) for row in rows)
    return [((int(partition), int(offset)), value) for partition, offset, value in cut]


def judge(inputs: Mapping[Place, str], rows: Iterable[str], ends: Mapping[int, int]) -> Verdict:
    """
    Compare.

    Args:
        inputs: what was written, where, with which value.
        rows: what one reader found in one sink.
        ends: partition → next offset to read, by the last batch that the checkpoint says is done.
    """
    found = places(rows)
    offsets: dict[str, list[int]] = {}
    for partition, offset in inputs:
        offsets.setdefault(str(partition), []).append(offset)
    outputs = [(str(partition), offset) for (partition, offset), _ in found]
    verdict = check_exactly_once(offsets, outputs, {str(partition): end for partition, end in ends.items()})
    for place, value in found:
        if place in inputs and inputs[place] != value:
            verdict.anomalies["other-value"].append(f"{place} has {value!r}, written was {inputs[place]!r}")
    return verdict


def judge_what_is_left(
    inputs: Mapping[Place, str], rows: Sequence[str], ends: Mapping[int, int], gone: Mapping[int, int]
) -> Verdict:
    """As ``judge``, but records below ``gone`` (by partition) were deleted, perhaps before they could be read."""
    there = {place for place, _ in places(rows)}
    wanted = {place: value for place, value in inputs.items() if place[1] >= gone.get(place[0], 0) or place in there}
    return judge(wanted, rows, ends)
