"""
``make e2e-kubernetes``: scenarios one after the other on the cluster that KUBECONFIG (or the current context) names, a
report for each, and one line of JSON at the end.

``python -m tests.kubernetes.kubernetes_long [--seed N] [--only NAME ...] [--directory DIR] [--keep]``; from the
environment IMAGE_TAG (else the chart's appVersion), PREVIOUS_TAG (images of an older version; without it upgrades of
images are not run, and that is said), IMAGE_REGISTRY, IMAGE_REPOSITORY, VALUES (files for helm, with commas).

It needs kubectl and helm, and the images in the cluster or in a registry that it reaches. It works in namespaces of its
own, admits only what the *restricted* policy does there, and removes them, also when it fails; then logs and
descriptions of what failed stay in the directory. Scenarios of Spark are those of ``spark*.py`` beside this file, in
their ``SCENARIOS``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from . import closed, closing, connect_workers, day_two, kills, life, secure, streams_apps, upgrades, versions
from .kube import Failed, Kube, helm_path
from .release import CHART, Release, commit
from .results import Result, summary
from .stage import RESTRICTED_LABELS, Images, Stage

Scenario = Callable[[Stage, Result], None]
ALONE: dict[str, Scenario] = {
    "install": life.installed,
    "idle": life.idle,
    "reinstall": life.reinstalled,
    "restore": day_two.restored,
    "images": versions.images_changed,
    "streams": streams_apps.counted,
    "connect": connect_workers.moved,
    "tls": secure.renewed,
    "etcd-tls": secure.etcd_renewed,
    "issuer": secure.issued,
    "closed": closed.closed,
    "closing": closing.closed_step_by_step,
}
"""They make a release of their own."""
SHARED: dict[str, Scenario] = {
    "setting": upgrades.setting_changed,
    "broker": kills.broker_deleted,
    "controller": kills.controller_deleted,
    "shims": kills.shims_killed,
    "etcd": kills.etcd_member_gone,
    "evictions": kills.evicted,
    "all-pods": kills.all_pods_deleted,
    "bad-image": upgrades.bad_image,
    "bad-value": upgrades.bad_value,
    "scale": day_two.scaled,
    "outside": life.reached_from_outside,
}
"""They go on with one release, in this order."""


def main() -> int:
    """Read the arguments and run."""
    scenarios = {**ALONE, **SHARED, **spark_scenarios()}
    parser = argparse.ArgumentParser(description="The chart on a real cluster.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", default=[], help=", ".join(scenarios))
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep histories of sound scenarios too")
    parser.add_argument("--stay", action="store_true", help="leave the release and its namespace for a look")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(scenarios)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(scenarios)}")
    chosen = {name: run for name, run in scenarios.items() if not arguments.only or name in arguments.only}
    where = arguments.directory or Path(tempfile.mkdtemp(prefix="headrace-kubernetes-"))
    where.mkdir(parents=True, exist_ok=True)
    stage = make_stage(arguments.seed, where)
    stage.say(
        f"seed {arguments.seed}, commit {commit()}, images {stage.images}, namespace {stage.kube.namespace}, {where}"
    )
    results: list[Result] = []
    try:
        stage.kube.make_namespace(RESTRICTED_LABELS)
        for name, run in chosen.items():
            results.append(one(stage, name, run, keep=arguments.keep))
            print(results[-1].text(), flush=True)
    finally:
        if not arguments.stay:
            stage.remove_namespace()
    print(json.dumps(summary(results, seed=arguments.seed, commit=commit(), directory=str(where))))
    return int(not results or not all(result.sound for result in results))


def make_stage(seed: int, where: Path) -> Stage:
    """From the environment; nothing is made yet."""
    env = os.environ
    images = Images(
        env.get("IMAGE_TAG") or app_version(),
        env.get("PREVIOUS_TAG") or None,
        env.get("IMAGE_REGISTRY", ""),
        env.get("IMAGE_REPOSITORY", "headrace"),
    )
    kube = Kube(f"headrace-e2e-{seed % 100_000}", helm_path())
    values = [word for file in env.get("VALUES", "").split(",") if file for word in ("-f", file)]
    if images.registry:
        values += ["--set", f"image.registry={images.registry}"]
    values += ["--set", f"image.repository={images.repository}"]
    release = Release(kube, "headrace", values, images.current)
    return Stage(kube, release, images, seed, where, random.Random(seed))


def app_version() -> str:
    """Of the chart."""
    for line in (CHART / "Chart.yaml").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "appVersion":
            return value.strip().strip("\"'")
    raise AssertionError("the chart has no appVersion")


def one(stage: Stage, name: str, run: Scenario, *, keep: bool) -> Result:
    """One scenario; whatever it raises is a problem of it, and the others are worth their figures."""
    result, began = Result(name), time.monotonic()
    stage.say(f"=== {name}")
    try:
        if run in SHARED.values():
            stage.ensure_installed()
        run(stage, result)
    except Exception as error:  # noqa: BLE001  # the other scenarios are worth their figures
        result.problems.append(f"{type(error).__name__}: {error}")
        stage.say(traceback.format_exc())
    result.seconds = time.monotonic() - began
    where = stage.directory / name
    if not result.sound:
        stage.keep_evidence(where)
        recover(stage)
    elif where.exists() and not keep:
        shutil.rmtree(where)
    where.mkdir(parents=True, exist_ok=True)
    (where / "result.json").write_text(json.dumps(result.as_json(), indent=1))
    return result


def recover(stage: Stage) -> None:
    """After a scenario that failed the next one gets a release in order, a new one if need be."""
    release = stage.release
    release.tag = stage.images.current
    release.settings.clear()
    try:
        if release.exists():
            release.upgrade()
            release.wait_rolled_out()
    except Exception as error:  # noqa: BLE001  # what is left of it goes
        stage.say(f"the release is given up: {error}")
        try:
            release.uninstall()
        except Failed as failed:
            stage.say(str(failed))
        stage.kube.delete("pvc", "--all")


def spark_scenarios() -> dict[str, Scenario]:
    """What ``spark*.py`` beside this file bring."""
    found: dict[str, Scenario] = {}
    for path in sorted(Path(__file__).parent.glob("spark*.py")):
        module = importlib.import_module(f".{path.stem}", __package__)
        found.update(getattr(module, "SCENARIOS", {}))
    return found


if __name__ == "__main__":
    sys.exit(main())
