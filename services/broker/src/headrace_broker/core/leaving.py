"""What a broker is told, through its unix socket, to leave the cluster with; ``prestop`` and the servicer share it."""

from __future__ import annotations

from typing import Final

SERVICE: Final = "headrace.v1.BrokerProcess"
METHOD: Final = "Leave"
PATH: Final = f"/{SERVICE}/{METHOD}"

LEFT: Final = b"left"
"""The broker leads nothing, and nobody counts on it."""
LATE: Final = b"late"
"""Its time is over, and others may still count on it."""
