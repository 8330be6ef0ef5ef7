"""What clients from outside are told: external addresses, and nothing of nodes that have none."""

from __future__ import annotations

from dataclasses import replace

from headrace_broker.core.coordination import FoundCoordinator
from headrace_broker.rpc import encode
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, ActiveController, ClusterImage, Listener, Node, NodeKey, Role

OUTSIDE = "headrace.example"
THERE = Listener.EXTERNAL


def node(role: Role, id: int, external: int | None) -> Node:
    return Node(
        NodeKey(role, NodeId(id)),
        Endpoint(f"{role.value}-{id}.internal", 9292),
        b"i" * 16,
        1,
        http=Endpoint("http.internal", 8080),
        metrics=Endpoint("metrics.internal", 9100),
        fenced=False,
        external=None if external is None else Endpoint(OUTSIDE, external),
        internal=Endpoint("nodes.internal", 9293),
        mtls=None if external is None else Endpoint("certificates.internal", external + 1, "broker.headrace"),
    )


def image(*nodes: Node) -> ClusterImage:
    active = ActiveController(NodeId(0), 1, Endpoint("controller-0.internal", 9390))
    return replace(EMPTY_IMAGE, revision=1, nodes={n.key: n for n in nodes}, active_controller=active)


CLUSTER = image(
    node(Role.BROKER, 0, 31_000), node(Role.BROKER, 1, None), node(Role.ADMIN, 0, 31_500), node(Role.ADMIN, 1, None)
)


def test_metadata_for_clients_from_outside_has_no_internal_address() -> None:
    answer = encode.metadata(CLUSTER, [], {}, listener=THERE)
    assert [(n.role, n.id, n.grpc.host, n.grpc.port) for n in answer.nodes] == [
        (1, 0, OUTSIDE, 31_000),
        (4, 0, OUTSIDE, 31_500),
    ]
    assert answer.active_controller.id == 0
    assert "internal" not in str(answer)


def test_metadata_inside_is_as_ever() -> None:
    answer = encode.metadata(CLUSTER, [], {})
    assert [(n.role, n.id, n.grpc.host) for n in answer.nodes] == [
        (1, 0, "broker-0.internal"),
        (1, 1, "broker-1.internal"),
        (4, 0, "admin-0.internal"),
        (4, 1, "admin-1.internal"),
    ]
    assert answer.active_controller.grpc.host == "controller-0.internal"
    assert "nodes.internal" not in str(answer), "that is where nodes go, not clients"


def test_a_coordinator_is_told_by_its_external_address_or_not_at_all() -> None:
    reached = encode.coordinator(FoundCoordinator("g", 3, 1, node(Role.COORDINATOR, 0, 31_400)), listener=THERE)
    assert (reached.coordinator, reached.endpoint.host, reached.endpoint.port) == (0, OUTSIDE, 31_400)
    hidden = encode.coordinator(FoundCoordinator("g", 3, 1, node(Role.COORDINATOR, 7, None)), listener=THERE)
    assert hidden.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "coordinator 7 cannot be reached from outside" in hidden.message
    assert not hidden.HasField("endpoint")
    inside = encode.coordinator(FoundCoordinator("g", 3, 1, node(Role.COORDINATOR, 7, None)))
    assert inside.endpoint.host == "coordinator-7.internal"


def test_clients_with_certificates_are_told_where_others_with_certificates_go() -> None:
    answer = encode.metadata(CLUSTER, [], {}, listener=Listener.MTLS)
    assert [(n.role, n.id, n.grpc.host, n.grpc.port, n.grpc.server_name) for n in answer.nodes] == [
        (1, 0, "certificates.internal", 31_001, "broker.headrace"),
        (4, 0, "certificates.internal", 31_501, "broker.headrace"),
    ]
    assert answer.nodes[0].metrics.port == 9100, "that is in the same network"
    for hidden in ("nodes.internal", OUTSIDE, "broker-0.internal"):
        assert hidden not in str(answer)
    reached = encode.coordinator(FoundCoordinator("g", 3, 1, node(Role.COORDINATOR, 0, 31_400)), listener=Listener.MTLS)
    assert (reached.endpoint.host, reached.endpoint.port) == ("certificates.internal", 31_401)
    hidden_one = encode.coordinator(
        FoundCoordinator("g", 3, 1, node(Role.COORDINATOR, 7, None)), listener=Listener.MTLS
    )
    assert hidden_one.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "coordinator 7 cannot be reached with a certificate: it has no mtls_listen" in hidden_one.message


def test_nobody_else_is_told_where_they_go() -> None:
    for listener in (Listener.CLIENT, THERE):
        assert "certificates.internal" not in str(encode.metadata(CLUSTER, [], {}, listener=listener))
    one = node(Role.BROKER, 0, 31_000)
    assert one.seen_from(Listener.INTERNAL) is one
