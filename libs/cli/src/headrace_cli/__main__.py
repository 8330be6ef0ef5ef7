"""The ``headrace`` command: argv in, exit code out. What a bug raises is one line, unless ``--debug`` is given."""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType

from headrace_cli.interrupts import held, interruptible
from headrace_common.runtime.early import importing

INTERRUPTED = 130
"""As ``exits.ExitCode`` has it, which is not there yet when Ctrl+C comes early."""


def main() -> None:
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
    if "--debug" not in sys.argv:
        sys.excepthook = _one_line
    try:
        with interruptible(signal.SIGINT):
            _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run() -> None:
    with held(signal.SIGINT), importing():  # Python drops what is raised while it ends the import of a module
        from headrace_cli.app import app, build_only

    if "_HEADRACE_COMPLETE" not in os.environ:
        build_only(sys.argv[1:])
    app(prog_name="headrace")


def _one_line(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        return  # while the process ends: nothing is left to be done
    sys.stderr.write(f"error: {kind.__name__}: {error}\n")
    sys.stderr.write("This looks like a bug in Headrace; run it again with --debug and report it.\n")


if __name__ == "__main__":
    main()
