"""What ``describe_certificates`` of the admin clients returns: frozen values, made by the rule of ``_told``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Made, Told

if TYPE_CHECKING:
    from headrace_proto.v1 import certificates_pb2 as pb  # noqa: F401 - in the bases


@dataclass(frozen=True, slots=True)
class CertificateInfo(Made["pb.Certificate"]):
    """One certificate, of a node or of a CA. Times are in Unix ms."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """Hosts and addresses."""
    uris: tuple[str, ...]
    serial: str
    """Hexadecimal."""
    fingerprint: str
    """SHA-256, hexadecimal."""
    not_before_ms: int
    not_after_ms: int


@dataclass(frozen=True, slots=True)
class CertificateBundle(Made["pb.CertificateBundle"], refused=lambda one: one.refused or None):
    """What a node uses for some of its listeners."""

    name: str
    """``service``: of all, and of calls to other nodes; ``mtls``: of the one for clients with certificates."""
    certificate: CertificateInfo
    not_after_ms: int
    """When the first of those ends that are shown."""
    issuer: CertificateInfo
    """The CA of ``certificate``."""
    trusted: tuple[CertificateInfo, ...]
    """The CAs of nodes, or of clients with certificates."""
    trusted_more: int
    """There are so many besides."""
    refused: str | None
    """Why the files were not taken when they were looked at last; None: they were."""
    behind: bool
    """A listener could not take the newest yet, and shows those of before."""


@dataclass(frozen=True, slots=True)
class NodeCertificates(Told["pb.NodeCertificates"], fault=lambda one: one.fault or None):
    """What one node shows."""

    node: str
    """As ``broker-1``."""
    fault: str | None
    """Why it could not be asked; None: it was."""
    bundles: tuple[CertificateBundle, ...]
    """None: it speaks plain text."""
