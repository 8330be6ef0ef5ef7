"""``python -m headrace_broker.dump DATA_DIR [BATCHES]``: one JSON line for each log of a stopped broker."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from headrace_broker.adapters.rocksdb_dump import dump_logs
from headrace_common.core.errors import HeadraceError


def main() -> int:
    """0: all logs are printed; 1: the text on standard error says why not; 2: wrong arguments."""
    arguments = sys.argv[1:]
    if not 1 <= len(arguments) <= 2 or not arguments[-1] or (len(arguments) == 2 and not arguments[1].isdigit()):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        for log in dump_logs(Path(arguments[0]), batches=int(arguments[1]) if len(arguments) == 2 else 0):
            sys.stdout.buffer.write(orjson.dumps(log) + b"\n")
    except (HeadraceError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
