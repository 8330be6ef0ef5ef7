"""
What must hold of every pod that the chart makes. Each rule takes the rendered objects and tells what is wrong, naming
the object; ``test_rules.py`` damages objects to see that each rule finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.deploy.manifests import SERVICES, Manifest, Pod, lasting, pods, quantity

PORT = {"broker": 9292, "controller": 9390, "coordinator": 9492, "admin": 9490, "streams": 9590, "connect": 8083}
HEALTH_PORT = 9101
METRICS_PORT = 9100

_RESTRICTED_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_HOST = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
_PROBED = (*SERVICES, "streams", "connect")
_WORKER_ENDS_S = 30
"""So long after SIGTERM the parent of a worker of streams kills it."""
_CONNECT_STOPS_MS = {"TASK_STOP_MS_MAX": 20_000, "DRAIN_MS_MAX": 10_000}
"""What a Connect worker waits for when it stops, and how long by default."""
_START_S_MIN = 120
"""A broker may have to recover gigabytes, etcd to wait for its peers' volumes."""


def restricted(manifests: Sequence[Manifest]) -> Iterator[str]:
    """The *restricted* profile of the Pod Security Standards; besides a root that cannot be written, and no token."""
    for pod in pods(manifests):
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name}: gets a service account's token"
        for field in _HOST:
            if pod.spec.get(field):
                yield f"{pod.name}: {field}"
        for volume in pod.spec.get("volumes", []):
            if not volume.keys() - {"name"} <= _RESTRICTED_VOLUMES:
                yield f"{pod.name}: volume {volume['name']} is of a kind that is not allowed"
        for container in pod.all_containers:
            where = f"{pod.name}: {container['name']}"
            yield from (f"{where}: {what}" for what in _unrestricted(pod, container))


def _unrestricted(pod: Pod, container: dict[str, Any]) -> Iterator[str]:
    whole = pod.spec.get("securityContext", {})
    own = container.get("securityContext", {})
    either = whole | own
    if either.get("runAsNonRoot") is not True:
        yield "may run as root"
    if either.get("runAsUser") == 0 or either.get("runAsGroup") == 0:
        yield "runs as root"
    if either.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "has another seccomp profile than RuntimeDefault"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "can write its root"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if own.get("privileged"):
        yield "is privileged"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "does not drop ALL capabilities, or adds some"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "takes a port of the host"


def probed(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Our services are asked at their health port, each probe by its meaning; none depends on etcd or a quorum."""
    for pod in lasting(manifests):
        probes = {kind: pod.main.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")}
        missing = [kind for kind, probe in probes.items() if not probe]
        if missing:
            yield f"{pod.name}: has no {', '.join(missing)} probe"
            continue
        for kind, probe in probes.items():
            if "exec" in probe:
                yield f"{pod.name}: its {kind} probe starts a process each time"
            if pod.component in _PROBED:
                asked = {"port": HEALTH_PORT, "service": "ready" if kind == "readiness" else "live"}
                if probe.get("grpc") != asked:
                    yield f"{pod.name}: its {kind} probe asks {probe.get('grpc')}, not {asked}"
            elif kind == "liveness" and "health" in str(probe.get("httpGet", {}).get("path")):
                yield f"{pod.name}: its liveness probe fails without a quorum"
        startup = probes["startup"]
        if startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10) < _START_S_MIN:
            yield f"{pod.name}: has less than {_START_S_MIN} s to start"


def resourced(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Every container asks for what it needs and has an end to its memory, at least what it asked for."""
    for pod in pods(manifests):
        for container in pod.all_containers:
            where = f"{pod.name}: {container['name']}"
            requests = container.get("resources", {}).get("requests", {})
            limits = container.get("resources", {}).get("limits", {})
            for resource in ("cpu", "memory"):
                if resource not in requests:
                    yield f"{where}: requests no {resource}"
                elif resource in limits and quantity(limits[resource]) < quantity(requests[resource]):
                    yield f"{where}: its limit of {resource} is below its request"
            if "memory" not in limits:
                yield f"{where}: its memory has no limit"


def requested(manifests: Sequence[Manifest], resource: str, part: str = "requests") -> float:
    """Cores or bytes of the cluster at rest: each pod's containers together, or its largest init container."""
    total = 0.0
    for pod in lasting(manifests):
        asked = [quantity(c.get("resources", {}).get(part, {}).get(resource, 0)) for c in pod.containers]
        first = [
            quantity(c.get("resources", {}).get(part, {}).get(resource, 0)) for c in pod.spec.get("initContainers", [])
        ]
        total += pod.replicas * max(sum(asked), *first, 0)
    return total


def mounted(manifests: Sequence[Manifest]) -> Iterator[str]:
    """What containers mount is there, and what is there is mounted."""
    for pod in pods(manifests):
        claims = pod.owner["spec"].get("volumeClaimTemplates", []) if pod.owner["kind"] == "StatefulSet" else []
        there = {v["name"] for v in pod.spec.get("volumes", [])} | {c["metadata"]["name"] for c in claims}
        wanted = {m["name"] for c in pod.all_containers for m in c.get("volumeMounts", [])}
        for name in sorted(there ^ wanted):
            yield f"{pod.name}: volume {name} is {'not mounted' if name in there else 'not there'}"
        for container in pod.all_containers:
            paths = [m["mountPath"] for m in container.get("volumeMounts", [])]
            for twice in sorted({p for p in paths if paths.count(p) > 1}):
                yield f"{pod.name}: {container['name']} mounts {twice} twice"


def ports_named(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Ports are declared once, by name, and our services declare the ports of the contract."""
    for pod in pods(manifests):
        ports = [port for container in pod.all_containers for port in container.get("ports", [])]
        for key in ("name", "containerPort"):
            given = [port.get(key) for port in ports]
            for twice in sorted({str(g) for g in given if given.count(g) > 1}):
                yield f"{pod.name}: {key} {twice} is there twice"
        numbers = {port["containerPort"] for port in ports}
        if pod.component in _PROBED and pod in list(lasting(manifests)):
            for wanted in (PORT[pod.component], HEALTH_PORT, METRICS_PORT):
                if wanted not in numbers:
                    yield f"{pod.name}: does not say that it listens on {wanted}"


def stopped_in_time(manifests: Sequence[Manifest]) -> Iterator[str]:
    """A broker gets the time that it may wait before it stops, and the time that stopping takes; so does a worker."""
    for pod in lasting(manifests):
        if pod.component == "streams" and pod.spec.get("terminationGracePeriodSeconds", 30) <= _WORKER_ENDS_S:
            yield f"{pod.name}: is killed before its worker has committed"
        env = {e["name"]: e.get("value") for e in pod.main.get("env") or []}
        if pod.component == "connect":
            tasks, requests = (
                float(env.get(f"HEADRACE_CONNECT_{name}") or ms) for name, ms in _CONNECT_STOPS_MS.items()
            )
            if pod.spec.get("terminationGracePeriodSeconds", 30) * 1000 < 2 * tasks + requests:
                yield f"{pod.name}: is killed before its connectors have committed"
        if pod.component != "broker":
            continue
        waits = sum(float(env.get(f"HEADRACE_BROKER_{name}_MS_MAX") or 0) for name in ("RESTART_WAIT", "SHUTDOWN"))
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        if grace * 1000 < waits or grace < 120:
            yield f"{pod.name}: is killed after {grace} s, and may wait {waits / 1000:.0f} s by its settings"
        if "preStop" not in pod.main.get("lifecycle", {}):
            yield f"{pod.name}: does not leave in order before it is stopped"


def spread(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Pods of one workload go to different nodes and zones where there are some, and start where there is one node."""
    for pod in lasting(manifests):
        constraints = pod.spec.get("topologySpreadConstraints", [])
        keys = {c["topologyKey"] for c in constraints}
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone"):
            if key not in keys:
                yield f"{pod.name}: is not spread over {key}"
        for constraint in constraints:
            if constraint["whenUnsatisfiable"] != "ScheduleAnyway":
                yield f"{pod.name}: does not start where {constraint['topologyKey']} is one"
            wanted = constraint["labelSelector"]["matchLabels"]
            if not wanted or not wanted.items() <= pod.labels.items():
                yield f"{pod.name}: is spread by labels that it does not have"


RULES = (restricted, probed, resourced, mounted, ports_named, stopped_in_time, spread)
