"""
What gRPC is given for TLS: the certificates of a process, as PEM.

gRPC takes TLS 1.2 and 1.3 with ECDHE and AEAD by itself, and nothing else; ``runtime/tls_contexts.py`` has the same for
all other connections. Its credentials cannot be changed: who has new certificates opens new channels, and a new server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc


@dataclass(frozen=True, slots=True)
class Pem:
    """What a process trusts, and what it shows."""

    ca: bytes
    """The CAs of the other side, one or more."""
    chain: bytes | None = None
    """Its certificate, then those that lead from it to a CA. None, and no key: it shows none."""
    key: bytes | None = field(default=None, repr=False)
    """Of the certificate."""


def of_channel(library: Any, pem: Pem) -> grpc.ChannelCredentials:
    """What ``library``, a ``grpc``, opens a channel with."""
    credentials: grpc.ChannelCredentials = library.ssl_channel_credentials(pem.ca, pem.key, pem.chain)
    return credentials


def of_server(library: Any, pem: Pem, *, client_certificates: bool) -> grpc.ServerCredentials:
    """What ``library`` opens a port with. ``client_certificates``: who has none of ``pem.ca`` is cut off."""
    assert pem.key is not None, "a server has a key"
    assert pem.chain is not None, "a server has a certificate"
    ca = pem.ca if client_certificates else None
    credentials: grpc.ServerCredentials = library.ssl_server_credentials(
        [(pem.key, pem.chain)], ca, require_client_auth=client_certificates
    )
    return credentials
