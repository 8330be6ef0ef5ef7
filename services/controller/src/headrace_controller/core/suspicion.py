"""
Whether a node that looks dead is believed to be, or whether it is this controller that is cut off.

One broker that refuses connections is dead: the kernel of its machine said so. Several within a second may also mean
that something between here and them refuses; then one other node that can be reached has to vouch for the network.
Called by the active controller with what its probes saw.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace_common.core.image import NodeKey, Role

WINDOW_MS: Final = 1_000


class Suspicions:
    """The brokers that looked dead within the last second; times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, NodeKey]] = deque()
        self._doubted: frozenset[NodeKey] = frozenset()

    def suspect(self, key: NodeKey, now_ms: float) -> frozenset[NodeKey]:
        """
        Note that ``key`` looks dead; the nodes that cannot vouch for the network.

        Empty: it is believed without a witness.
        """
        while self._recent and now_ms - self._recent[0][0] > WINDOW_MS:
            self._recent.popleft()
        if key.role is not Role.BROKER:
            return frozenset()
        self._recent.append((now_ms, key))
        suspects = frozenset(k for _, k in self._recent) | self._doubted
        return suspects if len(suspects) > 1 or key in self._doubted else frozenset()

    def nobody_vouched(self, suspects: frozenset[NodeKey]) -> None:
        """No other node could be reached: these stay in doubt, however long it lasts, until one can be."""
        self._doubted = suspects

    def vouched(self) -> None:
        """Another node can be reached: the network is there."""
        self._doubted = frozenset()
