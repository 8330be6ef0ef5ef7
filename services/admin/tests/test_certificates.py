"""Which certificates nodes show: gathered from all of them, and what the status says of those that near their end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from services.admin.tests.kit.behind import Front, opened, serving

from headrace_admin.core.ending import Ending, describe_ending, find_ending
from headrace_admin.engine.certificates import REMEMBERED_MS, NodeCertificates
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Denied, ErrorCode, HeadraceError, NetworkFailed, error_for
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, Node, NodeKey, Role
from headrace_common.core.served_certificates import Certificate, Served
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.convert_certificates import served_from_proto, served_to_proto
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import admin_pb2, certificates_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub

DAY = 86_400_000
NOW = 2_000 * DAY


def certificate(days: float, name: str = "node", life: int = 1_000) -> Certificate:
    """One that ends in ``days``."""
    end = int(NOW + days * DAY)
    return Certificate(
        f"CN={name}", "CN=ca", ("a", "10.0.0.1"), ("spiffe://h/broker",), "1f", "ab", end - life * DAY, end
    )


def served(days: float = 500, ca_days: float = 900, **more: Any) -> Served:
    one, ca = certificate(days), certificate(ca_days, "ca", 3_650)
    return Served("service", one, one.not_after_ms, ca, (ca,), **more)


def node(role: Role, id: int = 1, **more: Any) -> Node:
    key = NodeKey(role, NodeId(id))
    return Node(key, Endpoint("h", 1), bytes(16), 1, **{"fenced": False, **more})


class FakeNodes:
    """The ``Nodes`` port: tells what it was given, and counts who was asked."""

    key = NodeKey(Role.ADMIN, NodeId(1))

    def __init__(self) -> None:
        self.mine: tuple[Served, ...] = (served(),)
        self.told: dict[NodeKey, Any] = {}
        self.asked: list[str] = []

    async def own(self, *, look: bool) -> tuple[Served, ...]:
        return self.mine

    async def certificates(self, node: Node, *, look: bool) -> tuple[Served, ...]:
        self.asked.append(str(node.key))
        answer = self.told.get(node.key, (served(),))
        if isinstance(answer, HeadraceError):
            raise answer
        return tuple(answer)

    async def observed(self, node: Node) -> Any:
        raise AssertionError


class World:
    """The engine over fakes."""

    def __init__(self, *nodes: Node) -> None:
        self.image = replace(EMPTY_IMAGE, nodes={one.key: one for one in (node(Role.ADMIN), *nodes)})
        self.nodes, self.clock = FakeNodes(), FakeClock(NOW)
        self.engine = NodeCertificates(self, self.nodes, self.clock)  # type: ignore[arg-type]  # of a cluster its image


BROKER, COORDINATOR = node(Role.BROKER), node(Role.COORDINATOR)


def test_it_is_the_same_over_the_wire() -> None:
    one = served(refused="why", behind=True, trusted_more=3)
    assert served_from_proto(served_to_proto([one, served()])) == (one, served())


async def test_all_are_asked_and_who_does_not_tell_is_named() -> None:
    world = World(BROKER, COORDINATOR)
    world.nodes.told[COORDINATOR.key] = NetworkFailed("it is away")
    world.nodes.told[BROKER.key] = ()
    told = await world.engine.gather(look=False)
    assert [(str(one.node), len(one.served), one.error) for one in told] == [
        ("admin-1", 1, ""),
        ("broker-1", 0, ""),
        ("coordinator-1", 0, "it is away"),
    ]


async def test_the_status_asks_nobody_where_there_is_no_tls() -> None:
    world = World(BROKER)
    world.nodes.mine = ()
    assert await world.engine.ending() == ()
    assert not world.nodes.asked


async def test_the_status_remembers_what_a_node_told() -> None:
    world = World(BROKER, COORDINATOR, node(Role.ADMIN, 2), node(Role.BROKER, 2, fenced=True))
    world.nodes.told[BROKER.key] = [served(13)]
    (ending,) = await world.engine.ending()
    assert (ending.nodes, ending.is_over) == ((BROKER.key,), False)
    await world.clock.advance(REMEMBERED_MS - 1)
    assert await world.engine.ending() == (ending,)
    assert sorted(world.nodes.asked) == ["broker-1", "coordinator-1"], "each once; no other admin, nobody who is away"
    world.nodes.told[BROKER.key] = NetworkFailed("it is away")
    await world.clock.advance(1)
    assert await world.engine.ending() == (ending,), "what it told is still true"
    world.nodes.told[BROKER.key] = [served(400)]
    assert await world.engine.ending() == ()
    world.nodes.told[BROKER.key] = [served(5)]
    again = replace(BROKER, incarnation=bytes(15) + b"1")
    world.image = replace(world.image, nodes={**world.image.nodes, again.key: again})
    assert len(await world.engine.ending()) == 1, "one that started again is asked again"
    world.image = replace(world.image, nodes={world.nodes.key: node(Role.ADMIN)})
    assert await world.engine.ending() == (), "who is registered no more is forgotten"


@pytest.mark.parametrize(
    ("one", "ends"),
    [
        (served(14.1), None),
        (served(13.9), False),
        (served(-1), True),
        (served(100, ca_days=13), False),
        (served(100, ca_days=-1), True),
        (served(500, ca_days=170), None),
    ],
)
def test_who_is_named(one: Served, ends: bool | None) -> None:
    found = find_ending({BROKER.key: [one]}, NOW)
    assert [ending.is_over for ending in found] == ([] if ends is None else [ends])


def test_one_pair_of_many_nodes_is_one_part_of_the_verdict() -> None:
    keys = [NodeKey(Role.BROKER, NodeId(n)) for n in range(5)]
    found = find_ending({**{key: [served(3)] for key in keys}, COORDINATOR.key: [served(-1)]}, NOW)
    over, near = describe_ending(found)
    assert over.startswith("the certificate of coordinator-1 ended 1975-06-23T00:00:00.000Z, who connects is refused; ")
    assert near.startswith("the certificate of broker-0, broker-1, broker-2 and 2 more ends 1975-06-27T00:00:00.000Z, ")
    assert describe_ending([Ending(0, True, (BROKER.key,))])[0].endswith("(`headrace tls list`)")


# --- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    sees: Grant = allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE)
    async with opened(
        Rows(Mode.CLOSED, {user("alice"): frozenset({sees})}, keys=[key_of("alice"), key_of("bob")])
    ) as it:
        yield it


async def ask(at: str, who: str, **fields: Any) -> Any:
    shown = Security(lambda _: tuple(bearing(who).items()))
    async with open_channel(at, shown, own_connection=True) as channel:
        try:
            return await AdminStub(channel).DescribeCertificates(
                admin_pb2.DescribeCertificatesRequest(**fields), timeout=20
            )
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error)


async def test_a_caller_that_may_describe_the_cluster_is_told(front: Front) -> None:
    bundles = served_to_proto([served(refused="no key")])
    answers = front.behind.answers
    answers["Certificates/DescribeServed"] = lambda _: certificates_pb2.NodeCertificates(bundles=bundles)
    async with serving(front) as at:
        told = await ask(at, "alice", look=True)
        assert {one.node: len(one.bundles) for one in told.nodes} == {
            **{"admin-1": 0, "broker-1": 1, "controller-1": 1, "coordinator-1": 1},
        }
        assert told.nodes[1].bundles[0].refused == "no key"
        assert {(one.bearer, one.request.look) for one in front.behind.asked} == {(None, True)}, "the node for itself"
        here = await ask(at, "alice", here=True)
        assert [one.node for one in here.nodes] == ["admin-1"]
        assert isinstance(await ask(at, "bob"), Denied)


async def test_a_node_that_does_not_know_it_is_named(front: Front) -> None:
    def fail(_: Any) -> Any:
        raise error_for(ErrorCode.UNSUPPORTED_VERSION, "it is older")

    front.behind.answers["Certificates/DescribeServed"] = fail
    async with serving(front) as at:
        told = await ask(at, "alice")
    assert {one.node: one.fault for one in told.nodes}["broker-1"] == "it is older"
    assert key_text("alice") not in str(told)
