"""
What every scenario gets: the release, the images, the seed, a directory, and loads that are judged when they end.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from .kube import Failed, Kube, is_ready, wait_until
from .loading import Load, load_pod
from .release import INSTANCE, Release
from .results import Result

STEADY_S = 3.0
IN_SYNC_S = 120.0
RESTRICTED_LABELS = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
PAUSES = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "CrashLoopBackOff")


@dataclass(frozen=True, slots=True)
class Images:
    """Which images there are; none is pulled unless the cluster has to."""

    current: str
    previous: str | None
    registry: str = ""
    repository: str = "headrace"

    def name(self, service: str, tag: str | None = None) -> str:
        """As a pod names it."""
        return f"{self.registry + '/' if self.registry else ''}{self.repository}/{service}:{tag or self.current}"


@dataclass(slots=True)
class Stage:
    """The run so far."""

    kube: Kube
    release: Release
    images: Images
    seed: int
    directory: Path
    chance: random.Random = field(default_factory=random.Random)
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """For whoever watches, and into the log of the run."""
        line = f"{time.monotonic() - self.began:8.1f}  {text}"
        print(line, file=sys.stderr, flush=True)
        with (self.directory / "run.log").open("a") as log:
            log.write(line + "\n")

    def elsewhere(self, namespace: str, values: list[str]) -> Stage:
        """A namespace of its own with a release of its own; whoever asks for it removes it."""
        kube = replace(self.kube, namespace=namespace)
        kube.make_namespace(RESTRICTED_LABELS)
        release = Release(kube, self.release.name, [*self.release.values, *values], self.release.tag)
        return replace(self, kube=kube, release=release)

    def remove_namespace(self) -> None:
        """With all that is in it; pods are not given time for what they would do before they go."""
        self.kube.delete("all", "--all", "--wait=false")
        self.kube.delete("pods", "--all", "--grace-period=0", "--force", "--wait=false")
        self.kube.delete("namespace", self.kube.namespace, seconds=300)

    def ensure_installed(self) -> None:
        """For scenarios that need a release and do not make it."""
        if self.release.exists():
            return
        self.say(f"install {self.release.name} with images {self.release.tag}")
        self.release.install()
        self.say(f"ready after {self.release.wait_rolled_out():.0f} s")

    @contextmanager
    def loaded(self, result: Result, *, tag: str | None = None, suffix: str = "") -> Iterator[Load]:
        """The load runs inside of the block; at its end it is stopped, and judged into ``result``."""
        name, brokers = result.name + suffix, self.release.replicas("broker")
        image = self.images.name("admin", tag)
        with load_pod(self.release, name, image, self.directory / result.name / f"load{suffix}", brokers) as load:
            load.wait_in_sync(brokers, IN_SYNC_S)
            self.say(f"the load runs, {image}")
            time.sleep(STEADY_S)
            with result.window("nothing is done"):
                time.sleep(STEADY_S)
            yield load
            time.sleep(STEADY_S)
            self.say("the load ends")
            codes = load.stop()
            if any(codes.values()):
                result.problems.append(f"parts of the load ended with {codes}")
        result.judge(load.history())
        self.say(f"judged: {dict(result.anomalies) or 'no anomalies'}")
        for topic in load.topics:
            self.release.cli("topic", "delete", topic, "--yes")

    def settle(self, result: Result, load: Load, what: str, target: float | None = None) -> None:
        """Wait until the release is rolled out and in sync again, with the figures for both."""
        result.figure(f"{what}: all pods ready", self.release.wait_rolled_out(), "s")
        seconds = load.wait_in_sync(self.release.replicas("broker"), IN_SYNC_S)
        result.figure(f"{what}: in sync after that", seconds, "s", target)
        self.say(f"{what}: in sync")

    def busiest_broker(self, load: Load) -> int:
        """The broker that leads most partitions of the load."""
        counts = Counter(load.state()["leaders"].values())
        return int(counts.most_common(1)[0][0])

    def wait_replaced(self, pod: str, uid: str, seconds: float = 180) -> float:
        """Seconds until another pod of that name is ready."""

        def look() -> bool:
            found = self.kube.get("pod", pod)
            return bool(found["metadata"]["uid"] != uid and is_ready(found))

        return wait_until(f"{pod} is there again", look, seconds)

    def uid(self, pod: str) -> str:
        """Of the pod that has the name now."""
        return str(self.kube.get("pod", pod)["metadata"]["uid"])

    def left_over(self) -> dict[str, list[str]]:
        """Kind → names of all that carries the release's label, of every kind that a namespace can have."""
        kinds = self.kube.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
        kinds = [kind for kind in kinds if not kind.startswith("events")]
        listed = self.kube.kubectl(
            "get", ",".join(kinds), "-l", f"{INSTANCE}={self.release.name}", "-o", "json", "--ignore-not-found"
        )
        found: dict[str, list[str]] = {}
        for one in json.loads(listed)["items"] if listed.strip() else []:
            found.setdefault(one["kind"], []).append(one["metadata"]["name"])
        return found

    def keep_evidence(self, where: Path) -> None:
        """What there is to know about the namespace: objects, events, logs of all containers."""
        where.mkdir(parents=True, exist_ok=True)
        asks: dict[str, Callable[[], str]] = {
            "pods.txt": lambda: self.kube.kubectl("get", "pods,statefulsets,jobs,pvc,pdb", "-o", "wide"),
            "describe.txt": lambda: self.kube.kubectl("describe", "pods"),
            "events.txt": lambda: self.kube.kubectl("get", "events", "--sort-by=.lastTimestamp"),
            "values.yaml": lambda: self.kube.run_helm("get", "values", self.release.name),
            "history.txt": lambda: self.kube.run_helm("history", self.release.name),
        }
        for name, ask in asks.items():
            (where / name).write_text(_said(ask))
        try:
            pods = self.kube.get("pods")
        except Failed:
            return
        for pod in pods:
            name = pod["metadata"]["name"]
            for previous in ("", "--previous"):
                words = ["logs", name, "--all-containers", *([previous] if previous else [])]
                told = _said(partial(self.kube.kubectl, *words))
                (where / f"{name}{previous}.log").write_text(told)


def _said(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Failed as failed:
        return str(failed)
