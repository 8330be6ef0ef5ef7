"""Members as they speak on their streams, for dialogues over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb

GROUP = "g"
_EOF: Any = grpc.aio.EOF


class Member:
    """One Membership call."""

    def __init__(self, call: Any, group_id: str = GROUP) -> None:
        self.call = call
        self.group_id = group_id

    async def say(self, **request: Any) -> None:
        await self.call.write(pb.MembershipRequest(group_id=self.group_id, **request))

    async def hear(self) -> pb.MembershipResponse:
        try:
            async with asyncio.timeout(10):
                answer = await self.call.read()
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        assert isinstance(answer, pb.MembershipResponse), "the stream ended"
        return answer

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            return await self.call.read() is _EOF


@asynccontextmanager
async def member(stub: Any, group_id: str = GROUP) -> AsyncIterator[Member]:
    call = stub.Membership()
    try:
        yield Member(call, group_id)
    finally:
        call.cancel()


def consumer(member_id: str, epoch: int, **fields: Any) -> pb.ConsumerHeartbeat:
    if epoch == 0:
        fields = {"subscription": pb.ConsumerSubscription(topics=["t"]), "owned": pb.PartitionSet()} | fields
    return pb.ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **fields)


def worker(member_id: str, epoch: int, **fields: Any) -> pb.WorkHeartbeat:
    if epoch == 0:
        items = [pb.WorkItem(id=id, weight=1) for id in ("x", "y")]
        declared = pb.WorkDeclaration(fingerprint="f", items=items, max_warmup=2)
        fields = {"declaration": declared, "owned": pb.ItemIds()} | fields
    return pb.WorkHeartbeat(member_id=member_id, member_epoch=epoch, process_id=member_id, **fields)


def classic(member_id: str = "", **fields: Any) -> pb.ClassicJoin:
    protocol = pb.ClassicProtocol(name="range", subscription=pb.ClassicSubscription(topics=["t"], generation=-1))
    wanted: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocols": [protocol],
    } | fields
    return pb.ClassicJoin(member_id=member_id, client_id="c", **wanted)
