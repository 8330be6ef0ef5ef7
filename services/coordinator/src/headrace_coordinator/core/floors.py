"""
Epochs that never fall, also where a group was deleted and comes again: they may be kept elsewhere as fencing tokens.

A group's epoch is at least the clock's, in seconds, so one that comes again begins above all that were there before it,
and so does one whose record is an old copy. But a group that has changed more often than once a second is ahead of the
clock, and another coordinator's clock may be behind. So when a group goes, its epoch stays as its record, without
members, until the clock has passed it by far. So do the epochs of a work group's items, which go by the clock in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace_coordinator.core.records import ConsumerRecord, GroupRecord, WorkRecord
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


def item_epoch_by_clock(at: Moment) -> int:
    """What the epoch of an item is at least, when it gets a new owner."""
    return max(at.wall_ms - _FROM_S * 1_000, 0)


class Floor(NamedTuple):
    """What has to be above what."""

    epoch: int = 0
    """The group's."""
    item_epoch: int = 0
    """Of items; 0: it is no work group's."""

    def is_passed(self, at: Moment) -> bool:
        """Whether any coordinator's clock is above it by now."""
        groups = self.epoch + APART_S < epoch_by_clock(at)
        return groups and (not self.item_epoch or self.item_epoch + 1_000 * APART_S < item_epoch_by_clock(at))

    def record(self) -> GroupRecord:
        """What keeps it."""
        if self.item_epoch:
            return WorkRecord(self.epoch, self.item_epoch, DELETED)
        return ConsumerRecord(self.epoch, self.epoch, DELETED, {}, ())


NO_FLOOR: Final = Floor()


class Floors:
    """The epochs of groups of one shard that are not there, and that some clock may not have passed."""

    def __init__(self, records: Mapping[str, GroupRecord] | None = None) -> None:
        self._floors: dict[str, Floor] = {}
        for group_id, record in (records or {}).items():
            if record.empty_since_ms != DELETED:
                continue
            if isinstance(record, ConsumerRecord):
                self._floors[group_id] = Floor(record.group_epoch)
            elif isinstance(record, WorkRecord):
                self._floors[group_id] = Floor(record.group_epoch, record.item_epoch)

    def __len__(self) -> int:
        return len(self._floors)

    def of(self, group_id: str) -> Floor:
        """What the next one of this name has to be above."""
        return self._floors.get(group_id, NO_FLOOR)

    def keep(self, group_id: str, floor: Floor, at: Moment) -> None:
        """The group goes."""
        if not floor.is_passed(at):
            self._floors[group_id] = floor

    def drop(self, group_id: str) -> None:
        """The group has a record of its own again."""
        self._floors.pop(group_id, None)

    def drop_passed(self, at: Moment) -> list[str]:
        """Clocks have passed them: their records are not needed any more."""
        passed = [group_id for group_id, floor in self._floors.items() if floor.is_passed(at)]
        for group_id in passed:
            del self._floors[group_id]
        return passed

    def record(self, group_id: str) -> GroupRecord | None:
        """What the log has of the group while it is not there."""
        floor = self._floors.get(group_id)
        return None if floor is None else floor.record()
