"""
Decides what etcd is told: its configuration file.

etcd reads YAML, of which the lines here are a small part: a name, a colon and a value as in JSON. Settings that a
cluster needs for its safety cannot be changed from outside; all others can, by the name that etcd gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace_common.core.ciphers import OF_ETCD

OWN: Final = frozenset(
    {
        "name",
        "data-dir",
        "wal-dir",
        "listen-peer-urls",
        "initial-advertise-peer-urls",
        "initial-cluster",
        "initial-cluster-state",
        "initial-cluster-token",
        "force-new-cluster",
        "strict-reconfig-check",
        "discovery",
        "discovery-srv",
        "enable-grpc-gateway",
        "cipher-suites",
        "client-transport-security",
        "peer-transport-security",
    }
)
"""Settings that are decided here and nowhere else."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a member listens and where it is reached, as URLs."""

    listen_peer: str
    advertise_peer: str
    listen_client: str
    advertise_client: str
    listen_metrics: str | None


@dataclass(frozen=True, slots=True)
class MemberTls:
    """The files of a member's certificates, as etcd is told them; it reads certificate and key for each connection."""

    cert: str
    """What it shows to clients and to other members."""
    key: str
    ca: str
    """Whom it answers: those alone who show a certificate of these CAs."""


@dataclass(frozen=True, slots=True)
class Founding:
    """What etcd is told about its cluster; it looks at that only while it has no data."""

    state: str
    """new or existing."""
    token: str
    members: Sequence[tuple[str, str]]
    """Name and peer address of each."""


def settings(
    name: str,
    data_dir: str,
    addresses: Addresses,
    founding: Founding,
    tls: MemberTls | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """All settings by the names that etcd has for them; those of ``more`` win where they may."""
    assert not OWN & more.keys(), "checked where they came from"
    found: dict[str, Any] = {
        "name": name,
        "data-dir": data_dir,
        "listen-peer-urls": addresses.listen_peer,
        "initial-advertise-peer-urls": addresses.advertise_peer,
        "listen-client-urls": addresses.listen_client,
        "advertise-client-urls": addresses.advertise_client,
        "initial-cluster-state": founding.state,
        "initial-cluster-token": founding.token,
        "initial-cluster": ",".join(f"{member}={url}" for member, url in founding.members),
        "strict-reconfig-check": True,
        # JSON for browsers, answered to pages of any origin; nothing of ours speaks it.
        "enable-grpc-gateway": False,
        "logger": "zap",
        "log-level": "info",
        "log-outputs": ["stderr"],
    }
    if addresses.listen_metrics is not None:
        found["listen-metrics-urls"] = addresses.listen_metrics
    if tls is not None:
        security = {"cert-file": tls.cert, "key-file": tls.key, "trusted-ca-file": tls.ca, "client-cert-auth": True}
        found["client-transport-security"] = security
        # Its certificate says who a member is, not where it is: DNS knows a pod that is new for 5 to 30 s elsewhere.
        found["peer-transport-security"] = {**security, "skip-client-san-verification": True}
        found["cipher-suites"] = list(OF_ETCD)
    return {**found, **more}


def render(content: Mapping[str, Any]) -> str:
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in content.items())
