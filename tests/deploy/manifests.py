"""
Reads Kubernetes manifests as the API server would, and finds in them what the rules ask for: workloads, their pods,
containers. Objects stay plain dictionaries, so that a test can damage one and see a rule find it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

Manifest = dict[str, Any]

COMPONENT = "app.kubernetes.io/component"
SERVICES = ("broker", "controller", "coordinator", "admin")
"""Our own programs; etcd is the fifth workload."""


class _Reader(yaml.CSafeLoader):
    """The C reader, with two differences: a key that is there twice is an error, and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # the library's own name and kind
        first: [(tag, regexp) for tag, regexp in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is there twice, in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep=deep)


_Reader.add_constructor("tag:yaml.org,2002:map", lambda reader, node: reader.construct_mapping(node, deep=True))


def read(text: str) -> Any:
    """
    One YAML document.

    Raises:
        ValueError: a key is there twice.
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load(text, Loader=_Reader)


def read_all(text: str) -> list[Manifest]:
    """The documents of a stream that are not empty. Raises: as `read`."""
    return [found for found in yaml.load_all(text, Loader=_Reader) if found is not None]


def name_of(manifest: Manifest) -> str:
    """``StatefulSet/headrace-broker``: how complaints call it."""
    return f"{manifest.get('kind')}/{manifest.get('metadata', {}).get('name')}"


def one(manifests: Sequence[Manifest], name: str) -> Manifest:
    """The object of that `name_of`. Raises: KeyError, with what there is."""
    for manifest in manifests:
        if name_of(manifest) == name:
            return manifest
    raise KeyError(f"{name} is not among {sorted(map(name_of, manifests))}")


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] in kinds]


def component_of(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("labels", {}).get(COMPONENT, ""))


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that a workload makes."""

    owner: Manifest
    metadata: Mapping[str, Any]
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        return name_of(self.owner)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.get("labels") or {}

    @property
    def component(self) -> str:
        return self.labels.get(COMPONENT, "")

    @property
    def replicas(self) -> int:
        """How many there are of it in a cluster at rest; 0 for what runs to an end."""
        return int(self.owner["spec"].get("replicas", 1)) if self.owner["kind"] in {"StatefulSet", "Deployment"} else 0

    @property
    def containers(self) -> list[dict[str, Any]]:
        return list(self.spec["containers"])

    @property
    def all_containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.containers]

    @property
    def main(self) -> dict[str, Any]:
        return self.containers[0]


def pod_of(manifest: Manifest) -> Pod | None:
    """The pod that this object makes; None of an object that makes none."""
    match manifest["kind"]:
        case "Pod":
            return Pod(manifest, manifest["metadata"], manifest["spec"])
        case "CronJob":
            template = manifest["spec"]["jobTemplate"]["spec"]["template"]
        case "StatefulSet" | "Deployment" | "DaemonSet" | "ReplicaSet" | "Job":
            template = manifest["spec"]["template"]
        case _:
            return None
    return Pod(manifest, template.get("metadata") or {}, template["spec"])


def pods(manifests: Sequence[Manifest]) -> Iterator[Pod]:
    for manifest in manifests:
        found = pod_of(manifest)
        if found is not None:
            yield found


def lasting(manifests: Sequence[Manifest]) -> Iterator[Pod]:
    """The pods of a cluster at rest, but the one for people, which serves nobody."""
    return (pod for pod in pods(manifests) if pod.owner["kind"] == "StatefulSet")


_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def quantity(given: object) -> float:
    """Cores or bytes. Raises: ValueError, for what Kubernetes would not read."""
    text = str(given)
    number = text.rstrip("kKmMGTi")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"no quantity: {given}")
    return float(number) * _UNITS[unit]
