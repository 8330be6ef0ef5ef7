"""
How the application's own functions are called on a client's thread: what they raise is logged, and so is who blocks.

A callback that raises must not stop the client that calls it. One that waits stops everything that the thread does: all
clients of the process that are not of asyncio. So whoever waits for that thread looks here what keeps it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

BLOCKS_S: Final = 1.0
"""A callback that takes longer is warned of, once for each function."""
BLOCKED_LOOK_S: Final = 5.0
"""Who waits looks so often whether a callback keeps the thread."""
WARNED_MAX: Final = 1_000

_log = logging.getLogger("headrace")
_warned: set[str] = set()
_running: dict[int, Running] = {}
"""By thread; one entry for each that calls back just now."""


class Running(NamedTuple):
    """A callback that has not returned."""

    name: str
    where: str
    since_s: float


def call_back(function: Callable[[T], object], argument: T, topic: str, partition: int | None) -> None:
    """Call ``function(argument)``, which is about records of ``partition`` of ``topic`` (None: never known)."""
    where = topic if partition is None else f"{topic}-{partition}"
    me = threading.get_ident()
    outer = _running.get(me)
    mine = _running[me] = Running(_name(function), where, time.monotonic())
    try:
        function(argument)
    except Exception:  # noqa: BLE001  # the application's own function must not stop its client
        _log.exception("the callback %s raised, called for %s", mine.name, where)
    except SystemExit:
        if threading.current_thread() is threading.main_thread():
            raise
        _log.exception(
            "the callback %s called sys.exit() for %s, which ends neither program nor client here; "
            "tell the main thread to end the program",
            mine.name,
            where,
        )
    finally:
        if outer is None:
            del _running[me]
        else:
            _running[me] = outer
    _warn_if_slow(mine, "took")


def warn_of_blocked(thread: int | None) -> None:
    """Somebody waits for ``thread``: tell what keeps it, if a callback does."""
    running = None if thread is None else _running.get(thread)
    if running is not None:
        _warn_if_slow(running, "has not returned for")


def _warn_if_slow(running: Running, verb: str) -> None:
    took_s = time.monotonic() - running.since_s
    if took_s < BLOCKS_S or running.name in _warned or len(_warned) >= WARNED_MAX:
        return
    _warned.add(running.name)
    _log.warning(
        "the callback %s, called for %s, %s %.1f s; nothing is sent or received meanwhile: hand such work to a thread",
        running.name,
        running.where,
        verb,
        took_s,
    )


def _name(function: Any) -> str:
    inner = function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
