"""
Does what verdicts say, beside the writers, and again after each start: ``prepared_decider.py BOOTSTRAP DIRECTORY``.

It ends when the file ``stop`` is there and all verdicts were done. A verdict that is not what a coordinator did fails.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import papers

from headrace import HeadraceError, PreparedTransactions
from headrace.errors import AlreadyDecided, TxnVerdictUnknown

API_TIMEOUT_MS = 5_000
LOOK_S = 0.005


def act(prepared: PreparedTransactions, path: Path) -> bool:
    """On one verdict; false: nobody answered."""
    try:
        if papers.get(path):
            prepared.commit_prepared(path.name)
        else:
            prepared.abort_prepared(path.name)
    except TxnVerdictUnknown:
        return True  # its writer decided it, and the next one after it
    except AlreadyDecided:
        raise
    except HeadraceError as error:
        print(f"{type(error).__name__} {error.then}: {error}", flush=True)
        return False
    return True


def main(bootstrap: str, directory: Path) -> int:
    """Until it is told to end."""
    done: set[Path] = set()
    with PreparedTransactions(bootstrap, default_api_timeout_ms=API_TIMEOUT_MS) as prepared:
        while True:
            stop = (directory / "stop").exists()
            left = [path for path in papers.names(directory / "verdicts") if path not in done]
            for path in left:
                if act(prepared, path):
                    if not done:
                        print("ready", flush=True)
                    done.add(path)
            if stop and not left:
                return 0
            time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
