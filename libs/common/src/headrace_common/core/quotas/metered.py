"""
One caller with a client id, and its use of one rate: what a stream holds, beside its ``right.Right``.

The quota that holds is found once for a generation of the rows, so a new one counts from the next request on. A request
of who has none costs a comparison.
"""

from __future__ import annotations

from headrace_common.core.access.control import Rights
from headrace_common.core.quotas.meters import RateMeter
from headrace_common.core.quotas.state import Holding
from headrace_common.core.quotas.windows import most_at_once


class Metered:
    """Quotas hold in every mode: in an open cluster callers are ``User:ANONYMOUS``, with client ids. One event loop."""

    __slots__ = ("_client_id", "_control", "_generation", "_holding", "_meter", "_user")

    def __init__(self, rights: Rights, meter: RateMeter, client_id: str) -> None:
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

    def record(self, value: float, now_ms: int) -> int:
        """Count this, and say how many milliseconds the caller has to wait; see ``RateMeter``."""
        holding = self.holding
        return 0 if holding is None else self._meter.record(holding, value, now_ms)

    def take_back(self, value: float, now_ms: int) -> None:
        """See ``RateMeter.take_back``. Asked at once after ``record``, while the same quota holds."""
        holding = self.holding
        if holding is not None:
            self._meter.take_back(holding, value, now_ms)

    def most_at_once(self) -> float | None:
        """What one answer may have; None: as much as it can."""
        holding = self.holding
        return None if holding is None else most_at_once(holding.value)
