"""What administrators from outside are told of the cluster: external addresses of the nodes that have one."""

from __future__ import annotations

from headrace_admin.rpc.messages_out import seen_from
from headrace_common.core.image import Listener
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

INSIDE = cluster_pb2.Endpoint(host="broker-0.internal", port=9292)
OUTSIDE = cluster_pb2.Endpoint(host="headrace.example", port=31_000)


def test_nodes_are_told_at_their_external_addresses_where_they_have_one() -> None:
    broker = cluster_pb2.Node(role=cluster_pb2.BROKER, grpc=INSIDE, http=INSIDE, metrics=INSIDE, external=OUTSIDE)
    broker.internal.CopyFrom(INSIDE)
    controller = cluster_pb2.Node(role=cluster_pb2.CONTROLLER, grpc=INSIDE)
    cluster = pb.DescribeClusterResponse(cluster_id="c", nodes=[broker, controller])
    seen = seen_from(Listener.EXTERNAL, cluster)
    assert seen.cluster_id == "c"
    assert list(seen.nodes) == [cluster_pb2.Node(role=cluster_pb2.BROKER, grpc=OUTSIDE), controller]
    assert cluster.nodes[0].grpc == INSIDE, "the answer itself may be shared"


def test_who_shows_a_certificate_is_told_where_others_do() -> None:
    there = cluster_pb2.Endpoint(host="broker-0.internal", port=9295, server_name="broker.headrace")
    broker = cluster_pb2.Node(role=cluster_pb2.BROKER, grpc=INSIDE, http=INSIDE, external=OUTSIDE, mtls=there)
    broker.internal.CopyFrom(INSIDE)
    old = cluster_pb2.Node(role=cluster_pb2.BROKER, grpc=INSIDE)
    cluster = pb.DescribeClusterResponse(nodes=[broker, old])
    seen = seen_from(Listener.MTLS, cluster)
    assert list(seen.nodes) == [cluster_pb2.Node(role=cluster_pb2.BROKER, grpc=there, http=INSIDE), old]
    assert seen_from(Listener.CLIENT, cluster) is cluster
    assert not seen_from(Listener.EXTERNAL, cluster).nodes[0].HasField("mtls")
