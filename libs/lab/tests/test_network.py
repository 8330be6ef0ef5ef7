"""What who steers a lab sees of calls that gRPC shows nobody: interceptors of all servers, and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_common.rpc.library import library
from headrace_lab.cluster import Cluster
from headrace_lab.lab import Lab, laboratory
from headrace_lab.loop import LabLoop
from headrace_lab.nodes import Configs
from headrace_lab.server import LabContext

AT = "server.localhost:1"
Handler = Callable[[bytes, LabContext], Any]


@pytest.fixture
def lab() -> Iterator[Lab]:
    loop = LabLoop(7)
    with laboratory(loop) as made:
        yield made
    loop.close()


class Noting:
    """An interceptor that says when it is asked."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.seen.append(f"{self.name} {details.method}")
        return await continuation(details)


async def echo(request: bytes, context: LabContext) -> bytes:
    del context
    return request


@asynccontextmanager
async def served(lab: Lab, handler: Handler, *interceptors: Any) -> Any:
    """``handler`` serves /lab.Test/call on a node of its own, where it is found by a channel of the test."""
    table = {"call": grpc.unary_unary_rpc_method_handler(handler)}

    async def start() -> Any:
        server = library().aio.server(interceptors=interceptors)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lab.Test", table),))
        server.add_insecure_port(AT)
        await server.start()
        return server

    server = await lab.loop.create_task(start(), context=lab.node("server").context)
    async with library().aio.insecure_channel(AT) as channel:
        yield channel.unary_unary("/lab.Test/call", None, None)
    await server.stop(None)


def test_interceptors_of_the_network_are_asked_behind_those_of_the_service(lab: Lab) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        lab.network.interceptors += [Noting("first", seen), Noting("second", seen)]
        async with served(lab, echo, Noting("own", seen)) as call:
            assert await call(b"x") == b"x"

    lab.loop.run_until_complete(scenario())
    assert seen == ["own /lab.Test/call", "first /lab.Test/call", "second /lab.Test/call"]


def test_servers_that_run_already_do_not_meet_an_interceptor(lab: Lab) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        async with served(lab, echo) as call:
            lab.network.interceptors.append(Noting("late", seen))
            assert await call(b"x") == b"x"
        assert seen == []
        async with served(lab, echo) as call:
            assert await call(b"x") == b"x"

    lab.loop.run_until_complete(scenario())
    assert seen == ["late /lab.Test/call"]


def test_an_interceptor_may_refuse_a_call_and_change_an_answer(lab: Lab) -> None:
    class Changing:
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = await continuation(details)

            async def change(request: bytes, context: LabContext) -> bytes:
                if request == b"refused":
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not today")
                return b"changed " + await handler.unary_unary(request, context)

            return handler._replace(unary_unary=change)

    async def scenario() -> None:
        lab.network.interceptors.append(Changing())
        async with served(lab, echo) as call:
            assert await call(b"x") == b"changed x"
            with pytest.raises(grpc.aio.AioRpcError, match="not today") as raised:
                await call(b"refused")
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED

    lab.loop.run_until_complete(scenario())


def test_a_handler_can_break_the_connection_that_its_call_came_on(lab: Lab) -> None:
    seen: list[Any] = []

    async def note(request: bytes, context: LabContext) -> bytes:
        connection = context.connection
        assert connection.peer == context.peer()
        assert (connection.client.name, connection.server.node.name) == ("test", "server")
        seen.append(connection)
        if request == b"breaks":
            connection.reset("Connection reset by peer")
            await asyncio.Event().wait()
        return request

    async def scenario() -> None:
        async with served(lab, note) as call:
            assert await call(b"x") == b"x"
            beside = asyncio.ensure_future(call(b"breaks"))
            with pytest.raises(grpc.aio.AioRpcError, match="reset by peer") as raised:
                await beside
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await call(b"y") == b"y"
        first, broken, last = seen
        assert first is broken, "a channel has one connection"
        assert last is not broken
        assert (broken.alive, last.alive) == (False, False), "the server has stopped"

    lab.loop.run_until_complete(scenario())


def test_brokers_are_in_the_racks_that_they_are_given(lab: Lab) -> None:
    async def scenario() -> dict[int, str | None]:
        configs = Configs(racks={1: "a", 3: "b"})
        cluster = Cluster(lab, brokers=3, controllers=1, coordinators=1, configs=configs)
        await cluster.start()
        async with cluster.admin() as admin:
            racks = {broker.id: broker.rack for broker in await admin.list_brokers()}
        await lab.loop.end_tasks()
        await cluster.end()
        return racks

    assert lab.loop.run_until_complete(scenario()) == {1: "a", 2: None, 3: "b"}
