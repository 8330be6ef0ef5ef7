"""What there is to do is asked again where the world is at fault, and not where the connector is."""

from __future__ import annotations

import asyncio

import pytest

from headrace_connect.core.backoff import Backoff
from headrace_connect.core.errors import Fault, RetriableError
from headrace_connect.runtime import watching
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.watching import Watch


def asking(*answers: int | Exception) -> tuple[Watch[int], list[Exception]]:
    left, failures = list(answers), list[Exception]()

    async def ask() -> int:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Watch(ask, "shop", failures.append), failures


async def test_the_first_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RESTART", Backoff(1, 1))
    watch, failures = asking(RetriableError("away"), OSError("still"), 3)
    assert await watch.first(asyncio.Event()) == 3
    assert [str(error) for error in failures] == ["away", "still"]


async def test_later_there_may_be_none() -> None:
    watch, failures = asking(3, OSError("away"), 4)
    assert await watch.first(asyncio.Event()) == 3
    assert await watch.again() is None
    assert await watch.again() == 4
    assert len(failures) == 1


async def test_it_is_not_asked_again_where_that_does_not_help() -> None:
    watch, failures = asking(KeyError("x"))
    with pytest.raises(TaskFailed) as failed:
        await watch.first(asyncio.Event())
    assert (failed.value.fault, failures) == (Fault.BUG, [])


async def test_who_waits_can_be_stopped() -> None:
    watch, _ = asking(OSError("away"))
    stop = asyncio.Event()
    waiting = asyncio.create_task(watch.first(stop))
    await asyncio.sleep(0)
    stop.set()
    assert await waiting is None
