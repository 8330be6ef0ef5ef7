"""One member of a work group: what it says of itself, and what it follows, besides what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_coordinator.core.reconcile import NOTHING, Holder


@dataclass(slots=True, kw_only=True)
class WorkMember(Holder[str]):
    process_id: str
    endpoint: str
    zone: str
    transactional_id: str
    declaration: int
    """The serial number of what it declared."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of what it holds."""
    standby: frozenset[str] = NOTHING
    warm_up: frozenset[str] = NOTHING
    lags: Mapping[str, int] = field(default_factory=dict)
    """As it last said; not durable, for it says it again to each coordinator."""
    told: frozenset[str] | None = None
    """The items that were last sent over its present stream; compared as an object."""
    told_epoch: int = 0
    untold: bool = False
    """Something else that it is told has changed since: epochs of items, what it follows."""

    def is_behind(self, item: str, acceptable: int) -> bool:
        """Whether it has to catch up with the item's state."""
        lag = self.lags.get(item)
        return lag is None or lag > acceptable
