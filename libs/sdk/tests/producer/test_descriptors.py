"""A process that has used up its file descriptors is told so with a type, and not by a module that cannot be loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, sys
import headrace
if sys.argv[1] == "loaded":
    headrace.Producer, headrace.Consumer, headrace.AdminClient
from headrace_common.core.errors import Overloaded
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for make in (
    lambda: headrace.Producer("127.0.0.1:1"),
    lambda: headrace.AdminClient("127.0.0.1:1"),
    lambda: headrace.Consumer("t", bootstrap_servers="127.0.0.1:1"),
):
    try:
        make()
    except Overloaded as error:
        assert "ulimit" in str(error)
    else:
        raise AssertionError("made")
for each in held:
    os.close(each)
headrace.Producer("127.0.0.1:1").close()
"""


@pytest.mark.parametrize("state", ["loaded", "not loaded"])
def test_clients_say_that_no_descriptor_is_left(state: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, state], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
