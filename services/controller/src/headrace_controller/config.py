"""The controller's settings, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.service import ServerConfig


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9390))


@dataclass(frozen=True)
class LivenessConfig:
    """How long silence may last."""

    heartbeat_interval_ms: int = 2_000
    """How often a node says it lives, in ms; 50 or more."""
    session_timeout_ms: int = 9_000
    """Silence after which a node is fenced, in ms; at least two heartbeats."""
    probe_delay_ms: int = 300
    """Wait between the two looks at a node whose stream broke, in ms; 0 to 10000."""
    stream_grace_ms: int = 500
    """How long a new active controller waits for a node's stream before it looks at the node, in ms; 0 or
    more."""
    tick_ms: int = 250
    """How often sessions are looked through, in ms."""


@dataclass(frozen=True)
class ControllerConfig:
    """Headrace controller: keeps the cluster's metadata in etcd."""

    node_id: int = 1
    """Number of this controller, unique among controllers; 0 to 2147483647."""
    cluster: str = "headrace"
    """Name of the cluster: its keys in etcd start with /headrace/NAME/."""
    etcd: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 2379),)
    """Client addresses of etcd."""
    etcd_timeout_ms: int = 3_000
    """The longest one request to etcd may take, in ms; after it the outcome is unknown. 100 to 60000."""
    etcd_ca: Path | None = None
    """File with the CA of etcd's certificates (PEM); without it etcd is spoken to in plain text."""
    etcd_cert: Path | None = None
    """File with the client certificate that is shown to etcd (PEM)."""
    etcd_key: Path | None = None
    """File with the key of etcd_cert (PEM)."""
    rack: str | None = None
    """Failure domain of this process."""
    lease_ttl_s: int = 3
    """How long a silent active controller stays elected, in seconds; 2 to 60."""
    watcher_queue_max: int = 256
    """Steps that wait for one slow watcher; with more it gets a snapshot instead."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    liveness: LivenessConfig = inline(LivenessConfig)
    """How long silence may last."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        wrong = [text for holds, text in self._rules() if not holds]
        if wrong:
            raise InvalidConfig("; ".join(wrong))

    def _rules(self) -> list[tuple[bool, str]]:
        times = self.liveness
        return [
            (0 <= self.node_id <= 2**31 - 1, f"node_id takes 0 to 2147483647, not {self.node_id}"),
            (bool(self.etcd), "etcd needs at least one address, such as 127.0.0.1:2379"),
            (
                bool(self.cluster) and "/" not in self.cluster and self.cluster.isascii(),
                f"cluster takes a name without '/', not {self.cluster!r}",
            ),
            (100 <= self.etcd_timeout_ms <= 60_000, f"etcd_timeout_ms takes 100 to 60000, not {self.etcd_timeout_ms}"),
            *etcd_files_rules(self.etcd_ca, self.etcd_cert, self.etcd_key),
            (2 <= self.lease_ttl_s <= 60, f"lease_ttl_s takes 2 to 60, not {self.lease_ttl_s}"),
            (self.watcher_queue_max >= 1, f"watcher_queue_max takes 1 or more, not {self.watcher_queue_max}"),
            (
                times.heartbeat_interval_ms >= 50,
                f"heartbeat_interval_ms takes 50 or more, not {times.heartbeat_interval_ms}",
            ),
            (
                times.session_timeout_ms >= 2 * times.heartbeat_interval_ms,
                f"session_timeout_ms ({times.session_timeout_ms}) must be at least twice heartbeat_interval_ms "
                f"({times.heartbeat_interval_ms})",
            ),
            (0 <= times.probe_delay_ms <= 10_000, f"probe_delay_ms takes 0 to 10000, not {times.probe_delay_ms}"),
            (times.stream_grace_ms >= 0, f"stream_grace_ms takes 0 or more, not {times.stream_grace_ms}"),
            (times.tick_ms >= 10, f"tick_ms takes 10 or more, not {times.tick_ms}"),
        ]

    @property
    def prefix(self) -> str:
        """What every key in etcd starts with."""
        return f"/headrace/{self.cluster}/"


def etcd_files_rules(ca: Path | None, cert: Path | None, key: Path | None) -> list[tuple[bool, str]]:
    """What must hold of the files for etcd's TLS, and what is said where it does not."""
    return [
        ((cert is None) == (key is None), "etcd_cert and etcd_key are set together: the certificate and its key"),
        (cert is None or ca is not None, "etcd_cert needs etcd_ca: without it etcd would be spoken to in plain text"),
    ]
