"""
kubectl and helm as functions: every call has a limit, fails with what the tool said, and names its namespace.

Which cluster is meant is the tools' own business (KUBECONFIG, the current context).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]
CALL_S = 60.0
LOOK_S = 0.5
REPOSITORY = Path(__file__).parents[2]


class Failed(Exception):
    """A command ended with an error; the text says which and what it said."""

    def __init__(self, argv: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"{' '.join(argv)[:300]} ended with {code}: {said.strip()[-2_000:]}")
        self.said = said


class NotInTime(Exception):
    """Something that was waited for did not come."""


def helm_path() -> str:
    """The helm that is there; else the one that the repository builds."""
    found = os.environ.get("HELM") or shutil.which("helm")
    if found:
        return found
    told = subprocess.run([str(REPOSITORY / "tools" / "helm.sh")], capture_output=True, text=True, check=True)
    return told.stdout.strip().splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Kube:
    """One namespace of the cluster."""

    namespace: str
    helm: str

    def kubectl(self, *words: str, given: str | None = None, seconds: float = CALL_S) -> str:
        """
        What it printed.

        Raises:
            Failed: it ended with an error, or not within ``seconds``.
        """
        return call(["kubectl", "-n", self.namespace, *words], given, seconds)

    def run_helm(self, *words: str, given: str | None = None, seconds: float = CALL_S) -> str:
        """As ``kubectl``."""
        return call([self.helm, "-n", self.namespace, *words], given, seconds)

    def apply(self, *objects: Object) -> None:
        """Make them, or make them so."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", given=json.dumps(listed))

    def get(self, kind: str, name: str = "", selector: str = "") -> Any:
        """One object, or a list of them."""
        words = ["get", kind, *([name] if name else []), *(["-l", selector] if selector else []), "-o", "json"]
        found = json.loads(self.kubectl(*words))
        return found if name else found["items"]

    def delete(self, *words: str, seconds: float = 180) -> None:
        """What is gone already is no error."""
        self.kubectl("delete", "--ignore-not-found", *words, seconds=seconds)

    def execute(self, pod: str, *argv: str, seconds: float = CALL_S) -> str:
        """A command in the pod's first container."""
        return self.kubectl("exec", pod, "--", *argv, seconds=seconds)

    def fetch(self, pod: str, directory: str, target: Path, seconds: float = 300) -> None:
        """A directory of a pod that has tar."""
        target.mkdir(parents=True, exist_ok=True)
        packed = target / "fetched.tar.gz"
        argv = ["kubectl", "-n", self.namespace, "exec", pod, "--", "tar", "czf", "-", "-C", directory, "."]
        with packed.open("wb") as out:
            done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, timeout=seconds, check=False)
        if done.returncode:
            raise Failed(argv, done.returncode, done.stderr.decode())
        call(["tar", "xzf", str(packed), "-C", str(target)], None, seconds)
        packed.unlink()

    def make_namespace(self, labels: Mapping[str, str]) -> None:
        """With these labels."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}})


def call(argv: Sequence[str], given: str | None, seconds: float) -> str:
    """
    What a command printed.

    Raises:
        Failed: see there.
    """
    try:
        done = subprocess.run(argv, input=given or "", capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failed(argv, -1, f"not done in {seconds:.0f} s; it said {late.stdout!r} {late.stderr!r}") from None
    if done.returncode:
        raise Failed(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


def wait_until(what: str, look: Callable[[], bool], seconds: float, every: float = LOOK_S) -> float:
    """
    Seconds until ``look`` says so; while it raises ``Failed`` it does not.

    Raises:
        NotInTime: it did not within ``seconds``.
    """
    began, said = time.monotonic(), ""
    while True:
        try:
            if look():
                return time.monotonic() - began
        except Failed as failed:
            said = f"; {failed}"
        if time.monotonic() - began > seconds:
            raise NotInTime(f"not in {seconds:.0f} s: {what}{said}")
        time.sleep(every)


# --- what pods say about themselves ---------------------------------------------------------------------------


def is_ready(pod: Object) -> bool:
    """Its condition Ready, and nobody has told it to go."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def waiting_reasons(pod: Object) -> Iterator[str]:
    """Why its containers do not run: ImagePullBackOff, CrashLoopBackOff and the like."""
    status = pod.get("status", {})
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = one.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in ("PodInitializing", "ContainerCreating"):
            yield waiting.get("reason", "")


def restarts(pod: Object) -> int:
    """Of all its containers."""
    return sum(one.get("restartCount", 0) for one in pod.get("status", {}).get("containerStatuses", []))
