"""Waits for the clients' thread: what ends just as their time is over is told, and counts as in time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from libs.common.tests.kit.silent_node import SilentNode

from headrace._runtime import loop_thread


class Late(Future[str]):
    """Is done when the first wait for it has ended."""

    def result(self, timeout: float | None = None) -> str:
        if not self.done():
            self.end()
            raise TimeoutError
        return super().result(timeout)

    def end(self) -> None:
        self.set_result("late")


class LateFailure(Late):
    def end(self) -> None:
        self.set_exception(ValueError("its own"))


async def work() -> str:
    raise AssertionError("a future stands for it")


@pytest.mark.parametrize("timeout", [0.01, 60.0, None])
def test_what_ends_with_the_wait_is_told(monkeypatch: pytest.MonkeyPatch, timeout: float | None) -> None:
    def call(future: Future[str]) -> str:
        coro = work()
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *_: future)
        try:
            return thread.call(coro, timeout)
        finally:
            coro.close()

    thread = loop_thread()
    assert call(Late()) == "late"
    with pytest.raises(ValueError, match="its own"):
        call(LateFailure())


def test_what_grpc_completes_for_a_loop_that_has_ended_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """As in a program that ends after ``asyncio.run(main())``, while the thread of its group is still there."""
    thread = loop_thread()

    async def serve() -> tuple[AsyncExitStack, SilentNode]:
        stack = AsyncExitStack()
        return stack, await stack.enter_async_context(SilentNode().serve())

    stack, node = thread.call(serve(), 10)
    loop = asyncio.SelectorEventLoop()
    channel, call = loop.run_until_complete(_call(node))
    loop.close()  # the call is under way
    thread.call(stack.aclose(), 10)
    thread.call(asyncio.sleep(0.05), 10)
    assert "Event loop is closed" not in caplog.text
    thread.call_soon(int, "no number")
    thread.call(asyncio.sleep(0), 10)
    assert "ValueError: invalid literal" in caplog.text, "all else is"
    del channel, call


async def _call(node: SilentNode) -> tuple[grpc.aio.Channel, grpc.aio.UnaryUnaryCall[bytes, bytes]]:
    channel = grpc.aio.insecure_channel(str(node.endpoint))
    call = channel.unary_unary("/service/Method")(b"")
    while not node.asked:
        await asyncio.sleep(0.01)
    return channel, call
