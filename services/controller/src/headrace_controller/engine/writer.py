"""
Every write of an active controller: compare that it is still elected and that what it changes is unchanged.

A decision is a function of the mirror; when the store has moved on meanwhile, the writer waits until the mirror has
caught up and decides again. An unknown outcome is looked up before anything is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace_common.core.errors import HeadraceError, MetadataUnavailable, NotController
from headrace_controller.core import records
from headrace_controller.core.store import (
    Committed,
    Compare,
    Conflicted,
    CreatedAt,
    Operation,
    Put,
    Transaction,
    Unchanged,
)
from headrace_controller.engine.follower import Follower
from headrace_controller.ports import MetadataStore, StoreOutcomeUnknown

CHUNK: Final = 100
"""Partitions in one transaction."""

_TRIES_MAX: Final = 8


class Changed(Exception):
    """What was compared has changed; decide again on the mirror as it is now."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write, provided that what it was decided from has not changed."""

    operations: tuple[Operation, ...]
    compares: tuple[Compare, ...]


class Writer:
    """Writes of one term in office. Safe to use from many tasks."""

    def __init__(self, store: MetadataStore, follower: Follower, elected_at: int, timeout_ms: int) -> None:
        self._store = store
        self._follower = follower
        self._elected = CreatedAt(records.CONTROLLER_KEY, elected_at)
        self._timeout_ms = timeout_ms
        self.check: Callable[[], None] = lambda: None
        """Raises when this term may not write any more; asked before each write."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a write finds that another controller was elected."""

    async def decide(self, decision: Callable[[], Decision | None]) -> int:
        """
        Decide on the mirror and write, again when something changed; the revision, once the mirror has it.

        Returns 0 when there was nothing to do.

        Raises:
            NotController: another controller is active.
            MetadataUnavailable: nothing was changed; the store is away.
            StoreOutcomeUnknown: not known whether it was changed.
            HeadraceError: what ``decision`` raises.
        """
        for _ in range(_TRIES_MAX):
            decided = decision()
            if decided is None:
                return 0
            try:
                return await self.commit(decided)
            except Changed:
                continue
        raise MetadataUnavailable("the metadata changes too fast; nothing was changed, try again")

    async def commit(self, decision: Decision) -> int:
        """
        One write; the revision, once the mirror has it.

        Raises:
            Changed: a comparison failed; the mirror has caught up with what made it fail.
            HeadraceError: as ``decide``.
        """
        self.check()
        transaction = Transaction((self._elected, *decision.compares), decision.operations)
        try:
            outcome = await self._store.commit(transaction)
        except StoreOutcomeUnknown as error:
            return await self._look_up(decision, error)
        if isinstance(outcome, Committed):
            await self._follower.wait_for_revision(outcome.revision, self._timeout_ms)
            return outcome.revision
        await self._explain(outcome, decision)
        raise Changed

    async def _look_up(self, decision: Decision, error: HeadraceError) -> int:
        """An answer did not come: one key that was compared and written tells, since all are written or none is."""
        compared = {c.key for c in decision.compares}
        written = next((o for o in decision.operations if isinstance(o, Put) and o.key in compared), None)
        if written is None:
            raise error
        found = await self._store.get(written.key)
        expected = next(
            (c.mod_revision for c in decision.compares if isinstance(c, Unchanged) and c.key == written.key), 0
        )
        if found is not None and found.value == written.value and found.mod_revision != expected:
            await self._follower.wait_for_revision(found.mod_revision, self._timeout_ms)
            return found.mod_revision
        raise Changed

    async def _explain(self, outcome: Conflicted, decision: Decision) -> None:
        elected = outcome.found.get(records.CONTROLLER_KEY)
        if elected is None or elected.create_revision != self._elected.create_revision:
            self.on_lost()
            raise NotController("another controller is active now; ask it")
        mirror = self._follower.mirror
        keys = {c.key for c in decision.compares}

        def caught_up() -> bool:
            return all(
                mirror.mod_revision(k) >= outcome.found[k].mod_revision if k in outcome.found else k not in mirror.raw
                for k in keys
            )

        await self._follower.until(caught_up, self._timeout_ms)
