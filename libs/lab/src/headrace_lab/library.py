"""
What stands where the ``grpc`` package stands for code that runs in the lab: channels and servers of its network.

``headrace_common.rpc.library`` asks for it. All else, exceptions and status codes above all, is gRPC's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from headrace_lab.client import Channel, LabChannel
from headrace_lab.far import FarChannel
from headrace_lab.network import Network
from headrace_lab.server import LabServer

_RECEIVE: Final = "grpc.max_receive_message_length"
_RECEIVE_DEFAULT: Final = 4 << 20


class _Aio:
    def __init__(self, network: Network) -> None:
        self._network = network

    def insecure_channel(self, target: str, options: Sequence[tuple[str, Any]] = ()) -> Channel:
        near = LabChannel(self._network, target, dict(options).get(_RECEIVE, _RECEIVE_DEFAULT))
        home = asyncio.get_running_loop()
        return near if home is self._network.loop else FarChannel(near, self._network.loop, home)

    def server(
        self,
        *,
        interceptors: Sequence[Any] = (),
        options: Sequence[tuple[str, Any]] = (),
        maximum_concurrent_rpcs: int | None = None,
    ) -> LabServer:
        bytes_max = dict(options).get(_RECEIVE, _RECEIVE_DEFAULT)
        return LabServer(self._network, interceptors, bytes_max=bytes_max, calls_max=maximum_concurrent_rpcs)

    def init_grpc_aio(self) -> None:
        """There is nothing to begin."""

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc.aio, name)


class LabGrpc:
    """In place of the ``grpc`` package."""

    def __init__(self, network: Network) -> None:
        self.aio: Final = _Aio(network)

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)
