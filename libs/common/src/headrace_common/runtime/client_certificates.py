"""
Reads the certificates that clients have shown to a listener which requires them, each once.

gRPC tells a handler the certificate of its connection with each call; it was verified when the connection was made.
"""

from __future__ import annotations

from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from headrace_common.core.access.client_certificates import ClientCertificate, owner_of
from headrace_common.core.errors import Rejected

KNOWN_MAX: Final = 10_000
"""Certificates that are remembered."""
_PEM: Final = "x509_pem_cert"


class ClientCertificates:
    """Those of one listener. One event loop."""

    def __init__(self, trust_domain: str) -> None:
        """``trust_domain``: of the cluster's nodes, who are nobody here."""
        self._trust_domain = trust_domain
        self._known: dict[bytes, ClientCertificate] = {}

    def of(self, context: Any) -> ClientCertificate:
        """That of the connection of a call."""
        (pem,) = context.auth_context().get(_PEM, (b"",))
        known = self._known.get(pem)
        if known is None:
            known = read_client_certificate(pem, self._trust_domain)
            if len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[pem] = known
        return known


def read_client_certificate(pem: bytes, trust_domain: str) -> ClientCertificate:
    """Whom it names, and until when; about 0.1 ms."""
    try:
        read = x509.load_pem_x509_certificate(pem)
        fingerprint = read.fingerprint(hashes.SHA256()).hex()
        expires_ms = int(read.not_valid_after_utc.timestamp() * 1_000)
    except (ValueError, x509.InvalidVersion):
        return ClientCertificate(None, "cannot be read", 0, "")
    try:
        return ClientCertificate(owner_of(*_names_of(read), trust_domain), "", expires_ms, fingerprint)
    except Rejected as error:
        return ClientCertificate(None, str(error), expires_ms, fingerprint)


def _names_of(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    """
    Its URIs and its common names.

    Raises:
        Rejected: they cannot be read.
    """
    try:
        names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return alternative.get_values_for_type(x509.UniformResourceIdentifier), names
    except x509.ExtensionNotFound:
        return [], names
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise Rejected(f"has names that cannot be read ({error})") from None
