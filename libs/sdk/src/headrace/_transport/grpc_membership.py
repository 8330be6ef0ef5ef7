"""One ``Membership`` stream over ``grpc.aio``. Opened by ``grpc``."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import grpc
from grpc import aio

from headrace._runtime import Tasks
from headrace.errors import HeadraceError, NetworkFailed
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb

HANG_UP_MS: Final = 1_000
"""How long the end of a stream waits for what was sent before."""


class GrpcMembershipStream:
    """See ``port.MembershipStream``."""

    def __init__(
        self, call: aio.StreamStreamCall[pb.MembershipRequest, pb.MembershipResponse], where: str, tasks: Tasks
    ) -> None:
        self._call: aio.StreamStreamCall[pb.MembershipRequest, pb.MembershipResponse] = call
        self._where = where
        self._queue: deque[pb.MembershipRequest] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._failure: HeadraceError | None = None
        self._writer = tasks.start(self._write(), f"write {where}")

    def send(self, request: pb.MembershipRequest) -> None:
        """Queue ``request``."""
        self._queue.append(request)
        self._wake.set()

    async def receive(self) -> pb.MembershipResponse:
        """The next that the coordinator says."""
        if self._failure is not None:
            raise self._failure
        try:
            answer: Any = await self._call.read()
            if isinstance(answer, pb.MembershipResponse):
                return answer
            self._failure = NetworkFailed(f"{self._where} ended the stream")
        except grpc.RpcError as error:
            self._failure = error_from_rpc(error)
        except asyncio.InvalidStateError:
            self._failure = NetworkFailed(f"{self._where}: the stream is gone")
        self._call.cancel()
        raise self._failure

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._call.write(self._queue.popleft())
                if self._closing:
                    await self._call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # whoever reads learns why

    async def close(self) -> None:
        """End the stream; what was sent before leaves first."""
        if self._closing:
            return
        self._closing = True
        self._failure = self._failure or NetworkFailed("the stream was closed by this client")
        self._wake.set()
        await asyncio.wait([self._writer], timeout=HANG_UP_MS / 1000)
        self._writer.cancel()
        self._call.cancel()
