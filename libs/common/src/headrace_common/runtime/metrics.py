"""
Decides how a process measures itself: OpenTelemetry instruments, read by Prometheus over HTTP.

``open_metrics`` is called once by each service's composition root. The endpoint runs in a thread of its own with its
own registry, so a busy event loop can still be looked at, and two services in one test process do not mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server

from headrace_common.core.ids import Endpoint


@dataclass(frozen=True, slots=True)
class Metrics:
    """What measures, and where it can be read."""

    meter: Meter
    """Create instruments from it once, at start; with metrics off they do nothing."""
    endpoint: Endpoint | None
    """Where ``/metrics`` is served, with the real port. None: metrics are off."""


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
    server, thread = start_http_server(listen.port, listen.host, registry)
    resource = Resource({"service.name": f"headrace-{service}", "service.instance.id": str(node_id)})
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], resource=resource, shutdown_on_exit=False)
    try:
        yield Metrics(provider.get_meter(f"headrace.{service}"), Endpoint(listen.host, server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
        provider.shutdown()
