"""Clients in a process that was forked: gRPC does not live on there, so they say so at once instead of waiting."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, sys, warnings
import headrace
from headrace.errors import ClientClosed, HeadraceError

NOBODY = "127.0.0.1:1"
warnings.simplefilter("ignore", DeprecationWarning)
if "used" in sys.argv:
    try:
        with headrace.Producer(NOBODY, max_block_ms=200) as producer:
            producer.send("t", b"x")
    except HeadraceError:
        pass
pid = os.fork()
if pid == 0:
    said = []
    for make in (headrace.Producer, headrace.AdminClient, lambda a: headrace.Consumer("t", bootstrap_servers=a)):
        try:
            make(NOBODY).close()
            said.append("made")
        except ClientClosed as error:
            said.append("refused" if "spawn" in str(error) else str(error))
    print(*said, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(("argument", "said"), [("used", "refused refused refused"), ("unused", "made made made")])
def test_a_forked_child_makes_clients_only_if_none_was_used_before(argument: str, said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == said, ran.stderr
