"""Requests over a stream that stays open, and their answers, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    NetworkFailed,
    NotCoordinator,
    Overloaded,
    Rejected,
    RequestTimedOut,
)
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import Channels
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime import answering, asking
from headrace_common.runtime.answering import answer_stream, nobody_else
from headrace_common.runtime.asking import AskingStreams, raise_error
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1 import transaction_pb2_grpc

PATIENT_MS = 20_000.0


class Node(transaction_pb2_grpc.TransactionCoordinatorServicer):
    """Answers an end by its id: "now", or when a test says so; "refuse" and "crash" are what they say."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.said: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []
        self.given_up: list[str] = []
        self.streams = 0
        self.check: Callable[[], None] = nobody_else
        self._changed = asyncio.Event()

    def End(self, requests: Any, context: Any) -> Any:
        del requests
        self.streams += 1
        self._changed.set()
        return answer_stream(context, self.draining, self._end, pb.EndResponse, lambda: self.check())

    async def _end(self, request: pb.EndTxnRequest) -> pb.EndTxnResponse:
        name = request.transactional_id
        self.asked.append(name)
        self._changed.set()
        if name == "refuse":
            raise NotCoordinator("it moved", endpoint_hint="there:1")
        if name == "crash":
            raise AssertionError("a bug")
        if name != "now":
            try:
                await self.said.setdefault(name, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.given_up.append(name)
                self._changed.set()
                raise
        return pb.EndTxnResponse(producer_id=request.producer_id)

    def say(self, name: str) -> None:
        """Let what waits under this name be answered."""
        self.said.setdefault(name, asyncio.Event()).set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


class World:
    """A node, and one that asks it."""

    def __init__(self, node: Node, at: Endpoint, streams: AskingStreams[Any, Any], channels: Channels[Any]) -> None:
        self.node, self.at, self.streams, self.channels = node, at, streams, channels

    async def end(self, name: str, number: int = 1, timeout_ms: float = PATIENT_MS) -> int:
        request = pb.EndRequest(ask=pb.EndTxnRequest(transactional_id=name, producer_id=number))
        answer = await self.streams.ask(self.at, request, timeout_ms)
        raise_error(answer)
        return int(answer.answer.producer_id)

    @property
    def stream(self) -> Any:
        """The one that was asked over."""
        return self.streams._streams[self.at]

    def ending(self, name: str, number: int = 1, timeout_ms: float = PATIENT_MS) -> asyncio.Task[int]:
        return asyncio.ensure_future(self.end(name, number, timeout_ms))


@asynccontextmanager
async def playing() -> AsyncIterator[World]:
    node = Node()
    add = transaction_pb2_grpc.add_TransactionCoordinatorServicer_to_server
    async with (
        GrpcService.open(ServerConfig(drain_ms_max=100), [(add, node)]) as server,
        TaskRunner() as tasks,
    ):
        channels: Channels[Endpoint] = Channels()

        def open_call(at: Endpoint) -> Any:
            return transaction_pb2_grpc.TransactionCoordinatorStub(channels.to(at)).End()

        yield World(node, server.endpoint, AskingStreams(open_call, "node", tasks), channels)
        await channels.close()
    assert tasks.failure is None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with playing() as found:
        yield found


async def test_each_request_gets_its_own_answer_as_soon_as_it_is_there(world: World) -> None:
    slow = world.ending("slow", 5)
    await world.node.until(lambda: "slow" in world.node.asked)
    assert await asyncio.gather(*(world.end("now", number) for number in range(100))) == list(range(100))
    world.node.say("slow")
    assert await slow == 5
    assert world.node.streams == 1


async def test_a_request_that_fails_says_why_and_the_stream_goes_on(world: World) -> None:
    with pytest.raises(NotCoordinator, match="it moved") as caught:
        await world.end("refuse")
    assert caught.value.endpoint_hint == "there:1"
    assert await world.end("now", 3) == 3
    assert world.node.streams == 1


async def test_no_more_are_read_than_may_be_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "UNDER_WAY_MAX", 3)
    asked = [world.ending(f"r{number}", number) for number in range(8)]
    await world.node.until(lambda: len(world.node.asked) == 3)
    await asyncio.sleep(0.05)
    assert world.node.asked == ["r0", "r1", "r2"]
    for number in range(8):
        world.node.say(f"r{number}")
    assert await asyncio.gather(*asked) == list(range(8))


async def test_no_more_may_wait_than_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "UNANSWERED_MAX", 1)
    first = world.ending("slow", 4)
    await world.node.until(lambda: world.node.asked == ["slow"])
    with pytest.raises(Overloaded):
        await world.end("now")
    world.node.say("slow")
    assert await first == 4


async def test_who_answers_others_meanwhile_is_not_silent(world: World) -> None:
    late = world.ending("slow", timeout_ms=300)
    await world.node.until(lambda: world.node.asked == ["slow"])
    assert await world.end("now", 2) == 2
    with pytest.raises(RequestTimedOut):
        await late
    assert await world.end("now", 3) == 3
    world.node.say("slow")  # nobody waits for it any more
    assert await world.end("now", 4) == 4
    assert world.node.streams == 1


async def test_who_is_silent_is_entrusted_with_nothing_more(world: World) -> None:
    late, other = world.ending("slow", timeout_ms=200), world.ending("other")
    with pytest.raises(RequestTimedOut):
        await late
    with pytest.raises(NetworkFailed, match="unknown"):
        await other
    assert await world.end("now", 3) == 3
    assert world.node.streams == 2


async def test_a_stream_that_breaks_gives_up_what_is_under_way(world: World) -> None:
    asked = world.ending("slow")
    await world.node.until(lambda: world.node.asked == ["slow"])
    await world.channels.drop(world.at)
    with pytest.raises(NetworkFailed):
        await asked
    await world.node.until(lambda: world.node.given_up == ["slow"])


async def test_a_connection_that_is_to_be_closed(world: World) -> None:
    asked = world.ending("slow")
    await world.node.until(lambda: world.node.asked == ["slow"])
    world.streams.keep({world.at})
    assert not asked.done()
    world.streams.keep(())
    with pytest.raises(NetworkFailed, match="unknown"):
        await asked
    assert await world.end("now", 3) == 3, "the next opens another"


async def test_whoever_gives_up_leaves_the_stream_to_the_others(world: World) -> None:
    asked, other = world.ending("slow"), world.ending("other", 6)
    await world.node.until(lambda: len(world.node.asked) == 2)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    world.node.say("slow")
    world.node.say("other")
    assert await other == 6
    assert world.node.streams == 1


async def test_a_node_that_drains_answers_what_is_under_way_and_takes_nothing_more(world: World) -> None:
    asked = world.ending("slow", 7)
    await world.node.until(lambda: world.node.asked == ["slow"])
    world.node.draining.set()
    await asyncio.sleep(0.05)
    world.node.say("slow")
    assert await asked == 7
    with pytest.raises(NetworkFailed):
        await world.end("now")


async def test_a_bug_ends_the_stream(world: World) -> None:
    other = world.ending("slow")
    await world.node.until(lambda: world.node.asked == ["slow"])
    with pytest.raises(NetworkFailed, match="failed inside the server"):
        await world.end("crash")
    with pytest.raises(NetworkFailed):
        await other
    assert await world.end("now", 3) == 3


async def test_a_caller_that_may_no_more(world: World) -> None:
    assert await world.end("now") == 1

    def refuse() -> None:
        raise ClusterAuthorizationFailed("nodes only")

    world.node.check = refuse
    with pytest.raises(NetworkFailed, match="nodes only"):
        await world.end("now")
    assert world.node.asked == ["now"]


async def test_bytes_that_are_no_request(world: World) -> None:
    channel = world.channels.to(world.at)
    call: Any = channel.stream_stream("/headrace.v1.TransactionCoordinator/End")()
    await call.write(b"\xff\xff")
    with pytest.raises(grpc.RpcError) as caught:
        await call.read()
    assert isinstance(error_from_rpc(caught.value), Rejected)


async def test_nobody_is_there() -> None:
    async with playing() as world:
        world.at = Endpoint("127.0.0.1", 1)
        with pytest.raises(NetworkFailed) as caught:
            await world.end("now")
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


# --- another call for what comes next -----------------------------------------------------------------------------


async def test_a_stream_that_is_renewed_loses_nothing_and_keeps_the_order(world: World) -> None:
    slow = world.ending("slow", 1)
    await world.node.until(lambda: world.node.asked == ["slow"])
    world.stream.renew()
    later = [world.ending("now", number) for number in range(2, 5)]
    await world.node.until(lambda: world.node.streams == 2)  # it is open before the other has ended
    await asyncio.sleep(0.05)
    assert world.node.asked == ["slow"], "what was asked first is not overtaken"
    world.node.say("slow")
    assert await asyncio.gather(slow, *later) == [1, 2, 3, 4]
    assert world.node.streams == 2


async def test_a_stream_with_nothing_under_way_is_renewed_by_its_next_request(world: World) -> None:
    assert await world.end("now", 1) == 1
    world.stream.renew()
    world.stream.renew()
    assert await world.end("now", 2) == 2
    assert world.node.streams == 2


async def test_what_waits_behind_a_call_that_breaks_breaks_with_it(world: World) -> None:
    slow = world.ending("slow")
    await world.node.until(lambda: world.node.asked == ["slow"])
    live = world.stream._live
    world.stream.renew()
    later = world.ending("now")
    await world.node.until(lambda: world.node.streams == 2)
    live.end(NetworkFailed("cut"))
    with pytest.raises(NetworkFailed, match="cut"):
        await slow
    with pytest.raises(NetworkFailed, match="was not sent"):
        await later
    assert await world.end("now", 3) == 3


async def test_a_stream_that_was_renewed_again_and_again_ends_as_one(world: World) -> None:
    asked = []
    for name in ("a", "b", "c"):
        asked.append(world.ending(name))
        await world.node.until(lambda: world.node.streams == len(asked))
        world.stream.renew()
    world.streams.drop(world.at)
    for each in asked:
        with pytest.raises(NetworkFailed, match="closed"):
            await each


async def test_a_node_that_does_not_end_a_call_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ENDING_MS", 50.0)
    assert await world.end("now", 1) == 1
    live = world.stream._live
    monkeypatch.setattr(live._call, "done_writing", lambda: asyncio.sleep(0))  # it never hears of it
    world.stream.renew()
    assert await world.end("now", 2) == 2
    assert live.failure is not None
