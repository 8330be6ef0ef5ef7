"""
Decides how the C allocator treats freed memory, and what Python's cyclic collector looks at.

``keep_freed_memory`` is called once at the start of a process of ours that moves large messages;
``adapt_to_large_blocks`` is for processes of others, in which clients run.

gRPC and the store allocate and free megabytes for each message. glibc by default maps such blocks anew every time and
gives them back at once, and the kernel zeroes their pages on each first touch: measured as half of a loaded broker's
system time. Kept blocks are used again instead.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES_MAX: Final = 256 << 20
"""Free memory at the end of the heap above this goes back to the system."""
MAPPED_BYTES_MIN: Final = 32 << 20
"""Blocks from this size on are still mapped apart; glibc allows no more."""
TOP_PAD_BYTES: Final = 4 << 20
_BLOCK_OVERHEAD: Final = 64 << 10
"""More than what a block has beside its bytes: glibc adapts to no block above its bound."""
SWITCH_S: Final = 0.001


class _Making:
    """There is one collector per process, and so one count."""

    blocks = 0
    """Of ``exclude_from_gc`` that are open."""


@contextmanager
def exclude_from_gc() -> Iterator[None]:
    """
    What is made inside will live long: the cyclic collector does not run meanwhile and never looks at it afterwards.

    100,000 objects cost a full collection a tenth of a second or more, in which nothing else runs. What is freed by
    its references is freed as ever; a cycle made inside is not. One event loop; blocks may overlap.
    """
    _Making.blocks += 1
    gc.disable()
    try:
        yield
    finally:
        _Making.blocks -= 1
        if not _Making.blocks:
            gc.freeze()
            gc.enable()


def take_turns_quickly() -> None:
    """A thread that computes lets the event loop run after 1 ms instead of 5; for processes that must answer."""
    sys.setswitchinterval(SWITCH_S)


@cache
def adapt_to_large_blocks() -> None:
    """
    Once, for a process that is not ours: have glibc adapt now to blocks of megabytes, as it does by itself once it has
    freed one. It then keeps such blocks instead of mapping each anew, and up to 64 MB of free memory at the end of the
    heap.

    Nothing is set: an application's own ``mallopt``, and glibc's adapting, go on as they are. Other allocators are left
    as they are. The block is never touched, so that it takes no memory.
    """
    bytes(MAPPED_BYTES_MIN - _BLOCK_OVERHEAD)


def keep_freed_memory() -> bool:
    """Tell the allocator; False where it is not glibc's, which changes nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    settings = (
        (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX),
        (_M_TOP_PAD, TOP_PAD_BYTES),
    )
    accepted = [mallopt(what, value) == 1 for what, value in settings]
    return all(accepted)
