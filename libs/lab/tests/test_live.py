"""The loop in real time takes calls of other threads, whatever becomes of these threads in the middle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from headrace_lab.live import LiveLoop


class Interrupted(BaseException):
    """Raised between two instructions, as a signal's handler does."""


@contextmanager
def running() -> Iterator[LiveLoop]:
    """A loop on a thread of its own."""
    loop = LiveLoop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    assert not thread.is_alive()


def interrupted_at(step: int, call: Any) -> bool:
    """Call it, and interrupt it before its instruction of that number; whether it has so many."""
    left = [step]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.timeout(60)
def test_a_call_that_is_interrupted_anywhere_does_not_stop_the_next() -> None:
    with running() as loop:
        step, goes_on = 0, True
        while goes_on:
            goes_on = interrupted_at(step, lambda: loop.call_soon_threadsafe(int))
            step += 1
            taken = threading.Event()
            threading.Thread(target=loop.call_soon_threadsafe, args=(taken.set,), daemon=True).start()
            assert taken.wait(5), f"after an interrupt at instruction {step - 1}"
        assert step > 10


def test_every_call_is_taken() -> None:
    taken: list[int] = []
    done = threading.Event()
    with running() as loop:
        for number in range(1_000):
            loop.call_soon_threadsafe(taken.append, number)
        loop.call_soon_threadsafe(done.set)
        assert done.wait(10)
    assert sorted(taken) == list(range(1_000))
