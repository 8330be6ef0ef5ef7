"""
Decides how a process measures itself: OpenTelemetry instruments, read by Prometheus over HTTP.

``open_metrics`` is called once by each service's composition root. The endpoint runs in a thread of its own with its
own registry, so a busy event loop can still be looked at, and two services in one test process do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace_common.core.distribution import Distribution
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.metrics_server import serve_metrics


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram that somebody counts by itself, in base units."""

    bounds: Sequence[float]
    """Upper bounds, ascending."""
    counts: Sequence[int]
    """Values at or below each bound and above the one before; one more for those above all."""
    total: float
    """The sum of all values."""


def buckets_of(values: Distribution, factor: float) -> Buckets:
    """What was counted, ``factor`` times as large: to its base unit."""
    return Buckets([round(bound * factor, 9) for bound in values.bounds], values.counts, values.total * factor)


Values = Iterable[tuple[Sequence[str], float]]
"""Each with what its labels are, in their order."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What measures, and where it can be read."""

    meter: Meter
    """Create instruments from it once, at start; with metrics off they do nothing."""
    endpoint: Endpoint | None
    """Where ``/metrics`` is served, with the real port. None: metrics are off."""
    _read: list[Callable[[], Metric]] = field(default_factory=list)

    def histogram(self, name: str, description: str, read: Callable[[], Buckets]) -> None:
        """
        Publish a histogram that is counted elsewhere, for paths where an instrument would cost too much; OpenTelemetry
        has no such instrument. ``read`` is called at each look, from the endpoint's thread.
        """

        def collect() -> Metric:
            now = read()
            counts = accumulate(list(now.counts))  # it goes on counting meanwhile
            buckets = list(zip((*map(str, now.bounds), "+Inf"), counts, strict=True))
            return HistogramMetricFamily(name, description, buckets=buckets, sum_value=now.total)

        self._read.append(collect)

    def family(
        self, name: str, description: str, labels: Sequence[str], read: Callable[[], Values], *, counts: bool = False
    ) -> None:
        """
        Publish values whose labels come and go; an instrument of OpenTelemetry remembers all that there ever were, and
        gives up on the 2,001st. ``read`` is called as for ``histogram``.

        Args:
            counts: they only grow; else they are gauges.
        """

        def collect() -> Metric:
            made = (CounterMetricFamily if counts else GaugeMetricFamily)(name, description, labels=labels)
            for of, value in read():
                made.add_metric(of, value)
            return made

        self._read.append(collect)


class _Read:
    """Shows what ``Metrics`` was told to read, when Prometheus asks."""

    def __init__(self, told: Sequence[Callable[[], Metric]]) -> None:
        self._told = told

    def collect(self) -> Iterable[Metric]:
        return [collect() for collect in list(self._told)]


@contextmanager
def open_metrics(service: str, node_id: int, listen: Endpoint | None) -> Iterator[Metrics]:
    """
    A meter, served at ``listen`` (port 0: a free one) until the block ends. ``listen`` None: off, without cost.

    Raises:
        OSError: the address is taken or not of this machine.
    """
    if listen is None:
        yield Metrics(NoOpMeterProvider().get_meter(service), None)
        return
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    resource = Resource({"service.name": f"headrace-{service}", "service.instance.id": str(node_id)})
    reader = PrometheusMetricReader(registry=registry, scope_info_enabled=False)  # a scope is a label without a use
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    try:
        with serve_metrics(registry, listen) as endpoint:
            metrics = Metrics(provider.get_meter(f"headrace.{service}"), endpoint)
            registry.register(_Read(metrics._read))
            yield metrics
    finally:
        provider.shutdown()
