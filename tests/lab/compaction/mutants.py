"""Compaction with a step taken out, each a bug that somebody could have: the lab must find them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace_broker.core.compaction import plan, rules
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.local_log import LocalLog, Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import BatchesCopied, Compacted, Effect
from headrace_broker.core.rows import LogWrite
from headrace_broker.core.time_search import Floor
from headrace_broker.engine import cleaner, replicate_session
from headrace_common.core.ids import Offset

Patches = list[Any]


def compact_what_is_not_committed() -> Patches:
    """Compaction goes by what is written: a value gives way to one that may yet be cut."""
    asked, taken = plan.dirty_range, LocalLog.compact

    def dirty_range(log: LocalLog, floor: Floor, lag_ms_min: int, now_ms: int) -> plan.DirtyRange:
        stable, log.last_stable = log.last_stable, log.written_end
        try:
            return asked(log, floor, lag_ms_min, now_ms)
        finally:
            log.last_stable = stable

    def compacted(self: LocalLog, step: Step) -> list[LogWrite]:
        """Without the assertion that would tell."""
        watermark, self.high_watermark = self.high_watermark, self.log_end
        try:
            return taken(self, step)
        finally:
            self.high_watermark = watermark

    return [patch.object(cleaner, "dirty_range", dirty_range), patch.object(LocalLog, "compact", compacted)]


def apply_steps_to_another_log() -> Patches:
    """A step is written whatever became of the log since it was made: cut, trimmed, begun anew."""

    def compact(self: Partition, event: Compacted) -> list[Effect]:
        return [*self.compact(event.step)]

    return [patch.object(Partition, "_compact", compact), patch.object(Step, "applies", lambda _self, _first: True)]


def send_whole_gaps() -> Patches:
    """The leader sends the batch that holds the follower's end as it is stored."""
    return [patch.object(replicate_session, "continue_log", lambda batches, _log_end: batches)]


def let_everybody_go_on() -> Patches:
    """A follower that was away while deletions went copies on from its end, as in Kafka."""
    compare = Partition.compare

    def compared(self: Partition, last_epoch: int, log_end: Offset, _forgotten_to: Offset) -> Parted | None:
        return compare(self, last_epoch, log_end, self.forgotten_to)

    return [patch.object(Partition, "compare", compared)]


def copy_without_what_is_forgotten() -> Patches:
    """A follower does not note that deletions may be missing in what it copies."""
    copy = Partition._copy

    def copied(self: Partition, event: BatchesCopied) -> list[Effect]:
        return copy(self, replace(event, forgotten_to=Offset(0)))

    return [patch.object(Partition, "_copy", copied)]


def delete_deletions_at_once() -> Patches:
    """The first compaction that passes a deletion removes it."""
    return [patch.object(rules, "find_passed_end", lambda points, _now_ms, _retention_ms: points[-1].end)]


MUTANTS: dict[str, Mutant] = {
    "unstable-compaction": compact_what_is_not_committed,
    "stale-steps": apply_steps_to_another_log,
    "whole-gaps": send_whole_gaps,
    "kafka-tombstones": let_everybody_go_on,
    "forgotten-uncopied": copy_without_what_is_forgotten,
    "deletions-at-once": delete_deletions_at_once,
}
RARE: frozenset[str] = frozenset()
"""Found too late for every change; the long form looks for them."""
FOUND: Final[dict[str, int]] = {
    "forgotten-uncopied": 7,
    "kafka-tombstones": 7,
    "stale-steps": 6,
    "whole-gaps": 4,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
