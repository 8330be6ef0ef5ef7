"""
The API server's own judgement of the chart, by dry runs in a namespace that enforces *restricted*: every object is
accepted without a warning, and every pod that a workload would make is admitted. ``make e2e-kubernetes`` runs it first.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Sequence

import pytest
from tests.deploy import chart, combinations
from tests.deploy.manifests import Manifest, Pod, name_of, pods

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

CALL_S = 300
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
BY_OTHERS = {"PodMonitor", "PrometheusRule", "GRPCRoute", "TLSRoute", "SparkApplication", "ScheduledSparkApplication"}
"""Kinds that a cluster knows only with somebody's operator."""


def kubectl(*words: str, given: object = None) -> subprocess.CompletedProcess[str]:
    """What became of it; an error is the caller's to judge."""
    text = json.dumps(given) if given is not None else None
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=False, timeout=CALL_S)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"headrace-admission-{uuid.uuid4().hex[:6]}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
    done = kubectl("create", "-f", "-", given=made)
    assert done.returncode == 0, done.stderr
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Kinds that this cluster has."""
    done = kubectl("api-resources", "--no-headers")
    assert done.returncode == 0, done.stderr
    return {line.split()[-1] for line in done.stdout.splitlines()}


def judged(namespace: str, manifests: Sequence[Manifest]) -> tuple[bool, str]:
    """Whether the server would take all of them, and what it said beside that."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    words = ("--dry-run=server", "--field-manager=admission", "--validate=strict", "-f", "-")
    done = kubectl("-n", namespace, "apply", "--server-side", *words, given=listed)
    return done.returncode == 0, done.stderr


def pod_alone(pod: Pod, number: int) -> Manifest:
    """A pod as its workload makes it, with claims as empty directories and the account that is always there."""
    claims = pod.owner["spec"].get("volumeClaimTemplates", []) if pod.owner["kind"] == "StatefulSet" else []
    volumes = [*pod.spec.get("volumes", []), *({"name": c["metadata"]["name"], "emptyDir": {}} for c in claims)]
    elsewhere = {"priorityClassName", "serviceAccountName"}
    spec = {key: value for key, value in pod.spec.items() if key not in elsewhere} | {"volumes": volumes}
    metadata = {"name": f"alone-{number}", "labels": dict(pod.labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("values", combinations.NAMES)
def test_every_object_is_accepted_without_a_warning(values: str, namespace: str, known: set[str]) -> None:
    manifests = combinations.render(values)
    foreign = {m["kind"] for m in manifests} - known
    assert foreign <= BY_OTHERS
    taken, said = judged(namespace, [m for m in manifests if m["kind"] in known])
    assert taken, said
    assert said.strip() == ""


@pytest.mark.parametrize("values", combinations.NAMES)
def test_every_pod_is_admitted_where_restricted_is_enforced(values: str, namespace: str) -> None:
    made = [pod_alone(pod, number) for number, pod in enumerate(pods(combinations.render(values)))]
    assert made
    taken, said = judged(namespace, made)
    assert taken, said


def test_a_pod_that_may_do_more_is_refused_there(namespace: str) -> None:
    """The namespace does enforce it, and the dry run does say so."""
    for field, value in (("runAsNonRoot", False), ("seccompProfile", {"type": "Unconfined"})):
        pod = pod_alone(next(pods(chart.render())), 0)
        pod["spec"]["securityContext"][field] = value
        taken, said = judged(namespace, [pod])
        assert not taken
        assert "PodSecurity" in said


def test_a_key_that_the_server_does_not_know_is_refused(namespace: str) -> None:
    manifests = [m for m in chart.render() if name_of(m) == "StatefulSet/headrace-broker"]
    manifests[0]["spec"]["persistentVolumeClaimRetention"] = {}
    taken, said = judged(namespace, manifests)
    assert not taken
    assert "persistentVolumeClaimRetention" in said
