"""
The release under test: installing and changing it, its pods by component, waiting until all of them are as they should.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kube import REPOSITORY, Failed, Kube, NotInTime, Object, call, is_ready, restarts, wait_until

CHART = REPOSITORY / "deploy" / "helm" / "headrace"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
READY_S = 300.0
CLIENT_PORT, REST_PORT = 9292, 8080
PLAIN = "tls.enabled=false,security.mode=open"
"""For ``--set``: a release as it was before it was closed by default."""


@dataclass(slots=True)
class Release:
    """A release of the chart; what is set stays set over upgrades, as with values kept in a file."""

    kube: Kube
    name: str
    values: list[str]
    """Words for helm that every install and upgrade gets: ``-f FILE`` and ``--set KEY=VALUE``."""
    tag: str
    """Of the images."""
    chart: str = str(CHART)
    settings: dict[str, str] = field(default_factory=dict)
    """What upgrades have set so far, by the values' paths."""

    # --- names ----------------------------------------------------------------------------------------------

    @property
    def fullname(self) -> str:
        """Helm's usual rule."""
        return self.name if "headrace" in self.name else f"{self.name}-headrace"

    def stateful(self, component: str) -> str:
        """Name of its StatefulSet and headless service."""
        return f"{self.fullname}-{component}"

    @property
    def tls(self) -> bool:
        """Whether it speaks TLS, and is closed: as the chart has it, unless the values say otherwise."""
        return PLAIN not in self.values

    @property
    def bootstrap(self) -> str:
        """For clients inside of the cluster."""
        return f"{self.fullname}-bootstrap:{CLIENT_PORT}"

    @property
    def rest(self) -> str:
        """Of the admin service, inside of the cluster."""
        return f"{self.fullname}-rest:{REST_PORT}"

    def broker_addresses(self) -> list[str]:
        """Each broker by its own name."""
        service = self.stateful("broker")
        return [f"{service}-{n}.{service}:{CLIENT_PORT}" for n in range(self.replicas("broker"))]

    # --- changing it ----------------------------------------------------------------------------------------

    def words(self, settings: Mapping[str, str]) -> list[str]:
        """For helm: what is set, and this beside."""
        given = {"image.tag": self.tag, **self.settings, **settings}
        return [*self.values, *(word for key, value in given.items() for word in ("--set", f"{key}={value}"))]

    def install(self, *more: str, seconds: float = READY_S) -> None:
        """``helm install``."""
        self.kube.run_helm("install", self.name, self.chart, *self.words({}), *more, seconds=seconds)

    def upgrade(self, settings: Mapping[str, str] | None = None, *more: str, seconds: float = READY_S) -> None:
        """``helm upgrade`` with these settings by their paths in the values; they stay set when it succeeds."""
        self.kube.run_helm("upgrade", self.name, self.chart, *self.words(settings or {}), *more, seconds=seconds)
        self.settings.update(settings or {})

    def template(self) -> str:
        """All objects and hooks as ``helm template`` has them, which is what GitOps tools apply."""
        return self.kube.run_helm("template", self.name, self.chart, "--skip-tests", *self.words({}))

    def unset(self, *names: str) -> None:
        """The next upgrade sets these no more."""
        for name in names:
            self.settings.pop(name, None)

    def exists(self) -> bool:
        """Whether helm knows it."""
        found = json.loads(self.kube.run_helm("list", "-a", "-o", "json"))
        return any(one["name"] == self.name for one in found)

    def uninstall(self) -> str:
        """What helm said."""
        return self.kube.run_helm("uninstall", self.name, "--wait", "--timeout", "300s", seconds=330)

    # --- looking at it --------------------------------------------------------------------------------------

    @property
    def selector(self) -> str:
        """All that is the release's."""
        return f"{INSTANCE}={self.name}"

    def pods(self, component: str = "") -> list[Any]:
        """Of one component, or all; those of jobs are left out."""
        chosen = f"{self.selector},{COMPONENT}={component}" if component else self.selector
        return [pod for pod in self.kube.get("pods", selector=chosen) if _owner(pod) == "StatefulSet"]

    def stateful_sets(self) -> list[Any]:
        """All of the release."""
        return list(self.kube.get("statefulsets", selector=self.selector))

    def replicas(self, component: str) -> int:
        """As many as are wanted."""
        return int(self.kube.get("statefulset", self.stateful(component))["spec"]["replicas"])

    def restarts(self) -> int:
        """Of all containers."""
        return sum(restarts(pod) for pod in self.pods())

    def rolled_out(self) -> bool:
        """Every pod that should be there is, from the newest revision, and ready."""
        return all(rolled_out(one) for one in self.stateful_sets())

    def wait_rolled_out(self, seconds: float = READY_S) -> float:
        """
        Seconds until then.

        Raises:
            NotInTime: with the names of those that are not.
        """
        try:
            took = wait_until(f"all pods of {self.name} are ready", self.rolled_out, seconds)
            self.kube.kubectl("rollout", "status", f"deployment/{self.stateful('client')}", "--timeout=50s")
            return took
        except NotInTime as late:
            lacking = [one["metadata"]["name"] for one in self.stateful_sets() if not rolled_out(one)]
            unready = [pod["metadata"]["name"] for pod in self.pods() if not is_ready(pod)]
            raise NotInTime(f"{late}; not rolled out: {lacking}, pods not ready: {unready}") from None

    # --- the product's own command --------------------------------------------------------------------------

    def cli(self, *words: str, seconds: float = 90) -> str:
        """``headrace`` in the pod for people, who are the administrator there."""
        return self.kube.execute(f"deployment/{self.stateful('client')}", "headrace", *words, seconds=seconds)

    def cli_json(self, *words: str, seconds: float = 90) -> Any:
        """Its answer."""
        return json.loads(self.cli(*words, "-o", "json", seconds=seconds))


def rolled_out(stateful: Object) -> bool:
    """Whether a StatefulSet is all that it should be."""
    status, wanted = stateful.get("status", {}), stateful["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == stateful["metadata"]["generation"]
        and status.get("replicas", 0) == wanted
        and status.get("readyReplicas", 0) == wanted
        and status.get("updatedReplicas", 0) == wanted
        and (wanted == 0 or status.get("currentRevision") == status.get("updateRevision"))
    )


def _owner(pod: Object) -> str:
    owners: Sequence[Object] = pod["metadata"].get("ownerReferences", [])
    return str(owners[0]["kind"]) if owners else ""


def commit() -> str:
    """Of the repository."""
    try:
        return call(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"], None, 10).strip()
    except (Failed, subprocess.SubprocessError, OSError):
        return "unknown"


def now_ns() -> int:
    """The wall clock, which pods of the same machine share."""
    return time.time_ns()
