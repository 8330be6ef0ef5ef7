"""
A client of another version writes to an open cluster of this one while it becomes permissive; it is named, and without
a key it is refused when the cluster is closed, as any client is.

``OTHER`` is the checkout of the other version (``git worktree add DIR REVISION``); without it there is nothing to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.access.programs import WAIT_S, Program, Reader

from headrace import AdminClient, Consumer, access
from headrace.errors import Conflict, Rejected
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

OTHER = os.environ.get("OTHER")
PATH = os.pathsep.join(str(Path(OTHER or "") / package / "src") for package in ("libs/sdk", "libs/common"))
WRITES = """
import sys, threading
from headrace import Producer
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with Producer(sys.argv[2], request_timeout_ms=10_000, delivery_timeout_ms=15_000) as producer:
    number = 0
    while not over.wait(0.01):
        number += 1
        value = f"{sys.argv[1]}-{number}"
        producer.send("orders", value.encode(), key=value.encode()).result(60)
        print(value, flush=True)
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.skipif(OTHER is None, reason="OTHER names no checkout of another version"),
]


class OtherWriter(Program):
    def _work(self, stops: Callable[[], bool], settings: dict[str, Any]) -> None:
        self.starts += 1
        command = [sys.executable, "-c", WRITES, f"{self.name}-{self.starts}", ",".join(self.cluster.bootstrap_servers)]
        environment = {**os.environ, "PYTHONPATH": PATH}
        with subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stderr is not None
            for line in program.stdout:
                self.done.append(line.strip().encode())
                if stops() and not program.stdin.closed:
                    program.stdin.close()
            said = program.stderr.read()
        if program.returncode:
            raise Rejected(said)


def test_a_client_of_before_feels_nothing_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with (
        LocalCluster(tmp_path / "data", brokers=3, closed=False) as cluster,
        AdminClient(cluster.bootstrap_servers) as anybody,
    ):
        anybody.create_topic("orders", partitions=3, replication_factor=3)
        with OtherWriter(cluster, "old") as old, Reader(cluster, "reader") as reader:
            for one in (old, reader):
                one.works()
            anybody.alter_access([access.Put(access.bind("User:boss", "superuser"))])
            key = anybody.create_key("User:boss").key.reveal()
            with AdminClient(cluster.bootstrap_servers, api_key=key) as boss:
                boss.alter_access(mode="permissive")
                old.works()
                old.restart()
                assert wait_until(lambda: bool(boss.observed_access().strangers), WAIT_S)
                with pytest.raises(Conflict, match="a caller without a credential"):
                    boss.alter_access(mode="closed", within=timedelta(minutes=5))
                reader.works()
                boss.alter_access(mode="closed", accept_loss=True)
                assert wait_until(lambda: bool(old.errors), WAIT_S), "it is refused"
        with Consumer(
            "orders", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", api_key=key
        ) as check:
            there: list[bytes] = []
            assert wait_until(lambda: there.extend(r.value for r in check.poll(500)) or {*old.done} <= {*there}, WAIT_S)
        assert len(there) == len({*there})
