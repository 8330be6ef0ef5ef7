"""
What a service does before it has imported itself, which takes most of a second: it can be told to stop, it is quick,
has no threads that it does not use, and whatever it writes is for its own user alone.

A container's first process ignores SIGTERM while it has no handler for it, and a pod would be stuck in its deletion
until its grace is over. Called by each service's ``__main__`` around its imports; imports nothing but the standard
library and ``private_files``, which does not either.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from headrace_common.runtime.private_files import keep_private

STOPPED: Final = 128 + signal.SIGTERM
"""Exit code of a process that was told to stop before it had begun."""


@contextmanager
def starting() -> Iterator[None]:
    """
    Around the imports: SIGTERM ends the process (until a later handler takes over), no garbage is collected, and NumPy
    starts no threads of its own unless the environment asks for some: one for each core, for algebra that is not done.
    """
    keep_private()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _stop)
    with importing():
        yield


@contextmanager
def importing() -> Iterator[None]:
    """No garbage is looked for meanwhile, nor later in what was made: an eighth less of a process's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(STOPPED)
