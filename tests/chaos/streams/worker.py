"""
A worker of the storm: ``python -m tests.chaos.streams.worker BOOTSTRAP STATE_DIR GUARANTEE``; it
ends as the storm expects it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from tests.chaos.transactions.storm import FENCED, READY, TRANSACTION_TIMEOUT_MS

from headrace_streams.worker_process import Ending, work

PROGRAM = Path(__file__).parents[2] / "integration" / "streams" / "programs.py"


class _Ready(logging.Handler):
    """Says that the worker is at work once it has tasks."""

    def emit(self, record: logging.LogRecord) -> None:
        if " works on " in record.getMessage():
            sys.stderr.write(f"{READY}\n")


def main(bootstrap: str, state_dir: str, guarantee: str) -> int:
    logging.getLogger("headrace_streams").addHandler(_Ready())
    settings = {
        "bootstrap_servers": bootstrap,
        "state_dir": state_dir,
        "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        "standbys": 1,
        "processing_guarantee": guarantee,
    }
    match work(f"{PROGRAM}:counts", settings):
        case Ending.FENCED:
            return FENCED
        case Ending.LOST:  # a parent starts it again
            os.kill(os.getpid(), signal.SIGKILL)
        case Ending.FAILED:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
