"""
Scenarios of ``helm upgrade`` under load: a setting, images forth and back, and what goes wrong on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .kills import CONTROLLED_GAP_S, SYNC_S
from .kube import Failed, wait_until, waiting_reasons
from .loading import Load
from .results import Result
from .stage import PAUSES, Stage

ROLL_S = 60.0
STUCK_S = 240.0
SERVES_S = 5.0


def setting_changed(stage: Stage, result: Result) -> None:
    """A broker setting: brokers alone restart, one after the other."""
    with stage.loaded(result) as load:
        others = {one["metadata"]["name"]: one["status"]["updateRevision"] for one in stage.release.stateful_sets()}
        size = 48 << 20 if stage.release.settings.get("config.broker.tail_cache_bytes") != str(48 << 20) else 56 << 20
        began = time.monotonic()
        with result.window("setting changed", gap_target=CONTROLLED_GAP_S):
            stage.release.upgrade({"config.broker.tail_cache_bytes": str(size)})
            stage.release.wait_rolled_out()
            result.figure("rolling restart of 3 brokers", time.monotonic() - began, "s", ROLL_S)
            stage.settle(result, load, "setting changed", SYNC_S)
        for one in stage.release.stateful_sets():
            name, revision = one["metadata"]["name"], one["status"]["updateRevision"]
            if (name == stage.release.stateful("broker")) is (others[name] == revision):
                result.problems.append(f"{name} was at {others[name]} and is at {revision}")


def bad_image(stage: Stage, result: Result) -> None:
    """An image that nobody has: one pod of each workload waits for it, the others serve; then the right one."""
    good = stage.release.tag

    def spoil() -> None:
        stage.release.tag = "0.0.0-nobody-has-this"
        stage.release.upgrade({}, "--no-hooks")

    def mend() -> None:
        stage.release.tag = good
        stage.release.upgrade()

    with stage.loaded(result) as load:
        _spoiled(stage, result, load, "bad image", spoil, mend)


def bad_value(stage: Stage, result: Result) -> None:
    """A value that the schema refuses; one that the API server does; one that stops the process; each time the fix."""
    release = stage.release

    def back(settings: Mapping[str, str]) -> None:
        release.unset(*settings)
        release.upgrade()

    with stage.loaded(result) as load:
        with result.window("value refused by the schema", gap_target=CONTROLLED_GAP_S):
            _refused(result, "statefulset.replicas", lambda: release.upgrade({"statefulset.replicas": "three"}))
            _refused(result, "statefulset.replica", lambda: release.upgrade({"statefulset.replica": "3"}))
        memory = {"resources.broker.requests.memory": "24Mi", "resources.broker.limits.memory": "24Mi"}
        _spoiled(
            stage,
            result,
            load,
            "impossible memory limit",
            lambda: release.upgrade(memory, "--no-hooks"),
            lambda: back(memory),
        )
        wrong = {"config.broker.flush": "sometimes"}
        try:
            release.upgrade(wrong, "--dry-run=server")
        except Failed as failed:
            result.notes.append(
                f"config.broker.flush=sometimes is refused before anything changes: {failed.said[-200:]}"
            )
            release.unset(*wrong)
            wrong = {
                "statefulset.extraEnv[0].name": "HEADRACE_BROKER_FLUSH",
                "statefulset.extraEnv[0].value": "sometimes",
            }
        _spoiled(
            stage,
            result,
            load,
            "setting that stops the process",
            lambda: release.upgrade(wrong, "--no-hooks"),
            lambda: back(wrong),
        )


def _refused(result: Result, key: str, upgrade: Callable[[], None]) -> None:
    try:
        upgrade()
    except Failed as failed:
        name = key.rpartition(".")[2]
        if name not in failed.said:
            result.problems.append(f"{key}: refused without naming it: {failed.said[-500:]}")
        return
    result.problems.append(f"{key}: the upgrade was not refused")


def _spoiled(
    stage: Stage, result: Result, load: Load, what: str, spoil: Callable[[], object], mend: Callable[[], object]
) -> None:
    """After ``spoil`` a pod of each workload is stuck and the others serve; after ``mend`` all is as before."""
    stage.say(what)
    with result.window(f"{what}, stuck", gap_target=CONTROLLED_GAP_S):
        spoil()
        seconds = wait_until(f"a pod is stuck by a {what}", lambda: bool(stuck(stage)), STUCK_S)
        result.figure(f"{what}: a pod is stuck", seconds)
        time.sleep(SERVES_S)
        found = stuck(stage)
        stage.say(f"stuck: {found}")
        result.notes.append(f"{what}: stuck were {', '.join(found)}")
    with result.window(f"{what}, fixed", gap_target=CONTROLLED_GAP_S):
        began = time.monotonic()
        mend()
        stage.release.wait_rolled_out()
        result.figure(f"{what}: the fix rolled out", time.monotonic() - began)
        stage.settle(result, load, f"{what}, fixed", SYNC_S)


def stuck(stage: Stage) -> list[str]:
    """Pods whose containers do not run, with the reasons."""
    return [
        f"{pod['metadata']['name']}: {reason}"
        for pod in stage.release.pods()
        for reason in waiting_reasons(pod)
        if reason in PAUSES
    ]
