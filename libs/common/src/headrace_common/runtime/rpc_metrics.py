"""Decides what is measured of every RPC: how many calls, how they ended, how long unary ones took. Once per call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from opentelemetry.metrics import Meter

from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.interceptor import Handler, send_all, with_behavior


class RpcMetrics(grpc.aio.ServerInterceptor):
    """Install it inside the error boundary (``GrpcService.open`` does), so that it sees typed errors."""

    def __init__(self, meter: Meter) -> None:
        self._calls = meter.create_counter(
            "headrace_rpc_calls", description="RPCs that ended, by method and error name (NONE: it succeeded)"
        )
        self._seconds = meter.create_histogram(
            "headrace_rpc_duration",
            unit="s",
            description="Time from request to answer of unary RPCs",
            explicit_bucket_boundaries_advisory=[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30],
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, measured."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.lstrip("/")
        return with_behavior(handler, lambda inner, streams: self._measure(inner, streams, method))

    def _measure(self, inner: Handler, streams: bool, method: str) -> Handler:
        async def measured(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = time.perf_counter()
            outcome = "UNKNOWN_SERVER_ERROR"
            try:
                answer = await (send_all(inner(request, context), context) if streams else inner(request, context))
                outcome = "NONE"
                return answer
            except HeadraceError as error:
                outcome = error.code.name
                raise
            except asyncio.CancelledError:
                outcome = "CANCELLED"
                raise
            finally:
                self._calls.add(1, {"method": method, "error": outcome})
                if not streams:
                    self._seconds.record(time.perf_counter() - started, {"method": method})

        return measured
