"""
Epochs that never fall, also where a group was deleted and comes again: they may be kept elsewhere as fencing tokens.

A group's epoch is at least the clock's, in seconds, so one that comes again begins above all that were there before it,
and so does one whose record is an old copy. But a group that has changed more often than once a second is ahead of the
clock, and another coordinator's clock may be behind. So when a group goes, its epoch stays as its record, without
members, until the clock has passed it by far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace_coordinator.core.records import ConsumerRecord, GroupRecord
from headrace_coordinator.core.values import Moment

DELETED: Final = -2
"""In place of the time since when a group is empty: it is not there, its record only keeps its epoch."""
_FROM_S: Final = 1_577_836_800
"""The beginning of 2020: epochs have 31 bits, for Kafka's clients too, and last until 2088."""
APART_S: Final = 3_600
"""So far clocks of coordinators may be apart, or one may be put back."""
_MOST: Final = (1 << 31) - (1 << 24)
"""However wrong a clock is, so many epochs are left."""


def epoch_by_clock(at: Moment) -> int:
    """What an epoch is at least."""
    return min(max(at.wall_ms // 1_000 - _FROM_S, 0), _MOST)


def _is_passed(epoch: int, at: Moment) -> bool:
    """Whether any coordinator's clock is above it by now."""
    return epoch + APART_S < epoch_by_clock(at)


class Floors:
    """The epochs of groups of one shard that are not there, and that some clock may not have passed."""

    def __init__(self, records: Mapping[str, GroupRecord] | None = None) -> None:
        self._epochs = {
            group_id: record.group_epoch
            for group_id, record in (records or {}).items()
            if isinstance(record, ConsumerRecord) and record.empty_since_ms == DELETED
        }

    def __len__(self) -> int:
        return len(self._epochs)

    def of(self, group_id: str) -> int:
        """The epoch that the next one has to be above; 0: none."""
        return self._epochs.get(group_id, 0)

    def keep(self, group_id: str, epoch: int, at: Moment) -> None:
        """The group goes."""
        if not _is_passed(epoch, at):
            self._epochs[group_id] = epoch

    def drop(self, group_id: str) -> None:
        """The group has a record of its own again."""
        self._epochs.pop(group_id, None)

    def drop_passed(self, at: Moment) -> list[str]:
        """Clocks have passed them: their records are not needed any more."""
        passed = [group_id for group_id, epoch in self._epochs.items() if _is_passed(epoch, at)]
        for group_id in passed:
            del self._epochs[group_id]
        return passed

    def record(self, group_id: str) -> ConsumerRecord | None:
        """What the log has of the group while it is not there."""
        epoch = self._epochs.get(group_id)
        return None if epoch is None else ConsumerRecord(epoch, epoch, DELETED, {}, ())
