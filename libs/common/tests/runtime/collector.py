"""A collector of traces: takes spans over OTLP, as OpenTelemetry's does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Collector:
    """What it was sent."""

    port: int = 0
    spans: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Names, each with the attributes of its process."""
    asked: threading.Event = field(default_factory=threading.Event)
    answers: threading.Event = field(default_factory=threading.Event)
    """Cleared: it answers nobody."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, request: Any, _: Any) -> Any:
        self.asked.set()
        self.answers.wait()
        for one in request.resource_spans:
            of = {pair.key: pair.value.string_value for pair in one.resource.attributes}
            self.spans += [(span.name, of) for scope in one.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse()


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens."""
    made = Collector()
    made.answers.set()
    server = grpc.server(ThreadPoolExecutor(2))
    take = grpc.unary_unary_rpc_method_handler(
        made.take, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": take})])
    made.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield made
    finally:
        made.answers.set()
        server.stop(None).wait()
