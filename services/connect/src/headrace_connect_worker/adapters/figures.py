"""A worker's figures as Prometheus sees them. ``main`` calls it once."""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace_common.runtime.metrics import Metrics
from headrace_connect_worker.core.figures import COUNTERS, GAUGES, Figures

PREFIX: Final = "headrace_connect_"


def publish(metrics: Metrics, figures: Figures) -> None:
    """Have all be read when Prometheus asks, and not before."""
    for families, counts in ((GAUGES, False), (COUNTERS, True)):
        for name, family in families.items():
            read = partial(figures.values, name)
            metrics.family(PREFIX + name, family.meaning, family.labels, read, counts=counts)
