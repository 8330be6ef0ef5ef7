"""Known bugs of work groups, as patches of the product. The world has to find each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest.mock import patch

from tests.lab.groups.mutants import believe_old_reports, give_before_it_is_released
from tests.lab.kind import Mutant

from headrace_coordinator.core.values import Declaration, Moment
from headrace_coordinator.core.work_group import WorkGroup
from headrace_coordinator.core.work_members import WorkMember

Patches = Sequence[Any]


def keep_epochs() -> Patches:
    """An item's epoch stays when it gets a new owner."""

    def granted(self: WorkGroup, member: WorkMember, keys: frozenset[str], at: Moment) -> None:
        del at
        member.epochs.update(dict.fromkeys(keys, max(1, self.item_epoch)))
        self.dirty = True
        self._news_of((member,))

    return [patch.object(WorkGroup, "granted", granted)]


def start_epochs_anew() -> Patches:
    """A coordinator that takes a shard over counts epochs of items from the beginning, without a clock."""
    restored = WorkGroup.restore

    def restore(self: WorkGroup, record: Any, declarations: Mapping[int, Declaration], at: Moment) -> None:
        restored(self, record, declarations, at)
        self.item_epoch = 0

    def _next_epoch(self: WorkGroup, at: Moment) -> int:
        del at
        self.item_epoch += 1
        return self.item_epoch

    return [patch.object(WorkGroup, "restore", restore), patch.object(WorkGroup, "_next_epoch", _next_epoch)]


def forget_what_was_left_open() -> Patches:
    """Nobody is told who had an item before."""
    return [patch.object(WorkGroup, "forgotten", lambda _self, _member: None)]


def put_nobody_out() -> Patches:
    """A replaced member keeps what it has until it says otherwise."""
    return [patch.object(WorkGroup, "patience_ms", lambda _self, _member: 10**9)]


MUTANTS: Final[dict[str, Mutant]] = {
    "early-gift": give_before_it_is_released,
    "old-reports": believe_old_reports,
    "same-epochs": keep_epochs,
    "epochs-anew": start_epochs_anew,
    "left-forgotten": forget_what_was_left_open,
    "no-end": put_nobody_out,
}
RARE: Final[frozenset[str]] = frozenset()
FOUND: Final[dict[str, int]] = {
    "old-reports": 4,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
