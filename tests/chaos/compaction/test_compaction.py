"""
The short form: logs are compacted and deleted in a hurry while brokers and coordinators are killed. No anomaly.

The same history, harmed by hand, is refused: the judge sees.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from compaction_faults import SHORT
from compaction_run import Report, run
from compaction_topics import POLICIES

from headrace_verify.checker_compaction import check_compacted
from headrace_verify.compaction_history import Event, Read

SEED = int(os.environ.get("CHAOS_SEED", "20261121"))

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


async def test_each_key_keeps_its_last_value_and_nothing_goes_early(tmp_path: Path) -> None:
    report = await run(SHORT, tmp_path / SHORT.name, SEED)
    print(report.text(), file=sys.stderr)
    assert report.sound, report.text()
    assert report.verdict.sends_ok > 500, report.text()
    for anomaly, history in harmed(report):
        found = check_compacted(history, POLICIES, report.disturbed).counts
        assert anomaly in found, f"{anomaly} was not seen, but {found}"


def harmed(report: Report) -> list[tuple[str, list[Event]]]:
    """The history as it would be if the newest record of a key were gone for one reader, or for one replica."""
    newest = {}
    for event in report.history:
        if isinstance(event, Read) and event.log.startswith("compacted"):
            for point in event.points:
                if not point.deletes and point.offset >= newest.get((event.log, point.key), point).offset:
                    newest[event.log, point.key] = point
    (log, _), victim = max(newest.items(), key=lambda each: each[1].offset)

    def without(event: Event, processes: range) -> Event:
        if isinstance(event, Read) and event.log == log and event.process in processes:
            return replace(event, points=tuple(one for one in event.points if one != victim))
        return event

    return [
        ("lost-final", [without(event, range(80, 1_000)) for event in report.history]),
        ("replicas-differ", [without(event, range(902, 903)) for event in report.history]),
    ]
