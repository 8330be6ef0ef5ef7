"""Decides what is measured of REST: requests by route and status, and how long they took."""

from __future__ import annotations

from opentelemetry.metrics import Meter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_common.runtime.clock import Clock


class RestMetrics:
    """ASGI middleware around everything else. Routes are named by their template, so that names stay few."""

    def __init__(self, app: ASGIApp, meter: Meter, clock: Clock, service: str) -> None:
        self._app = app
        self._clock = clock
        self._requests = meter.create_counter(f"headrace_{service}_http_requests", description="HTTP requests answered")
        self._seconds = meter.create_histogram(
            f"headrace_{service}_http_duration",
            unit="s",
            description="Time to answer an HTTP request",
            explicit_bucket_boundaries_advisory=[0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock.monotonic_ms()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._requests.add(1, {"route": route, "method": scope["method"], "status": status})
            self._seconds.record((self._clock.monotonic_ms() - started) / 1_000, {"route": route})
