"""
One caller with a client id, and its use of one rate: what a stream holds, beside its ``right.Right``.

The quota that holds is found once for a generation of the rows, so a new one counts from the next request on. A request
of who has none costs a comparison.
"""

from __future__ import annotations

from headrace_common.core.access.control import Rights
from headrace_common.core.quotas.meters import Meter
from headrace_common.core.quotas.state import Holding
from headrace_common.core.quotas.token_bucket import most_at_once


class Metered:
    """Quotas hold in every mode: in an open cluster callers are ``User:ANONYMOUS``, with client ids. One event loop."""

    __slots__ = ("_client_id", "_control", "_generation", "_holding", "_meter", "_user")

    def __init__(self, rights: Rights, meter: Meter, client_id: str) -> None:
        self._control = rights.control
        self._user = rights.caller.principal
        self._meter = meter
        self._client_id = client_id
        self._holding: Holding | None = None
        self._generation = -1

    @property
    def holding(self) -> Holding | None:
        """The quota that holds now; None: there is none."""
        if self._generation != self._control.generation:
            self._generation = self._control.generation
            self._holding = self._control.view.quotas.find_rate(self._meter.rate, self._user, self._client_id)
        return self._holding

    def record(self, value: float, now_ms: float) -> int:
        """Count this, and say how many milliseconds the caller has to wait; see ``Meter``."""
        holding = self.holding
        return 0 if holding is None else self._meter.record(holding, value, now_ms)

    def take(self, value: float, now_ms: float) -> int | None:
        """Count this if it may be done; else how long it has to wait. None: it may. See ``Meter``."""
        holding = self.holding
        return None if holding is None else self._meter.take(holding, value, now_ms)

    def most_at_once(self) -> int | None:
        """What one answer may have; None: as much as it can."""
        holding = self.holding
        return None if holding is None else max(1, int(most_at_once(holding.value)))
