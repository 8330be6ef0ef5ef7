"""The ``headrace`` command: argv in, exit code out. What a bug raises is one line, unless ``--debug`` is given."""

from __future__ import annotations

import os
import sys
from types import TracebackType


def main() -> None:
    """Run one command."""
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
    if "--debug" not in sys.argv:
        sys.excepthook = _one_line
    from headrace_cli.app import app

    app(prog_name="headrace")


def _one_line(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{kind.__name__}: {error}"
    sys.stderr.write(f"error: {text}\nThis looks like a bug in Headrace; run it again with --debug and report it.\n")


if __name__ == "__main__":
    main()
