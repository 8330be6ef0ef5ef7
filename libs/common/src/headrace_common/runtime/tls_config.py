"""The settings of a process's TLS. Without any it speaks plain text, and loads nothing of TLS."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace_common.core.bounds import check, setting


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process finds its certificates, all PEM."""

    cert: Path
    """Its certificate, then those that lead to a CA."""
    key: Path
    ca: Path
    """The CAs that it trusts; more than one while a CA is changed."""
    client_ca: Path | None = None
    """Of a listener whose clients show certificates of another CA: those that it trusts, instead."""


class TlsMode(Enum):
    """What a process that has certificates does with plain text, while its cluster is moved to TLS without a stop."""

    ALLOW = "allow"
    """Its listeners answer plain text and TLS; it calls other nodes in plain text, for some may have no TLS yet."""
    PREFER = "prefer"
    """Its listeners answer both; it calls other nodes by TLS."""
    REQUIRE = "require"
    """Nothing in plain text."""


@dataclass(frozen=True)
class TlsConfig:
    """Where a process has its certificates; it looks at them every 10 s, and takes new ones without a restart."""

    cert: Path | None = None
    """File with this process's certificate, then those that lead to a CA (PEM). With it all listeners but those of
    health and metrics speak TLS, and other nodes are called by it. All nodes of a cluster have it, or none."""
    key: Path | None = None
    """File with the key of tls_cert, ECDSA P-256 without a password (PEM)."""
    ca: Path | None = None
    """File with the CAs of the nodes' certificates, two while a CA is changed (PEM)."""
    trust_domain: str = "headrace"
    """Of the cluster's nodes, whose certificates name them as spiffe://TRUST_DOMAIN/ROLE."""
    mode: str = setting("require", choices=tuple(mode.value for mode in TlsMode))
    """What listeners do with plain text, and how other nodes are called. A cluster without TLS gets it without a stop
    by allow on all nodes (they answer both), then prefer on all (they call by TLS), then, when no client comes in plain
    text any more, require."""

    def __post_init__(self) -> None:
        given = {self.cert is None, self.key is None, self.ca is None}
        check(
            self,
            (len(given) == 1, "tls_cert, tls_key and tls_ca are set together: certificate, key, and whom to trust"),
            (
                bool(self.trust_domain) and not set(self.trust_domain) & set("/: "),
                f"tls_trust_domain takes a name such as headrace.example, not {self.trust_domain!r}",
            ),
        )

    @property
    def on(self) -> bool:
        """Whether the process speaks TLS."""
        return self.cert is not None

    @property
    def only(self) -> bool:
        """Whether nobody is answered in plain text."""
        return self.on and self.mode == TlsMode.REQUIRE.value

    @property
    def dials(self) -> bool:
        """Whether other nodes are called by TLS."""
        return self.on and self.mode != TlsMode.ALLOW.value
