"""Ctrl+C ends a command without a word, however early it comes: while it is imported, parsed, or runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import os, signal, sys

class At:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

moment, *sys.argv = sys.argv[1:]
sys.meta_path.insert(0, At())
if moment == "while the line is read":
    from headrace_cli import commanding
    commanding.note_options = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
from headrace_cli.__main__ import main
main()
print("the signal never came")
"""


@pytest.mark.parametrize(
    "moment",
    ["headrace_cli.app", "typer", "headrace.finding", "while the line is read", "headrace_cli.admin_view"],
)
def test_a_command_that_is_interrupted_says_nothing(moment: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment, "headrace", "topic", "-b", "127.0.0.1:1", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
