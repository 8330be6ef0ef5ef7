"""
Topics, settings, nodes and logs, for gRPC and REST alike; other subjects have an engine each (``rpc/engines.py``).

Metadata operations go to the active controller as they are. What concerns logs goes to brokers: trimming to the
leader of each partition, as the image has it, and again where leadership moved meanwhile; descriptions to every
broker at once, each with its own error when it cannot be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from headrace_admin.core.features import FeatureLevels, feature_levels
from headrace_admin.engine.leaders import Answers, Leaders, by_id
from headrace_admin.ports import Brokers, Cluster, Controllers
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.errors import (
    HeadraceError,
    NetworkFailed,
    NotFound,
    Rejected,
    error_for,
)
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.convert import node_from_proto
from headrace_common.rpc.status import detail_of
from headrace_common.runtime.clock import limit_ms
from headrace_proto.v1 import admin_pb2, broker_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

_PARTITIONS_MAX: Final = 10_000
_ASK_MS_MAX: Final = 10_000.0
_AWAY_ASK_MS_MAX: Final = 1_000.0
"""A broker that is fenced seldom answers; who describes all must not wait for it."""


class Administration:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, controllers: Controllers, brokers: Brokers) -> None:
        self.cluster = cluster
        self.controllers = controllers
        self.brokers = brokers

    async def feature_levels(self) -> FeatureLevels:
        """The cluster's feature level, and what its next one waits for."""
        answer = await self.controllers.ask(lambda stub: stub.DescribeCluster, pb.DescribeClusterRequest())
        return feature_levels(answer.feature_level, [node_from_proto(node) for node in answer.nodes])

    # --- logs -------------------------------------------------------------------------------------------------

    async def delete_records(
        self, request: broker_pb2.DeleteRecordsRequest, rights: Rights = EVERYTHING
    ) -> broker_pb2.DeleteRecordsResponse:
        """
        Move log starts up, at the leaders. Results in the order of the request; each partition fails by itself, also
        where the caller may not.

        Raises:
            Rejected: no partitions, more than 10,000, or one twice.
        """
        wanted = {PartitionId(TopicId(p.topic_id), p.partition): p for p in request.partitions}
        if not wanted or len(wanted) > _PARTITIONS_MAX:
            raise Rejected(f"name 1 to {_PARTITIONS_MAX} partitions, not {len(wanted)}")
        if len(wanted) != len(request.partitions):
            raise Rejected("a partition is named twice; name each once")

        async def trim(
            leader: NodeId, ids: Mapping[PartitionId, PartitionId]
        ) -> Answers[PartitionId, broker_pb2.DeleteRecordsResult]:
            sent = broker_pb2.DeleteRecordsRequest(partitions=[wanted[i] for i in ids])
            said = (await self.brokers.ask(leader, lambda stub: stub.DeleteRecords, sent)).partitions
            assert len(said) == len(ids), "an answer has one entry per entry of its request"
            return {
                i: one if one.error == errors_pb2.NONE else error_for(one.error, one.message)
                for i, one in zip(ids, said, strict=True)
            }

        refused = {i: error for i in wanted if (error := self._refused(i, rights)) is not None}
        done = await Leaders(self.cluster).ask([i for i in wanted if i not in refused], by_id, trim)
        said = {**refused, **done}
        results = [_trim_failed(i, r) if isinstance(r := said[i], HeadraceError) else r for i in wanted]
        return broker_pb2.DeleteRecordsResponse(partitions=results)

    def _refused(self, i: PartitionId, rights: Rights) -> HeadraceError | None:
        """Why records of a partition may not be deleted; of topics that are not known its leader decides."""
        topic = self.cluster.image.topics.get(i.topic_id)
        if topic is None or rights.may(Operation.DELETE, ResourceType.TOPIC, topic.name):
            return None
        return rights.refusal(Operation.DELETE, ResourceType.TOPIC, topic.name)

    async def describe_logs(
        self, request: admin_pb2.DescribeClusterLogsRequest
    ) -> admin_pb2.DescribeClusterLogsResponse:
        """
        The logs of one broker or of all; a broker that cannot be asked is listed with its error.

        Raises:
            NotFound: the one broker is not registered.
        """
        ids = [node.key.id for node in self.cluster.image.brokers()]
        if request.HasField("broker_id"):
            self.broker_known(request.broker_id)
            ids = [NodeId(request.broker_id)]
        brokers = await asyncio.gather(*(self._logs_of(broker, request.request) for broker in ids))
        return admin_pb2.DescribeClusterLogsResponse(brokers=brokers)

    async def _logs_of(self, broker: NodeId, request: broker_pb2.DescribeLogsRequest) -> admin_pb2.BrokerLogs:
        node = self.cluster.image.nodes.get(NodeKey(Role.BROKER, broker))
        wait_ms = _AWAY_ASK_MS_MAX if node is None or node.fenced else _ASK_MS_MAX
        try:
            async with limit_ms(wait_ms):
                logs = await self.brokers.ask(broker, lambda stub: stub.DescribeLogs, request)
        except TimeoutError:
            late = NetworkFailed(f"broker {broker} did not tell its logs within {wait_ms / 1_000:g} s")
            return admin_pb2.BrokerLogs(broker_id=broker, error=detail_of(late))
        except HeadraceError as error:
            return admin_pb2.BrokerLogs(broker_id=broker, error=detail_of(error))
        return admin_pb2.BrokerLogs(broker_id=broker, logs=logs)

    def broker_known(self, broker_id: int) -> None:
        """
        Check that a broker of this id is registered.

        Raises:
            NotFound: it is not; the text names those that are.
        """
        image = self.cluster.image
        if NodeKey(Role.BROKER, NodeId(broker_id)) not in image.nodes:
            known = ", ".join(str(n.key.id) for n in image.brokers()) or "none"
            raise NotFound(f"broker {broker_id} is not registered; registered are: {known}")

    # --- one topic, for REST ----------------------------------------------------------------------------------

    async def topic(self, name: str) -> pb.TopicDescription:
        """
        One topic.

        Raises:
            HeadraceError: what the controller says of this topic.
        """
        answer = await self.controllers.ask(lambda stub: stub.DescribeTopics, pb.DescribeTopicsRequest(names=[name]))
        return one_topic(answer.topics)


def one_topic(results: Sequence[pb.TopicResult]) -> pb.TopicDescription:
    """
    The description in the answer about a single topic.

    Raises:
        HeadraceError: the answer's error.
    """
    assert len(results) == 1, "one topic was asked for"
    result = results[0]
    if result.error != errors_pb2.NONE:
        raise error_for(result.error, result.message)
    return result.topic


def one_config(results: Sequence[pb.ConfigResult]) -> Sequence[pb.ConfigEntry]:
    """
    The entries in the answer about a single resource.

    Raises:
        HeadraceError: the answer's error.
    """
    assert len(results) == 1, "one resource was asked for"
    result = results[0]
    if result.error != errors_pb2.NONE:
        raise error_for(result.error, result.message)
    return result.entries


def _trim_failed(i: PartitionId, error: HeadraceError) -> broker_pb2.DeleteRecordsResult:
    detail = detail_of(error)
    return broker_pb2.DeleteRecordsResult(
        topic_id=i.topic_id, partition=i.partition, error=detail.code, message=detail.message, log_start_offset=-1
    )
