"""Latencies as people quote them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

QUOTED: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99, p999 and the largest, in ms; empty when there are no samples."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    quoted = {name: ordered[min(int(part * len(ordered)), last)] for name, part in QUOTED}
    return {name: round(value * 1000, 3) for name, value in (quoted | {"max": ordered[last]}).items()}
