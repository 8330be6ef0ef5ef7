"""
Scenarios of a release's life: installed by the lines of NOTES.txt, idle, reached from outside, deleted and back on its
volumes, gone but for these.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import headrace

from .kube import Kube, Object, call, wait_until
from .loading import restricted_pod, trusting
from .notes import commands
from .release import CHART, COMPONENT, Release
from .results import Result
from .stage import Stage

FIRST_RECORD_S, READY_S = 180.0, 5.0
IDLE_BYTES, IDLE_CORE = 1.2 * 2**30, 0.10
IDLE_LOOK_S = 120.0
IDLE_AUDIT_MB = 10.0
RECORDS = 10_000
GONE_S = 240.0
LEFT = {"PersistentVolumeClaim", "Secret", "ConfigMap"}


def installed(stage: Stage, result: Result) -> None:
    """``helm install`` into an empty namespace, then the lines of NOTES.txt as they stand there."""
    with own(stage, "install") as here:
        began = time.monotonic()
        here.release.install()
        result.figure("helm install returned", time.monotonic() - began)
        lines = commands(here.kube.run_helm("get", "notes", here.release.name))
        if len(lines) < 3:
            result.problems.append(f"NOTES.txt has fewer than three commands: {lines}")
        said = ""
        for line in lines:
            here.say(f"$ {line}")
            said = shell(line, FIRST_RECORD_S)
            here.say(said.strip()[-300:])
            result.notes.append(f"$ {line}")
            if "consume" in line:
                break
        result.figure("install to first record by NOTES.txt", time.monotonic() - began, "s", FIRST_RECORD_S)
        if not said.strip():
            result.problems.append("the last line of NOTES.txt read nothing")
        here.release.wait_rolled_out()
        result.figure("install to all pods ready", time.monotonic() - began)
        ready_figures(here, result, None)
        result.figure("restarts of containers meanwhile", here.release.restarts(), "")
        result.figure("CPU requests of all pods", requested(here.release.pods(), "cpu"), "cores", 1.2)
        began = time.monotonic()
        here.kube.run_helm("test", here.release.name, "--timeout", "120s", seconds=150)
        result.figure("helm test", time.monotonic() - began)
        uninstalled(here, result)


def idle(stage: Stage, result: Result) -> None:
    """The dev values, nobody asks anything: memory and CPU of all pods, as the kubelet counts them."""
    with own(stage, "idle", "-f", str(CHART / "values-dev.yaml")) as here:
        began = time.monotonic()
        here.release.install()
        here.release.wait_rolled_out()
        result.figure("dev values: all pods ready", time.monotonic() - began)
        ready_figures(here, result, READY_S)
        time.sleep(30)  # what starting costs is not what idling costs
        before, audited = usage(here.kube), audit_bytes(here.release)
        time.sleep(IDLE_LOOK_S)
        after, audited = usage(here.kube), audit_bytes(here.release) - audited
        names = {pod["metadata"]["name"] for pod in here.release.pods()}
        memory = sum(after[name][1] for name in names)
        core = sum((after[name][0] - before[name][0]) / (after[name][2] - before[name][2]) for name in names)
        result.figure("idle: memory of all pods", memory / 2**30, "GiB", IDLE_BYTES / 2**30)
        result.figure("idle: CPU of all pods", core * 100, "% of a core", IDLE_CORE * 100)
        an_hour = audited * 3600 / IDLE_LOOK_S / 1e6
        result.figure("idle: what the audit writes in an hour", an_hour, "MB", IDLE_AUDIT_MB)
        for name in sorted(names):
            result.notes.append(f"{name}: {after[name][1] / 2**20:.0f} MiB")


def reached_from_outside(stage: Stage, result: Result) -> None:
    """By node ports, with this machine's SDK: metadata names outside addresses, records and a group work."""
    [node, *_] = stage.kube.get("nodes")
    host = next(one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP")
    settings = {"external.enabled": "true", "external.type": "NodePort", "external.host": host}
    release = stage.release
    release.upgrade(settings)
    release.wait_rolled_out()
    bootstrap = f"{host}:{_bootstrap_port(stage)}"
    result.notes.append(f"bootstrap {bootstrap}")
    known = credentials(stage)
    with headrace.AdminClient(bootstrap, **known) as admin:
        admin.create_topic("outside", 6, 3)
        brokers = admin.list_brokers()
        result.notes.append(f"brokers as told to clients outside: {brokers}"[:600])
    with headrace.Producer(bootstrap, **known) as producer:
        sent = [producer.send("outside", b"%d" % number, key=b"%d" % number) for number in range(1_000)]
        producer.flush(30)
        assert all(one.result(1).offset >= 0 for one in sent)
    read: set[int] = set()
    with headrace.Consumer(
        "outside", bootstrap_servers=bootstrap, group_id="outsiders", auto_offset_reset="earliest", **known
    ) as consumer:
        deadline = time.monotonic() + 60
        while len(read) < 1_000 and time.monotonic() < deadline:
            read |= {int(record.value) for record in consumer.poll(timeout_ms=1_000)}
        consumer.commit()
    result.figure("records read outside by a group", len(read), "of 1000")
    if read != set(range(1_000)):
        result.problems.append(f"outside {len(read)} of 1000 records were read")
    release.unset(*settings)
    release.upgrade()
    release.wait_rolled_out()


def credentials(stage: Stage) -> dict[str, Any]:
    """Settings of a client on this machine, by which it is the administrator."""
    name, where = stage.release.fullname, stage.directory
    secret = stage.kube.get("secret", f"{name}-admin")["data"]["api-key"]
    (where / "ca.pem").write_text(stage.kube.get("configmap", f"{name}-ca")["data"]["ca.crt"])
    return {"ssl_ca_location": where / "ca.pem", "api_key": base64.b64decode(secret).decode().strip()}


def _bootstrap_port(stage: Stage) -> int:
    for service in stage.kube.get("services", selector=stage.release.selector):
        if service["spec"]["type"] == "NodePort" and "bootstrap" in service["metadata"]["name"]:
            return int(service["spec"]["ports"][0]["nodePort"])
    raise AssertionError("the chart made no bootstrap service with a node port")


def reinstalled(stage: Stage, result: Result) -> None:
    """The release is deleted and installed again: its volumes are taken, and all records are there."""
    with own(stage, "reinstall") as here:
        here.release.install()
        here.release.wait_rolled_out()
        here.release.cli("topic", "create", "kept", "-p", "6", "-r", "3")
        with client(here) as ask:
            ask(WRITE.format(records=RECORDS))
        claims = {one["metadata"]["name"]: one["metadata"]["uid"] for one in here.kube.get("pvc")}
        uninstalled(here, result)
        began = time.monotonic()
        here.release.install()
        here.release.wait_rolled_out()
        result.figure("installed again on its volumes: all pods ready", time.monotonic() - began)
        now = {one["metadata"]["name"]: one["metadata"]["uid"] for one in here.kube.get("pvc")}
        if now != claims:
            result.problems.append(f"volumes were {claims} and are {now}")
        with client(here) as ask:
            told = ask(READ.format(records=RECORDS)).strip()
        result.figure("records there again", float(told), f"of {RECORDS}")
        if told != str(RECORDS):
            result.problems.append(f"{told} of {RECORDS} records are there again")


def uninstalled(stage: Stage, result: Result) -> None:
    """Only volume claims are left, what is secret, and the CA; and that is said."""
    began = time.monotonic()
    said = stage.release.uninstall()
    result.notes.append(f"uninstall said: {' '.join(said.split())[:400]}")
    wait_until("all pods are gone", lambda: not stage.kube.get("pods", selector=stage.release.selector), GONE_S)
    result.figure("uninstalled: all pods gone", time.monotonic() - began)
    left = stage.left_over()
    result.notes.append(f"left after uninstall: {left}")
    if set(left) != LEFT:
        result.problems.append(f"left after uninstall: {left}")


WRITE = """
import headrace
with headrace.Producer() as producer:
    producer.send_many("kept", [b"%d" % n for n in range({records})], keys=[b"%d" % n for n in range({records})])
    producer.flush(60)
"""
READ = """
import headrace, time
with headrace.Consumer("kept", auto_offset_reset="earliest") as consumer:
    seen, deadline = [], time.monotonic() + 60
    while len(seen) < {records} and time.monotonic() < deadline:
        seen += [int(record.value) for record in consumer.poll(timeout_ms=1_000)]
    assert len(seen) == len(set(seen)), "some are there twice"
    print(len(seen))
"""


class Ask:
    """Runs Python in a client's pod."""

    def __init__(self, kube: Kube, pod: str) -> None:
        self._kube = kube
        self._pod = pod

    def __call__(self, program: str, seconds: float = 180) -> str:
        return self._kube.execute(self._pod, "python", "-c", program, seconds=seconds)


@contextmanager
def client(stage: Stage, name: str = "client") -> Iterator[Ask]:
    """A pod beside the release that can be asked to run Python with the SDK, inside of the block."""
    container = {
        "image": stage.images.name("admin"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import time; time.sleep(3600)"],
        "env": [{"name": "HEADRACE_BOOTSTRAP", "value": stage.release.bootstrap}],
        "resources": {"limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    stage.kube.apply(trusting(stage.release, restricted_pod(name, container, [{"name": "tmp", "emptyDir": {}}])))
    try:
        stage.kube.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", seconds=70)
        yield Ask(stage.kube, name)
    finally:
        stage.kube.delete("pod", name, "--grace-period=0", "--force")


@contextmanager
def own(stage: Stage, suffix: str, *values: str) -> Iterator[Stage]:
    """A namespace of the scenario's own with the release not installed yet; removed at the end, evidence kept."""
    here = stage.elsewhere(f"{stage.kube.namespace}-{suffix}", list(values))
    try:
        yield here
    except BaseException:
        here.keep_evidence(stage.directory / suffix)
        raise
    finally:
        here.remove_namespace()


def shell(line: str, seconds: float) -> str:
    """A line of NOTES.txt as somebody would type it."""
    try:
        return call(["bash", "-c", line], None, seconds)
    except subprocess.SubprocessError as failed:
        raise AssertionError(f"{line}: {failed}") from failed


def ready_figures(stage: Stage, result: Result, target: float | None) -> None:
    """Of each component the longest time from the start of a pod's container until the pod was ready."""
    worst: dict[str, float] = {}
    for pod in stage.release.pods():
        component = pod["metadata"]["labels"][COMPONENT]
        worst[component] = max(worst.get(component, 0.0), ready_seconds(pod))
    for component, seconds in sorted(worst.items()):
        result.figure(f"{component}: pod ready after its container started (± 1)", seconds, "s", target)


def ready_seconds(pod: Object) -> float:
    """From the start of its last container; the API tells whole seconds."""
    status = pod["status"]
    started = max(one["state"]["running"]["startedAt"] for one in status["containerStatuses"])
    [ready] = [one["lastTransitionTime"] for one in status["conditions"] if one["type"] == "Ready"]
    return (datetime.fromisoformat(ready) - datetime.fromisoformat(started)).total_seconds()


def requested(pods: list[Object], what: str) -> float:
    """Of all containers together; CPU in cores."""
    total = 0.0
    for pod in pods:
        for one in pod["spec"]["containers"]:
            total += quantity(one.get("resources", {}).get("requests", {}).get(what, "0"))
    return total


def quantity(text: str) -> float:
    """Kubernetes' way to write a number."""
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * units[unit]
    return float(text)


def usage(kube: Kube) -> dict[str, tuple[float, int, float]]:
    """Pod → CPU seconds so far, bytes of its working set, and when that was, from every node's kubelet."""
    found: dict[str, tuple[float, int, float]] = {}
    for node in kube.get("nodes"):
        name = node["metadata"]["name"]
        told = json.loads(kube.kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy/stats/summary"))
        for pod in told["pods"]:
            if pod["podRef"]["namespace"] == kube.namespace and "usageCoreNanoSeconds" in pod.get("cpu", {}):
                at = datetime.fromisoformat(pod["cpu"]["time"]).timestamp()
                used = pod["cpu"]["usageCoreNanoSeconds"] / 1e9
                found[pod["podRef"]["name"]] = (used, pod["memory"]["workingSetBytes"], at)
    return found


def audit_bytes(release: Release) -> int:
    """What is in the topic of the audit, once for all of its replicas; 0 without one."""
    topics = release.cli_json("topic", "list", "--internal", "--sizes")["topics"]
    return sum(int(topic["size_bytes"]) for topic in topics if topic["name"] == "__audit")


def wait_client(stage: Stage, look: str, seconds: float) -> float:
    """Seconds until a CLI command of the product succeeds."""

    def ask() -> bool:
        stage.release.cli(*look.split())
        return True

    return wait_until(look, ask, seconds)
