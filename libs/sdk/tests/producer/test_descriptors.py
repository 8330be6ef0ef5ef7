"""A process that has used up its file descriptors is told so with a type, and not by a module that cannot be loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

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

USED_UP_LATER = """
import os, resource, subprocess, sys
import headrace
from headrace.errors import NetworkFailed, Overloaded

SENDER = '''
import sys, headrace
sys.stdin.readline()
with headrace.Producer(sys.argv[1]) as producer:
    producer.send_many("t", [b"x"] * 100, partition=0)
'''

address = sys.argv[1]
producer = headrace.Producer(address)
assert producer.send("one", b"x").result(30).offset == 0
consumer = headrace.Consumer("one", bootstrap_servers=address, auto_offset_reset="earliest")
assert len(consumer.poll(timeout_ms=30_000)) == 1
together = headrace.Producer(address, linger_ms=60_000)
together.send("t", b"x", partition=1)
together.flush(30)
admin = headrace.AdminClient(address, default_api_timeout_ms=100)
single = headrace.Consumer(bootstrap_servers=address, auto_offset_reset="earliest")
single.assign([("t", 0)])
producer.send("t", b"x", partition=0).result(30)
assert len(single.poll(timeout_ms=30_000)) == 1
sender = subprocess.Popen([sys.executable, "-c", SENDER, address], stdin=subprocess.PIPE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
sender.stdin.write(b"now\\n"), sender.stdin.flush()   # it stays open: closing it would leave a descriptor
assert sender.wait(60) == 0

def many():
    deliveries = [together.send("one", b"x", key=b"%d" % n) for n in range(100)]
    together.flush(30)
    return [delivery.result(30) for delivery in deliveries]

assert producer.send("one", b"x").result(30).offset == 1        # what is loaded works on
assert len(many()) == 100                                        # and sending lists loads nothing more
assert len(producer.send_many("one", [b"x"] * 100).result(30)) == 100
for call in (
    lambda: consumer.poll_table(timeout_ms=30_000),
    lambda: single.poll(timeout_ms=30_000),
    lambda: headrace.UnitOwner(address, "nightly"),
):
    try:
        got = call()
    except Overloaded as error:
        assert "ulimit" in str(error)
    else:
        raise AssertionError(f"{call} {got}")
try:
    admin.list_topics()
except NetworkFailed as error:
    assert "Too many open files" in str(error), error
else:
    raise AssertionError("done")
for each in held:
    os.close(each)
left = 201
while left:
    left -= consumer.poll_table(timeout_ms=30_000).num_rows
left = 100
while left:
    left -= len(single.poll(timeout_ms=30_000))
headrace.UnitOwner(address, "nightly").close()
together.close(), admin.close(), consumer.close(), single.close(), producer.close()
"""


MADE_BEFORE = """
import os, resource, sys
import headrace
from headrace.errors import Overloaded

address, kind, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "producer":
    client = headrace.Producer(address, max_block_ms=1_000)
    use = lambda: client.send("one", b"x", partition=0).result(30)
else:
    client = headrace.Consumer(
        "one", bootstrap_servers=address, auto_offset_reset="earliest", default_api_timeout_ms=1_000
    )
    use = lambda: client.poll(timeout_ms=1_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(left):
    os.close(held.pop())
try:
    got = use()
except Overloaded as error:
    assert "ulimit" in str(error)
else:
    raise AssertionError(got)
for each in held:
    os.close(each)
use()
client.close()
"""


@pytest.mark.parametrize("left", [0, 1, 4, 6])
@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_client_that_never_connected_says_so_and_connects_when_there_are_some(kind: str, left: int) -> None:
    """gRPC ends a process in which it gets none for its own threads."""
    broker = BrokerThread({"one": 1, "t": 3})
    try:
        program = [sys.executable, "-W", "ignore", "-c", MADE_BEFORE, broker.address, kind, str(left)]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=120)
    finally:
        broker.stop()
    assert ran.returncode == 0, ran.stderr


def test_clients_that_were_made_before_say_so_and_go_on_when_there_are_some_again() -> None:
    broker = BrokerThread({"one": 1, "t": 3})
    try:
        program = [sys.executable, "-W", "ignore", "-c", USED_UP_LATER, broker.address]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=120)
    finally:
        broker.stop()
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("state", ["loaded", "not loaded"])
def test_clients_say_that_no_descriptor_is_left(state: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, state], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
