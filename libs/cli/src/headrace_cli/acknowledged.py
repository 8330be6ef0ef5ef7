"""
Counts what a producer delivers, batch by batch, and keeps the first failure; fed by the client's own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace import DeliveredBatch


class Acknowledged:
    """``Producer(on_delivery=acknowledged.note)``. Single values are written by one thread and read by another."""

    def __init__(self) -> None:
        self.records = 0
        """Acknowledged."""
        self.failed = 0
        self.error: BaseException | None = None

    def note(self, batch: DeliveredBatch) -> None:
        """One batch was acknowledged, or failed for good."""
        if batch.error is None:
            self.records += batch.records
        else:
            self.failed += batch.records
            self.error = self.error or batch.error

    def raise_first(self) -> None:
        """Raise what the first failed batch failed with."""
        if self.error is not None:
            raise self.error
