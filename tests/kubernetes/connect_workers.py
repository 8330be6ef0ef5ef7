"""
Scenario of Connect: two workers of the chart and a connector of its values, which reads a file that each worker has. A
worker is killed, workers are replaced one after another, and lines keep coming: the topic has each of them once.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from .kube import wait_until
from .life import own
from .results import Result
from .stage import Stage

TAKEN_S: Final = 180.0
"""The longest until a task runs, and its lines are read, after a change."""
LINES: Final = 1_000
_IN: Final = "/var/lib/headrace/in"
_CONNECTOR: Final = {
    "connector.class": "files",
    "path": _IN,
    "format": "lines",
    "topic": "lines",
    "identity": "content",  # the file of another worker is the same one
    "offset.flush.interval.ms": 100,
}


def moved(stage: Stage, result: Result) -> None:
    """A worker is killed, and all are replaced: each line is in the topic once. Only prune deletes a connector."""
    with own(stage, "connect") as here:
        here.release.install(*_values({"lines": _CONNECTOR}))
        result.figure("install: all ready", here.release.wait_rolled_out())
        sent = _Lines(here)
        _reads_on(here, result, sent, "the first lines")
        pod = _pod_of_task(here)
        uid = here.uid(pod)
        here.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
        result.figure("a worker is killed: ready again", here.wait_replaced(pod, uid))
        sent.copy_to(pod)
        _reads_on(here, result, sent, "a worker is killed")
        pod = _pod_of_task(here)
        uid = here.uid(pod)
        here.kube.delete("pod", pod, "--wait=false")
        result.figure("a worker is stopped: ready again", here.wait_replaced(pod, uid))
        sent.copy_to(pod)
        _reads_on(here, result, sent, "a worker is stopped")
        here.release.upgrade({}, *_values({}))
        assert _connectors(here) == ["lines"], "what the values have no more stays"
        here.release.upgrade({}, *_values({}, prune=True))
        assert _connectors(here) == [], "but with prune"
        sent.judge(result)


def _values(connectors: dict[str, Any], *, prune: bool = False) -> list[str]:
    settings = {"files_allowed_paths": ["/var/lib/headrace"]}
    connect = {"enabled": True, "replicas": 2, "connectors": connectors, "prune": prune}
    return ["--set-json", f"connect={json.dumps(connect)}", "--set-json", f"config.connect={json.dumps(settings)}"]


def _pods(here: Stage) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in here.release.pods("connect"))


def _connect(here: Stage, *words: str) -> Any:
    return json.loads(here.kube.execute(_pods(here)[0], "headrace", "connect", *words, "-o", "json"))


def _connectors(here: Stage) -> list[str]:
    return [one["name"] for one in _connect(here, "list")["connectors"]]


def _pod_of_task(here: Stage) -> str:
    """Whose worker has the task."""
    [task] = _connect(here, "status", "lines")["tasks"]
    host = task["worker_id"].rpartition(":")[0].strip("[]")
    [pod] = [one for one in here.release.pods("connect") if one["status"]["podIP"] == host]
    return str(pod["metadata"]["name"])


class _Lines:
    """The file, the same in each worker's pod."""

    def __init__(self, here: Stage) -> None:
        self._here = here
        self._count = 0
        for pod in _pods(here):
            here.kube.execute(pod, "mkdir", "-p", _IN)

    def add(self) -> int:
        """More lines in all pods; how many there are now."""
        first, self._count = self._count, self._count + LINES
        for pod in _pods(self._here):
            self._write(pod, first)
        return self._count

    def copy_to(self, pod: str) -> None:
        """A pod that is new has them all, under another inode."""
        self._here.kube.execute(pod, "mkdir", "-p", _IN)
        self._write(pod, 0)

    def _write(self, pod: str, first: int) -> None:
        program = f"open('{_IN}/a.txt', 'a').writelines(f'line {{n}}\\n' for n in range({first}, {self._count}))"
        self._here.kube.execute(pod, "python", "-c", program)

    def judge(self, result: Result) -> None:
        """Each once."""
        said = self._here.release.cli("consume", "lines", "--exit-at-end", "--format", "%s\\n", seconds=300)
        read = Counter(json.loads(line)["value"] for line in said.splitlines() if line)
        result.acknowledged += self._count
        result.read += read.total()
        result.anomalies["lost-write"] += len({f"line {n}" for n in range(self._count)} - read.keys())
        result.anomalies["duplicate"] += sum(times - 1 for times in read.values())
        result.anomalies += Counter()


def _reads_on(here: Stage, result: Result, sent: _Lines, what: str) -> None:
    """Wait until lines that come now are in the topic."""
    wanted = sent.add()

    def look() -> bool:
        found = here.release.cli("consume", "lines", "--exit-at-end", "--format", "%s\\n")
        return len(found.splitlines()) >= wanted

    seconds = wait_until(f"{what}: {wanted} lines are read", look, TAKEN_S)
    here.say(f"{what}: goes on after {seconds:.1f} s")
    result.figure(f"{what}: lines of then are read", seconds)
