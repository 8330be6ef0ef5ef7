"""The controller as the broker's engine sees it: ``Cluster`` over the controller client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from headrace_broker.core.leadership import Proposal
from headrace_broker.ports import IsrDecision
from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.configs import BROKER_SETTINGS
from headrace_common.core.errors import error_for
from headrace_common.core.ids import PartitionId, TopicId
from headrace_common.core.image import ClusterImage, ShardKind
from headrace_common.rpc.convert import partition_from_proto
from headrace_proto.v1 import controller_pb2 as pb

ISR_CALL_MS_MAX: Final = 5_000.0
ENSURE_CALL_MS_MAX: Final = 5_000.0
SESSION_MS_DEFAULT: Final = int(BROKER_SETTINGS["broker.session.timeout.ms"].default)


class ControllerCluster:
    """See ``Cluster``."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    def images(self) -> AsyncIterator[ClusterImage]:
        return self._client.images()

    @property
    def broker_epoch(self) -> int:
        registered = self._client.registered
        return -1 if registered is None else registered.epoch

    @property
    def session_ms(self) -> float:
        registered = self._client.registered
        return float(SESSION_MS_DEFAULT if registered is None else registered.session_timeout_ms)

    async def alter_partitions(self, proposals: Sequence[tuple[PartitionId, Proposal]]) -> list[IsrDecision]:
        changes = [
            pb.AlterPartition(
                topic_id=id.topic_id,
                partition=id.partition,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                isr=[pb.IsrMember(broker_id=broker, broker_epoch=epoch) for broker, epoch in proposal.isr],
                resign=proposal.resign,
            )
            for id, proposal in proposals
        ]
        answer = await self._client.alter_partitions(changes, timeout_ms=ISR_CALL_MS_MAX)
        return [_decision(one) for one in answer.partitions]

    def say_disk_low(self, low: bool) -> None:
        self._client.say_disk_low(low)

    async def confirm_deletions(self, topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId] = ()) -> None:
        await self._client.confirm_deletions(topic_ids, partitions)

    async def allocate_producer_ids(self) -> range:
        return await self._client.allocate_producer_ids()

    async def ensure_internal_topic(self, kind: ShardKind) -> int:
        return await self._client.ensure_internal_topic(kind, timeout_ms=ENSURE_CALL_MS_MAX)


def _decision(one: pb.AlterPartitionResult) -> IsrDecision:
    if one.error:
        return IsrDecision(error=error_for(one.error, one.message))
    return IsrDecision(current=partition_from_proto(one.current))
