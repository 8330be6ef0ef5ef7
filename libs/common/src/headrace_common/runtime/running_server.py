"""
Decides how a gRPC server stops, however many want it to, and however soon.

gRPC says that ``stop`` may be called again with less time. But a call that finds the server freed when it has waited,
for its time or for another call, ends the process (signal 11). So there are two calls at most: one whose time does not
end waits for the calls that are under way, and one that waits for nothing cuts them off.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

import grpc.aio

_NEVER_S: Final = 100 * 86_400.0
"""Longer than anybody lets calls go on."""


@final
class RunningServer:
    """A server that was started. One event loop."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._ends: asyncio.Task[None] | None = None
        self._cut: asyncio.Task[None] | None = None

    def leave(self) -> asyncio.Task[None]:
        """From the next step of the event loop on it listens no more; the task is done when its calls have ended."""
        if self._ends is None:
            self._ends = asyncio.get_running_loop().create_task(self._server.stop(_NEVER_S), name="server leaves")
        return self._ends

    async def stop(self, grace: float | None) -> None:
        """
        Take no new calls, and give those under way ``grace`` seconds; none: cut them off. Returns when they have ended.

        May be called again, at any time: who gives less decides.
        """
        ends = self.leave()
        if grace:
            await asyncio.wait([ends], timeout=grace)
        if not ends.done() and self._cut is None:
            self._cut = asyncio.get_running_loop().create_task(self._server.stop(None), name="server is cut off")
        await asyncio.shield(ends)
