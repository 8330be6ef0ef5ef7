"""
A lab on the event loop that a test already runs on.

The loop of ``asyncio`` finds everything it does in its class. While the block runs that class is ``LabLoop``: time is
virtual, sockets and threads rest, and so do timers that were set before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headrace_common.core.errors import Rejected
from headrace_lab.loop import LabLoop


@contextmanager
def adopt_loop(seed: int) -> Iterator[LabLoop]:
    """
    The running loop as a ``LabLoop`` of this seed, until the block ends.

    Raises:
        Rejected: it is another kind of loop, such as uvloop's, or a lab already.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, LabLoop):
        raise Rejected("this test runs in a lab already; one is enough")
    if not isinstance(loop, asyncio.SelectorEventLoop):
        raise Rejected(
            f"a lab needs asyncio's own event loop, and this test runs on {type(loop).__module__}."
            f"{type(loop).__name__}; choose asyncio's for it, as asyncio.run does without a loop_factory"
        )
    kind, state = loop.__class__, dict(loop.__dict__)
    loop.__class__ = LabLoop  # type: ignore[assignment]  # both are plain classes over the same base
    assert isinstance(loop, LabLoop)
    loop.begin(seed)
    try:
        yield loop
    finally:
        left = loop.leave()
        loop.__class__ = kind  # type: ignore[assignment]
        loop.__dict__.clear()
        loop.__dict__.update(state)
        loop._ready.extend(left)  # type: ignore[attr-defined]
