"""
Decides whether a process traces its RPCs, and where the spans go: OTLP over gRPC, off unless an endpoint is set.

Called by each composition root. Off means off: no library is loaded and no interceptor is installed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from headrace_common.rpc.interceptor import Handler, send_all, with_behavior
from headrace_common.runtime.traceparent import HEADER, TraceParent

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

ENDPOINT_VARIABLE: Final = "HEADRACE_OTLP_ENDPOINT"
"""``http://host:4317`` of an OpenTelemetry collector."""
CLOSE_S: Final = 2.0
"""So long the last spans may take to be sent; where the collector is away they are lost."""


@contextmanager
def open_tracing(
    service: str, node_id: int, endpoint: str | None = None, env: Mapping[str, str] = os.environ
) -> Iterator[TracingInterceptor | None]:
    """
    The interceptor to give to the server, or None when tracing is off.

    Args:
        endpoint: as for ``open_tracer``.
    """
    with open_tracer(service, str(node_id), endpoint, env) as tracer:
        yield None if tracer is None else TracingInterceptor(tracer)


@contextmanager
def open_tracer(
    service: str, instance: str, endpoint: str | None = None, env: Mapping[str, str] = os.environ
) -> Iterator[Tracer | None]:
    """
    What makes spans of this process, or None when tracing is off.

    Args:
        instance: which of several processes it is.
        endpoint: the collector; where None, the environment's ``HEADRACE_OTLP_ENDPOINT`` counts.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    target = endpoint or env.get(ENDPOINT_VARIABLE)
    if not target:
        yield None
        return
    exporter = load_exporter()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource({"service.name": f"headrace-{service}", "service.instance.id": instance})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter(endpoint=target, insecure=_plain(target))))
    try:
        yield provider.get_tracer(f"headrace.{service}")
    finally:
        closing = threading.Thread(target=provider.shutdown, name="send the last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def load_exporter() -> Any:
    """
    What sends spans. It takes more than half a second to be imported.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter


def _plain(endpoint: str) -> bool:
    return not endpoint.startswith("https://")


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """One span per call, under the caller's span where its metadata has a ``traceparent``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler inside a span."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        parent = _parent_in(handler_call_details)
        return with_behavior(handler, lambda inner, streams: self._trace(inner, streams, method, parent))

    def _trace(self, inner: Handler, streams: bool, method: str, parent: TraceParent | None) -> Handler:
        from opentelemetry.trace import SpanKind

        async def traced(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            with self._tracer.start_as_current_span(
                method.lstrip("/"), context=context_of(parent), kind=SpanKind.SERVER, attributes={"rpc.system": "grpc"}
            ):
                if streams:
                    return await send_all(inner(request, context), context)
                return await inner(request, context)

        return traced


def _parent_in(details: grpc.HandlerCallDetails) -> TraceParent | None:
    for key, value in details.invocation_metadata or ():
        if key == HEADER:
            return TraceParent.parse(value if isinstance(value, str) else value.decode("ascii", "replace"))
    return None


def context_of(parent: TraceParent | None) -> Any:
    """The context in which a span is under ``parent``; None: that of now."""
    from opentelemetry import trace

    if parent is None:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(span_context_of(parent)))


def span_context_of(parent: TraceParent) -> SpanContext:
    """As OpenTelemetry has it: of a span elsewhere."""
    from opentelemetry import trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.sampled else trace.TraceFlags.DEFAULT)
    return trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)


def parent_in(span: Span) -> TraceParent:
    """What is caused by ``span``, which is one of this process, has this parent."""
    context = span.get_span_context()
    return TraceParent(context.trace_id, context.span_id, bool(context.trace_flags.sampled))
