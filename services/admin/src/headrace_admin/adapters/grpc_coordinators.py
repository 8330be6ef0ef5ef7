"""
The ``Coordinators`` port: one channel per address that a broker or the image gave for a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc.aio

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import A_co, CallTo, Method, Q_contra
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub

CHANNELS_MAX: Final = 64
"""Addresses that are kept; coordinators that start again may have new ones."""


class GrpcCoordinators:
    """
    Channels are opened when first used and closed with ``close``. One that has not been used for longest is closed when
    there are too many, and not when a coordinator has moved: calls may still be under way there.
    """

    def __init__(self, timeout_ms: float, security: Security = PLAIN) -> None:
        self._timeout = timeout_ms / 1_000
        self._channels: Channels[Endpoint] = Channels(security)

    async def ask_group(
        self,
        place: CoordinatorPlace,
        method: Callable[[CoordinatorAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
    ) -> A_co:
        return await self._ask(place, method(CoordinatorStub(await self._channel(place))), request)

    async def ask_transaction(
        self,
        place: CoordinatorPlace,
        method: Callable[[TransactionCoordinatorAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
    ) -> A_co:
        return await self._ask(place, method(TransactionCoordinatorStub(await self._channel(place))), request)

    async def _ask(self, place: CoordinatorPlace, call: Method[Q_contra, A_co], request: Q_contra) -> A_co:
        with CallTo(f"the coordinator at {place.endpoint}"):
            return await call(request, timeout=self._timeout)

    async def close(self) -> None:
        await self._channels.close()

    @property
    def channels(self) -> int:
        """How many are open."""
        return len(self._channels)

    async def _channel(self, place: CoordinatorPlace) -> grpc.aio.Channel:
        channel = self._channels.to(place.endpoint)
        await self._channels.trim(CHANNELS_MAX)
        return channel
