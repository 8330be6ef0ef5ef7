"""A forked child has neither the loop nor the connections of its parent: it is told so, and touches no transaction."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from headrace import PreparedTransactions, Producer, UnitOwner
from libs.sdk.tests.kit.cluster import LabCluster
from headrace.errors import ClientClosed

cluster = LabCluster()
cluster.create_topic("t", 1)
producer = Producer(_transport=cluster.transport(), transactional_id="x")
prepared = PreparedTransactions(_transport=cluster.transport())
owner = UnitOwner(None, "nightly", _transport=cluster.transport())

def refused(call):
    try:
        call()
    except ClientClosed:
        return True
    return False

with producer.transaction():
    producer.send("t", b"x").result(10)
    pid = os.fork()
    if pid == 0:
        try:
            with producer.transaction():
                os._exit(1)
        except ClientClosed:
            pass
        told = [refused(producer.commit_transaction), refused(owner.init)]
        prepared.close()
        os._exit(0 if told == [True, True] else 2)
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if pid == 0:
        raise SystemExit(0)     # leaves the block: the transaction is the parent's
    assert os.waitpid(pid, 0)[1] == 0
try:
    with producer.transaction():
        producer.send("t", b"y").result(10)
        parent = os.getpid()
        if (pid := os.fork()) != 0:
            assert os.waitpid(pid, 0)[1] == 0
except ClientClosed:            # the child came to the end of the block
    os._exit(3 if os.getpid() == parent else 0)
if os.getpid() != parent:
    os._exit(4)
assert cluster.committed_values("t", 0) == [b"x", b"y"]
producer.close(), prepared.close(), owner.close()
print("done")
"""


def test_a_forked_child_leaves_transactions_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "done\n", ran.stderr
