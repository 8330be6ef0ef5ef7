"""Programs that pass for nodes of a cluster: each is refused, and the cluster goes on as if nobody had come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc
import pytest

from headrace.testing import TestCluster, started_cluster
from headrace_common.core.batch import build_fence_batch
from headrace_common.core.errors import ClusterAuthorizationFailed, HeadraceError, error_for
from headrace_common.core.features import NODE_TOKEN
from headrace_common.rpc.channels import open_sync_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.token_file import new_token, read_tokens
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

pytestmark = pytest.mark.integration

TOPIC, GROUP, OFFSETS = "orders", "readers", "__consumer_offsets"
FOR_EVER = 2**62
Shown: TypeAlias = "tuple[tuple[str, str], ...]"
WAYS: dict[str, Shown] = {
    "nothing": (),
    "a name": (("headrace-node", "broker-1"),),
    "a token of its own": (("headrace-node", "broker-1"), ("headrace-node-token", new_token())),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    directory = tmp_path_factory.mktemp("strangers") / "data"
    with started_cluster(directory, brokers=2, restart=False, closed=False) as started:
        with started.admin() as admin:
            assert admin.describe_features().level >= NODE_TOKEN.level
            admin.create_topic(TOPIC, 1, 2)
        read_one(started)
        yield started


def read_one(cluster: TestCluster) -> None:
    """A record is written, read by the group, and its offset committed: brokers, shards and elections are sound."""
    with cluster.producer() as producer:
        producer.send(TOPIC, os.urandom(8)).result(timeout=60)
    with cluster.consumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        while not consumer.poll(timeout_ms=30_000):
            pass
        consumer.commit()


@pytest.fixture(params=list(WAYS))
def shown(request: pytest.FixtureRequest) -> Shown:
    return WAYS[request.param]


def address(cluster: TestCluster, name: str) -> str:
    return str(cluster.local.process(name).grpc)


def refused(at: str, stub: Any, call: Callable[[Any], Any]) -> None:
    """The call is refused for want of a node token."""
    with open_sync_channel(at, own_connection=True) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            call(stub(channel))
        error = error_from_rpc(raised.value)
        assert isinstance(error, ClusterAuthorizationFailed), error
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]  # grpc's calls


def stranger_node(role: int, node_id: int) -> controller_pb2.RegisterNodeRequest:
    node = cluster_pb2.Node(
        role=cluster_pb2.NodeRole.ValueType(role),
        id=node_id,
        grpc=cluster_pb2.Endpoint(host="127.0.0.1", port=9),
        incarnation=os.urandom(16),
        feature_level_max=NODE_TOKEN.level,
    )
    return controller_pb2.RegisterNodeRequest(node=node)


def offsets_topic(stub: Any) -> bytes:
    answer = stub.Metadata(broker_pb2.MetadataRequest(topics=[OFFSETS]), timeout=30)
    return bytes(answer.topics[0].topic_id)


@pytest.mark.parametrize("role", [cluster_pb2.BROKER, cluster_pb2.CONTROLLER, cluster_pb2.COORDINATOR])
def test_no_stranger_becomes_a_node(cluster: TestCluster, shown: Shown, role: int) -> None:
    def register(stub: Any) -> None:
        stub.RegisterNode(stranger_node(role, 66), metadata=shown, timeout=30)

    refused(address(cluster, "controller-1"), ControllerStub, register)
    with cluster.admin() as admin:
        assert not [one.node for one in admin.describe_features().nodes if one.node.endswith("-66")]
    read_one(cluster)


def test_no_stranger_asks_controllers_for_anything(cluster: TestCluster, shown: Shown) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda stub: stub.Heartbeat(controller_pb2.HeartbeatRequest(role=cluster_pb2.BROKER, id=1), metadata=shown),
        lambda stub: stub.AllocateProducerIds(controller_pb2.AllocateProducerIdsRequest(broker_id=1), metadata=shown),
        lambda stub: stub.AlterPartitions(controller_pb2.AlterPartitionsRequest(broker_id=1), metadata=shown),
        lambda stub: stub.DeleteTopics(controller_pb2.DeleteTopicsRequest(names=[TOPIC]), metadata=shown),
        lambda stub: next(stub.WatchMetadata(controller_pb2.WatchMetadataRequest(), metadata=shown)),
        lambda stub: stub.UnregisterNode(
            controller_pb2.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=1), metadata=shown
        ),
    ]
    for call in calls:
        refused(address(cluster, "controller-1"), ControllerStub, call)
    read_one(cluster)


def test_no_stranger_confirms_what_no_replica_has(cluster: TestCluster, shown: Shown) -> None:
    def replicate(stub: Any) -> None:
        next(stub.Replicate(iter([broker_pb2.ReplicateRequest(broker_id=2)]), metadata=shown, timeout=30))

    refused(address(cluster, "broker-1"), BrokerStub, replicate)


def _told(answer: Any) -> None:
    """The stream of copies says in its last answer why it ends."""
    raise error_for(answer.error, answer.message)


SPEAKING: dict[str, tuple[str, Any, Callable[[Any, Shown], Any]]] = {
    "Replicate": (
        "broker-1",
        BrokerStub,
        lambda stub, shown: _told(
            next(stub.Replicate(iter([broker_pb2.ReplicateRequest(broker_id=2)]), metadata=shown, timeout=30))
        ),
    ),
    "RegisterNode": (
        "controller-1",
        ControllerStub,
        lambda stub, shown: stub.RegisterNode(stranger_node(cluster_pb2.BROKER, 2), metadata=shown, timeout=30),
    ),
    "Heartbeat": (
        "controller-1",
        ControllerStub,
        lambda stub, shown: stub.Heartbeat(
            controller_pb2.HeartbeatRequest(role=cluster_pb2.BROKER, id=2), metadata=shown, timeout=30
        ),
    ),
    "UnregisterNode": (
        "controller-1",
        ControllerStub,
        lambda stub, shown: stub.UnregisterNode(
            controller_pb2.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2), metadata=shown, timeout=30
        ),
    ),
    "AlterPartitions": (
        "controller-1",
        ControllerStub,
        lambda stub, shown: stub.AlterPartitions(
            controller_pb2.AlterPartitionsRequest(broker_id=2), metadata=shown, timeout=30
        ),
    ),
}


@pytest.mark.parametrize("call", list(SPEAKING))
def test_a_node_speaks_for_itself_alone(cluster: TestCluster, call: str) -> None:
    """The token is valid and the name is a node's, but the request speaks for another one."""
    (token,) = (one.decode() for one in read_tokens(cluster.local.directory.path / "node-token"))
    shown = (("headrace-node", "broker-1"), ("headrace-node-token", token))
    name, stub, ask = SPEAKING[call]
    with (
        open_sync_channel(address(cluster, name), own_connection=True) as channel,
        pytest.raises((grpc.RpcError, HeadraceError)) as raised,
    ):
        ask(stub(channel), shown)
    error = error_from_rpc(raised.value) if isinstance(raised.value, grpc.RpcError) else raised.value
    assert isinstance(error, ClusterAuthorizationFailed), error
    assert "broker-1 cannot speak for broker-2" in str(error)
    read_one(cluster)


def test_no_stranger_ends_transactions(cluster: TestCluster, shown: Shown) -> None:
    request = transaction_pb2.WriteTxnMarkersRequest(markers=[transaction_pb2.TxnMarker(producer_id=1)])
    for name, stub in (("broker-1", BrokerStub), ("coordinator-1", CoordinatorStub)):
        refused(address(cluster, name), stub, lambda made: made.WriteTxnMarkers(request, metadata=shown, timeout=30))


def test_no_stranger_writes_to_the_systems_topics(cluster: TestCluster, shown: Shown) -> None:
    """A fence of 2^62 would keep every coordinator out of a shard of groups for ever."""
    batch = build_fence_batch(FOR_EVER, timestamp_ms=1)
    partitions = 0
    for name in ("broker-1", "broker-2"):
        with open_sync_channel(address(cluster, name), own_connection=True) as channel:
            stub: Any = BrokerStub(channel)
            topic_id = offsets_topic(stub)
            for partition in range(50):
                entry = broker_pb2.ProducePartition(
                    topic_id=topic_id, partition=partition, batch=batch, fencing_token=FOR_EVER
                )
                request = broker_pb2.ProduceRequest(correlation_id=1, acks=1, timeout_ms=30_000, partitions=[entry])
                result = next(stub.Produce(iter([request]), metadata=shown, timeout=30)).partitions[0]
                error = error_for(result.error, result.message)
                if isinstance(error, ClusterAuthorizationFailed):
                    partitions += 1
                    assert "coordinators alone write to it" in str(error)
                else:  # the other broker leads it, or there are fewer
                    assert error.code.name in {"NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION"}
    assert partitions, "nobody led a partition of the offsets topic"
    read_one(cluster)


def test_groups_are_described_to_the_admin_service_alone(cluster: TestCluster, shown: Shown) -> None:
    request = coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP])
    refused(
        address(cluster, "coordinator-1"),
        CoordinatorStub,
        lambda stub: stub.DescribeGroups(request, metadata=shown, timeout=30),
    )
    with cluster.admin() as admin:
        assert admin.describe_group(GROUP) is not None


def test_the_token_is_in_no_log(cluster: TestCluster) -> None:
    directory = cluster.local.directory.path
    (token,) = (one.decode() for one in read_tokens(directory / "node-token"))
    logs = list((directory / "logs").iterdir())
    assert logs
    for log in logs:
        assert token not in log.read_text(errors="replace"), log
