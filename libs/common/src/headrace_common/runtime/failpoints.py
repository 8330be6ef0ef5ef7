"""
Named points at which a test may kill or stop this process; without ``HEADRACE_FAILPOINTS_DIR`` they do nothing.

A point is armed by a file of its name in that directory, with ``kill`` or ``stop`` in it, at any time. The first
process that comes to the point takes the file away (it becomes ``NAME.hit``, which has the process id in it from the
first moment that it is seen), so one file is one fault: a process that is started again passes. ``kill`` is SIGKILL, at
once, with nothing flushed; ``stop`` is SIGSTOP, until somebody sends SIGCONT or kills it, so that others can be killed
at exactly this moment.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

DIRECTORY_VARIABLE: Final = "HEADRACE_FAILPOINTS_DIR"
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_directory: Final = Path(os.environ[DIRECTORY_VARIABLE]) if os.environ.get(DIRECTORY_VARIABLE) else None


def failpoint(name: str) -> None:
    """The process has come to ``name``."""
    if _directory is not None:
        _fire(_directory, name)


def _fire(directory: Path, name: str) -> None:
    armed, mine = directory / name, directory / f"{name}.{os.getpid()}"
    try:
        armed.rename(mine)  # before it is read: the process that was first writes into it
    except FileNotFoundError:
        return  # not armed, or another process was first
    action = _SIGNALS[mine.read_text().strip()]
    mine.write_text(str(os.getpid()))
    mine.rename(directory / f"{name}.hit")
    os.kill(os.getpid(), action)
