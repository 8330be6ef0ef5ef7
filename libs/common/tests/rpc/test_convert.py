"""The image on the wire: there and back is the same, and what no controller sends is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import (
    ActiveController,
    ImageDelta,
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
from headrace_common.rpc.convert import node_from_proto, node_to_proto
from headrace_common.rpc.convert_delta import delta_from_proto, delta_to_proto
from headrace_proto.v1 import cluster_pb2 as pb

int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
sixteen = st.binary(min_size=16, max_size=16)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
node_ids = st.lists(int32, max_size=4).map(tuple)
configs = st.dictionaries(text, text, max_size=3)
endpoints = st.builds(Endpoint, st.text("abc.0-", min_size=1), st.integers(1, 65535), st.text("abc.", max_size=5))
keys = st.builds(NodeKey, st.sampled_from(Role), int32)
optional_endpoint = st.none() | endpoints
nodes = st.builds(
    Node,
    key=keys,
    grpc=endpoints,
    incarnation=sixteen,
    epoch=int64,
    http=optional_endpoint,
    metrics=optional_endpoint,
    rack=st.none() | text,
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
    version=text,
    drained=st.booleans(),
    external=optional_endpoint,
    internal=optional_endpoint,
    mtls=optional_endpoint,
    feature_level_max=int32,
)
topics = st.builds(Topic, text, sixteen, int32, configs, st.booleans())
partitions = st.builds(
    Partition,
    id=st.builds(PartitionId, sixteen, int32),
    replicas=node_ids,
    isr=node_ids,
    leader=st.integers(-1, 2**31 - 1),
    leader_epoch=int32,
    partition_epoch=int32,
    elr=node_ids,
    last_known_elr=node_ids,
    recovering=st.booleans(),
    adding=node_ids,
    removing=node_ids,
)
partition_ids = st.builds(PartitionId, sixteen, int32)


def some(of: Any) -> Any:
    return st.lists(of, max_size=3).map(tuple)


deltas = st.builds(
    ImageDelta,
    incarnation=sixteen,
    previous_revision=st.none() | int64,
    revision=int64,
    cluster_id=text,
    nodes=some(nodes),
    topics=some(topics),
    partitions=some(partitions),
    deletions=some(st.builds(TopicDeletion, sixteen, text, node_ids)),
    removed_nodes=some(keys),
    removed_topics=some(sixteen),
    finished_deletions=some(sixteen),
    removals=some(st.builds(ReplicaRemoval, partition_ids, node_ids)),
    finished_removals=some(partition_ids),
    shards=some(
        st.builds(
            Shard, st.builds(ShardKey, st.sampled_from(ShardKind), int32), st.integers(-1, 2**31 - 1), epoch=int32
        )
    ),
    cluster_configs=st.none() | configs,
    broker_configs=st.dictionaries(int32, configs, max_size=2),
    active_controller=st.none() | st.builds(ActiveController, st.integers(-1, 9), int64, optional_endpoint),
    feature_level=st.none() | int32,
)


@given(deltas)
def test_a_delta_survives_the_wire(delta: ImageDelta) -> None:
    assert delta_from_proto(pb.MetadataUpdate.FromString(delta_to_proto(delta).SerializeToString())) == delta


@given(nodes)
def test_a_node_survives_the_wire(node: Node) -> None:
    assert node_from_proto(node_to_proto(node)) == node


NODE = Node(NodeKey(Role.BROKER, 1), Endpoint("h", 1), b"i" * 16, 1)


@pytest.mark.parametrize(
    "broken",
    [
        {"role": pb.NODE_ROLE_UNSPECIFIED},
        {"role": 99},
        {"id": -1},
        {"incarnation": b"short"},
        {"grpc": pb.Endpoint(host="", port=1)},
        {"grpc": pb.Endpoint(host="h", port=0)},
        {"http": pb.Endpoint(host="h", port=65536)},
    ],
)
def test_a_broken_node_is_refused(broken: dict[str, Any]) -> None:
    node = node_to_proto(NODE)
    node.ClearField(next(iter(broken)))
    node.MergeFrom(pb.Node(**broken))
    with pytest.raises(Rejected):
        node_from_proto(node)


def test_a_node_without_an_address_is_refused() -> None:
    node = node_to_proto(NODE)
    node.ClearField("grpc")
    with pytest.raises(Rejected, match="gRPC endpoint"):
        node_from_proto(node)


@pytest.mark.parametrize(
    "update",
    [
        pb.MetadataUpdate(topics=[pb.Topic(name="t", topic_id=b"x")]),
        pb.MetadataUpdate(partitions=[pb.Partition(topic_id=b"x")]),
        pb.MetadataUpdate(partitions=[pb.Partition(topic_id=b"x" * 16, partition=-1)]),
        pb.MetadataUpdate(removed_topics=[b""]),
        pb.MetadataUpdate(finished_deletions=[b"x" * 17]),
        pb.MetadataUpdate(shards=[pb.Shard(kind=pb.GROUPS, number=-1)]),
        pb.MetadataUpdate(shards=[pb.Shard(kind=pb.SHARD_KIND_UNSPECIFIED, number=1)]),
        pb.MetadataUpdate(removed_nodes=[pb.NodeKey(role=0, id=1)]),
    ],
)
def test_a_broken_update_is_refused_whole(update: pb.MetadataUpdate) -> None:
    with pytest.raises(Rejected):
        delta_from_proto(update)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_update_or_refused(data: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        update = pb.MetadataUpdate.FromString(data)
    except DecodeError:
        return
    try:
        delta = delta_from_proto(update)
    except Rejected:
        return
    assert delta_from_proto(delta_to_proto(delta)) == delta
