"""
Decides what TLS outside of gRPC is like, of servers and clients: versions, ciphers, and how a server of asyncio gets
new certificates.

TLS 1.2 and 1.3, ECDHE with AEAD only. It is what gRPC takes by itself; ``tests/runtime/test_tls_contexts.py`` asks a
server of each kind what it takes, and finds the same.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_common.core.ciphers import CIPHERS
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.tls_config import TlsFiles

if TYPE_CHECKING:  # reading certificates takes a library that clients do without, and gRPC is loaded slowly
    from headrace_common.rpc.credentials import Pem
    from headrace_common.runtime.tls import Bundle


def make_server_context(bundle: Bundle) -> ssl.SSLContext:
    """
    For a server of asyncio that asks no client for a certificate: what a context trusts can be added to and never taken
    away, so that listeners which ask for one are gRPC's, or make a ``make_mutual_context`` for each connection.
    """
    context = keep_policy(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    renew_context(context, bundle)
    return context


def make_client_context(ca: Path) -> ssl.SSLContext:
    """
    For a client that trusts the CAs of this file, and shows none of its own.

    Raises:
        InvalidConfig: it cannot be read, or has no certificate.
    """
    try:
        return keep_policy(ssl.create_default_context(cafile=ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"{ca} has no certificates of CAs, in PEM, that can be read: {error}") from error


def make_mutual_context(files: TlsFiles, purpose: ssl.Purpose) -> ssl.SSLContext:
    """
    For one connection, whose two sides show certificates to each other: each must lead to a CA of ``files``. Made anew
    for the next one, it has what is in the files then, a CA too. Blocks shortly.

    Args:
        purpose: who is on the other side; of ``SERVER_AUTH`` the name is verified too.

    Raises:
        InvalidConfig: they cannot be read, or are no pair.
    """
    client = purpose is ssl.Purpose.SERVER_AUTH
    context = keep_policy(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if client else ssl.PROTOCOL_TLS_SERVER))
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.cert, files.key)
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"the TLS files beside {files.cert} cannot be used ({error})") from error
    return context


def renew_context(context: ssl.SSLContext, bundle: Bundle) -> None:
    """From now on the server shows ``bundle`` to who connects; connections that are there go on. Blocks shortly."""
    with _file_of(bundle.pem) as path:
        context.load_cert_chain(path)


def keep_policy(context: ssl.SSLContext) -> ssl.SSLContext:
    """``context``, of either side, which takes and offers nothing else."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(":".join(CIPHERS))
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


@contextmanager
def _file_of(pem: Pem) -> Iterator[str]:
    """The certificate and key that were checked, in a file, which is all that ``ssl`` reads; on Linux on no disk."""
    assert pem.key is not None, "a server has a certificate"
    assert pem.chain is not None, "a server has a certificate"
    text = pem.chain + b"\n" + pem.key
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("headrace-tls"), "wb", buffering=0) as file:
            file.write(text)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="headrace-tls-") as named:
        named.write(text)
        named.flush()
        yield named.name
