"""A snapshot or a step of the cluster image as ``MetadataUpdate``: what the controller sends and all others read."""

from __future__ import annotations

from headrace_common.core.ids import NodeId
from headrace_common.core.image import ImageDelta
from headrace_common.rpc.convert import (
    active_controller_from_proto,
    active_controller_to_proto,
    deletion_from_proto,
    deletion_to_proto,
    node_from_proto,
    node_key_from_proto,
    node_key_to_proto,
    node_to_proto,
    partition_from_proto,
    partition_id_from_proto,
    partition_ref_to_proto,
    partition_to_proto,
    removal_from_proto,
    removal_to_proto,
    shard_from_proto,
    shard_to_proto,
    topic_from_proto,
    topic_id_from_proto,
    topic_to_proto,
)
from headrace_proto.v1 import cluster_pb2 as pb


def delta_to_proto(delta: ImageDelta) -> pb.MetadataUpdate:
    """A snapshot or a step."""
    configs = delta.cluster_configs
    active = delta.active_controller
    return pb.MetadataUpdate(
        incarnation=delta.incarnation,
        previous_revision=delta.previous_revision,
        revision=delta.revision,
        cluster_id=delta.cluster_id,
        nodes=map(node_to_proto, delta.nodes),
        topics=map(topic_to_proto, delta.topics),
        partitions=map(partition_to_proto, delta.partitions),
        deletions=map(deletion_to_proto, delta.deletions),
        removed_nodes=map(node_key_to_proto, delta.removed_nodes),
        removed_topics=delta.removed_topics,
        finished_deletions=delta.finished_deletions,
        removals=map(removal_to_proto, delta.removals),
        finished_removals=map(partition_ref_to_proto, delta.finished_removals),
        shards=map(shard_to_proto, delta.shards),
        cluster_configs=None if configs is None else pb.ConfigSet(values=configs),
        broker_configs={node: pb.ConfigSet(values=own) for node, own in delta.broker_configs.items()},
        active_controller=None if active is None else active_controller_to_proto(active),
        feature_level=delta.feature_level,
        access=delta.access,
    )


def delta_from_proto(update: pb.MetadataUpdate) -> ImageDelta:
    """
    A snapshot or a step.

    Raises:
        Rejected: an entry breaks the rules of its message; nothing of the update may be used.
    """
    return ImageDelta(
        incarnation=update.incarnation,
        previous_revision=update.previous_revision if update.HasField("previous_revision") else None,
        revision=update.revision,
        cluster_id=update.cluster_id,
        nodes=tuple(map(node_from_proto, update.nodes)),
        topics=tuple(map(topic_from_proto, update.topics)),
        partitions=tuple(map(partition_from_proto, update.partitions)),
        deletions=tuple(map(deletion_from_proto, update.deletions)),
        removed_nodes=tuple(map(node_key_from_proto, update.removed_nodes)),
        removed_topics=tuple(map(topic_id_from_proto, update.removed_topics)),
        finished_deletions=tuple(map(topic_id_from_proto, update.finished_deletions)),
        removals=tuple(map(removal_from_proto, update.removals)),
        finished_removals=tuple(map(partition_id_from_proto, update.finished_removals)),
        shards=tuple(map(shard_from_proto, update.shards)),
        cluster_configs=dict(update.cluster_configs.values) if update.HasField("cluster_configs") else None,
        broker_configs={NodeId(node): dict(own.values) for node, own in update.broker_configs.items()},
        active_controller=(
            active_controller_from_proto(update.active_controller) if update.HasField("active_controller") else None
        ),
        feature_level=update.feature_level if update.HasField("feature_level") else None,
        access=dict(update.access),
    )
