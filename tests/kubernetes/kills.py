"""
Scenarios in which pods go: deleted, killed from below, evicted, one or all, with the volume of an etcd member.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .kube import Failed, Object, is_ready
from .release import COMPONENT
from .results import Result
from .stage import Stage

CONTROLLED_GAP_S, KILLED_GAP_S, BACK_S, SYNC_S = 1.0, 2.0, 60.0, 30.0
EVICTIONS_S = 900.0
_CERTIFICATE = "/etc/headrace/tls"
ETCDCTL = (
    *("etcdctl", "--endpoints=https://localhost:2379", f"--cacert={_CERTIFICATE}/ca.crt"),
    *(f"--cert={_CERTIFICATE}/tls.crt", f"--key={_CERTIFICATE}/tls.key"),
)


def broker_deleted(stage: Stage, result: Result) -> None:
    """The broker that leads most, with its grace; then another at once."""
    with stage.loaded(result) as load:
        for words, target, planned in (
            (("--wait=false",), CONTROLLED_GAP_S, True),
            (("--grace-period=0", "--force", "--wait=false"), KILLED_GAP_S, False),
        ):
            pod = f"{stage.release.stateful('broker')}-{stage.busiest_broker(load)}"
            what = "broker pod deleted" if planned else "broker pod deleted by force"
            stage.say(f"delete {pod} {' '.join(words)}")
            uid = stage.uid(pod)
            with result.window(what, planned=planned, gap_target=target):
                stage.kube.delete("pod", pod, *words)
                result.figure(f"{what}: the next pod ready", stage.wait_replaced(pod, uid))
                stage.settle(result, load, what, SYNC_S)


def controller_deleted(stage: Stage, result: Result) -> None:
    """The active controller, by force, so that nobody is told."""
    with stage.loaded(result) as load:
        active = load.active_controller()
        pod = f"{stage.release.stateful('controller')}-{active}"
        stage.say(f"delete {pod}, which is active")
        uid = stage.uid(pod)
        with result.window("active controller deleted", gap_target=CONTROLLED_GAP_S):
            stage.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
            stage.wait_replaced(pod, uid)
            stage.settle(result, load, "active controller deleted")
            result.notes.append(f"controller {load.active_controller()} is active after controller {active}")


def all_pods_deleted(stage: Stage, result: Result) -> None:
    """Every pod of the release at once, with grace and then by force; nobody helps."""
    with stage.loaded(result) as load:
        for what, words in (
            ("all pods deleted", ()),
            ("all pods deleted by force", ("--grace-period=0", "--force")),
        ):
            old = {pod["metadata"]["uid"] for pod in stage.release.pods()}
            stage.say(f"{what}: {len(old)}")
            with result.window(what, planned=False, back_target=BACK_S):
                stage.kube.delete("pod", "-l", f"{stage.release.selector},{COMPONENT}", "--wait=false", *words)
                _wait_all_replaced(stage, old)
                stage.settle(result, load, what, SYNC_S)
                time.sleep(3)


def _wait_all_replaced(stage: Stage, old: set[str]) -> None:
    deadline = time.monotonic() + 300
    while {pod["metadata"]["uid"] for pod in stage.release.pods()} & old:
        assert time.monotonic() < deadline, "pods that were deleted are still there after 300 s"
        time.sleep(0.5)


def shims_killed(stage: Stage, result: Result) -> None:
    """The containerd shims of one broker and its containers: the node's own processes fail, nothing is told."""
    pod = f"{stage.release.stateful('broker')}-0"
    if not processes_of(stage.kube.get("pod", pod)):
        result.notes.append("NOT RUN: the node is another machine than this one, or we may not see its processes")
        return
    with stage.loaded(result) as load:
        pod = f"{stage.release.stateful('broker')}-{stage.busiest_broker(load)}"
        parents = {parent_of(pid) for pid in processes_of(stage.kube.get("pod", pod))}
        shims = [pid for pid in parents if "containerd-shim" in command_of(pid)]
        assert shims, f"none of the parents of the processes of {pod} is a shim: {parents}"
        before = stage.release.restarts()
        stage.say(f"kill the shims {shims} of {pod}")
        with result.window("shims of a broker killed", planned=False, gap_target=KILLED_GAP_S):
            for pid in shims:
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 120
            while stage.release.restarts() == before:
                assert time.monotonic() < deadline, "nothing was started again in 120 s"
                time.sleep(0.5)
            stage.settle(result, load, "shims of a broker killed", SYNC_S)


def processes_of(pod: Object) -> list[int]:
    """Processes of its containers on this machine, by the cgroups that name them."""
    wanted = [one["containerID"].rpartition("/")[2] for one in pod["status"]["containerStatuses"]]
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            told = path.read_text()
        except OSError:
            continue
        if any(name in told for name in wanted):
            found.append(int(path.parent.name))
    return found


def parent_of(pid: int) -> int:
    """Its parent process; of one that a container's first process started, that one's."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def command_of(pid: int) -> str:
    """Its arguments."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def etcd_member_gone(stage: Stage, result: Result) -> None:
    """A member with its volume: it comes back empty and has to become a member of the cluster that is there."""
    with stage.loaded(result) as load:
        name = stage.release.stateful("etcd")
        number = stage.chance.randrange(stage.release.replicas("etcd"))
        pod = f"{name}-{number}"
        [claim] = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in stage.kube.get("pod", pod)["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        stage.say(f"delete {pod} and {claim}")
        before = stage.kube.get("pvc", claim)["metadata"]["uid"]
        uid = stage.uid(pod)
        with result.window("etcd member and its volume gone", gap_target=CONTROLLED_GAP_S):
            stage.kube.delete("pvc", claim, "--wait=false")
            stage.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
            result.figure("etcd member back", stage.wait_replaced(pod, uid, 300), "s", BACK_S)
            stage.settle(result, load, "etcd member and its volume gone")
        assert stage.kube.get("pvc", claim)["metadata"]["uid"] != before, "the volume claim is the old one"
        members = etcd_members(stage, f"{name}-{(number + 1) % 3}")
        if sorted(members) != sorted(f"{name}-{n}" for n in range(stage.release.replicas("etcd"))):
            result.problems.append(f"members of etcd afterwards: {members}")


def etcd_members(stage: Stage, pod: str) -> list[str]:
    """Names of the voting members as one of them has them."""
    told = stage.kube.execute(pod, *ETCDCTL, "member", "list", "-w", "json")
    return [one.get("name", "?") for one in json.loads(told)["members"] if not one.get("isLearner")]


def evicted(stage: Stage, result: Result) -> None:
    """Every pod through the Eviction API, as a drain does it: all are asked for again and again until all went."""
    with stage.loaded(result) as load:
        old = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.release.pods()}
        refused: Counter[str] = Counter()
        worst: Counter[str] = Counter()
        began = time.monotonic()
        with result.window("all pods evicted", gap_target=CONTROLLED_GAP_S):
            while True:
                pods = stage.release.pods()
                for component, away in unready_by_component(pods, stage).items():
                    worst[component] = max(worst[component], away)
                left = [pod["metadata"] for pod in pods if old.get(pod["metadata"]["name"]) == pod["metadata"]["uid"]]
                if not left:
                    break
                assert time.monotonic() - began < EVICTIONS_S, f"not evicted: {[one['name'] for one in left]}"
                for one in left:
                    if "deletionTimestamp" not in one and not evict(stage, one["name"]):
                        refused[one["labels"][COMPONENT]] += 1
                time.sleep(1)
            stage.settle(result, load, "all pods evicted", SYNC_S)
        result.figure("all pods evicted", time.monotonic() - began)
        result.notes.append(f"evictions refused by the budgets meanwhile: {dict(refused)}")
        many = {component: away for component, away in worst.items() if away > 1}
        if many:
            result.problems.append(f"more than one pod of a component was away at once: {many}")


def evict(stage: Stage, pod: str) -> bool:
    """Whether the API server allows it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": stage.kube.namespace}}
    path = f"/api/v1/namespaces/{stage.kube.namespace}/pods/{pod}/eviction"
    try:
        stage.kube.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))
    except Failed as failed:
        if "disruption budget" in failed.said or "TooManyRequests" in failed.said:
            return False
        if "NotFound" in failed.said or "not found" in failed.said:
            return True
        raise
    return True


def unready_by_component(pods: Sequence[Object], stage: Stage) -> dict[str, int]:
    """How many pods each component lacks."""
    ready = Counter(pod["metadata"]["labels"][COMPONENT] for pod in pods if is_ready(pod))
    wanted = {
        one["metadata"]["labels"][COMPONENT]: int(one["spec"]["replicas"]) for one in stage.release.stateful_sets()
    }
    return {component: count - ready[component] for component, count in wanted.items()}
