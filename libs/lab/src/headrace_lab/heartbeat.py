"""A node's heartbeats without a thread: a task of the node, which the lab can pause and kill with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace_common.adapters.controller_heartbeat import Beat, BeatAnswered, BeatRefused, HeartbeatTalk, Said
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import HeadraceError
from headrace_common.core.image import NodeKey
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import Channels, Security
from headrace_common.runtime.clock import Clock
from headrace_proto.v1.controller_pb2_grpc import ControllerStub


class HeartbeatTask:
    """See ``headrace_common.adapters.controller_heartbeat.Heartbeats``."""

    def __init__(
        self,
        key: NodeKey,
        route: ControllerRoute,
        clock: Clock,
        on_answer: Callable[[BeatAnswered | BeatRefused], None],
        security: Security,
    ) -> None:
        self._talk = HeartbeatTalk(key, route, clock, on_answer)
        self._clock = clock
        self._channels: Channels[str] = Channels(security, own_connection=True)
        self._stubs: dict[str, Any] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def beat(self) -> Beat:
        """What the next heartbeat says."""
        return self._talk.beat

    def update(self, *, at_once: bool = False, **changes: Said) -> None:
        """Change what is said; ``at_once`` says it without waiting for the interval."""
        self._talk.change(**changes)
        if at_once:
            self._wake.set()

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="heartbeats")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._channels.close()

    async def _run(self) -> None:
        while True:
            beat = self.beat
            if beat.epoch >= 0:
                await self._send(beat)
            try:
                async with asyncio.timeout(self._talk.pause_ms() / 1_000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _send(self, beat: Beat) -> None:
        target, sent_ms = self._talk.target, self._clock.monotonic_ms()
        stub = self._stubs.get(str(target)) or ControllerStub(self._channels.to(str(target)))
        self._stubs[str(target)] = stub
        try:
            with CallTo(target):
                answer = await stub.Heartbeat(self._talk.request(beat), timeout=beat.interval_ms / 1_000)
        except HeadraceError as error:
            self._talk.refused(beat, target, error)
        else:
            self._talk.answered(beat, target, answer, sent_ms)
