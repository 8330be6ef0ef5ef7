"""What the product's own programs know of settings, to hold the chart against it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.deploy.manifests import Pod
from tools.settings import EXACT_MAX, IN_CHART

from headrace_common.core.setting import INT_MAX, Setting, Type
from headrace_common.runtime import env


def names(service: str) -> set[str]:
    """The settings of a service, as in its ``--help``."""
    return {option.name for option in env.list_options(IN_CHART[service])}


def defaults(service: str) -> dict[str, object]:
    """What a setting is when nothing is said."""
    return {option.name: option.default for option in env.list_options(IN_CHART[service])}


def environment(pod: Pod, container: Mapping[str, Any], ordinal: int, namespace: str) -> dict[str, str]:
    """The variables that pod ``ordinal`` of a workload gets: what the kubelet makes of ``env``."""
    name = f"{pod.owner['metadata']['name']}-{ordinal}"
    labels = {**pod.labels, "apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": name}
    given: dict[str, str] = {}
    for variable in container.get("env", []):
        if "valueFrom" in variable:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
            known = {"metadata.name": name, "metadata.namespace": namespace, "status.podIP": pod_ip(ordinal)}
            known["spec.nodeName"] = f"node-{ordinal}"
            given[variable["name"]] = labels.get(label[1], "") if label else known[path]
        else:
            text = variable.get("value", "")
            given[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda found: given.get(found[1], found[0]), text)
    return given


def pod_ip(ordinal: int) -> str:
    """What the kubelet tells the pod of that number; an IPv6 network, whose addresses are easier to get wrong."""
    return f"fd00::{ordinal + 1:x}"


def load(service: str, given: Mapping[str, str]) -> Any:
    """What the program makes of its environment. Raises: InvalidConfig, as it would at its start."""
    return env.load_settings(IN_CHART[service], service=service, argv=[], env=given)


def values_of(table: Mapping[str, Setting]) -> dict[str, Any]:
    """For each setting of a table a value that the product takes, numbers as large as they may be."""
    found: dict[str, Any] = {}
    for name, setting in table.items():
        high = EXACT_MAX if setting.high is None else min(int(setting.high), EXACT_MAX)
        match setting.type:
            case Type.BOOLEAN:
                found[name] = setting.default != "true"
            case Type.INT:
                found[name] = min(high, INT_MAX)
            case Type.LONG:
                found[name] = high
            case Type.DOUBLE:
                found[name] = 0.75 if high == 1 else 1048576.5
            case Type.STRING | Type.LIST:
                found[name] = ([c for c in setting.choices if c != setting.default] or setting.choices)[0]
    return found


def another(part: Mapping[str, Any], default: object, name: str) -> Any:
    """A value that this part of the schema lets in and that is not the default; a large one, for its digits."""
    if name == "heartbeat_interval_ms":
        return EXACT_MAX // 2  # the session is at least two of them
    if name == "cluster":
        return "blue"
    if name.endswith("_topic"):
        return f"{name.replace('_', '-')}-of-another"  # each has its own
    if name.endswith("_paths"):
        return ["/data", "/srv/data"]
    if "enum" in part:
        return next(value for value in part["enum"] if value != default)
    types = part["type"] if isinstance(part["type"], list) else [part["type"]]
    if "boolean" in types:
        return not default
    if "integer" in types or "number" in types:
        return int(part.get("maximum", EXACT_MAX))
    return ["range", "uniform"] if "array" in types else "collector.tracing:4317"
