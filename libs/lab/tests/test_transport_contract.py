"""What calls do between processes: the same over gRPC on a socket and over the lab's network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_common.rpc.library import library
from headrace_lab.lab import laboratory
from headrace_lab.loop import LabLoop, Node

EOF: Any = grpc.aio.EOF
PATIENCE_S = 20.0
BYTES_MAX = 1 << 20

Scenario = Callable[["Rig"], Awaitable[None]]


class Rig:
    """A server of one service, on a node of its own where there are nodes, and clients of it."""

    def __init__(self, node: Node | None) -> None:
        self._node = node
        self.seen: dict[str, Any] = {}
        """What handlers noted."""

    def __call__(self, channel: Any, method: str) -> Any:
        """A method to call: ``uu``, ``us``, ``su`` or ``ss`` say its kind."""
        kind = {"uu": "unary_unary", "us": "unary_stream", "su": "stream_unary", "ss": "stream_stream"}[method[:2]]
        return getattr(channel, kind)(f"/lab.Test/{method}", None, None)

    @asynccontextmanager
    async def served(self, calls_max: int | None = None, **handlers: Any) -> AsyncIterator[Any]:
        """A channel to a server of ``handlers``, whose names begin with their kinds."""
        begun = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.get_running_loop().create_task(
            self._serve(handlers, calls_max, begun, stop), context=None if self._node is None else self._node.context
        )
        try:
            async with library().aio.insecure_channel(f"127.0.0.1:{await begun}", options=_LIMITS) as channel:
                yield channel
        finally:
            stop.set()
            await task

    async def _serve(
        self, handlers: dict[str, Any], calls_max: int | None, begun: asyncio.Future[int], stop: asyncio.Event
    ) -> None:
        kinds = {
            "uu": grpc.unary_unary_rpc_method_handler,
            "us": grpc.unary_stream_rpc_method_handler,
            "su": grpc.stream_unary_rpc_method_handler,
            "ss": grpc.stream_stream_rpc_method_handler,
        }
        table: Any = {name: kinds[name[:2]](handler) for name, handler in handlers.items()}
        server = library().aio.server(options=_LIMITS, maximum_concurrent_rpcs=calls_max)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lab.Test", table),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        begun.set_result(port)
        await stop.wait()
        await server.stop(None)


_LIMITS = (("grpc.max_receive_message_length", BYTES_MAX),)


@pytest.fixture(params=["grpc", "lab"])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario, with a bound."""

    def on_sockets(scenario: Scenario) -> None:
        asyncio.run(asyncio.wait_for(_awaited(scenario, Rig(None)), PATIENCE_S))

    def in_lab(scenario: Scenario) -> None:
        loop = LabLoop(7)
        with laboratory(loop) as lab:
            try:
                loop.run_until_complete(asyncio.wait_for(_awaited(scenario, Rig(lab.node("server"))), PATIENCE_S))
            finally:
                loop.close()

    return on_sockets if request.param == "grpc" else in_lab


async def _awaited(scenario: Scenario, rig: Rig) -> None:
    await scenario(rig)


async def echo(request: Any, context: Any) -> bytes:
    del context
    return bytes(request)


async def echo_all(requests: Any, context: Any) -> None:
    del requests
    while (message := await context.read()) is not EOF:
        await context.write(message)


async def wait_for_ever(request: Any, context: Any) -> bytes:
    del request, context
    await asyncio.Event().wait()
    raise AssertionError


def test_all_four_kinds(play: Callable[[Scenario], None]) -> None:
    async def gather(requests: Any, context: Any) -> bytes:
        del context
        return b"".join([request async for request in requests])

    async def spread(request: Any, context: Any) -> Any:
        del context
        for byte in request:
            yield bytes([byte])

    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=echo, us=spread, su=gather, ss=echo_all) as channel:
            assert await rig(channel, "uu")(b"abc") == b"abc"
            assert [part async for part in rig(channel, "us")(b"abc")] == [b"a", b"b", b"c"]
            call = rig(channel, "su")()
            for part in (b"a", b"b"):
                await call.write(part)
            await call.done_writing()
            assert await call == b"ab"
            call = rig(channel, "ss")()
            for part in (b"a", b"b"):
                await call.write(part)
                assert await call.read() == part
            await call.done_writing()
            assert await call.read() is EOF
            assert await call.code() is grpc.StatusCode.OK
            assert call.done()

    play(scenario)


def test_a_method_that_does_not_exist(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=echo) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu_other")(b"")
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED

    play(scenario)


def test_an_abort_has_its_code_its_text_and_its_metadata(play: Callable[[Scenario], None]) -> None:
    async def refuse(request: Any, context: Any) -> bytes:
        del request
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("why-bin", b"\x00\x01"),))
        raise AssertionError

    async def refuse_stream(requests: Any, context: Any) -> None:
        await context.write(b"first")
        await refuse(requests, context)

    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=refuse, ss=refuse_stream) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu")(b"")
            error = raised.value
            assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
            assert dict(error.trailing_metadata())["why-bin"] == b"\x00\x01"
            call = rig(channel, "ss")()
            assert await call.read() == b"first"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND

    play(scenario)


def test_what_a_handler_raises_is_unknown(play: Callable[[Scenario], None]) -> None:
    async def fail(request: Any, context: Any) -> bytes:
        raise ValueError("a bug")

    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=fail) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu")(b"")
            assert raised.value.code() is grpc.StatusCode.UNKNOWN
            assert "a bug" in raised.value.details()

    play(scenario)


def test_metadata_goes_along(play: Callable[[Scenario], None]) -> None:
    async def told(request: Any, context: Any) -> bytes:
        del request
        return str(dict(context.invocation_metadata())["who"]).encode()

    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=told) as channel:
            assert await rig(channel, "uu")(b"", metadata=(("who", "me"),)) == b"me"

    play(scenario)


def test_a_deadline_ends_both_sides(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        ended = asyncio.Event()

        async def never(request: Any, context: Any) -> bytes:
            try:
                return await wait_for_ever(request, context)
            finally:
                ended.set()

        async with rig.served(uu=never) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu")(b"", timeout=0.2)
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await ended.wait()

    play(scenario)


def test_a_cancelled_call_cancels_its_handler(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def never(requests: Any, context: Any) -> None:
            await context.write(b"begun")
            begun.set()
            try:
                await wait_for_ever(requests, context)
            finally:
                ended.set()

        async with rig.served(ss=never) as channel:
            call = rig(channel, "ss")()
            assert await call.read() == b"begun"
            assert call.cancel()
            assert not call.cancel(), "it has ended"
            await ended.wait()
            with pytest.raises(asyncio.CancelledError):
                await call.read()
            assert await call.code() is grpc.StatusCode.CANCELLED

    play(scenario)


def test_a_task_that_is_cancelled_while_it_waits_cancels_its_call(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def never(request: Any, context: Any) -> bytes:
            begun.set()
            try:
                return await wait_for_ever(request, context)
            finally:
                ended.set()

        async with rig.served(uu=never) as channel:

            async def ask() -> None:
                await rig(channel, "uu")(b"")

            task = asyncio.ensure_future(ask())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()

    play(scenario)


def test_a_writer_waits_while_nobody_reads(play: Callable[[Scenario], None]) -> None:
    message = bytes(BYTES_MAX - 100)

    async def scenario(rig: Rig) -> None:
        go_on = asyncio.Event()

        async def read_late(requests: Any, context: Any) -> None:
            del requests
            await context.write(b"begun")
            await go_on.wait()
            count = 0
            while await context.read() is not EOF:
                count += 1
            await context.write(b"%d" % count)

        async with rig.served(ss=read_late) as channel:
            call = rig(channel, "ss")()
            assert await call.read() == b"begun"
            written = 0

            async def write_all() -> None:
                nonlocal written
                for _ in range(100):
                    await call.write(message)
                    written += 1
                await call.done_writing()

            writer = asyncio.ensure_future(write_all())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(writer), 0.5)
            assert written < 100
            go_on.set()
            await writer
            assert await call.read() == b"100"

    play(scenario)


def test_a_message_beyond_the_limit_ends_the_call(play: Callable[[Scenario], None]) -> None:
    async def large(request: Any, context: Any) -> bytes:
        del request, context
        return bytes(BYTES_MAX + 1)

    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=echo, uu_large=large, ss=echo_all) as channel:
            for ask in (rig(channel, "uu")(bytes(BYTES_MAX + 1)), rig(channel, "uu_large")(b"")):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await ask
                assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "larger than max" in raised.value.details()
            call = rig(channel, "ss")()
            await call.write(bytes(BYTES_MAX + 1))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    play(scenario)


def test_calls_beyond_the_servers_number_are_refused(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.served(calls_max=1, ss=echo_all, uu=echo) as channel:
            call = rig(channel, "ss")()
            await call.write(b"a")
            assert await call.read() == b"a"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu")(b"")
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    play(scenario)


def test_nobody_listens(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        async with library().aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig(channel, "uu")(b"")
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "connection refused" in raised.value.details().lower()
            call = rig(channel, "ss")()
            with pytest.raises(grpc.aio.AioRpcError):
                await call.wait_for_connection()

    play(scenario)


def test_a_server_that_stops_ends_its_calls_and_a_later_one_is_found(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.served(ss=echo_all) as channel:
            call = rig(channel, "ss")()
            await call.write(b"a")
            assert await call.read() == b"a"
        # the channel was closed first here, as who closes it cancels what is under way
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        with pytest.raises(grpc.aio.UsageError):
            await rig(channel, "ss")().read()

    play(scenario)


def test_who_writes_after_the_end_learns_it(play: Callable[[Scenario], None]) -> None:
    async def one(requests: Any, context: Any) -> None:
        del requests
        await context.write(b"one")

    async def scenario(rig: Rig) -> None:
        async with rig.served(ss=one) as channel:
            call = rig(channel, "ss")()
            assert await call.read() == b"one"
            assert await call.read() is EOF
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"late")
            call = rig(channel, "ss")()
            await call.done_writing()
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"late")

    play(scenario)


def test_half_close_is_seen_and_the_other_half_goes_on(play: Callable[[Scenario], None]) -> None:
    async def after(requests: Any, context: Any) -> None:
        async for _ in requests:
            pass
        for number in range(3):
            await context.write(b"%d" % number)

    async def scenario(rig: Rig) -> None:
        async with rig.served(ss=after) as channel:
            call = rig(channel, "ss")()
            await call.write(b"x")
            await call.done_writing()
            await call.done_writing()  # says nothing new
            assert [await call.read() for _ in range(4)] == [b"0", b"1", b"2", EOF]

    play(scenario)


def test_many_calls_at_once_each_get_their_own(play: Callable[[Scenario], None]) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.served(uu=echo) as channel:
            ask = rig(channel, "uu")
            answers = await asyncio.gather(*(ask(b"%d" % number) for number in range(200)))
            assert answers == [b"%d" % number for number in range(200)]

    play(scenario)
