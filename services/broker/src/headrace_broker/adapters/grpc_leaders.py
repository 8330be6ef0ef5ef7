"""``Replicate`` streams to other brokers over gRPC, each on a connection of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio

from headrace_broker.core.copying import Copied, CopyAnswer, CopyAsk
from headrace_broker.core.local_log import Parted
from headrace_broker.core.rows import NO_TOKEN
from headrace_common.core.errors import HeadraceError, NetworkFailed, error_for
from headrace_common.core.ids import Endpoint, NodeId, Offset, PartitionId, TopicId
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

CONNECT_S_MAX: Final = 3.0
_EOF: Final[Any] = grpc.aio.EOF


class GrpcStream:
    """See ``LeaderStream``."""

    def __init__(self, channel: grpc.aio.Channel, call: Any) -> None:
        self._channel = channel
        self._call = call

    async def send(self, ask: CopyAsk) -> None:
        request = pb.ReplicateRequest(broker_id=ask.broker, broker_epoch=ask.broker_epoch, received=ask.received)
        for id in ask.withdrawn:
            request.withdrawn.add(topic_id=id.topic_id, partition=id.partition)
        add = request.positions.add
        for one in ask.positions:
            add(
                topic_id=one.partition.topic_id,
                partition=one.partition.partition,
                leader_epoch=one.leader_epoch,
                last_epoch=one.last_epoch,
                log_end=one.log_end,
                written_end=one.written_end,
                wants=one.wants,
                forgotten_to=one.forgotten_to,
            )
        try:
            await self._call.write(request)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:  # the latter when it has ended already
            raise NetworkFailed(f"the stream is broken: {error}") from error

    async def receive(self) -> CopyAnswer | None:
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        if response is _EOF:
            return None
        if response.error:
            raise error_for(response.error, response.message)
        return CopyAnswer(response.number, [decode_copied(one) for one in response.partitions])

    async def close(self) -> None:
        self._call.cancel()
        with suppress(grpc.aio.UsageError):
            await self._channel.close()


class GrpcLeaders:
    """See ``Leaders``."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._security = security

    async def open(self, broker: NodeId, endpoint: Endpoint) -> GrpcStream:
        channel = open_channel(str(endpoint), self._security, own_connection=True)
        call = BrokerStub(channel).Replicate(wait_for_ready=False)
        try:
            await call.wait_for_connection()
        except grpc.RpcError as error:
            await channel.close()
            raise error_from_rpc(error) from error
        except BaseException:
            await channel.close()
            raise
        del broker
        return GrpcStream(channel, call)


def decode_copied(one: pb.ReplicatedPartition) -> Copied:
    error: HeadraceError | None = error_for(one.error, one.message) if one.error else None
    parted = Parted(one.diverging.epoch, Offset(one.diverging.end_offset)) if one.HasField("diverging") else None
    return Copied(
        PartitionId(TopicId(one.topic_id), one.partition),
        one.leader_epoch,
        Offset(one.high_watermark),
        Offset(one.log_start),
        list(one.batches),
        parted,
        error,
        one.fencing_token if one.HasField("fencing_token") else NO_TOKEN,
        Offset(one.forgotten_to),
    )
