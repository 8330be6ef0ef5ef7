"""Decides what is said of a connection that TLS kept from being made: gRPC's words for it are OpenSSL's, or none."""

from __future__ import annotations

from typing import Final

_NOT_CONNECTED: Final = "failed to connect"
_UNTRUSTED: Final = (
    "the certificate there leads to no CA that is trusted here; name the file of its CA: ssl_ca_location or "
    "HEADRACE_CA of a client, tls_ca of a node"
)
_SAYS: Final = {
    "unable to get local issuer certificate": _UNTRUSTED,
    "self signed certificate": _UNTRUSTED,
    "certificate has expired": "the certificate there has expired, or the clock of this machine is wrong; have another "
    "made, and the process there takes it without a restart",
    "certificate is not yet valid": "the certificate there is not valid yet, or the clock of this machine is wrong",
    "Hostname Verification Check failed": "the certificate there does not have the name that was asked for; connect by "
    "a name or address that it has, or, between nodes, have it made with ROLE.headrace",
    "WRONG_VERSION_NUMBER": "what listens there speaks plain text, or a protocol of its own; leave TLS out "
    "(security_protocol PLAINTEXT), or name the port that speaks it",
    "Failed to create security handshaker": "the file of CAs has no certificate that can be read",
    "last error: UNAVAILABLE": "it took the connection and closed it, as one does that speaks TLS, and as a node does "
    "that is shown no certificate of a CA that it trusts; a client names the CA of the cluster by ssl_ca_location or "
    "HEADRACE_CA, and where the port is for clients with certificates, its own by cert_file and key_file",
}
"""By what gRPC says; the last where the other side only hung up."""


def explain_handshake(text: str) -> str | None:
    """What is wrong and what to do, for the text of a call that found no connection; None: it was not TLS."""
    if _NOT_CONNECTED not in text:
        return None
    if "last error: UNAVAILABLE" in text and "Socket closed" not in text:
        return None
    return next((said for sign, said in _SAYS.items() if sign in text), None)
