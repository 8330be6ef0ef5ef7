"""
Calls of the admin service that have no method in ``AdminClient``: one at a time, from a thread that may block.

It is found through any broker's metadata, or given by its address (``headrace status`` knows the local one). What only
reads is tried at each admin service in turn; a change is sent once more only when it surely did not arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc

from headrace.finding import ClusterAddress
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace_common.rpc.channels import SyncChannels, open_sync_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import admin_pb2_grpc, broker_pb2, broker_pb2_grpc, cluster_pb2

if TYPE_CHECKING:
    from headrace_proto.v1.admin_pb2_grpc import AdminStub

A = TypeVar("A")

CALL_SECONDS: Final = 45.0
FIND_SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 0.2
_NOT_DONE: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.OVERLOADED})


class AdminCalls:
    """Use it as a context manager. ``admins`` are addresses of admin services; without them brokers are asked."""

    def __init__(
        self, bootstrap: Sequence[str], admins: Iterable[str] = (), timeout_seconds: float = CALL_SECONDS
    ) -> None:
        self._bootstrap = bootstrap
        self._admins = list(admins)
        self._timeout = timeout_seconds
        self._channels: SyncChannels[str] = SyncChannels()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channels.close()

    def read(self, ask: Callable[[AdminStub, float], A]) -> A:
        """An answer, tried again until the time is over. Raises: HeadraceError."""
        return self._call(ask, lambda error: error.retriable)

    def change(self, ask: Callable[[AdminStub, float], A]) -> A:
        """An answer; raised are also errors after which the change may have been made. Raises: HeadraceError."""
        return self._call(ask, lambda error: error.code in _NOT_DONE)

    def _call(self, ask: Callable[[AdminStub, float], A], again: Callable[[HeadraceError], bool]) -> A:
        end = time.monotonic() + self._timeout
        while True:
            try:
                address = self._admin()
                stub: Any = admin_pb2_grpc.AdminStub(self._channels.to(address))
                return ask(stub, max(0.1, end - time.monotonic()))
            except grpc.RpcError as failed:
                error = error_from_rpc(failed)
            except NetworkFailed as nobody:
                error = nobody
            if not again(error) or time.monotonic() + PAUSE_SECONDS >= end:
                raise error
            self._admins = self._admins[1:]
            time.sleep(PAUSE_SECONDS)

    def _admin(self) -> str:
        if not self._admins:
            self._admins = find_admins(self._bootstrap)
        return self._admins[0]


def find_admins(bootstrap: Sequence[str]) -> list[str]:
    """
    Addresses of the admin services that a broker knows.

    Raises:
        NetworkFailed: no broker answers, or none knows an admin service.
        InconsistentClusterId: the cluster that is meant is not there, and another is.
    """
    said: list[str] = []
    for address in bootstrap:
        with open_sync_channel(address) as channel:
            try:
                stub = broker_pb2_grpc.BrokerStub(channel)
                answer = stub.Metadata(broker_pb2.MetadataRequest(), timeout=FIND_SECONDS)
            except grpc.RpcError as failed:
                said.append(f"{address}: {failed.code().name}")
                continue
        if isinstance(bootstrap, ClusterAddress):
            bootstrap.check(answer.cluster_id, address)
        found = [f"{n.grpc.host}:{n.grpc.port}" for n in answer.nodes if n.role == cluster_pb2.ADMIN]
        if found:
            return found
        said.append(f"{address}: it knows no admin service")
    raise NetworkFailed(f"no admin service can be found ({'; '.join(said)}); start one, for example `headrace up`")
