"""
Spares the wire where a shard of groups and one of transactions are kept by the same process.

``main`` puts these before what speaks gRPC. What they ask is the same method that the servicer calls, so that nothing
is decided here: a shard that is kept here answers as it would over a connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_common.core.errors import CoordinatorNotAvailable, HeadraceError
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, NodeKey, Role, ShardKind
from headrace_coordinator.core import events
from headrace_coordinator.core.transactions.values import Producer
from headrace_coordinator.engine.coordinator import Coordinator
from headrace_coordinator.engine.transactions import Enrolment, Transactions
from headrace_coordinator.ports import Cluster, Destination, Enrolments, Marker, MarkerErrors, Markers


class NearEnrolments:
    """See ``Enrolments``; ``own`` is set once it is there, before anything is served."""

    def __init__(self, far: Enrolments, cluster: Cluster) -> None:
        self.own: Transactions | None = None
        self._far = far
        self._cluster = cluster

    async def enrol(self, transactional_id: str, producer_id: int, producer_epoch: int, shard: int) -> None:
        own = self.own
        if own is None or not own.keeps(transactional_id):
            await self._far.enrol(transactional_id, producer_id, producer_epoch, shard)
            return
        topic = self._cluster.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS])
        if topic is None:
            raise CoordinatorNotAvailable("the topic of groups is not there; try again in a moment")
        producer = Producer(producer_id, producer_epoch)
        (error,) = await own.enrol([Enrolment(transactional_id, producer, [PartitionId(topic.topic_id, shard)])])
        if error is not None:
            raise error


class NearMarkers:
    """See ``Markers``; ends for this node's own shards of groups are told at once."""

    def __init__(self, far: Markers, cluster: Cluster, node_id: NodeId, own: Coordinator) -> None:
        self._far = far
        self._cluster = cluster
        self._key = NodeKey(Role.COORDINATOR, node_id)
        self._own = own

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        node = self._cluster.image.nodes.get(self._key)
        if to.role is not Role.COORDINATOR or node is None or node.inside != to.at:
            return await self._far.write(to, markers)
        ends = [(events.Marker(marker.producer_id, marker.epoch, marker.commit), ids) for marker, ids in markers]
        found: list[list[HeadraceError | None]] = await self._own.end_transactions(ends)
        return found
