"""The cluster's feature level over REST and gRPC, and what is said of the nodes that hold it back."""

from __future__ import annotations

from services.admin.tests.kit.calls import Calls
from services.admin.tests.kit.rest import Rest

from headrace_admin.adapters.grpc_controllers import GrpcControllers
from headrace_admin.core.features import feature_levels
from headrace_common.core.features import FEATURES, HIGHEST
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb


def node(role: Role, number: int, level: int, *, fenced: bool = False) -> Node:
    return Node(
        NodeKey(role, NodeId(number)),
        Endpoint("h", 1),
        b"i" * 16,
        1,
        fenced=fenced,
        version="0.1.0",
        feature_level_max=level,
    )


NEW = node(Role.CONTROLLER, 1, HIGHEST)


def test_a_cluster_at_the_highest_level_waits_for_nothing() -> None:
    found = feature_levels(HIGHEST, [NEW])
    assert (found.level, found.waits_for, found.features) == (HIGHEST, None, FEATURES)


def test_it_waits_for_those_below_and_says_how_to_forget_what_is_away() -> None:
    old = [node(Role.BROKER, 2, 0), node(Role.COORDINATOR, 0, 0, fenced=True)]
    found = feature_levels(0, [*old, NEW])
    assert found.waits_for == (
        "level 1 waits for broker-2, coordinator-0 (away): start each with a version that knows it; what does not come "
        "back is forgotten with `headrace cluster forget coordinator-0`"
    )
    assert [str(n.key) for n in found.nodes] == ["broker-2", "controller-1", "coordinator-0"]


def test_a_broker_that_is_away_is_forgotten_in_its_own_way() -> None:
    waits_for = feature_levels(0, [node(Role.BROKER, 2, 0, fenced=True), NEW]).waits_for
    assert waits_for is not None
    assert "start it with" in waits_for
    assert waits_for.endswith("`headrace broker unregister 2`")


def test_one_that_lives_is_not_to_be_forgotten() -> None:
    waits_for = feature_levels(0, [node(Role.BROKER, 2, 0), NEW]).waits_for
    assert waits_for == "level 1 waits for broker-2: start it with a version that knows it"


def test_a_rise_that_is_due_is_said() -> None:
    waits_for = feature_levels(0, [NEW]).waits_for
    assert waits_for is not None
    assert "in a moment" in waits_for


def levelled(rest: Rest, level: int, lowest: int) -> None:
    """The cluster is at a level, and broker 1 knows none above ``lowest``."""
    describe = Calls(GrpcControllers(rest.world.client, 1_000)).DescribeCluster

    async def described(request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        answer = await describe(request)
        answer.feature_level = level
        for each in answer.nodes:
            if (each.role, each.id) == (cluster_pb2.BROKER, 1):
                each.feature_level_max = lowest
        return answer

    rest.world.controller_calls.DescribeCluster = described


async def test_rest_says_it(rest: Rest) -> None:
    levelled(rest, 0, 0)
    found = (await rest.client.get("/v1/cluster/features")).json()
    assert found["level"] == 0
    assert "broker-1" in found["waits_for"]
    assert [feature["active"] for feature in found["features"]] == [False] * len(FEATURES)
    assert {n["node"]: n["feature_level_max"] for n in found["nodes"] if n["node"] in {"broker-1", "broker-2"}} == {
        "broker-1": 0,
        "broker-2": HIGHEST,
    }
    levelled(rest, HIGHEST, HIGHEST)
    found = (await rest.client.get("/v1/cluster/features")).json()
    assert all(feature["active"] for feature in found["features"])
