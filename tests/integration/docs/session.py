"""
What a reader of a page has open: one Python, into which the blocks are pasted one after the other.

Takes ``{"page", "line", "source"}`` as lines of JSON on stdin, and answers each with a line on stdout that begins with
``ANSWER``: ``ended``, ``interrupted`` (Ctrl+C) or ``failed``. Lines of tracebacks are those of the page.
"""

from __future__ import annotations

import doctest
import json
import signal
import sys
import traceback
from typing import Any

ANSWER = "\x1eblock "
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def run(page: str, line: int, source: str, names: dict[str, Any]) -> str:
    if not source.startswith(">>>"):
        exec(compile("\n" * (line - 1) + source, page, "exec"), names)
        return "ended"
    example = doctest.DocTestParser().get_doctest(source, {}, page, page, line - 1)
    example.globs = names
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example, clear_globs=False)
    return "failed" if outcome.failed or not outcome.attempted else "ended"


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, also where a parent ignores Ctrl+C
    names: dict[str, Any] = {"__name__": "__main__"}
    for request in sys.stdin:
        try:
            outcome = run(**json.loads(request), names=names)
        except KeyboardInterrupt:
            outcome = "interrupted"
        except BaseException:  # noqa: BLE001 - whatever it is, the block has failed and the page with it
            traceback.print_exc(file=sys.stdout)
            outcome = "failed"
        print(f"{ANSWER}{outcome}", flush=True)


if __name__ == "__main__":
    main()
