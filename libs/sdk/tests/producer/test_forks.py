"""Clients in a process that was forked: gRPC does not live on there, so they say so at once instead of waiting."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .clusters import BrokerThread

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
print(os.waitpid(pid, 0)[1])
"""

LIVING = """
import os, sys
import headrace

producer = headrace.Producer(sys.argv[1])
producer.send("one", b"x").result(10)
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
producer.close()
"""


@pytest.mark.parametrize(("argument", "said"), [("used", "refused refused refused"), ("unused", "made made made")])
def test_a_forked_child_makes_clients_only_if_none_was_used_before(argument: str, said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split("\n")[:2] == [said, "0"], ran.stderr


def test_children_of_a_process_with_connections_live() -> None:
    broker = BrokerThread()
    try:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LIVING, broker.address], capture_output=True, timeout=60, check=True
        )
    finally:
        broker.stop()
