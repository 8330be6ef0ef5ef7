"""One service, two listeners: for the cluster and for clients from outside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Listener, Node, NodeKey, Role
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.listeners import ExternalListener, InternalListener, Listeners
from headrace_common.runtime.service import ServerConfig, Servicer

ANY = Endpoint("127.0.0.1", 0)
EXTERNAL = ExternalListener(external_listen=ANY, external_advertise=Endpoint("headrace.example", 31_000))


def says(word: bytes, begun: asyncio.Event | None = None, go_on: asyncio.Event | None = None) -> Servicer:
    async def handle(request: bytes, context: Any) -> bytes:
        if begun is not None and go_on is not None:
            begun.set()
            await go_on.wait()
        return word

    def add(_: object, server: Any) -> None:
        handlers = {"who": grpc.unary_unary_rpc_method_handler(handle)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])

    return add, None


OUTSIDE = says(b"outside")


def opened(external: ExternalListener, outside: Servicer = OUTSIDE) -> Any:
    config = ServerConfig(listen=ANY, advertise_host="broker-0")
    return Listeners.open(
        config,
        lambda listener: [outside if listener is Listener.EXTERNAL else says(b"inside")],
        external=external,
        health_names=["t.T"],
        interceptors=[],
    )


async def test_each_listener_has_its_own_servicers_and_the_inner_address_is_registered() -> None:
    async with opened(EXTERNAL) as listeners:
        answers = []
        for port in listeners.ports:
            async with open_channel(f"127.0.0.1:{port}") as channel:
                answers.append(await channel.unary_unary("/t.T/who")(b"", timeout=10))
        assert answers == [b"inside", b"outside"]
        assert listeners.endpoint == Endpoint("broker-0", listeners.ports[0])


async def test_other_nodes_have_a_listener_that_clients_cannot_fill() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    config = ServerConfig(listen=ANY, advertise_host="broker-0", concurrent_rpcs_max=1, request_bytes_max=1 << 20)
    servicers = [says(b"word", begun, go_on)]
    beside = InternalListener(internal_listen=ANY)
    async with Listeners.open(
        config, lambda _: servicers, internal=beside, health_names=[], interceptors=[]
    ) as listeners:
        assert listeners.internal == Endpoint("broker-0", listeners.ports[-1])
        assert listeners.endpoint == Endpoint("broker-0", listeners.ports[0])
        client, node = (open_channel(f"127.0.0.1:{port}") for port in listeners.ports)
        held = asyncio.ensure_future(client.unary_unary("/t.T/who")(b"", timeout=30))
        await begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/t.T/who")(b"", timeout=30)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        begun.clear()
        large = asyncio.ensure_future(node.unary_unary("/t.T/who")(bytes(20 << 20), timeout=30))
        await begun.wait()
        go_on.set()
        assert await asyncio.gather(held, large) == [b"word", b"word"]
        for channel in (client, node):
            await channel.close()


def test_a_node_of_an_older_version_is_called_where_clients_call_it() -> None:
    old = Node(NodeKey(Role.BROKER, NodeId(1)), Endpoint("b", 9292), b"i" * 16, 1)
    new = replace(old, internal=Endpoint("b", 9293))
    assert (old.inside, new.inside) == (Endpoint("b", 9292), Endpoint("b", 9293))
    assert new.seen_from(Listener.CLIENT) == old


async def test_without_an_external_address_there_is_one_listener() -> None:
    async with opened(ExternalListener()) as listeners:
        assert len(listeners.ports) == 1


async def test_both_are_healthy_at_once_and_both_drain() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with opened(EXTERNAL, says(b"late", begun, go_on)) as listeners:
        channels = [open_channel(f"127.0.0.1:{port}") for port in listeners.ports]
        request = health_pb2.HealthCheckRequest(service="t.T")
        stubs = [health_pb2_grpc.HealthStub(channel) for channel in channels]
        before = [(await stub.Check(request, timeout=10)).status for stub in stubs]
        assert before == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
        await listeners.serving("t.T")
        after = [(await stub.Check(request, timeout=10)).status for stub in stubs]
        assert after == [health_pb2.HealthCheckResponse.SERVING] * 2
        call = channels[1].unary_unary("/t.T/who")(b"", timeout=30)
        await begun.wait()
        draining = asyncio.ensure_future(listeners.drain())
        go_on.set()
        assert await call == b"late", "what is under way outside is finished too"
        await draining
        for channel in channels:
            await channel.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"external_listen": ANY},
        {"external_advertise": Endpoint("e", 1)},
        {"external_listen": ANY, "external_advertise": Endpoint("e", 0)},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="external_advertise"):
        ExternalListener(**wrong)
