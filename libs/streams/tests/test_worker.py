"""A worker and when it looks at the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_streams.config import StreamsConfig
from headrace_streams.dsl.app import App
from headrace_streams.runtime.worker import Worker


class Stopped:
    """A clock that stands still, and a reader that notes how long it was to wait."""

    def __init__(self, now_ms: float) -> None:
        self.now_ms = now_ms
        self.waits: list[float] = []

    def monotonic_ms(self) -> float:
        return self.now_ms

    async def poll(self, timeout_ms: float, max_rows: int) -> list[Any]:
        self.waits.append(timeout_ms)
        return []


async def test_it_waits_for_whole_milliseconds_until_a_commit_is_due() -> None:
    """Clients refuse 30.0 as seconds; less than the clock can show would be no time at all."""
    outside = Stopped(70.0)
    worker = Worker(App("a"), StreamsConfig(), SimpleNamespace(reader=outside, clock=outside))  # type: ignore[arg-type]
    worker._in_transaction = True
    await worker.step()
    outside.now_ms = 99.9999
    await worker.step()
    assert outside.waits == [30, 1]
    assert all(isinstance(wait, int) for wait in outside.waits)
