"""The workers of the storm and their hosts: killed, replaced in their sleep, and hit at steps of their commits."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
from libs.common.tests.kit.ports import free_port
from tests.chaos.points import KILL, Aborts, Points
from tests.chaos.transactions.storm import ZOMBIE_S, Crew, until

from headrace.testing import TestCluster

AWAKE_S: Final = 5.0
"""So long a worker that was replaced in its sleep goes on, until it is killed."""
STANDS_S: Final = (0.3, 3.0)
"""So long a host stands still at a point, if its worker goes on."""
SLEEP_S: Final = (4.0, 8.0)
"""So long both do; longer than the group's session: others have its tasks when they wake."""
SLEEPS: Final = 0.3
"""How often that is so."""
ASK_S: Final = 60.0
GROUP: Final = "storm"
"""Of the workers."""
NUDGE_S: Final = 2.0
"""What has failed is begun again so soon after a kill: else it would wait longer each time."""
ABORTED: Final = "connect.source.aborted"
SOURCE_POINTS: Final = (
    "connect.source.claimed",
    "connect.source.located",
    "connect.source.sent",
    "connect.source.positions",
    "connect.source.committed",
    "connect.source.confirmed",
    ABORTED,
)
"""
One or more for each row of a source's commit. ``connect.source.noted`` is of sources that copy clusters alone, and the
storm has none: ``test_mirror`` and ``test_kafka_import_real`` kill there.
"""
SINK_POINTS: Final = (
    "connect.sink.opened",
    "connect.sink.written",
    "connect.sink.prepared",
    "connect.sql-sink.moved",
    "connect.sink.committed",
    "connect.sink.settled",
    "connect.sink.grouped",
)
"""
The same for a sink's commit, and its dead letters. ``connect.sink.dead`` is of sinks whose target keeps no positions,
and the storm has none: ``test_kills`` kills there.
"""
STARTS: Final = {
    "connect.source.claimed": ("shop",),
    "connect.source.located": ("shop",),
    "connect.sink.opened": ("copy", "log"),
}
"""Points that a task comes to when it starts: whose tasks are to."""
FORK_SERVER: Final = "connect-forks"
"""What such a process calls itself."""
_LEADS: Final = re.compile(r'this worker leads.*?"epoch": ?(\d+)')


class Workers(Crew):
    """Workers of one Connect cluster; one that was replaced in its sleep wakes, and is killed some seconds later."""

    def __init__(self, cluster: TestCluster, directory: Path, slots: int, chance: random.Random) -> None:
        super().__init__(directory, self._command, slots)
        self._cluster = cluster
        self._bootstrap = ",".join(cluster.bootstrap_servers)
        self._aborts = Aborts(cluster)
        self._chance = chance
        self._ports: dict[str, int] = {}
        self._awake: dict[str, float] = {}
        self._standing: dict[int, float] = {}
        """Hosts that stand still at a point, and when they go on."""
        self._nudges: dict[str, float] = {}
        """Connectors to begin again what has failed of, and when."""
        self._begun: dict[str, float] = {}
        self.groups: Sequence[Points] = ()
        self.refused = ""
        """What was last said to a request that may be sent again."""

    def _command(self, slot: int, number: int) -> list[str]:
        port = self._ports[f"worker-{slot}-{number}"] = free_port()
        listen = f"127.0.0.1:{port}"
        more = ["--task-stop-ms-max", "5000", "--drain-ms-max", "1000"]
        command = ["-m", "headrace_connect_worker", "--bootstrap-servers", self._bootstrap, "--group-id", GROUP]
        return [*command, "--http-listen", listen, *more]

    def tend(self) -> None:
        """Those that woke, too, and hosts at a point."""
        now = time.monotonic()
        for points in self.groups:
            if points.armed is not None:
                self._provoke(points.armed, now)
            done = points.look()
            if done is not None:
                self._hit(*done, now)
        for host in [pid for pid, at in self._standing.items() if now >= at]:
            del self._standing[host]
            _signal(host, signal.SIGCONT)
        for name in [name for name, at in self._nudges.items() if now >= at]:
            del self._nudges[name]
            self.ask("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true", seconds=NUDGE_S)
        for worker in self.sleeping:
            if worker.wakes_at == float("inf") and now >= self._awake.setdefault(worker.name, now + AWAKE_S):
                self._kill_hosts(worker.process.pid)
                worker.process.kill()
        super().tend()

    def _provoke(self, point: str, now: float) -> None:
        """Have somebody come to a point that nobody comes to by itself."""
        if point == ABORTED:
            self._aborts.abort_soon()
        for name in STARTS.get(point, ()):
            if now - self._begun.get(name, float("-inf")) >= 2 * NUDGE_S:
                self._begun[name] = now
                self.ask("POST", f"/connectors/{name}/restart?includeTasks=true", seconds=NUDGE_S)

    def _hit(self, action: str, host: int, now: float) -> None:
        if action == KILL:
            self._nudges = dict.fromkeys(("shop", "copy", "log"), now + NUDGE_S)
            return
        seconds = self._chance.uniform(*STANDS_S)
        if self._chance.random() < SLEEPS:
            seconds = self._chance.uniform(*SLEEP_S)
            for slot in [slot for slot, worker in self.working.items() if host in hosts_of(worker.process.pid)]:
                self.replace(slot, seconds)
        self._standing[host] = now + seconds

    def replace_leader(self) -> None:
        """Who writes configurations is stopped, another one takes its place, and it goes on later."""
        epochs = {slot: epoch for slot, epoch in self._epochs() if epoch >= 0}
        if epochs:
            self.replace(max(epochs, key=lambda slot: epochs[slot]), self._chance.uniform(*ZOMBIE_S))

    def _epochs(self) -> Iterator[tuple[int, int]]:
        """Of each worker that has led: its slot, and the last epoch at which it did."""
        for slot, worker in self.working.items():
            found = _LEADS.findall(worker.errors.read_text(errors="replace"))
            yield slot, int(found[-1]) if found else -1

    def kill_fork_server(self) -> None:
        """With -9, one process that hosts are forked from; they go on."""
        servers = [pid for worker in self.working.values() for pid in _fork_servers_of(worker.process.pid)]
        if servers:
            _signal(self._chance.choice(servers), signal.SIGKILL)

    def kill_host(self) -> None:
        """With -9, one process with a connector."""
        hosts = self._hosts()
        if hosts:
            _signal(self._chance.choice(hosts), signal.SIGKILL)

    def _hosts(self) -> list[int]:
        return [pid for worker in self.working.values() for pid in hosts_of(worker.process.pid)]

    def end(self) -> None:
        """Hosts end when they miss their worker."""
        for host in self._standing:
            _signal(host, signal.SIGCONT)
        hosts = [*self._hosts(), *(pid for worker in self.sleeping for pid in hosts_of(worker.process.pid))]
        super().end()
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in hosts), "hosts end with their workers")

    def ask(self, method: str, path: str, body: Any = None, *, seconds: float = ASK_S) -> Any:
        """Some worker's answer; None: it gives none now, or refuses for now."""
        for worker in self.working.values():
            try:
                url = f"http://127.0.0.1:{self._ports[worker.name]}{path}"
                answer = httpx.request(method, url, json=body, headers=self._cluster.authorization, timeout=seconds)
            except httpx.TransportError:
                continue
            if answer.status_code in (409, 500, 503):
                self.refused = answer.text
                return None
            assert answer.is_success or answer.status_code == 404, (
                f"{method} {path}: {answer.status_code} {answer.text}"
            )
            return answer.json() if answer.content else True
        return None

    def statuses(self) -> dict[str, Any]:
        """Of all connectors."""
        return {name: self.ask("GET", f"/connectors/{name}/status") for name in ("shop", "copy", "log")}

    def _kill_hosts(self, pid: int) -> None:
        """A worker that is killed in its sleep leaves hosts that stand still, too, if they were stopped with it."""
        for host in hosts_of(pid):
            _signal(host, signal.SIGCONT)


def hosts_of(worker: int) -> list[int]:
    """Processes with its connectors; those whose fork server has died are the system's children, and not told."""
    servers = _fork_servers_of(worker)
    alone = [pid for pid in _children_of(worker) if pid not in servers]
    return [*alone, *(host for server in servers for host in _children_of(server))]


def _fork_servers_of(worker: int) -> list[int]:
    return [pid for pid in _children_of(worker) if _name_of(pid) == FORK_SERVER]


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _children_of(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
