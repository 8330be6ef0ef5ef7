"""
Clusters as people run them: all listeners speak TLS, and programs show the key of somebody with the role ``developer``
on the names that they use. ``CHAOS_GUARDED=1`` makes all chaos tests so; those that take no longer by it always are.

Programs of a test find CA and key in their environment, as those of people do. What breaks and judges the cluster shows
the administrator's key (``LocalCluster.administrator``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import grpc
import pytest

from headrace import AdminClient, access
from headrace.finding import API_KEY_FILE_VARIABLE, CA_VARIABLE
from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_proto.v1.broker_pb2 import MetadataRequest
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2 import FetchOffsetsRequest
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

GUARDED: Final = os.environ.get("CHAOS_GUARDED") == "1"
DEVELOPER: Final = "User:developer"
KNOWN_S: Final = 30.0
ASK_S: Final = 5.0
ASKED: Final[dict[str, Callable[[grpc.Channel], object]]] = {
    "broker": lambda channel: BrokerStub(channel).Metadata(MetadataRequest(topics=["-"]), timeout=ASK_S),
    "coordinator": lambda channel: CoordinatorStub(channel).FetchOffsets(FetchOffsetsRequest(), timeout=ASK_S),
}


@contextmanager
def guarded(cluster: LocalCluster, *names: str, app: str | None = None, connect: str | None = None) -> Iterator[None]:
    """
    If the cluster speaks TLS, programs of this process, and those that it starts, are a developer's in this block.

    Args:
        names: how the topics, groups and transactional ids begin that they use.
        app, connect: whose role they have besides, of an app of Streams or a Connect cluster.
    """
    if not cluster.options.tls:
        yield
        return
    roles = [("developer", name) for name in names]
    roles += [(role, name) for role, name in (("streams", app), ("connect", connect)) if name is not None]
    with AdminClient(cluster.administrator) as admin:
        admin.alter_access([access.Put(access.bind(DEVELOPER, role, name)) for role, name in roles])
        key = admin.create_key(DEVELOPER).key
    _wait_known(cluster, key)
    ca, file = cluster.address.ca, cluster.directory.path.with_suffix(".key")
    assert ca is not None
    file.touch(0o600)
    file.write_text(key.reveal())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CA_VARIABLE, ca)
        patch.setenv(API_KEY_FILE_VARIABLE, str(file))
        yield


def _wait_known(cluster: LocalCluster, key: Secret) -> None:
    """A node hears of a new key a moment after it was made."""
    security = security_of(replace(cluster.address, api_key=key))
    for process in cluster.processes:
        if process.role in ASKED:
            known = wait_until(partial(_is_let_in, process.grpc, security, ASKED[process.role]), KNOWN_S)
            assert known, f"{process.name} does not know the key"


def _is_let_in(address: str, security: Security, ask: Callable[[grpc.Channel], object]) -> bool:
    with open_sync_channel(address, security) as channel:
        try:
            ask(channel)
        except grpc.RpcError as error:
            return error.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)
    return True
