"""Figures of a worker as Prometheus sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from headrace_common.runtime.clock import Clock
from headrace_common.runtime.metrics import Metrics, buckets_of
from headrace_streams.ports import Reading

PREFIX: Final = "headrace_streams_"


def publish(metrics: Metrics, reading: Reading, clock: Clock) -> None:
    """Have all be read when Prometheus asks, and not before."""

    def observe(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(value, dict(labels)) for value, labels in reading.values(name, clock.now_ms())]

    for name, meaning in reading.gauges.items():
        metrics.meter.create_observable_gauge(PREFIX + name, callbacks=[observe(name)], description=meaning)
    for name, meaning in reading.counters.items():
        metrics.meter.create_observable_counter(PREFIX + name, callbacks=[observe(name)], description=meaning)
    meaning = "Time of a commit, from its first step to the answer"
    metrics.histogram(PREFIX + "commit_seconds", meaning, lambda: buckets_of(reading.commit_time, 1e-3))
