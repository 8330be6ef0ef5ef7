"""Waits for the clients' thread: what ends just as their time is over is told, and counts as in time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

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
