"""
The load as a pod: started beside a release, watched through the file it keeps, stopped, and its history brought here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .history import History, read_histories
from .kube import Failed, Kube, NotInTime, wait_until
from .release import Release

SCRIPTS = {path.name: path.read_text() for path in Path(__file__).with_name("pod").glob("*.py")}
"""As they were when this was loaded: a run of many minutes judges what these write, whatever becomes of the files."""
OUT = "/out"
CA, KEY = "/etc/headrace/ca", "/etc/headrace/api-key"
TOKEN = "/var/run/secrets/headrace"
ACCOUNT = "load"
TOKEN_S = 600
"""How long a token of the load is good, the least that Kubernetes gives: the kubelet renews it after 8 minutes."""
USER = 10001
BEGIN_S = 180.0
END_S = 420.0
PARTITIONS, TOPICS = 6, 2
RATE, VALUE_BYTES = 2_000, 1_024
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def restricted_pod(name: str, container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod that the restricted policy admits, which may reach the release as a client."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "headrace-load", "headrace.io/client": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 2,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{"name": "main", "securityContext": RESTRICTED, **container}],
            "volumes": volumes,
        },
    }


def trusting(release: Release, pod: dict[str, Any]) -> dict[str, Any]:
    """
    The pod as a client of the release: with TLS it has the CAs, which Kubernetes renews beneath it, and the
    administrator's key.
    """
    if not release.tls:
        return pod
    key = {"secretName": f"{release.fullname}-admin", "items": [{"key": "api-key", "path": "api-key"}]}
    _mount(pod, "HEADRACE_CA", f"{CA}/ca.crt", {"configMap": {"name": f"{release.fullname}-ca"}})
    return _mount(pod, "HEADRACE_API_KEY_FILE", f"{KEY}/api-key", {"secret": key})


def developing(release: Release, pod: dict[str, Any], name: str) -> dict[str, Any]:
    """
    The pod as a program of a team is one: with TLS it has the CAs, and the token of a ServiceAccount that may use
    what is named ``name...``, and see the rest of the cluster.
    """
    if not release.tls:
        return pod
    namespace = release.kube.namespace
    release.kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    for role in (("developer", name), ("auditor",)):
        release.cli("access", "bind", f"ServiceAccount:{namespace}/{ACCOUNT}", *role)
    audience = f"headrace:{namespace}/{release.name}"
    token = {"path": "token", "audience": audience, "expirationSeconds": TOKEN_S}
    pod["spec"]["serviceAccountName"] = ACCOUNT
    _mount(pod, "HEADRACE_CA", f"{CA}/ca.crt", {"configMap": {"name": f"{release.fullname}-ca"}})
    return _mount(
        pod, "HEADRACE_TOKEN_FILE", f"{TOKEN}/token", {"projected": {"sources": [{"serviceAccountToken": token}]}}
    )


def _mount(pod: dict[str, Any], variable: str, path: str, source: dict[str, Any]) -> dict[str, Any]:
    """The pod with this volume where ``path`` lies, which a variable names."""
    [container] = pod["spec"]["containers"]
    name = variable.lower().replace("_", "-")
    container.setdefault("env", []).append({"name": variable, "value": path})
    container["volumeMounts"].append({"name": name, "mountPath": path.rpartition("/")[0], "readOnly": True})
    pod["spec"]["volumes"].append({"name": name, **source})
    return pod


@dataclass(slots=True)
class Load:
    """A load that runs."""

    kube: Kube
    pod: str
    directory: Path
    plan: dict[str, Any]

    @property
    def topics(self) -> list[str]:
        """Those it writes to."""
        return list(self.plan["topics"])

    def state(self) -> dict[str, Any]:
        """How the cluster is; see ``tell_state`` of the load."""
        return dict(json.loads(self.kube.execute(self.pod, "cat", f"{OUT}/state")))

    def token(self) -> dict[str, Any]:
        """Claims of the token that it shows, as the kubelet has renewed it so far."""
        body = self.kube.execute(self.pod, "cat", f"{TOKEN}/token").split(".")[1]
        return dict(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))

    def active_controller(self) -> int:
        """Its number, once there is one."""
        found = -1

        def look() -> bool:
            nonlocal found
            found = int(self.state()["active_controller"])
            return found >= 0

        wait_until("a controller is active", look, 60)
        return found

    def wait_in_sync(self, brokers: int, seconds: float) -> float:
        """
        Seconds until every partition of every topic has a leader and all its replicas in sync, told after this call.

        Raises:
            NotInTime: with how many do not.
        """
        before = -1
        state: dict[str, Any] = {}

        def look() -> bool:
            nonlocal state, before
            state = self.state()
            if before < 0:
                before = state["at_ns"]
            whole = state["brokers"] == brokers and not state["leaderless"] and not state["not_in_sync"]
            return bool(whole and state["at_ns"] > before)

        try:
            return wait_until("all replicas are in sync", look, seconds, 0.2)
        except NotInTime as late:
            found = {name: state.get(name) for name in ("brokers", "leaderless", "not_in_sync")}
            raise NotInTime(f"{late}: {found}") from None

    def has(self, name: str) -> bool:
        """Whether this file is there; the load failing is told."""
        listed = self.kube.execute(self.pod, "ls", OUT).split()
        if "failed" in listed:
            raise AssertionError(f"the load failed: {self.kube.execute(self.pod, 'cat', f'{OUT}/failed')[-2_000:]}")
        return name in listed

    def stop(self) -> dict[str, int]:
        """End it; returns how its parts ended, after the final read."""
        self.kube.execute(self.pod, "touch", f"{OUT}/stop")
        wait_until("the load has ended", lambda: self.has("done"), END_S)
        return dict(json.loads(self.kube.execute(self.pod, "cat", f"{OUT}/done")))

    def fetch(self) -> None:
        """Its files into the directory; a torn transfer is tried again."""
        for attempt in range(3):
            try:
                self.kube.fetch(self.pod, OUT, self.directory)
            except Failed:
                if attempt == 2:
                    raise
            else:
                return

    def history(self) -> History:
        """What was fetched."""
        return read_histories(sorted(self.directory.glob("*.history")))


@contextmanager
def load_pod(release: Release, name: str, image: str, directory: Path, brokers: int) -> Iterator[Load]:
    """
    A load runs inside of the block: begun, its topics made, all parts at work. The pod goes at the end, in any case.

    Raises:
        NotInTime, AssertionError: it did not begin; what it said is in the directory.
    """
    kube, pod = release.kube, f"load-{name}"
    plan = {
        "bootstrap_servers": release.bootstrap,
        "brokers": release.broker_addresses(),
        "topics": [f"{name}-{letter}" for letter in "abcdefgh"[:TOPICS]],
        "partitions": PARTITIONS,
        "replicas": min(3, brokers),
        "group": f"{name}-group",
        "rate": RATE,
        "bytes": VALUE_BYTES,
        "out": OUT,
        "stay": True,
    }
    container = {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/load/load.py", "all", json.dumps(plan)],
        "resources": {"requests": {"cpu": "10m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "volumeMounts": [
            {"name": "scripts", "mountPath": "/load", "readOnly": True},
            {"name": "out", "mountPath": OUT},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "scripts", "configMap": {"name": pod}},
        {"name": "out", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": pod}, "data": SCRIPTS}
    directory.mkdir(parents=True, exist_ok=True)
    load = Load(kube, pod, directory, plan)
    kube.delete("pod", pod)
    kube.apply(config, developing(release, restricted_pod(pod, container, volumes), name))
    try:
        wait_until(f"the load of {name} has begun", lambda: load.has("ready"), BEGIN_S)
        yield load
    finally:
        try:
            load.fetch()
        except Failed as failed:
            (directory / "not-fetched").write_text(str(failed))
        (directory / "pod.log").write_text(_logs(kube, pod))
        kube.delete("pod", pod, "--grace-period=1")
        kube.delete("configmap", pod)


def _logs(kube: Kube, pod: str) -> str:
    try:
        return kube.kubectl("logs", pod) + kube.kubectl("describe", "pod", pod)
    except Failed as failed:
        return str(failed)
