"""
How a cluster is spoken to by whoever opens connections of their own, as the command does for questions to one node:
with the trust and the key that every client of ``ClusterAddress`` has.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from headrace._credentials import credentials_for
from headrace._logging_in import log_in_at_any
from headrace.finding import ClientCertificateFiles, ClusterAddress, credentialed
from headrace_common.core.errors import InvalidConfig
from headrace_common.rpc.channels import PLAIN, Security
from headrace_common.rpc.credentials import Pem


def security_of(address: ClusterAddress) -> Security:
    """
    For connections to the nodes of a cluster, by the addresses that their certificates name.

    Raises:
        InvalidConfig: the file of CAs cannot be read, or what is named as the API key is none.
        CredentialInPlainText: the key would go to another machine without TLS.
        HeadraceError: nobody could be logged in, where there is a password.
    """
    shown = credentialed(address, None, None, os.environ)
    trust = trust_in(None if address.ca is None else Path(address.ca), shown.certificate)
    credentials = credentials_for(shown, shown, os.environ)
    if credentials.logs_in:
        with ThreadPoolExecutor(1) as thread:  # the caller's may have a loop
            thread.submit(asyncio.run, credentials.ready(log_in_at_any(list(shown), trust))).result()
    return Security(credentials.metadata, trust.pem)


def trust_in(ca: Path | None, certificate: ClientCertificateFiles | None = None) -> Security:
    """
    By TLS with the CAs of a file, or in plain text.

    Args:
        certificate: what is shown where it is asked for.

    Raises:
        InvalidConfig: they cannot be read, or are none.
    """
    if ca is None:
        return PLAIN
    try:
        text = ca.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"the file of CAs {ca} cannot be read: {error.strerror}; see ssl_ca_location") from error
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise InvalidConfig(f"the file of CAs {ca} has no certificate in PEM; see ssl_ca_location")
    return Security(pem=Pem(text) if certificate is None else Pem(text, *_read_pair(certificate)))


def _read_pair(certificate: ClientCertificateFiles) -> tuple[bytes, bytes]:
    """The certificate and its key: gRPC would say nothing of two that do not belong together."""
    import ssl  # a client without a certificate does without

    paths = Path(certificate.cert).expanduser(), Path(certificate.key).expanduser()
    try:
        texts = paths[0].read_bytes(), paths[1].read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(*paths, password=_NO_PASSWORD)
    except ssl.SSLError as error:
        raise InvalidConfig(
            f"{paths[0]} and {paths[1]} are no certificate and its key in PEM, without a password "
            f"({error.reason or 'one of them is no PEM, or the key is encrypted'}); see cert_file and key_file"
        ) from None
    except OSError as error:
        raise InvalidConfig(
            f"the file {error.filename or paths[1]} cannot be read: {error.strerror}; see cert_file and key_file"
        ) from error
    return texts


_NO_PASSWORD: Final = ""
"""Else whoever is at a terminal would be asked."""
