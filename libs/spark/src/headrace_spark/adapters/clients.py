"""
One client of a kind per process, made when it is first needed and kept for the next task, batch or query.

Spark's workers are forked, and serve one task after another: a client made before a fork is of no use after it, and one
per task would connect anew each time. So clients are kept by process id and by what they were made with.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol, TypeVar

from headrace_common.core.errors import HeadraceError, Unauthenticated
from headrace_common.runtime.memory import keep_freed_memory

CLIENTS_MAX: Final = 8
"""More are closed, those first that were not used for longest: a planner of Spark serves all queries of a driver."""
LOOKS_MAX: Final = 4
"""How often what is not there is looked for: a node may not know a topic or key yet that was made a moment ago."""
LOOK_AGAIN_MS: Final = 300
WARNED_MAX: Final = 1_000
"""Texts that are remembered."""


class Client(Protocol):
    """Anything with connections."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Client)

_lock = threading.Lock()
_settled: set[int] = set()
_warned: set[tuple[int, str]] = set()
_log: Final = logging.getLogger("headrace.spark")
_clients: OrderedDict[tuple[int, Hashable], Any] = OrderedDict()


def share_client(key: Hashable, make: Callable[[], C]) -> C:
    """
    The client of this process under ``key``, which names its kind and its settings; made if there is none.

    It is in use for as long as the caller says nothing else: up to ``CLIENTS_MAX`` are kept. ``make`` only makes, and
    connects when the client is first asked. Thread safe.
    """
    pid = os.getpid()
    closing: list[Client] = []
    with _lock:
        for other in [each for each in _clients if each[0] != pid]:
            del _clients[other]  # of the process that this one was forked from: not ours to close
        found: C | None = _clients.pop((pid, key), None)
        client = make() if found is None else found
        _clients[(pid, key)] = client
        while len(_clients) > CLIENTS_MAX:
            closing.append(_clients.popitem(last=False)[1])
    for old in closing:
        old.close()
    return client


def drop_client(key: Hashable) -> None:
    """Close the client under ``key``, if there is one: the next who wants it gets a new one."""
    with _lock:
        client = _clients.pop((os.getpid(), key), None)
    if client is not None:
        client.close()


def settings_key(settings: dict[str, Any]) -> Hashable:
    """Settings of a client as a part of its key."""
    return tuple(sorted(settings.items()))


def settle_worker() -> None:
    """
    Once per process, tell the garbage collector that what is loaded stays: Spark's worker collects after every task,
    which with pyarrow and gRPC in memory takes a tenth of a second. And tell the allocator to keep what is freed:
    fetching megabytes into memory that is new to the process each time cost an eighth of a task's CPU.
    """
    pid = os.getpid()
    if pid not in _settled:
        _settled.clear()
        _settled.add(pid)
        keep_freed_memory()
        gc.collect()
        gc.freeze()


def is_unknown_yet(error: HeadraceError) -> bool:
    """Whether a node refuses a key that it may know in a moment: one that is over, or was taken back, it knows."""
    return type(error) is Unauthenticated


def pause(ms: float) -> None:
    """Block this thread."""
    if ms > 0:
        threading.Event().wait(ms / 1000)


def warn_once(text: str) -> None:
    """Log ``text`` once per process: options are read anew for each batch."""
    if (os.getpid(), text) not in _warned:
        if len(_warned) >= WARNED_MAX:
            _warned.clear()
        _warned.add((os.getpid(), text))
        _log.warning("%s", text)
