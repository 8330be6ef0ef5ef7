"""
Channels of clients that run on another loop and thread than the lab: each call is made in the lab for them, and what
goes to and fro changes threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import grpc.aio

from headrace_lab.call import CANCELLED, WINDOW_BYTES, Call, Pipe, Status
from headrace_lab.client import Channel, LabChannel
from headrace_lab.loop import LabLoop

T = TypeVar("T")

UNASKED_BYTES_MAX: Final = WINDOW_BYTES // 4
"""So much is sent between two questions whether there is room."""


class FarChannel(Channel):
    """``near`` is its channel in the lab; ``home`` the loop on which it is used."""

    def __init__(self, near: LabChannel, lab: LabLoop, home: asyncio.AbstractEventLoop) -> None:
        self._near, self._lab, self._home = near, lab, home
        self._closed = False

    def begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]], timeout_s: float | None) -> FarCall:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        return FarCall(self._lab, self._home, lambda: self._near.begin(method, metadata, timeout_s))

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        if not self._lab.is_closed():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._near.close(grace), self._lab))


class FarCall:
    """``ClientCallEnd`` at home; ``begin`` makes the call in the lab."""

    def __init__(self, lab: LabLoop, home: asyncio.AbstractEventLoop, begin: Callable[[], Call]) -> None:
        self._lab, self._home = lab, home
        self.status: Status | None = None
        self.cancelled = False
        self.ended: asyncio.Future[Status] = home.create_future()
        self.responses = Pipe(home, 0)
        self._unasked = 0
        self._near: Call | None = None
        lab.call_soon_threadsafe(self._begin, begin)

    # --- at home ----------------------------------------------------------------------------------------------

    async def wait_for_connection(self) -> None:
        await self._in_lab(lambda near: near.wait_for_connection())

    async def room(self) -> None:
        if self._unasked >= UNASKED_BYTES_MAX:
            self._unasked = 0
            await self._in_lab(lambda near: near.room())

    def send(self, raw: bytes) -> None:
        self._unasked += len(raw)
        self._tell(lambda near: near.send(raw))

    def send_end(self) -> None:
        self._tell(lambda near: near.send_end())

    def cancel(self) -> bool:
        if self.status is not None:
            return False
        self.cancelled = True
        self._finish(CANCELLED, drop=True)
        self._tell(lambda near: near.cancel())
        return True

    def _take(self, raw: bytes) -> None:
        self.responses.sent(len(raw))
        self.responses.put(raw)

    def _finish(self, status: Status, *, drop: bool = False) -> None:
        if self.status is None:
            self.status = status
            self.responses.end(drop=drop)
            self.ended.set_result(status)

    def _tell(self, what: Callable[[Call], object]) -> None:
        if not self._lab.is_closed():
            self._lab.call_soon_threadsafe(self._do, what)

    async def _in_lab(self, what: Callable[[Call], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            assert self._near is not None, "it was begun before"
            return await what(self._near)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), self._lab))

    # --- in the lab -------------------------------------------------------------------------------------------

    def _begin(self, begin: Callable[[], Call]) -> None:
        try:
            self._near = begin()
        except grpc.aio.UsageError:  # closed meanwhile
            self._home.call_soon_threadsafe(self._finish, CANCELLED)
            return
        self._pumping = self._lab.create_task(self._pump(self._near), name="far call")

    def _do(self, what: Callable[[Call], object]) -> None:
        if self._near is not None:
            what(self._near)

    async def _pump(self, near: Call) -> None:
        try:
            while (raw := await near.responses.get()) is not None:
                self._home.call_soon_threadsafe(self._take, raw)
            status = await asyncio.shield(near.ended)
            self._home.call_soon_threadsafe(self._finish, status)
        except RuntimeError:  # home is closed
            near.cancel()
