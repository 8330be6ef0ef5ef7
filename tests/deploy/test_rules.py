"""Every rule holds for what the chart makes of every combination of values, and every rule finds what breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import chart, combinations, object_rules, pod_rules
from tests.deploy.manifests import SERVICES, Manifest, Pod, lasting, of_kind, one, pod_of, pods

Rule = Callable[[Sequence[Manifest]], Iterator[str]]

pytestmark = pytest.mark.chart

RULES: dict[str, Rule] = {rule.__name__: rule for rule in (*pod_rules.RULES, *object_rules.RULES)}
MEANT = {
    ("disrupted_one_at_a_time", "no budgets"),
    ("disrupted_one_at_a_time", "dev"),
    ("spread", "racks"),
    ("referring", "node token of ours"),
    ("referring", "certificates of ours"),
    ("referring", "etcd of ours"),
    ("referring", "closed with keys of ours"),
    ("referring", "clients with certificates"),
}
"""What these values ask for is what the rule is against."""

FROZEN = Path(__file__).with_name("frozen.json")
CORES_MAX = 1.2
DEV_BYTES_MAX = 4 << 30


@pytest.mark.parametrize("values", combinations.NAMES)
def test_every_rule_holds_for(values: str) -> None:
    manifests = combinations.render(values)
    for name, rule in RULES.items():
        complaints = list(rule(manifests))
        if (name, values) in MEANT:
            assert complaints, "an exception that is not needed"
        else:
            assert not complaints, f"{name}: {complaints}"


def test_the_workloads_are_those_that_the_design_names() -> None:
    replicas = {pod.component: pod.replicas for pod in lasting(chart.render())}
    assert replicas == {"etcd": 3, "controller": 3, "broker": 3, "coordinator": 2, "admin": 1}
    dev = {pod.component: pod.replicas for pod in lasting(chart.render(dev=True))}
    assert dev == dict.fromkeys(replicas, 1)


def test_the_defaults_ask_for_little() -> None:
    assert 0.1 < pod_rules.requested(chart.render(), "cpu") <= CORES_MAX
    dev = chart.render(dev=True)
    assert 0 < pod_rules.requested(dev, "memory") <= pod_rules.requested(dev, "memory", "limits") <= DEV_BYTES_MAX


def test_what_cannot_change_on_an_upgrade_has_not_changed() -> None:
    """
    Kubernetes refuses other selectors, services and claims of a StatefulSet; other selectors of services lose pods.
    Objects may come; those that are in the file stay as they are there, in every version.
    """
    now = object_rules.frozen(chart.render(combinations.BY_NAME["streams"] | combinations.CONNECT))
    before = json.loads(FROZEN.read_text())
    assert {name: now.get(name) for name in before} == before
    assert now.keys() == before.keys(), "put new objects into frozen.json: from now on they do not change"


def test_values_do_not_change_what_cannot_change() -> None:
    before = object_rules.frozen(chart.render())
    unchanging = set(combinations.NAMES) - {"names", "short name", "etcd of ours"}
    for values in unchanging:
        now = object_rules.frozen(combinations.render(values))
        for name in before.keys() & now.keys():
            assert now[name] == before[name], (values, name)


def pod(manifests: Sequence[Manifest], component: str) -> Pod:
    found = pod_of(one(manifests, f"StatefulSet/headrace-{component}"))
    assert found is not None
    return found


def _set(target: Any, path: Sequence[str | int], value: Any) -> None:
    for key in path[:-1]:
        target = target[key]
    if value is _GONE:
        del target[path[-1]]
    else:
        target[path[-1]] = value


_GONE = object()
POD = ("spec", "template", "spec")
MAIN = (*POD, "containers", 0)
BROKER, ETCD, ADMIN = "StatefulSet/headrace-broker", "StatefulSet/headrace-etcd", "StatefulSet/headrace-admin"
BOOTSTRAP, BUDGET = "Service/headrace-bootstrap", "PodDisruptionBudget/headrace-broker"
LAKE, AUDIT = "SparkApplication/headrace-lake", "ScheduledSparkApplication/headrace-audit"
SECURITY = (*MAIN, "securityContext")
WORDS = "StatefulSet/headrace-streams-words"
CONNECT = "StatefulSet/headrace-connect"
LABELS = ("metadata", "labels")

DAMAGE: dict[str, list[tuple[str, tuple[str | int, ...], Any]]] = {
    "restricted": [
        (BROKER, (*POD, "automountServiceAccountToken"), True),
        (BROKER, (*POD, "automountServiceAccountToken"), _GONE),
        (BROKER, (*POD, "hostNetwork"), True),
        (BROKER, (*POD, "volumes", 0), {"name": "tmp", "hostPath": {"path": "/"}}),
        (BROKER, (*POD, "securityContext", "runAsNonRoot"), False),
        (ETCD, (*POD, "securityContext", "runAsUser"), 0),
        (BROKER, (*POD, "securityContext", "seccompProfile"), {"type": "Unconfined"}),
        (BROKER, (*POD, "securityContext"), _GONE),
        (BROKER, SECURITY, _GONE),
        (BROKER, (*SECURITY, "readOnlyRootFilesystem"), False),
        (BROKER, (*SECURITY, "allowPrivilegeEscalation"), _GONE),
        (BROKER, (*SECURITY, "privileged"), True),
        (BROKER, (*SECURITY, "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        (BROKER, (*SECURITY, "capabilities", "drop"), ["NET_RAW"]),
        (BROKER, (*MAIN, "ports", 0, "hostPort"), 9292),
        (ETCD, (*POD, "initContainers", 0, "securityContext", "readOnlyRootFilesystem"), _GONE),
    ],
    "probed": [
        (BROKER, (*MAIN, "livenessProbe"), _GONE),
        (BROKER, (*MAIN, "livenessProbe", "grpc", "service"), "ready"),
        (BROKER, (*MAIN, "readinessProbe", "grpc", "service"), "live"),
        (ADMIN, (*MAIN, "readinessProbe", "grpc", "port"), 9490),
        (ADMIN, (*MAIN, "livenessProbe"), {"exec": {"command": ["true"]}}),
        (BROKER, (*MAIN, "startupProbe", "failureThreshold"), 10),
        (ETCD, (*MAIN, "livenessProbe"), {"httpGet": {"path": "/health", "port": 2379}}),
        (WORDS, (*MAIN, "readinessProbe", "grpc", "service"), "live"),
        (CONNECT, (*MAIN, "livenessProbe", "grpc", "service"), "ready"),
    ],
    "resourced": [
        (BROKER, (*MAIN, "resources"), {}),
        (BROKER, (*MAIN, "resources", "requests", "cpu"), _GONE),
        (BROKER, (*MAIN, "resources", "limits", "memory"), "1Mi"),
        (ETCD, (*POD, "initContainers", 0, "resources", "limits"), _GONE),
    ],
    "mounted": [
        (BROKER, (*MAIN, "volumeMounts", 0, "name"), "temp"),
        (BROKER, ("spec", "volumeClaimTemplates", 0, "metadata", "name"), "logs"),
        (BROKER, (*MAIN, "volumeMounts", 0, "mountPath"), "/var/lib/headrace"),
    ],
    "ports_named": [
        (BROKER, (*MAIN, "ports", 0, "containerPort"), 9293),
        (BROKER, (*MAIN, "ports", 0, "name"), "metrics"),
        (ADMIN, (*MAIN, "ports"), []),
        (WORDS, (*MAIN, "ports", 1, "containerPort"), 9102),
        (CONNECT, (*MAIN, "ports", 0, "containerPort"), 8084),
    ],
    "stopped_in_time": [
        (BROKER, (*POD, "terminationGracePeriodSeconds"), 60),
        (BROKER, (*POD, "terminationGracePeriodSeconds"), _GONE),
        (BROKER, (*MAIN, "lifecycle"), {}),
        (WORDS, (*POD, "terminationGracePeriodSeconds"), 30),
        (CONNECT, (*POD, "terminationGracePeriodSeconds"), 45),
    ],
    "spread": [
        (BROKER, (*POD, "topologySpreadConstraints"), []),
        (BROKER, (*POD, "topologySpreadConstraints", 0, "whenUnsatisfiable"), "DoNotSchedule"),
        (BROKER, (*POD, "topologySpreadConstraints", 0, "labelSelector", "matchLabels"), {"app": "x"}),
    ],
    "labelled": [
        (BROKER, (*LABELS, "app.kubernetes.io/version"), _GONE),
        (BOOTSTRAP, (*LABELS, "app.kubernetes.io/managed-by"), ""),
        (BROKER, ("spec", "template", *LABELS, "helm.sh/chart"), "headrace-0.1.0"),
    ],
    "named": [
        (BOOTSTRAP, ("metadata", "name"), "headrace-broker"),
        (BROKER, ("metadata", "name"), "b" * 60),
        (BROKER, ("metadata", "name"), "Broker"),
        (BROKER, ("apiVersion",), ""),
    ],
    "without_rights": [
        (BROKER, ("kind",), "ClusterRole"),
        (BROKER, ("kind",), "RoleBinding"),
        ("Role/headrace-spark", ("kind",), "ClusterRole"),
        ("Role/headrace-spark", ("rules", 0, "verbs"), ["*"]),
        ("Role/headrace-spark", ("rules", 0, "resources"), ["pods", "secrets"]),
        ("Role/headrace-node-token", ("kind",), "ClusterRole"),
        ("Role/headrace-node-token", ("rules", 0, "verbs"), ["create", "get"]),
        ("Role/headrace-node-token", ("rules", 0, "resources"), ["secrets", "pods"]),
        ("Role/headrace-admin-key", ("rules", 0, "verbs"), ["create", "get"]),
        ("Role/headrace-certificates", ("rules", 1, "resourceNames"), _GONE),
        ("Role/headrace-certificates", ("rules", 1, "verbs"), ["get", "update", "delete"]),
        ("Role/headrace-certificates-hook", ("rules", 1, "resourceNames"), ["headrace-node-token"]),
        ("Role/headrace-connect", ("kind",), "ClusterRole"),
        ("Role/headrace-connect", ("rules", 0, "verbs"), ["create", "get", "list", "delete", "patch"]),
        ("Role/headrace-connect", ("rules", 0, "resources"), ["sparkapplications", "scheduledsparkapplications"]),
        ("ConfigMap/headrace-connect-spark", ("data",), {}),
    ],
    "spark_restricted": [
        (LAKE, ("spec", "driver", "securityContext", "runAsNonRoot"), False),
        (LAKE, ("spec", "executor", "podSecurityContext"), _GONE),
        (LAKE, ("spec", "executor", "securityContext", "capabilities"), {}),
        (LAKE, ("spec", "driver", "securityContext", "readOnlyRootFilesystem"), False),
        (LAKE, ("spec", "driver", "memory"), _GONE),
        (LAKE, ("spec", "executor", "labels"), {}),
        (LAKE, ("spec", "volumes"), []),
        (LAKE, ("spec", "driver", "serviceAccount"), "default"),
        (AUDIT, ("spec", "template", "driver", "securityContext"), _GONE),
    ],
    "kept_claims": [
        (BROKER, ("spec", "volumeClaimTemplates"), []),
        (ETCD, ("spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"), "Delete"),
        (BROKER, ("spec", "persistentVolumeClaimRetentionPolicy"), _GONE),
        (BROKER, ("spec", "volumeClaimTemplates", 0, "spec", "accessModes"), ["ReadWriteMany"]),
        (BROKER, ("spec", "volumeClaimTemplates", 0, "spec", "resources"), {}),
        (ADMIN, ("spec", "podManagementPolicy"), "OrderedReady"),
        (WORDS, ("spec", "volumeClaimTemplates"), []),
    ],
    "disrupted_one_at_a_time": [
        (BUDGET, ("spec", "maxUnavailable"), 2),
        (BUDGET, ("spec", "unhealthyPodEvictionPolicy"), "IfHealthyBudget"),
        (BUDGET, ("spec", "selector", "matchLabels", "app.kubernetes.io/component"), "admin"),
        (BUDGET, ("spec", "selector", "matchLabels", "app.kubernetes.io/component"), _GONE),
        (BUDGET, ("kind",), "Nothing"),
    ],
    "selecting": [
        (BROKER, ("spec", "selector", "matchLabels", "app.kubernetes.io/component"), _GONE),
        (WORDS, ("spec", "selector", "matchLabels", "headrace.io/app"), _GONE),
        (BOOTSTRAP, ("spec", "selector", "app.kubernetes.io/component"), _GONE),
        (BOOTSTRAP, ("spec", "selector", "app.kubernetes.io/component"), "brokers"),
        (BOOTSTRAP, ("spec", "ports", 0, "targetPort"), "http"),
    ],
    "referring": [
        (BROKER, ("spec", "serviceName"), "headrace-brokers"),
        ("Service/headrace-broker", ("spec", "publishNotReadyAddresses"), False),
        ("Service/headrace-broker", ("spec", "clusterIP"), _GONE),
        (BROKER, (*POD, "serviceAccountName"), "default-of-another"),
        (BROKER, (*POD, "volumes", 0), {"name": "tmp", "configMap": {"name": "gone"}}),
        (BROKER, (*POD, "volumes", 0), {"name": "tmp", "secret": {"secretName": "gone"}}),
        ("Job/headrace-node-token", (*MAIN, "command", 3), "another"),
        ("ConfigMap/headrace-streams-words", ("metadata", "name"), "gone"),
        ("Job/headrace-node-token", (*POD, "serviceAccountName"), "another"),
        ("Job/headrace-certificates-hook", (*MAIN, "command", 3), "another"),
        ("Job/headrace-admin-key", (*MAIN, "command", 3), "another"),
        (BOOTSTRAP, ("metadata", "namespace"), "kube-system"),
    ],
    "imaged": [
        (BROKER, (*MAIN, "image"), "headrace/broker"),
        (BROKER, (*MAIN, "image"), "registry:5000/headrace/broker:latest"),
        (BROKER, (*MAIN, "imagePullPolicy"), _GONE),
    ],
}


def test_every_rule_is_tried() -> None:
    assert DAMAGE.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "number"),
    [(rule, number) for rule, damages in DAMAGE.items() for number in range(len(damages))],
    ids=lambda given: str(given),
)
def test_a_rule_finds_what_breaks_it(rule: str, number: int) -> None:
    spark = {"sparkJobs": [*combinations.SPARK_JOBS, combinations.SNAPSHOTS]}
    name, path, value = DAMAGE[rule][number]
    manifests = chart.render(spark | combinations.BY_NAME["streams"] | combinations.CONNECT)
    assert not list(RULES[rule](manifests))
    _set(one(manifests, name), path, value)
    assert list(RULES[rule](manifests)), "nothing was found"


def test_each_service_is_of_one_workload() -> None:
    manifests = chart.render()
    assert {pod.component for pod in lasting(manifests)} == {*SERVICES, "etcd"}
    others = [pod.component for pod in pods(of_kind(manifests, "Deployment", "DaemonSet"))]
    assert others == ["client"], "ids and addresses are those of the pods"
