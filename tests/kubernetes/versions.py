"""
Scenario: images of this version and of an older one, forth and back under load, with the SDK of either.

Where the older one knows nothing of the chart's health port, of etcd members and of backups, the release has probes on
the services' own ports and an etcd of the test's own (``values-versions.yaml``). What such images cannot do, waiting
until their restart takes no replica below min ISR, is told and not demanded of them. Else all is as the chart has it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .kills import CONTROLLED_GAP_S, SYNC_S
from .kube import wait_until
from .life import own
from .loading import restricted_pod
from .release import PLAIN
from .results import Result
from .stage import Stage

VALUES = Path(__file__).with_name("values-versions.yaml")
ETCD = "etcd-alone"
ETCD_IMAGE = "quay.io/coreos/etcd:v3.6.8"


def images_changed(stage: Stage, result: Result) -> None:
    """The older images → these → the older → these, first with this SDK, then with the older one."""
    old, new = stage.images.previous, stage.images.current
    if old is None:
        result.notes.append("NOT RUN: no PREVIOUS_TAG was given")
        return
    with own(stage, "images") as here:
        waits = has_health_port(here, old)
        if not waits:
            result.notes.append(f"images {old} have no health port: probes on the services' own ports, an etcd apart")
            here.release.values += ["-f", str(VALUES)]
            start_etcd(here)
        # Those knew no TLS, or none of etcd.
        here.release.values += ["--set", PLAIN]
        here.release.tag = old
        # Images go back to the older ones, so the cluster's level must not rise meanwhile.
        here.release.values += ["--set", "config.controller.feature_level_max=0"]
        here.release.install()
        result.figure(f"images {old} installed: all pods ready", here.release.wait_rolled_out())
        for suffix, sdk in (("-new-sdk", new), ("-old-sdk", old)):
            with here.loaded(result, tag=sdk, suffix=suffix) as load:
                for tag in (new, old, new):
                    if tag == here.release.tag:
                        continue
                    what = f"images {here.release.tag} → {tag}, SDK {sdk}"
                    here.say(what)
                    began = time.monotonic()
                    # The waiting before a restart is the leaving image's: those of the older version know of none.
                    with result.window(what, planned=waits or here.release.tag == new, gap_target=CONTROLLED_GAP_S):
                        here.release.tag = tag
                        here.release.upgrade()
                        here.release.wait_rolled_out(600)
                        result.figure(f"{what}: all services rolled", time.monotonic() - began)
                        here.settle(result, load, what, SYNC_S)
                    expect_tag(here, result, tag)


def has_health_port(stage: Stage, tag: str) -> bool:
    """Whether the brokers of those images are asked there."""
    name = "has-health-port"
    container = {
        "image": stage.images.name("broker", tag),
        "command": ["python", "-c", "import headrace_common.runtime.health"],
        "resources": {"limits": {"memory": "512Mi"}},
    }
    stage.kube.apply(restricted_pod(name, container, []))

    def ended() -> bool:
        return stage.kube.get("pod", name)["status"]["phase"] in ("Succeeded", "Failed")

    wait_until("the older image says whether it has a health port", ended, 120)
    return bool(stage.kube.get("pod", name)["status"]["phase"] == "Succeeded")


def start_etcd(stage: Stage) -> None:
    """One member without a volume, beside the release."""
    address = f"http://{ETCD}:2379"
    argv = ["etcd", "--data-dir=/tmp/data", "--listen-client-urls=http://0.0.0.0:2379"]
    container: dict[str, Any] = {
        "image": ETCD_IMAGE,
        "command": [*argv, f"--advertise-client-urls={address}"],
        "resources": {"limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = restricted_pod(ETCD, container, [{"name": "tmp", "emptyDir": {}}])
    pod["metadata"]["labels"]["app"] = ETCD
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ETCD},
        "spec": {"selector": {"app": ETCD}, "ports": [{"port": 2379}]},
    }
    stage.kube.apply(pod, service)
    stage.kube.kubectl("wait", "--for=condition=Ready", f"pod/{ETCD}", "--timeout=60s", seconds=70)


def expect_tag(stage: Stage, result: Result, tag: str) -> None:
    """Every container of ours has it."""
    ours = stage.images.name("").partition(":")[0]
    for pod in stage.release.pods():
        for one in pod["spec"]["containers"]:
            if one["image"].startswith(ours) and not one["image"].endswith(f":{tag}"):
                result.problems.append(f"{pod['metadata']['name']} runs {one['image']}")
