"""
The ``SparkApplication`` that a job of a connector runs as: its name, its manifest, and what its status says.

It is made of a template, which is one without name and without the connector's arguments; the chart writes it. Nothing
here is secret: the configuration has references in their place. Called by ``runtime.adapters.spark_applications``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from headrace_connect.core.jobs import JobState

GROUP: Final = "sparkoperator.k8s.io"
API: Final = f"/apis/{GROUP}/v1beta2/namespaces"
OWNER: Final = "headrace.io/connector"
"""Label of all applications of a connector of a Connect cluster: ``owner_of``."""
NAME: Final = "headrace.io/connector-name"
"""Annotation: the connector's name, for people."""
TEXT_BYTES_MAX: Final = 100_000
"""Of an argument: Linux takes 131,071 bytes of one."""
TTL_S: Final = 86_400
"""After so long the operator removes one that has ended, if nobody else has."""
_PREFIX_CHARS_MAX: Final = 24
_CONNECTOR_CHARS_MAX: Final = 20
"""With the prefix, two hyphens and 16 characters of digest: a driver's pod is NAME-driver, and a label takes 63."""
_FOREIGN: Final = re.compile(r"[^a-z0-9]+")
_ENDED: Final = frozenset({"COMPLETED", "FAILED"})
"""The operator does nothing more of itself; it tries failed submissions again, and failed runs, before it says so."""
_REASON_CHARS_MAX: Final = 600


def owner_of(cluster: str, connector: str) -> str:
    """Of all applications of a connector; as a label's value."""
    return _digest(cluster, connector)


def name_of(prefix: str, cluster: str, connector: str, arguments: Sequence[str]) -> str:
    """Follows from what is to be done, and so what is begun twice is there once."""
    parts = [_plain(prefix)[:_PREFIX_CHARS_MAX], _plain(connector)[:_CONNECTOR_CHARS_MAX]]
    return "-".join([part.strip("-") for part in parts if part.strip("-")] + [_digest(cluster, connector, *arguments)])


def in_argument(text: str) -> str:
    """JSON that Kubernetes leaves as it is: it would put variables in the place of ``$(NAME)``."""
    return text.replace("$", "\\u0024")


def manifest(
    template: Mapping[str, Any], name: str, cluster: str, config: Mapping[str, str], arguments: Sequence[str]
) -> dict[str, Any]:
    """
    The application of a connector with this configuration.

    Args:
        arguments: of the job, beside the cluster's and the connector's.
    """
    metadata, spec = template["metadata"], template["spec"]
    connector = ["--connector-json", in_argument(json.dumps(config, sort_keys=True, separators=(",", ":")))]
    return {
        **template,
        "metadata": {
            **metadata,
            "name": name,
            "labels": {**metadata.get("labels", {}), OWNER: owner_of(cluster, config["name"])},
            "annotations": {**metadata.get("annotations", {}), NAME: config["name"]},
        },
        "spec": {
            "timeToLiveSeconds": TTL_S,
            **spec,
            "arguments": [*spec.get("arguments", ()), *connector, *map(in_argument, arguments)],
        },
    }


def state_of(name: str, found: Mapping[str, Any] | None) -> JobState:
    """
    How it is.

    Args:
        found: the application as the API server has it; None: there is none.
    """
    what = f"the SparkApplication {name}"
    if found is None or found.get("metadata", {}).get("deletionTimestamp"):
        return JobState(f"{what} was deleted", ended=True)
    application = found.get("status", {}).get("applicationState", {})
    state, reason = str(application.get("state", "")), str(application.get("errorMessage", ""))[:_REASON_CHARS_MAX]
    if not state:
        return JobState(f"{what} waits for the Spark operator, which has to watch this namespace")
    return JobState(f"{what} is {state}" + (f": {reason}" if reason else ""), ended=state in _ENDED)


def _plain(text: str) -> str:
    return _FOREIGN.sub("-", text.lower()).strip("-")


def _digest(*parts: str) -> str:
    return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
