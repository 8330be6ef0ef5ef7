"""Workers of Connect: what idle connectors cost, and how long tasks stand still while work moves."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from libs.common.tests.kit.ports import free_port

from bench.clients.connect_ticks import EVERY_S
from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.rows import Row, compare
from bench.sizes import sized
from bench.streams_workloads import Worker, running

WORKERS: Final = 3
STAND_BY_S: Final = 5.0
"""After each change, until what it has begun is over."""
ASK_S: Final = 60.0
SIDE_BY_SIDE: Final = 4
TICKS: Final = "bench.clients.connect_ticks:Ticks"


@dataclass(frozen=True)
class Node:
    """A worker, and where its REST listens."""

    worker: Worker
    address: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Its answer; a refusal for now is tried again."""
        until = time.monotonic() + ASK_S
        while True:
            self.worker.check()
            try:
                answer = httpx.request(method, f"http://{self.address}{path}", json=body, timeout=ASK_S)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code not in (409, 500, 503):
                answer.raise_for_status()
                return answer.json() if answer.content else None
            if time.monotonic() > until:
                raise TimeoutError(f"{method} {path}: {'no answer' if answer is None else answer.text}")
            time.sleep(0.2)

    def put(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Connectors of these names."""
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for done in [pool.submit(self.ask, "PUT", f"/connectors/{n}/config", c) for n, c in configs.items()]:
                done.result()

    def places(self) -> dict[str, str]:
        """Where the task of each connector runs: of those whose task does."""
        found = self.ask("GET", "/connectors?expand=status")
        tasks = [(name, task) for name, one in found.items() for task in one.get("status", {}).get("tasks", ())]
        return {name: task["worker_id"] for name, task in tasks if task["state"] == "RUNNING"}

    def await_places(self, count: int, gone: Collection[str] = ()) -> dict[str, str]:
        """
        Where tasks are, when so many run, and none on a worker that is gone.

        Raises:
            TimeoutError: that did not come.
        """
        until = time.monotonic() + max(120.0, 2.0 * count)
        while len(places := self.places()) < count or not set(places.values()).isdisjoint(gone):
            if time.monotonic() > until:
                raise TimeoutError(f"{len(places)} of {count} tasks run")
            time.sleep(0.2)
        return places


@contextmanager
def workers(cluster: HeadraceSide, count: int, files: Path) -> Iterator[list[Node]]:
    """Of one Connect cluster; they end with the block, as far as they have not."""
    with ExitStack() as stack:
        nodes = []
        here = {"PYTHONPATH": os.pathsep.join(sys.path)}
        for _ in range(count):
            address = f"127.0.0.1:{free_port()}"
            command = [sys.executable, "-m", "headrace_connect_worker", "--bootstrap-servers", cluster.bootstrap]
            command += ["--group-id", "bench", "--http-listen", address, "--plugins-allowed", TICKS]
            command += ["--files-allowed-paths", str(files)]
            nodes.append(Node(stack.enter_context(running(command, here)), address))
        for node in nodes:
            node.ask("GET", "/connectors")
        yield nodes


def idle(_: int) -> list[Row]:
    """A worker with many connectors that have read all that there is."""
    count, seconds = sized(500, 20), sized(60, 3)
    with (
        HeadraceSide.running(flush="os") as cluster,
        tempfile.TemporaryDirectory(prefix="bench-connect-") as root,
        workers(cluster, 1, Path(root)) as [node],
    ):
        topic = cluster.topic(1)
        node.put({f"idle-{n}": _file(Path(root) / f"{n}.jsonl", topic) for n in range(count)})
        node.await_places(count)
        time.sleep(STAND_BY_S)
        before, began = cpu_seconds([node.worker.pid]), time.perf_counter()
        time.sleep(seconds)
        cpu = (cpu_seconds([node.worker.pid]) - before) / (time.perf_counter() - began)
        children = psutil.Process(node.worker.pid).children(recursive=True)
        hosts = [one for one in children if one.name() == "connect-host"]
        others = [psutil.Process(node.worker.pid), *(one for one in children if one not in hosts)]
        own = sum(one.memory_full_info().pss for one in others) / 2**20
        of_hosts = sum(host.memory_full_info().pss for host in hosts) / 2**20
    name = f"connect {count} idle connectors of a worker"
    return [
        compare(f"{name}: CPU of it and its {len(hosts)} hosts", "% of a core", [cpu * 100], target="≤ 5"),
        compare(f"{name}: memory of the worker and its fork server", "MiB", [own], target="≤ 150"),
        compare(f"{name}: memory of a host", "MiB", [of_hosts / len(hosts)], target="≤ 80"),
    ]


def _file(path: Path, topic: str) -> dict[str, str]:
    path.write_text('{"n": 1}\n')
    return {
        "connector.class": "files",
        "path": str(path.parent),
        "pattern": path.name,
        "format": "jsonl",
        "topic": topic,
    }


def moves(_: int) -> list[Row]:
    """Three workers: one connector more, one worker killed, one closed."""
    count, still = sized(50, 4), 10.0
    with (
        HeadraceSide.running(flush="os") as cluster,
        tempfile.TemporaryDirectory(prefix="bench-connect-") as root,
        workers(cluster, WORKERS, Path(root)) as nodes,
    ):
        topic, first = cluster.topic(1), nodes[0]
        first.put({f"ticks-{n}": _ticks(Path(root) / f"ticks-{n}", topic) for n in range(count)})
        first.await_places(count)
        time.sleep(STAND_BY_S)
        names = [f"ticks-{n}" for n in range(count)]
        quiet = _during(lambda: time.sleep(still))

        def more() -> None:
            first.put({"one-more": _ticks(Path(root) / "one-more", topic)})
            first.await_places(count + 1)

        added = _during(more)
        killed, of_killed = _end(first, nodes[2], count + 1, signal.SIGKILL)
        closed, of_closed = _end(first, nodes[1], count + 1, signal.SIGTERM)
        ticks = {path.name: [int(line) for line in path.read_text().split()] for path in Path(root).iterdir()}
    name = f"connect {count} connectors on {WORKERS} workers"
    return [
        compare(
            f"{name}, one more: longest gap of the others",
            "ms",
            [max(_gaps(ticks, names, added))],
            [max(_gaps(ticks, names, quiet))],
            target="≤ 50",
            note="the baseline is without it",
        ),
        _moved(f"{name}, a worker killed", _gaps(ticks, of_killed, killed), "≤ 5,000"),
        _moved(f"{name}, a worker closed", _gaps(ticks, of_closed, closed), "≤ 500"),
    ]


def _moved(name: str, gaps: Sequence[float], target: str) -> Row:
    return compare(
        f"{name}: longest gap of its tasks",
        "ms",
        [max(gaps)],
        target=target,
        note=f"of {len(gaps)} tasks; shortest {min(gaps):,.0f}",
    )


def _ticks(path: Path, topic: str) -> dict[str, str]:
    how = {"value.converter": "bytes", "exactly.once": "false"}
    return {"connector.class": TICKS, "path": str(path), "topic": topic, **how}


def _during(change: Callable[[], None]) -> tuple[float, float]:
    """From when to when it was, in ms since the epoch."""
    began = time.time() * 1e3
    change()
    time.sleep(STAND_BY_S)
    return began, time.time() * 1e3


def _end(asked: Node, node: Node, count: int, how: signal.Signals) -> tuple[tuple[float, float], list[str]]:
    """When a worker ended and its tasks ran elsewhere, and which they were."""
    before = asked.places()
    own = [name for name, place in before.items() if place == node.address]

    def end() -> None:
        os.kill(node.worker.pid, how)
        asked.await_places(count, {node.address})

    return _during(end), own


def _gaps(ticks: Mapping[str, Sequence[int]], names: Sequence[str], span: tuple[float, float]) -> list[float]:
    """For each of them the longest time, beyond the usual one, in which it said nothing, that touches the span."""
    began, ended = span
    found = []
    for name in names:
        times = sorted(ticks[name])
        between = [after - before for before, after in pairwise(times) if after >= began and before <= ended]
        found.append(max(between) - EVERY_S * 1e3)
    return found


SUITES: Final[Mapping[str, Callable[[int], list[Row]]]] = {"connect-idle": idle, "connect-moves": moves}
