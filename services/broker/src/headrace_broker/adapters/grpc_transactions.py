"""The way to the coordinators of transactions over gRPC: one channel for each address."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace_broker.ports import Enrolment
from headrace_common.core.errors import HeadraceError, NetworkFailed, error_for
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.options import EAGER_RECONNECT_MS_MAX
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub


class GrpcTransactions:
    """See ``TransactionCoordinators``. One event loop; ``close`` it at the end."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._channels: Channels[Endpoint] = Channels(security, reconnect_ms_max=EAGER_RECONNECT_MS_MAX)

    async def enrol(
        self, at: Endpoint, enrolments: Sequence[Enrolment], timeout_ms: float
    ) -> list[HeadraceError | None]:
        stub = TransactionCoordinatorStub(self._channels.to(at))
        with CallTo(at):
            answer = await stub.AddPartitionsToTxn(_request(enrolments), timeout=timeout_ms / 1_000)
        if len(answer.transactions) != len(enrolments):
            raise NetworkFailed(f"the coordinator at {at} left out transactions that were asked for")
        return [error_for(one.error, one.message) if one.error else None for one in answer.transactions]

    async def keep(self, known: Collection[Endpoint]) -> None:
        await self._channels.keep(known)

    async def close(self) -> None:
        await self._channels.close()


def _request(enrolments: Sequence[Enrolment]) -> pb.AddPartitionsToTxnRequest:
    request = pb.AddPartitionsToTxnRequest()
    for one in enrolments:
        entry = request.transactions.add(
            transactional_id=one.transactional_id, producer_id=one.producer_id, producer_epoch=one.producer_epoch
        )
        for id in one.partitions:
            entry.partitions.add(topic_id=id.topic_id, partition=id.partition)
    return request
