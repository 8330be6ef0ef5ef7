"""
What must hold of the objects that the chart makes, between each other and from one version to the next. Each rule
takes the rendered objects and tells what is wrong; ``test_rules.py`` damages objects to see that each rule finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.deploy.manifests import SERVICES, Manifest, Pod, component_of, lasting, name_of, of_kind, pod_of, pods

from headrace_cli.user_secrets import parse_arguments

_RECOMMENDED = ("name", "instance", "version", "managed-by", "component")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAME_LENGTH_MAX = 52
"""A pod of a StatefulSet is NAME-ORDINAL and its label with the revision's hash takes 63 at most."""
_RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_CUSTOM = ("PodMonitor", "PrometheusRule", "SparkApplication", "ScheduledSparkApplication", "GRPCRoute", "TLSRoute")


def labelled(manifests: Sequence[Manifest]) -> Iterator[str]:
    """The labels that Helm recommends; on pods only those that do not change with each version of the chart."""
    for manifest in manifests:
        labels = manifest["metadata"].get("labels", {})
        wanted = [f"app.kubernetes.io/{name}" for name in _RECOMMENDED]
        for label in (*wanted, "helm.sh/chart"):
            if not labels.get(label) and not (label.endswith("component") and _of_the_whole(manifest)):
                yield f"{name_of(manifest)}: has no label {label}"
        pod = pod_of(manifest)
        if pod is not None and manifest["kind"] != "Pod" and "helm.sh/chart" in pod.labels:
            yield f"{name_of(manifest)}: restarts with each version of the chart, for its pods have its label"


def _of_the_whole(manifest: Manifest) -> bool:
    return manifest["kind"] in {
        "ServiceAccount",
        "NetworkPolicy",
        "ConfigMap",
        "Secret",
        "PodMonitor",
        "PrometheusRule",
    }


def named(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Names are there once and short enough for what Kubernetes makes of them."""
    seen: set[tuple[str, str]] = set()
    for manifest in manifests:
        key = (manifest["kind"], manifest["metadata"]["name"])
        if key in seen:
            yield f"{name_of(manifest)}: is there twice"
        seen.add(key)
        if not _NAME.fullmatch(key[1]):
            yield f"{name_of(manifest)}: is no name"
        if len(key[1]) > (_NAME_LENGTH_MAX if key[0] == "StatefulSet" else 63):
            yield f"{name_of(manifest)}: its name is too long"
        if not manifest.get("apiVersion"):
            yield f"{name_of(manifest)}: has no apiVersion"


def without_rights(manifests: Sequence[Manifest]) -> Iterator[str]:
    """
    Nothing asks for rights in the cluster's API, but a Spark driver for what starts executors; the jobs that make the
    node token and the administrator's key for that: they may make Secrets, and neither read nor change one; those that
    keep certificates: they read and change no Secrets but these; that for users: it makes and renews theirs; and
    workers of Connect for Spark applications, where they start one.
    """
    starts = any(True for _ in _unnamed_applications(manifests))
    for manifest in of_kind(manifests, *_RIGHTS):
        component = component_of(manifest)
        if manifest["kind"].startswith("Cluster") or component not in _ASKING:
            yield f"{name_of(manifest)}: rights in the API are not needed"
        for rule in manifest.get("rules", []):
            if component in {"node-token", "admin-key"}:
                if rule != {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}:
                    yield f"{name_of(manifest)}: who makes a Secret needs no such rights"
            elif component == "certificates":
                release = manifest["metadata"]["name"].partition("-certificates")[0]
                if rule not in _of_certificates(release, _having_pairs(manifests)):
                    yield f"{name_of(manifest)}: who keeps certificates needs no such rights"
            elif component == "users":
                if rule not in _of_users(manifests):
                    yield f"{name_of(manifest)}: who makes the Secrets of users needs no such rights"
            elif component == "connect":
                if rule != _OF_WORKERS or not starts:
                    yield f"{name_of(manifest)}: a worker needs no such rights"
            elif rule["apiGroups"] != [""] or not _OF_DRIVERS.issuperset(rule["resources"]) or "*" in rule["verbs"]:
                yield f"{name_of(manifest)}: a driver needs no such rights"


def spark_restricted(manifests: Sequence[Manifest]) -> Iterator[str]:
    """The same *restricted* profile for pods that the Spark operator makes, and what they ask for."""
    for manifest in [
        *of_kind(manifests, "SparkApplication", "ScheduledSparkApplication"),
        *_unnamed_applications(manifests),
    ]:
        spec = manifest["spec"]["template"] if manifest["kind"].startswith("Scheduled") else manifest["spec"]
        for part in ("driver", "executor"):
            where = f"{name_of(manifest)}: its {part}"
            pod, own = spec[part].get("podSecurityContext", {}), spec[part].get("securityContext", {})
            if (pod | own).get("runAsNonRoot") is not True or not pod.get("runAsUser"):
                yield f"{where} may run as root"
            if (pod | own).get("seccompProfile") != {"type": "RuntimeDefault"}:
                yield f"{where} has another seccomp profile than RuntimeDefault"
            if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{where} may gain privileges"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{where} can write its root"
            if not all(spec[part].get(key) for key in ("cores", "coreRequest", "memory", "memoryOverhead")):
                yield f"{where} does not say what it needs"
            if spec[part].get("labels", {}).get("headrace.io/client") != "true":
                yield f"{where} is no client for the network policies"
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for part in ("driver", "executor"):
            for mount in spec[part].get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name_of(manifest)}: volume {mount['name']} is not there"
        account = spec["driver"].get("serviceAccount")
        if not any(name_of(m) == f"ServiceAccount/{account}" for m in manifests):
            yield f"{name_of(manifest)}: its account {account} is not there"


def _unnamed_applications(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """Those that programs of ours give a name and make: JSON in ConfigMaps, here with the ConfigMap's name."""
    for manifest in of_kind(manifests, "ConfigMap"):
        for name, text in manifest.get("data", {}).items():
            if name == "table_snapshot.json":
                made = json.loads(text)
                yield {**made, "metadata": {**made["metadata"], "name": manifest["metadata"]["name"]}}


_ASKING = frozenset({"spark-job", "node-token", "admin-key", "certificates", "users", "connect"})
_OF_WORKERS = {
    "apiGroups": ["sparkoperator.k8s.io"],
    "resources": ["sparkapplications"],
    "verbs": ["create", "get", "list", "delete"],
}
_WORKERS = ("connect", "streams")
_ROLES = (*SERVICES, *_WORKERS)
_OF_ETCD = ("etcd-ca", "etcd-tls", "etcd-client-tls")


def _having_pairs(manifests: Sequence[Manifest]) -> list[str]:
    """Nodes, and the kinds of workers that there are."""
    there = {pod.component for pod in lasting(manifests)}
    return [*SERVICES, *(kind for kind in _WORKERS if kind in there)]


def _of_certificates(release: str, roles: Sequence[str]) -> list[dict[str, Any]]:
    """``release``: what the names of its objects start with."""
    secrets = [f"{release}-ca", *(f"{release}-{role}-tls" for role in roles)]
    looks = {"apiGroups": [""], "verbs": ["get", "update"]}
    return [
        {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["create"]},
        {**looks, "resources": ["secrets"], "resourceNames": secrets},
        {**looks, "resources": ["secrets"], "resourceNames": [*secrets, *(f"{release}-{n}" for n in _OF_ETCD)]},
        {**looks, "resources": ["secrets"], "resourceNames": [f"{release}-{n}" for n in _OF_ETCD]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [f"{release}-broker-tls"], "verbs": ["get"]},
        {**looks, "resources": ["configmaps"], "resourceNames": [f"{release}-ca"]},
    ]


def _of_users(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    names = [made.partition("/")[2] for command in _commands_of_jobs(manifests) for made in _of_user_job(command)]
    return [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get", "update"]},
    ]


def _of_user_job(command: Sequence[str]) -> Iterator[str]:
    if list(command[:3]) == ["python", "-m", "headrace_cli.user_secrets"]:
        given = parse_arguments(command[3:])
        yield from (f"Secret/{given.prefix}-{user}" for user in given.users)


_OF_DRIVERS = frozenset({"pods", "services", "configmaps", "persistentvolumeclaims"})


def frozen(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """What Kubernetes refuses to change in place, or what would lose pods or volumes if it changed."""
    found: dict[str, Any] = {}
    for manifest in manifests:
        spec = manifest.get("spec", {})
        match manifest["kind"]:
            case "StatefulSet":
                found[name_of(manifest)] = {
                    "selector": spec["selector"],
                    "serviceName": spec["serviceName"],
                    "podManagementPolicy": spec.get("podManagementPolicy"),
                    "claims": [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])],
                }
            case "Deployment":
                found[name_of(manifest)] = {"selector": spec["selector"]}
            case "Service":
                found[name_of(manifest)] = {
                    "selector": spec.get("selector"),
                    "headless": spec.get("clusterIP") == "None",
                }
            case "PodDisruptionBudget":
                found[name_of(manifest)] = {"selector": spec["selector"]}
            case "CronJob" | "ServiceAccount":
                found[name_of(manifest)] = {}
    return found


def kept_claims(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Volumes outlive pods, sets and releases; brokers, etcd and workers of streams have one each."""
    for manifest in of_kind(manifests, "StatefulSet"):
        spec = manifest["spec"]
        claims = spec.get("volumeClaimTemplates", [])
        pod = pod_of(manifest)
        assert pod is not None, "a StatefulSet makes pods"
        if pod.component in {"broker", "etcd", "streams"} and len(claims) != 1:
            yield f"{name_of(manifest)}: has {len(claims)} volumes, not one"
        if claims and spec.get("persistentVolumeClaimRetentionPolicy") != {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }:
            yield f"{name_of(manifest)}: does not say that its volumes are kept"
        for claim in claims:
            if claim["spec"].get("accessModes") != ["ReadWriteOnce"]:
                yield f"{name_of(manifest)}: its volume can be mounted twice"
            if "storage" not in claim["spec"].get("resources", {}).get("requests", {}):
                yield f"{name_of(manifest)}: its volume has no size"
        if spec.get("podManagementPolicy") != "Parallel":
            yield f"{name_of(manifest)}: starts one pod after the other, and pods that wait for each other hang"


def disrupted_one_at_a_time(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Each lasting workload has one budget: one pod away at a time, and pods that are broken do not block a drain."""
    budgets = of_kind(manifests, "PodDisruptionBudget")
    covered: dict[str, int] = {}
    for budget in budgets:
        spec = budget["spec"]
        if spec.get("maxUnavailable") != 1 or "minAvailable" in spec:
            yield f"{name_of(budget)}: lets another number than 1 be away"
        whose = [pod for pod in lasting(manifests) if _matches(spec["selector"], pod.labels)]
        for pod in whose:
            covered[pod.name] = covered.get(pod.name, 0) + 1
        if len(whose) != 1:
            yield f"{name_of(budget)}: is of {len(whose)} workloads"
        elif whose[0].component != "etcd" and spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name_of(budget)}: a broken pod blocks a drain"
    for pod in lasting(manifests):
        if covered.get(pod.name, 0) != 1:
            yield f"{pod.name}: has {covered.get(pod.name, 0)} budgets"


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}, f"the chart selects by labels alone: {selector}"
    return bool(selector["matchLabels"].items() <= labels.items())


def selecting(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Workloads select their own pods and no others; so do services, whose ports the pods have."""
    every = list(pods(manifests))
    for pod in every:
        if pod.owner["kind"] in {"StatefulSet", "Deployment"}:
            mine = [other.name for other in every if _matches(pod.owner["spec"]["selector"], other.labels)]
            if mine != [pod.name]:
                yield f"{pod.name}: selects the pods of {mine}"
    for service in of_kind(manifests, "Service"):
        selector = service["spec"].get("selector") or {}
        mine_pods = [pod for pod in every if selector.items() <= _with_own(selector, pod).items()]
        if not selector or len(mine_pods) != 1:
            yield f"{name_of(service)}: selects the pods of {[pod.name for pod in mine_pods]}"
            continue
        ports = [port for c in mine_pods[0].containers for port in c.get("ports", [])]
        known = {port.get("name") for port in ports} | {port["containerPort"] for port in ports}
        for port in service["spec"]["ports"]:
            if port.get("targetPort", port["port"]) not in known:
                yield f"{name_of(service)}: no pod listens on {port.get('targetPort', port['port'])}"


_OF_STATEFUL_PODS = ("statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index")


def _with_own(selector: Mapping[str, str], pod: Pod) -> dict[str, str]:
    """Its labels, and those that Kubernetes adds to one of them, if the selector asks for them."""
    added = {}
    if pod.owner["kind"] == "StatefulSet":
        base = pod.owner["metadata"]["name"]
        for ordinal in range(pod.replicas):
            own = {_OF_STATEFUL_PODS[0]: f"{base}-{ordinal}", _OF_STATEFUL_PODS[1]: str(ordinal)}
            if all(own[key] == selector[key] for key in own.keys() & selector.keys()):
                added = own
                break
    return {**pod.labels, **added}


def referring(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Whatever one object names of the release is there: services, accounts, ConfigMaps, Secrets, keys in them."""
    there = {name_of(m): m for m in manifests}
    made = {made for command in _commands_of_jobs(manifests) for made in _made_by(command)}
    made |= {f"Secret/{certificate['spec']['secretName']}" for certificate in of_kind(manifests, "Certificate")}
    for manifest in of_kind(manifests, "StatefulSet"):
        service = there.get(f"Service/{manifest['spec']['serviceName']}")
        if service is None:
            yield f"{name_of(manifest)}: its service {manifest['spec']['serviceName']} is not there"
        elif service["spec"].get("clusterIP") != "None" or service["spec"].get("publishNotReadyAddresses") is not True:
            yield f"{name_of(service)}: does not give pods their names before they are ready"
    for pod in pods(manifests):
        account = pod.spec.get("serviceAccountName")
        if account and f"ServiceAccount/{account}" not in there:
            yield f"{pod.name}: its account {account} is not there"
        for volume in pod.spec.get("volumes", []):
            for kind, key in (("configMap", "name"), ("secret", "secretName")):
                if kind in volume and not volume[kind].get("optional"):
                    name = f"{'ConfigMap' if kind == 'configMap' else 'Secret'}/{volume[kind][key]}"
                    if name not in there and name not in made:
                        yield f"{pod.name}: {name} is not there"
    for manifest in manifests:
        namespace = manifest["metadata"].get("namespace")
        if namespace and manifest["kind"] not in _CUSTOM and namespace != _namespace(manifests):
            yield f"{name_of(manifest)}: goes to the namespace {namespace}"


def _made_by(command: Sequence[str]) -> Iterator[str]:
    """Objects that a job of ours makes."""
    match list(command[:4]):
        case ["python", "-m", "headrace_controller.node_token_secret" | "headrace_controller.admin_key_secret", name]:
            yield f"Secret/{name}"
        case ["python", "-m", "headrace_controller.certificate_secrets", name]:
            if {"--role", "--ca-of"} & {*command}:
                yield f"ConfigMap/{name}-ca"
            for role in _ROLES:
                if any(argument.startswith(f"{role}=") for argument in command):
                    yield f"Secret/{name}-{role}-tls"
            if "--etcd" in command:
                yield from (f"Secret/{name}-{end}" for end in _OF_ETCD)


def _commands_of_jobs(manifests: Sequence[Manifest]) -> Iterator[list[str]]:
    """What runs once at each install, and not some day."""
    for pod in pods(manifests):
        if pod.owner["kind"] == "Job":
            yield from (container.get("command", []) for container in pod.containers)


def _namespace(manifests: Sequence[Manifest]) -> str | None:
    given = [m["metadata"].get("namespace") for m in of_kind(manifests, "StatefulSet")]
    return given[0] if given else None


def imaged(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Images have a version or a digest, and are pulled only when they are not there."""
    for pod in pods(manifests):
        for container in pod.all_containers:
            name = container["image"].rpartition("/")[2]
            if "@sha256:" not in name and (":" not in name or name.endswith(":latest")):
                yield f"{pod.name}: {container['name']} runs {container['image']}, whatever that is today"
            if container.get("imagePullPolicy") not in {"IfNotPresent", "Always", "Never"}:
                yield f"{pod.name}: {container['name']} has no pull policy"


RULES = (
    labelled,
    named,
    without_rights,
    spark_restricted,
    kept_claims,
    disrupted_one_at_a_time,
    selecting,
    referring,
    imaged,
)
