"""The shop of the scenario of Connect: a pod whose database and help desk never stop, and what became of both."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .kube import wait_until
from .life import Ask
from .loading import OUT, SCRIPTS, restricted_pod
from .results import Result
from .stage import Stage

NAME: Final = "shop"
"""Of the pod, of its service, and of the Secret."""
OPEN_S: Final = 120.0
TAKEN_S: Final = 180.0
"""The longest until what came last is where it should be."""
PORTS: Final = {"database": 5432, "desk": 8000}
_START: Final = """
set -e
printf %s "$PASSWORD" > /tmp/password
initdb -D /data/pg -U postgres -A scram-sha-256 --pwfile=/tmp/password > /dev/null
echo 'host all all 0.0.0.0/0 scram-sha-256' >> /data/pg/pg_hba.conf
exec postgres -D /data/pg -k /tmp -c listen_addresses='*' -c wal_level=logical
"""


@dataclass(slots=True)
class Window:
    """Something was done meanwhile; in seconds of the wall clock, which pods of the same machine share."""

    what: str
    begin: float
    end: float


@dataclass(slots=True)
class Shop:
    """Open from ``open`` to ``close``."""

    here: Stage
    windows: list[Window] = field(default_factory=list)

    def start(self, images: Sequence[str]) -> None:
        """With the images of PostgreSQL and of Connect; the Secret is there already."""
        database, ours = images
        secrets = [
            {"name": key.upper(), "valueFrom": {"secretKeyRef": {"name": NAME, "key": key}}}
            for key in ("password", "token")
        ]
        containers: list[dict[str, Any]] = [
            {
                "name": "main",
                "image": ours,
                "command": ["python", "/scripts/shop.py", "run"],
                "volumeMounts": [
                    {"name": "scripts", "mountPath": "/scripts", "readOnly": True},
                    {"name": "out", "mountPath": OUT},
                ],
            },
            {
                "name": "database",
                "image": database,
                "command": ["sh", "-c", _START],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
            },
        ]
        volumes = [{"name": name, "emptyDir": {}} for name in ("out", "data", "tmp")]
        volumes.append({"name": "scripts", "configMap": {"name": NAME}})
        pod = restricted_pod(NAME, {}, volumes)
        shared = pod["spec"]["containers"][0] | {"env": secrets, "resources": {"limits": {"memory": "512Mi"}}}
        pod["spec"]["containers"] = [shared | one for one in containers]
        pod["metadata"]["labels"] = {"app": NAME}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": {"app": NAME}, "ports": [{"name": n, "port": p} for n, p in PORTS.items()]},
        }
        scripts = {"shop.py": SCRIPTS["shop.py"]}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": scripts}
        self.here.kube.apply(config, service, pod)
        wait_until("the shop could open", lambda: self._has("ready"), OPEN_S)

    def open(self) -> None:
        """From now on there are orders and tickets, without a pause."""
        self._execute("touch", f"{OUT}/open")
        wait_until("there are orders", lambda: self._has("state"), OPEN_S)

    def close(self) -> dict[str, Any]:
        """How many ``orders`` and ``tickets`` of each queue there were."""
        self._execute("touch", f"{OUT}/stop")
        wait_until("the shop is closed", lambda: self._has("done"), OPEN_S)
        return dict(json.loads(self._execute("cat", f"{OUT}/done")))

    def ordered(self) -> int:
        """The number of the newest order."""
        return int(self._execute("cat", f"{OUT}/state"))

    def copied(self, windows: Sequence[Window] = ()) -> dict[str, Any]:
        """What is in the database that the orders are copied to, and the longest gap of each window."""
        words = [f"{one.begin},{one.end}" for one in windows]
        return dict(json.loads(self._execute("python", "/scripts/shop.py", "copied", *words)))

    def has_slot(self) -> bool:
        """Whether the connector has made what keeps changes for it."""
        program = (
            "import sys; sys.path.append('/scripts'); import shop; "
            "print(shop.connect('shop').execute('SELECT count(*) FROM pg_replication_slots').fetchone()[0])"
        )
        return self._execute("python", "-c", program).strip() == "1"

    def goes_on(self, result: Result, what: str, began: float) -> None:
        """Wait until an order of now is copied; what was done since ``began`` is a window of this name."""
        wanted = self.ordered()
        seconds = wait_until(f"{what}: orders are copied", lambda: self.copied()["newest"] >= wanted, TAKEN_S)
        self.windows.append(Window(what, began, time.time()))
        self.here.say(f"{what}: an order of then is copied after {seconds:.1f} s")
        result.figure(f"{what}: an order of then is copied", seconds)

    def judge(self, result: Result, ask: Ask) -> None:
        """Close, and wait for the last order and ticket: each is there once. Then the gaps of all windows."""
        made = self.close()
        wait_until("the last order is copied", lambda: self.copied()["orders"] >= made["orders"], TAKEN_S)
        read = read_tickets(ask, made["tickets"], self.windows)
        told = self.copied(self.windows)
        judge(result, made, told, read, self.windows)

    def _has(self, name: str) -> bool:
        return name in self._execute("ls", OUT).split()

    def _execute(self, *argv: str) -> str:
        return self.here.kube.kubectl("exec", NAME, "-c", "main", "--", *argv)


def judge(
    result: Result, made: dict[str, Any], told: dict[str, Any], read: dict[str, Any], windows: Sequence[Window]
) -> None:
    """Each order is copied once, each ticket is in the topic once; and how long nothing came in each window."""
    result.acknowledged += made["orders"] + sum(made["tickets"].values())
    result.read += told["copies"] + read["read"]
    result.anomalies["lost-write"] += made["orders"] - told["orders"] + read["missing"]
    result.anomalies["duplicate"] += told["copies"] - told["orders"] + read["twice"]
    result.anomalies += Counter()  # leaves out those that are 0
    for window, orders, tickets in zip(windows, told["gaps"], read["gaps"], strict=True):
        result.figure(f"{window.what}: longest gap of copies", orders)
        result.figure(f"{window.what}: longest gap of tickets", tickets)
    result.notes.append(f"{made['orders']} orders, tickets {made['tickets']}")


def read_tickets(ask: Ask, made: dict[str, int], windows: Sequence[Window]) -> dict[str, Any]:
    """All that is committed in the topic: ``read``, ``missing``, ``twice``, and the longest gap of each window."""
    spans = [(one.begin, one.end) for one in windows]
    return dict(json.loads(ask(_READ.format(made=made, spans=spans), seconds=300)))


_READ: Final = """
import collections, json, time
import headrace
made, spans = {made!r}, {spans!r}
seen, times, deadline, quiet = collections.Counter(), [], time.monotonic() + 240, 0
with headrace.Consumer("tickets", auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
    while time.monotonic() < deadline and (len(seen) < sum(made.values()) or quiet < 3):
        records = consumer.poll(timeout_ms=1_000)
        quiet = 0 if records else quiet + 1
        for record in records:
            ticket = json.loads(record.value)
            seen[ticket["queue"], ticket["number"]] += 1
            times.append(record.timestamp_ms / 1000)
times.sort()
gaps = []
for begin, end in spans:
    inner = [begin, *(at for at in times if begin <= at <= end), end]
    gaps.append(max(after - before for before, after in zip(inner, inner[1:])))
wanted = {{(queue, n) for queue, count in made.items() for n in range(1, count + 1)}}
print(json.dumps({{
    "read": sum(seen.values()), "missing": len(wanted - seen.keys()), "gaps": gaps,
    "twice": sum(seen.values()) - len(wanted & seen.keys()),
}}))
"""
