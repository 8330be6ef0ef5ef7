"""The controller's settings, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace_common.core.access.api_keys import ApiKey
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType, parse_principal
from headrace_common.core.access.rows import Mode
from headrace_common.core.bounds import ID_MAX, check, limit, setting
from headrace_common.core.errors import Rejected
from headrace_common.core.features import ACCESS
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.service import ServerConfig
from headrace_controller.core.configured import FULL, VOUCHED, AccessSettings, make_configured
from headrace_controller.core.issuing import WantedIssuer, of_kubernetes


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9390))


@dataclass(frozen=True)
class LivenessConfig:
    """How long silence may last."""

    heartbeat_interval_ms: int = setting(2_000, low=50)
    """How often a node says it lives, in ms."""
    session_timeout_ms: int = setting(9_000, low=100)
    """Silence after which a node is fenced, in ms; at least two heartbeats."""
    probe_delay_ms: int = setting(300, low=0, high=10_000)
    """Wait between the two looks at a node whose stream broke, in ms."""
    stream_grace_ms: int = setting(500, low=0)
    """How long a new active controller waits for a node's stream before it looks at the node, in ms."""
    tick_ms: int = setting(250, low=10)
    """How often sessions are looked through, in ms."""

    def __post_init__(self) -> None:
        beat, session = self.heartbeat_interval_ms, self.session_timeout_ms
        text = f"session_timeout_ms ({session}) must be at least twice heartbeat_interval_ms ({beat})"
        check(self, (session >= 2 * beat, text))


@dataclass(frozen=True)
class ControllerConfig:
    """Headrace controller: keeps the cluster's metadata in etcd."""

    node_id: int = setting(1, low=0, high=ID_MAX)
    """Number of this controller, unique among controllers."""
    cluster: str = "headrace"
    """Name of the cluster: its keys in etcd start with /headrace/NAME/."""
    etcd: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 2379),)
    """Client addresses of etcd."""
    etcd_timeout_ms: int = setting(3_000, low=100, high=60_000)
    """The longest one request to etcd may take, in ms; after it the outcome is unknown."""
    etcd_ca: Path | None = None
    """File with the CA of etcd's certificates (PEM); without it etcd is spoken to in plain text."""
    etcd_cert: Path | None = None
    """File with the client certificate that is shown to etcd (PEM)."""
    etcd_key: Path | None = None
    """File with the key of etcd_cert (PEM)."""
    rack: str | None = None
    """Failure domain of this process."""
    lease_ttl_s: int = setting(3, low=2, high=60)
    """How long a silent active controller stays elected, in seconds."""
    watcher_queue_max: int = setting(256, low=1)
    """Steps that wait for one slow watcher; with more it gets a snapshot instead."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    liveness: LivenessConfig = inline(LivenessConfig)
    """How long silence may last."""
    access_mode: str = setting("open", choices=tuple(mode.name.lower() for mode in Mode))
    """What the cluster is at least: open to everybody; permissive: who may what is decided, and what would be refused
    is done and counted; closed to who has no right. It rises and never falls."""
    super_users: tuple[str, ...] = ()
    """Principals that may do everything, such as User:alice; the same on all controllers."""
    access_vouched: str = setting("limited", choices=VOUCHED)
    """What sessions of users with passwords may do at most: limited: no changes of who may what, nor of the cluster;
    full: all that their users may. Then a broker that was broken into can make itself administrator."""
    admin_key_file: Path | None = None
    """File with keys of User:admin, a line of ID SHA256HEX for each. While it names one, User:admin is a super user."""
    admin_keys: tuple[ApiKey, ...] = limit(())
    """What is in admin_key_file, once it was read."""
    oidc_issuers_file: Path | None = None
    """File with the issuers whose tokens (JWT) are taken, a list in JSON; the same on all controllers. See the page on
    security."""
    kubernetes_audience: str | None = None
    """The audience of tokens of pods that are taken, such as headrace:NAMESPACE/RELEASE; without it none are. For
    controllers in pods that have an account."""
    issuers: tuple[WantedIssuer, ...] = limit(())
    """Those of both, once they were read."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        wrong = _find_super_user_fault(self.super_users)
        check(
            self,
            (wrong is None, f"super_users: {wrong}"),
            (
                self.kubernetes_audience is None or _is_audience(self.kubernetes_audience),
                "kubernetes_audience is a text that tokens name, such as headrace:NAMESPACE/RELEASE",
            ),
            (
                self.mode is not Mode.CLOSED or self.nodes_proven,
                "access_mode closed needs nodes that prove what they are: give all of them tls_cert, tls_key and "
                "tls_ca, or node_token_file, with node_token_demanded",
            ),
            (
                self.mode is Mode.OPEN or self.server.feature_level_max >= ACCESS.level,
                f"access_mode {self.access_mode} needs feature_level_max {ACCESS.level} or more",
            ),
            (bool(self.etcd), "etcd needs at least one address, such as 127.0.0.1:2379"),
            (
                bool(self.cluster) and "/" not in self.cluster and self.cluster.isascii(),
                f"cluster takes a name without '/', not {self.cluster!r}",
            ),
            *etcd_files_rules(self.etcd_ca, self.etcd_cert, self.etcd_key),
        )

    @property
    def mode(self) -> Mode:
        """What the cluster is at least."""
        return next((mode for mode in Mode if mode.name.lower() == self.access_mode), Mode.OPEN)

    @property
    def access(self) -> AccessSettings:
        """What is set for access."""
        configured = make_configured(
            frozenset(map(parse_principal, self.super_users)), self.admin_keys, vouched_full=self.access_vouched == FULL
        )
        return AccessSettings(self.mode, configured, self.nodes_proven)

    @property
    def nodes_proven(self) -> bool:
        """Whether who is no node cannot pass for one."""
        return self.server.tls.only or (self.server.node_token_file is not None and self.server.node_token_demanded)

    @property
    def prefix(self) -> str:
        """What every key in etcd starts with."""
        return f"/headrace/{self.cluster}/"


def _find_super_user_fault(super_users: tuple[str, ...]) -> str | None:
    for text in super_users:
        try:
            principal = parse_principal(text)
        except Rejected as error:
            return str(error)
        if principal == ANONYMOUS or principal.type is PrincipalType.NODE:
            return f"{text} cannot be one; name those who show a credential, such as User:alice"
    return None


def _is_audience(text: str) -> bool:
    try:
        of_kubernetes(text)
    except Rejected:
        return False
    return True


def etcd_files_rules(ca: Path | None, cert: Path | None, key: Path | None) -> list[tuple[bool, str]]:
    """What must hold of the files for etcd's TLS, and what is said where it does not."""
    return [
        ((cert is None) == (key is None), "etcd_cert and etcd_key are set together: the certificate and its key"),
        (cert is None or ca is not None, "etcd_cert needs etcd_ca: without it etcd would be spoken to in plain text"),
    ]
