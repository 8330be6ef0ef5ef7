"""
Decides how the cluster image is written in ``cluster.proto`` and read from it.

The controller sends, every node and client reads. Reading checks shapes (lengths of ids, known roles, endpoints) and
refuses what no controller would send, so that the image itself never has to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    ActiveController,
    Node,
    NodeKey,
    Partition,
    ReplicaRemoval,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
    TopicDeletion,
)
from headrace_proto.v1 import cluster_pb2 as pb

_TO_PROTO_ROLE: Final[Mapping[Role, pb.NodeRole.ValueType]] = {
    Role.BROKER: pb.BROKER,
    Role.CONTROLLER: pb.CONTROLLER,
    Role.COORDINATOR: pb.COORDINATOR,
    Role.ADMIN: pb.ADMIN,
}
_FROM_PROTO_ROLE: Final[Mapping[int, Role]] = {number: role for role, number in _TO_PROTO_ROLE.items()}

_TO_PROTO_SHARD_KIND: Final[Mapping[ShardKind, pb.ShardKind.ValueType]] = {
    ShardKind.GROUPS: pb.GROUPS,
    ShardKind.TRANSACTIONS: pb.TRANSACTIONS,
    ShardKind.AUDIT: pb.AUDIT,
}
_FROM_PROTO_SHARD_KIND: Final[Mapping[int, ShardKind]] = {n: kind for kind, n in _TO_PROTO_SHARD_KIND.items()}

_ID_BYTES: Final = 16


def role_to_proto(role: Role) -> pb.NodeRole.ValueType:
    return _TO_PROTO_ROLE[role]


def role_from_proto(role: int) -> Role:
    """
    The role of a number.

    Raises:
        Rejected: unspecified, or newer than this version.
    """
    known = _FROM_PROTO_ROLE.get(role)
    if known is None:
        raise Rejected(f"node role {role} is not known here; name broker, controller, coordinator or admin")
    return known


def endpoint_to_proto(endpoint: Endpoint) -> pb.Endpoint:
    return pb.Endpoint(host=endpoint.host, port=endpoint.port, server_name=endpoint.server_name)


def endpoint_from_proto(endpoint: pb.Endpoint) -> Endpoint:
    """
    Host and port.

    Raises:
        Rejected: the host is empty or the port not in 1..65535.
    """
    if not endpoint.host or not 1 <= endpoint.port <= 65535:
        raise Rejected(f"endpoint {endpoint.host[:60]!r}:{endpoint.port} is not a host with a port from 1 to 65535")
    return Endpoint(endpoint.host, endpoint.port, endpoint.server_name)


def node_key_to_proto(key: NodeKey) -> pb.NodeKey:
    return pb.NodeKey(role=_TO_PROTO_ROLE[key.role], id=key.id)


def node_key_from_proto(key: pb.NodeKey) -> NodeKey:
    """
    Role and id.

    Raises:
        Rejected: the role is not known or the id is negative.
    """
    return _node_key(key.role, key.id)


def node_to_proto(node: Node) -> pb.Node:
    return pb.Node(
        role=_TO_PROTO_ROLE[node.key.role],
        id=node.key.id,
        grpc=endpoint_to_proto(node.grpc),
        http=None if node.http is None else endpoint_to_proto(node.http),
        metrics=None if node.metrics is None else endpoint_to_proto(node.metrics),
        rack=node.rack,
        incarnation=node.incarnation,
        epoch=node.epoch,
        fenced=node.fenced,
        in_controlled_shutdown=node.in_controlled_shutdown,
        version=node.version,
        drained=node.drained,
        external=None if node.external is None else endpoint_to_proto(node.external),
        feature_level_max=node.feature_level_max,
        internal=None if node.internal is None else endpoint_to_proto(node.internal),
        session_key=node.session_key,
        mtls=None if node.mtls is None else endpoint_to_proto(node.mtls),
    )


def node_from_proto(node: pb.Node) -> Node:
    """
    The whole node.

    Raises:
        Rejected: no gRPC endpoint, an incarnation that is not 16 bytes, an unknown role, a bad endpoint.
    """
    if not node.HasField("grpc"):
        raise Rejected(f"node {node.id} names no gRPC endpoint; it cannot be reached")
    return Node(
        key=_node_key(node.role, node.id),
        grpc=endpoint_from_proto(node.grpc),
        http=endpoint_from_proto(node.http) if node.HasField("http") else None,
        metrics=endpoint_from_proto(node.metrics) if node.HasField("metrics") else None,
        rack=node.rack if node.HasField("rack") else None,
        incarnation=_sixteen(node.incarnation, "incarnation"),
        epoch=node.epoch,
        fenced=node.fenced,
        in_controlled_shutdown=node.in_controlled_shutdown,
        version=node.version,
        drained=node.drained,
        external=endpoint_from_proto(node.external) if node.HasField("external") else None,
        feature_level_max=node.feature_level_max,
        internal=endpoint_from_proto(node.internal) if node.HasField("internal") else None,
        session_key=node.session_key,
        mtls=endpoint_from_proto(node.mtls) if node.HasField("mtls") else None,
    )


def topic_to_proto(topic: Topic) -> pb.Topic:
    """The topic without its partitions."""
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        configs=topic.configs,
        internal=topic.internal,
    )


def topic_from_proto(topic: pb.Topic) -> Topic:
    """
    The topic without its partitions.

    Raises:
        Rejected: the id is not 16 bytes.
    """
    return Topic(
        name=topic.name,
        topic_id=topic_id_from_proto(topic.topic_id),
        partition_count=topic.partition_count,
        configs=dict(topic.configs),
        internal=topic.internal,
    )


def partition_to_proto(partition: Partition) -> pb.Partition:
    return pb.Partition(
        topic_id=partition.id.topic_id,
        partition=partition.id.partition,
        replicas=partition.replicas,
        isr=partition.isr,
        elr=partition.elr,
        last_known_elr=partition.last_known_elr,
        recovering=partition.recovering,
        adding=partition.adding,
        removing=partition.removing,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )


def partition_from_proto(partition: pb.Partition) -> Partition:
    """
    The whole partition.

    Raises:
        Rejected: the topic id is not 16 bytes, or the partition is negative.
    """
    return Partition(
        id=partition_id_from_proto(partition),
        replicas=_nodes(partition.replicas),
        isr=_nodes(partition.isr),
        leader=NodeId(partition.leader),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        elr=_nodes(partition.elr),
        last_known_elr=_nodes(partition.last_known_elr),
        recovering=partition.recovering,
        adding=_nodes(partition.adding),
        removing=_nodes(partition.removing),
    )


def deletion_to_proto(deletion: TopicDeletion) -> pb.TopicDeletion:
    """The order to delete a topic's logs."""
    return pb.TopicDeletion(topic_id=deletion.topic_id, name=deletion.name, pending=deletion.pending)


def deletion_from_proto(deletion: pb.TopicDeletion) -> TopicDeletion:
    """
    The order to delete a topic's logs.

    Raises:
        Rejected: the id is not 16 bytes.
    """
    return TopicDeletion(topic_id_from_proto(deletion.topic_id), deletion.name, _nodes(deletion.pending))


def removal_to_proto(removal: ReplicaRemoval) -> pb.ReplicaRemoval:
    """The order to delete single logs."""
    return pb.ReplicaRemoval(topic_id=removal.id.topic_id, partition=removal.id.partition, pending=removal.pending)


def removal_from_proto(removal: pb.ReplicaRemoval) -> ReplicaRemoval:
    """
    The order to delete single logs.

    Raises:
        Rejected: the topic id is not 16 bytes, or the partition is negative.
    """
    return ReplicaRemoval(partition_id_from_proto(removal), _nodes(removal.pending))


def partition_ref_to_proto(partition: PartitionId) -> pb.PartitionRef:
    return pb.PartitionRef(topic_id=partition.topic_id, partition=partition.partition)


class NamesPartition(Protocol):
    """A message with a topic id and a partition."""

    @property
    def topic_id(self) -> bytes:
        """16 bytes, if it is right."""
        ...

    @property
    def partition(self) -> int:
        """From 0, if it is right."""
        ...


def partition_id_from_proto(message: NamesPartition) -> PartitionId:
    """
    Which partition a message is about.

    Raises:
        Rejected: the topic id is not 16 bytes, or the partition is negative.
    """
    if message.partition < 0:
        raise Rejected(f"partition {message.partition} is negative")
    return PartitionId(topic_id_from_proto(message.topic_id), message.partition)


def active_controller_to_proto(active: ActiveController) -> pb.ActiveController:
    """Who may write metadata."""
    grpc = None if active.grpc is None else endpoint_to_proto(active.grpc)
    return pb.ActiveController(id=active.id, epoch=active.epoch, grpc=grpc)


def active_controller_from_proto(active: pb.ActiveController) -> ActiveController:
    """Who may write metadata; id -1 when nobody may."""
    grpc = endpoint_from_proto(active.grpc) if active.HasField("grpc") else None
    return ActiveController(NodeId(active.id), active.epoch, grpc)


def topic_id_from_proto(topic_id: bytes) -> TopicId:
    """
    A topic id.

    Raises:
        Rejected: it is not 16 bytes.
    """
    return TopicId(_sixteen(topic_id, "topic id"))


def shard_kind_to_proto(kind: ShardKind) -> pb.ShardKind.ValueType:
    return _TO_PROTO_SHARD_KIND[kind]


def shard_kind_from_proto(kind: int) -> ShardKind:
    """
    Which internal topic.

    Raises:
        Rejected: this version knows none such.
    """
    known = _FROM_PROTO_SHARD_KIND.get(kind)
    if known is None:
        raise Rejected(f"there is no kind {kind} of shards; this version knows {sorted(_FROM_PROTO_SHARD_KIND)}")
    return known


def shard_to_proto(shard: Shard) -> pb.Shard:
    """Who has a partition of an internal topic."""
    kind = shard_kind_to_proto(shard.key.kind)
    return pb.Shard(kind=kind, number=shard.key.number, owner=shard.owner, epoch=shard.epoch)


def shard_from_proto(shard: pb.Shard) -> Shard:
    """
    Who has a partition of an internal topic.

    Raises:
        Rejected: its kind is not known, or its number is negative.
    """
    if shard.number < 0:
        raise Rejected(f"shard {shard.number} is negative")
    return Shard(ShardKey(shard_kind_from_proto(shard.kind), shard.number), NodeId(shard.owner), shard.epoch)


def _node_key(role: int, node_id: int) -> NodeKey:
    if node_id < 0:
        raise Rejected(f"node id {node_id} is negative; it takes 0 to 2147483647")
    return NodeKey(role_from_proto(role), NodeId(node_id))


def _nodes(ids: Iterable[int]) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, ids))


def _sixteen(value: bytes, what: str) -> bytes:
    if len(value) != _ID_BYTES:
        raise Rejected(f"the {what} has {len(value)} bytes; it takes {_ID_BYTES}")
    return value
