"""``python -m headrace_streams PROGRAM SETTINGS``: one worker, as ``headrace streams run`` starts it."""

from __future__ import annotations

import json
import sys

from headrace_streams.worker_process import work

if __name__ == "__main__":
    sys.exit(work(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
