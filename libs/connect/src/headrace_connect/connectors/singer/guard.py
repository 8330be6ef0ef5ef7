"""
A process between a task and its tap: when the task's process is gone, however it ended, the tap and all that it has
started are killed, and the files with its configuration are deleted.

``python -I -S guard.py DIRECTORY PROGRAM ARGUMENT…``, as the first of a session of its own. Standard input is a pipe
that the task's process holds open. Ends as the program does; 128 and more: by a signal. Imports nothing of ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading

CANNOT_START = 127


def main() -> int:
    """Run the program; its exit code."""
    directory, *command = sys.argv[1:]
    threading.Thread(target=_watch, args=(directory,), daemon=True).start()
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        code = CANNOT_START
    else:
        _close_output()  # else nobody would see that the program has closed it
        code = program.wait()
    shutil.rmtree(directory, ignore_errors=True)
    return 128 - code if code < 0 else code


def _close_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)


def _watch(directory: str) -> None:
    while os.read(0, 1024):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # at once: what the program has left may write until this is seen
