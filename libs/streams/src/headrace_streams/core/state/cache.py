"""
How much state a worker keeps in memory: one bound for the stores of all its tasks.

What is beyond it is evicted by CLOCK (second chance), as in page caches: a hand goes round all entries of all stores.
An entry that was asked for since the hand passed it stays for another round; one that was not asked for goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace_streams.core.state.store import Store

STATE_CACHE_BYTES: Final = 256 << 20
"""The default."""


class StateCache:
    """Bounds the memory of stores."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._turn = 0
        self.bytes = 0
        """About how much is in memory, of what can be evicted."""

    def fit(self, stores: Sequence[Store]) -> None:
        """Evict what is beyond the bound; called after a commit."""
        self.bytes = sum(store.kept_bytes() for store in stores)
        # A store is begun in the middle of its round; the next one gives second chances, and the last one takes them.
        for _ in range(3 * len(stores)):
            if self.bytes <= self._max:
                return
            store = stores[self._turn % len(stores)]
            self.bytes -= store.evict(self.bytes - self._max)
            if self.bytes > self._max:
                self._turn += 1
