"""What processes of this machine use: of ours for the figures, of others for a warning."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Final

import psutil

FOREIGN_CORES_MAX: Final = 0.3
"""More than this of other work makes a comparison say little."""
_LOOK_S: Final = 2.0


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of these processes and all that came from them, also of those that have ended."""
    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
    return total


def warn_if_busy() -> str:
    """Look for two seconds while nothing of ours runs; what a row is to say, and is printed, where others work."""
    before = _busy_seconds()
    time.sleep(_LOOK_S)
    cores = (_busy_seconds() - before) / _LOOK_S
    if cores <= FOREIGN_CORES_MAX:
        return ""
    text = f"others used {cores:.1f} cores"
    print(f"warning: {text}; wait until the machine is quiet, or believe only the CPU of each record", file=sys.stderr)
    return text


def _busy_seconds() -> float:
    used = psutil.cpu_times()
    return used.user + used.nice + used.system + used.irq + used.softirq
