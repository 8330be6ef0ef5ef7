"""A worker of Streams that writes, when it ends, how long each step of its commits took: of a call all times in ms."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from headrace import aio
from headrace_streams.adapters.headrace_io import SdkWriter
from headrace_streams.runtime.committing import Committing
from headrace_streams.worker_process import work

STEPS: Final[dict[str, tuple[type, str]]] = {
    "changes are encoded": (Committing, "_prepare"),
    "rows are handed over": (SdkWriter, "send"),
    "positions": (aio.Producer, "send_offsets_to_transaction"),
    "delivery and verdict": (aio.Producer, "commit_transaction"),
    "disk": (Committing, "_keep"),
    "whole": (Committing, "commit"),
}


def main(program: str, settings: str) -> int:
    took: defaultdict[str, list[float]] = defaultdict(list)
    for step, (owner, name) in STEPS.items():
        setattr(owner, name, _timed(getattr(owner, name), took[step]))
    ended = work(program, json.loads(settings))
    Path(os.environ["TIMES"]).write_text(json.dumps(took))
    return ended


def _timed(call: Any, into: list[float]) -> Any:
    async def timed(*args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        result = await call(*args, **more)
        into.append((time.perf_counter() - began) * 1e3)
        return result

    return timed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
