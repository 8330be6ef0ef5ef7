"""``python -m headrace_streams PROGRAM SETTINGS``: one worker, as ``headrace streams run`` starts it."""

from __future__ import annotations

import json
import sys

from headrace_common.runtime.early import importing

if __name__ == "__main__":
    with importing():
        from headrace_streams.worker_process import end_with_parent, work
    program, settings, *more = [*sys.argv[1:], "{}"][: max(2, len(sys.argv) - 1)]
    if more:
        end_with_parent()
    sys.exit(work(program, json.loads(settings)))
