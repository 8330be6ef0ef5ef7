"""
Scenarios of Spark: jobs of the chart's ``sparkJobs``, run by the Kubeflow operator beside brokers of the release.

The operator must be there and watch all namespaces; or SPARK_OPERATOR_CHART names its chart, as helm takes
it, and the scenario installs it for its own namespace. The image ``spark`` has the same tag as the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from .kube import Failed, wait_until
from .life import Ask, client, own
from .loading import restricted_pod
from .results import Result
from .stage import Stage

ROWS: Final = 12_000
STEP: Final = 2_000
LAKE: Final = "/lake"
TOPIC: Final = "orders"
RUN_S: Final = 420.0
"""The longest until a job has done what it should; a JVM or two start in it."""
APPLICATION: Final = "sparkapplications.sparkoperator.k8s.io"
SCHEDULED: Final = "scheduledsparkapplications.sparkoperator.k8s.io"
_MOUNTS: Final = {
    "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
    "volumeMounts": [{"name": "lake", "mountPath": LAKE}],
}
_FILES: Final = f"{LAKE}/{TOPIC}"
_INTO_LAKE: Final = {
    "name": "lake",
    "job": "topic_to_lake",
    "arguments": [
        *("--topic", TOPIC, "--output", _FILES, "--checkpoint", f"{LAKE}/.checkpoints/{TOPIC}"),
        *("--schema", "n bigint NOT NULL", "--trigger", "2 seconds"),
    ],
    **_MOUNTS,
}
_AUDIT: Final = {
    "name": "audit",
    "job": "retention_audit",
    "schedule": "@every 1m",
    "arguments": ["--topic", TOPIC, "--output", f"{LAKE}/audits", "--markers-max", 0, "--fail-on", "gaps,duplicates"],
    **_MOUNTS,
}


def copied_into_lake(stage: Stage, result: Result) -> None:
    """``topic_to_lake`` runs always; its driver is killed, then its executor, then a broker: rows out are rows in."""
    with _spark(stage, "lake") as here, client(here) as ask, _reader(here) as read:
        here.release.cli("topic", "create", TOPIC, "-p", "6")
        began = time.monotonic()
        _apply_jobs(here, _INTO_LAKE)
        sent = 0
        for kill in (None, _driver, _executor, _broker, _driver):
            _send(ask, sent)
            sent += STEP
            if kill is None:
                wait_until("the first rows are in the lake", lambda: len(_rows(read)) > 0, RUN_S, 3)
                result.figure("from nothing to the first rows in the lake", time.monotonic() - began)
                continue
            pod = kill(here)
            here.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
            here.say(f"killed {pod} at {len(_rows(read))} rows of {sent}")
        _send(ask, sent)
        began = time.monotonic()
        found: list[list[int]] = []

        def all_there() -> bool:
            found[:] = _rows(read)
            return len({tuple(row[:2]) for row in found}) >= ROWS

        wait_until("all rows are in the lake", all_there, RUN_S, 3)
        result.figure("from the last kill until all rows are in the lake", time.monotonic() - began)
        result.acknowledged += ROWS
        result.read += len(found)
        _judge(result, found)


def audited(stage: Stage, result: Result) -> None:
    """``retention_audit`` by a schedule: two runs, each with a report that counts every record."""
    with _spark(stage, "audit") as here, client(here) as ask, _reader(here) as read:
        here.release.cli("topic", "create", TOPIC, "-p", "6")
        _send(ask, 0)
        began = time.monotonic()
        _apply_jobs(here, _AUDIT)
        reports: list[dict[str, Any]] = []

        def two() -> bool:
            reports[:] = json.loads(read(_REPORTS))
            return len(reports) >= 2

        wait_until("two reports", two, RUN_S, 3)
        result.figure("two scheduled audits", time.monotonic() - began)
        for report in reports:
            counted = sum(partition["records"] for partition in report["partitions"])
            if counted != STEP or report["findings"]:
                result.problems.append(f"an audit counted {counted} of {STEP} records: {report['findings']}")
        past = here.kube.get(SCHEDULED, "headrace-audit")["status"].get("pastSuccessfulRunNames", [])
        if not past:
            result.problems.append("the operator knows of no successful run")


def _judge(result: Result, rows: list[list[int]]) -> None:
    places = [tuple(row[:2]) for row in rows]
    numbers = {row[2] for row in rows}
    lost, doubled = ROWS - len(numbers), len(places) - len(set(places))
    if lost:
        result.anomalies["lost-write"] += lost
    if doubled:
        result.anomalies["duplicate"] += doubled


# --- the cluster -----------------------------------------------------------------------------------------------


@contextmanager
def _spark(stage: Stage, suffix: str) -> Iterator[Stage]:
    """A release, a volume for the lake, and an operator that watches."""
    with own(stage, suffix) as here:
        space = here.kube.namespace
        chart = os.environ.get("SPARK_OPERATOR_CHART")
        if chart:
            words = ["--set", f"spark.jobNamespaces={{{space}}}", "--wait", "--timeout", "180s"]
            here.kube.run_helm("install", "operator", chart, *words, seconds=240)
        elif not _has_operator(here):
            raise AssertionError("there is no Spark operator in the cluster; SPARK_OPERATOR_CHART=CHART installs one")
        here.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "lake"},
                "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        )
        try:
            here.release.install()
            here.release.wait_rolled_out()
            yield here
        finally:
            here.kube.delete(f"{SCHEDULED},{APPLICATION}", "--all")
            if chart:
                here.kube.run_helm("uninstall", "operator", "--wait", seconds=120)


def _has_operator(here: Stage) -> bool:
    try:
        here.kube.kubectl("get", "crd", APPLICATION)
    except Failed:
        return False
    return True


def _apply_jobs(here: Stage, *jobs: dict[str, Any]) -> None:
    here.release.upgrade({}, "--set-json", f"sparkJobs={json.dumps(jobs)}")


@contextmanager
def _reader(here: Stage) -> Iterator[Ask]:
    """A pod with the lake's volume, which can be asked to run Python; it has no Spark running."""
    container = {
        "image": here.images.name("spark"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import time; time.sleep(7200)"],
        "volumeMounts": [{"name": "lake", "mountPath": LAKE}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [
        {"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    here.kube.apply(restricted_pod("reader", container, volumes))
    try:
        here.kube.kubectl("wait", "--for=condition=Ready", "pod/reader", "--timeout=120s", seconds=130)
        yield Ask(here.kube, "reader")
    finally:
        here.kube.delete("pod", "reader", "--grace-period=0", "--force")


def _send(ask: Ask, first: int) -> None:
    ask(_PRODUCE.format(topic=TOPIC, first=first, end=first + STEP))


def _rows(read: Ask) -> list[list[int]]:
    return list(json.loads(read(_COMMITTED)))


def _driver(here: Stage) -> str:
    return _pod_of(here, "driver")


def _executor(here: Stage) -> str:
    return _pod_of(here, "executor")


def _broker(here: Stage) -> str:
    """The last one; with a single broker writing and reading pause until it is back."""
    return f"{here.release.stateful('broker')}-{here.release.replicas('broker') - 1}"


def _pod_of(here: Stage, role: str) -> str:
    """A running pod of the job's application."""
    found = ""

    def look() -> bool:
        nonlocal found
        pods = here.kube.get("pods", selector=f"headrace.io/job=lake,spark-role={role}")
        running = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
        found = running[0] if running else ""
        return bool(running)

    wait_until(f"a {role} runs", look, RUN_S, 1)
    return found


_PRODUCE: Final = """
import headrace
values = [b'{{"n": %d}}' % n for n in range({first}, {end})]
with headrace.Producer() as producer:
    for delivery in producer.send_many("{topic}", values, keys=[b"%d" % (n % 97) for n in range({first}, {end})]):
        delivery.result(120)
"""
_COMMITTED: Final = f"""
import json, os
import pyarrow.parquet as parquet
from headrace_jobs.topic_to_lake.committed import committed_files, local_path
rows = []
if os.path.isdir({_FILES!r} + "/_spark_metadata"):
    for file in committed_files({_FILES!r}):
        table = parquet.ParquetFile(local_path(file)).read(columns=["_partition", "_offset", "n"])
        rows += [list(row) for row in zip(*(table.column(i).to_pylist() for i in range(3)))]
print(json.dumps(rows))
"""
_REPORTS: Final = f"""
import glob, json
print(json.dumps([json.load(open(path)) for path in sorted(glob.glob("{LAKE}/audits/run=*/report.json"))]))
"""

SCENARIOS: Final = {"spark-lake": copied_into_lake, "spark-audit": audited}
