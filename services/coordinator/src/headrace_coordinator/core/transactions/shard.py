"""
All transactional ids of one shard: routes events to them and keeps their time. The engine owns one per shard.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import Effect, Tally, TransactionListing
from headrace_coordinator.core.transactions.events import Event
from headrace_coordinator.core.transactions.settings import TransactionSettings


class TransactionShard:
    """The state of one shard. Between ``replay`` and ``Loaded`` nothing may be sent."""

    def __init__(self, number: int, settings: TransactionSettings) -> None:
        self.number = number
        self._settings = settings

    def replay(self, rows: Iterable[Row]) -> None:
        """
        Take records of the log, in its order.

        Raises:
            RecordDamaged, UnsupportedVersion: a record cannot be read.
        """
        raise NotImplementedError

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        raise NotImplementedError

    def next_wake_ms(self) -> float | None:
        """When ``Woken`` is due, monotonic; None: nothing is waited for."""
        raise NotImplementedError

    def listing(self) -> list[TransactionListing]:
        """All ids, in the order of their names."""
        raise NotImplementedError

    def tally(self) -> Tally:
        """What is to be done now."""
        raise NotImplementedError
