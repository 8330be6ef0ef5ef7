"""
Members of a running etcd cluster, over etcd's gRPC API (the stubs of ``aetcd``, as ``adapters.etcd_store`` does).

Whose turn it is to change members stands in a key with a lease, outside the prefix of any Headrace cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio
from aetcd import rpc

from headrace_common.rpc.credentials import Pem
from headrace_controller.adapters.etcd_channels import open_channel
from headrace_controller.etcd_member.core.sights import Member
from headrace_controller.etcd_member.ports import ClusterUnusable

TURN: Final = b"/headrace-etcd/changing-members"
_TURN_S: Final = 60
_TIMEOUT_S: Final = 5.0
_MOVE_ON: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})

T = TypeVar("T")


class EtcdCluster:
    """See the port. Made by ``open``."""

    def __init__(self, channels: Sequence[tuple[str, grpc.aio.Channel]]) -> None:
        self._channels = channels

    @staticmethod
    @asynccontextmanager
    async def open(client_urls: Sequence[str], tls: Pem | None = None) -> AsyncIterator[EtcdCluster]:
        """
        The cluster behind these addresses, asked one after the other until one answers for a quorum.

        Args:
            tls: how those with https are verified and what they are shown.
        """
        urls = [urlsplit(url) for url in client_urls]
        channels = [(url.netloc, open_channel(url.netloc, tls if url.scheme == "https" else None)) for url in urls]
        try:
            yield EtcdCluster(channels)
        finally:
            for _, channel in channels:
                await channel.close()

    async def claim(self, name: str) -> str:

        async def ask(channel: grpc.aio.Channel) -> str:
            lease = await rpc.LeaseStub(channel).LeaseGrant(rpc.LeaseGrantRequest(TTL=_TURN_S), timeout=_TIMEOUT_S)
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=TURN, value=name.encode(), lease=lease.ID))
            for compare in (_nobodys(), _turn_of(name)):
                answer = await _transact(channel, compare, put)
                if answer.succeeded:
                    return name
            holder: bytes = next((kv.value for kv in answer.responses[0].response_range.kvs), b"another member")
            await rpc.LeaseStub(channel).LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease.ID), timeout=_TIMEOUT_S)
            return holder.decode(errors="replace")

        return await self._ask(ask)

    async def release(self, name: str) -> None:

        async def ask(channel: grpc.aio.Channel) -> None:
            await _transact(
                channel, _turn_of(name), rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=TURN))
            )

        await self._ask(ask)

    async def members(self) -> tuple[Member, ...]:

        async def ask(channel: grpc.aio.Channel) -> tuple[Member, ...]:
            request = rpc.MemberListRequest(linearizable=True)
            return _members(await rpc.ClusterStub(channel).MemberList(request, timeout=_TIMEOUT_S))

        return await self._ask(ask)

    async def add(self, peer_url: str) -> tuple[Member, ...]:

        async def ask(channel: grpc.aio.Channel) -> tuple[Member, ...]:
            request = rpc.MemberAddRequest(peerURLs=[peer_url])
            return _members(await rpc.ClusterStub(channel).MemberAdd(request, timeout=_TIMEOUT_S))

        return await self._ask(ask)

    async def readdress(self, member: Member, peer_url: str) -> None:

        async def ask(channel: grpc.aio.Channel) -> None:
            request = rpc.MemberUpdateRequest(ID=member.id, peerURLs=[peer_url])
            await rpc.ClusterStub(channel).MemberUpdate(request, timeout=_TIMEOUT_S)

        await self._ask(ask)

    async def remove(self, member: Member) -> None:

        async def ask(channel: grpc.aio.Channel) -> None:
            await rpc.ClusterStub(channel).MemberRemove(rpc.MemberRemoveRequest(ID=member.id), timeout=_TIMEOUT_S)

        await self._ask(ask)

    async def _ask(self, ask: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
        said: list[str] = []
        for target, channel in self._channels:
            try:
                return await ask(channel)
            except grpc.aio.AioRpcError as error:
                said.append(f"{target}: {error.details() or error.code().name.lower()}")
                if error.code() not in _MOVE_ON:
                    break
        raise ClusterUnusable("; ".join(said))


def _members(answer: Any) -> tuple[Member, ...]:
    return tuple(Member(m.ID, m.name, tuple(m.peerURLs), tuple(m.clientURLs)) for m in answer.members)


async def _transact(channel: grpc.aio.Channel, compare: Any, operation: Any) -> Any:
    look = rpc.RequestOp(request_range=rpc.RangeRequest(key=TURN))
    request = rpc.TxnRequest(compare=[compare], success=[operation], failure=[look])
    return await rpc.KVStub(channel).Txn(request, timeout=_TIMEOUT_S)


def _nobodys() -> Any:
    return rpc.Compare(key=TURN, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)


def _turn_of(name: str) -> Any:
    return rpc.Compare(key=TURN, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=name.encode())
