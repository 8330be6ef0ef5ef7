"""
Whom the certificate of a client names, and what nodes tell each other of it.

TLS has looked whether it leads to a CA of the listener, and no one else shows it. It is of its one URI
(``Cert:spiffe://example.org/billing``), or, where it has none, of its one common name (``Cert:billing``). A node that
forwards a call has only its own word for the certificate behind it: so its owner is *vouched* for (``Caller.vouched``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.principal import Principal, PrincipalType, parse_principal
from headrace_common.core.errors import CredentialsExpired, Rejected, Unauthenticated
from headrace_common.core.moments import iso_of
from headrace_common.core.node_rules import node_named

_SHOWN_CHARS_MAX: Final = 80
_FINGERPRINT_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """What matters of one."""

    owner: Principal | None
    """None: it names nobody who could call."""
    fault: str
    """Why it does not, as the rest of a sentence; empty: it does."""
    expires_ms: int
    """Unix time from which on it is refused."""
    fingerprint: str
    """SHA-256, hexadecimal."""

    def check(self, now_ms: float) -> Principal:
        """
        Its owner.

        Raises:
            Unauthenticated: it names nobody.
            CredentialsExpired: it is over.
        """
        if self.owner is None:
            raise Unauthenticated(f"the certificate {self.fault}")
        if now_ms >= self.expires_ms:
            raise CredentialsExpired(
                f"the certificate of {self.owner} was good until {iso_of(self.expires_ms)}; this machine says "
                f"{iso_of(int(now_ms))}. Connect again with a new one"
            )
        return self.owner


def owner_of(uris: Sequence[str], common_names: Sequence[str], trust_domain: str) -> Principal:
    """
    Whom a certificate names.

    Args:
        uris: all of its subject alternative names that are URIs.
        common_names: all of its subject.
        trust_domain: of the cluster's nodes: their certificates are nobody's here, whoever has signed them.

    Raises:
        Rejected: nobody; the text is the rest of a sentence.
    """
    kind, names = ("URI", uris) if uris else ("common name", common_names)
    if not names:
        raise Rejected("names nobody: it has no URI among its alternative names, and no common name")
    if len(names) > 1:
        raise Rejected(f"has {len(names)} of {kind}, and it is said nowhere which is its owner's; one is taken")
    (name,) = names
    if node_named(name, trust_domain) is not None:
        raise Rejected(f"is of a node of the cluster ({name[:_SHOWN_CHARS_MAX]}); nodes come to the internal listener")
    try:
        return Principal(PrincipalType.CERT, name)
    except Rejected as error:
        raise Rejected(f"has a {kind} that names nobody: {error}") from None


def write_certificate(certificate: ClientCertificate) -> bytes:
    """What an admin node says of the certificate of whom it asks for."""
    fields = {
        "owner": str(certificate.owner),
        "expires_ms": certificate.expires_ms,
        "fingerprint": certificate.fingerprint,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def read_certificate(text: bytes) -> ClientCertificate:
    """
    The inverse of ``write_certificate``.

    Raises:
        Unauthenticated: it is none, or of a principal that no certificate makes.
    """
    try:
        fields = json.loads(text)
        owner, expires_ms, fingerprint = parse_principal(fields["owner"]), fields["expires_ms"], fields["fingerprint"]
    except (Rejected, ValueError, KeyError, TypeError, AttributeError):
        raise Unauthenticated("what an admin node says of a certificate is not understood") from None
    sound = isinstance(expires_ms, int) and isinstance(fingerprint, str) and len(fingerprint) <= _FINGERPRINT_CHARS
    if owner.type is not PrincipalType.CERT or not sound:
        raise Unauthenticated(f"no certificate makes anybody {owner}")
    return ClientCertificate(owner, "", expires_ms, fingerprint)
