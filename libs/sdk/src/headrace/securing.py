"""
How a cluster is spoken to by whoever opens connections of their own, as the command does for questions to one node:
with the trust and the key that every client of ``ClusterAddress`` has.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace._credentials import credentials_for
from headrace._logging_in import log_in_at_any
from headrace.finding import ClusterAddress, credentialed
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
    trust = trust_in(None if address.ca is None else Path(address.ca))
    credentials = credentials_for(shown, shown, os.environ)
    if credentials.logs_in:
        with ThreadPoolExecutor(1) as thread:  # the caller's may have a loop
            thread.submit(asyncio.run, credentials.ready(log_in_at_any(list(shown), trust))).result()
    return Security(credentials.metadata, trust.pem)


def trust_in(ca: Path | None) -> Security:
    """
    By TLS with the CAs of a file, or in plain text.

    Raises:
        InvalidConfig: it cannot be read, or has none.
    """
    if ca is None:
        return PLAIN
    try:
        text = ca.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"the file of CAs {ca} cannot be read: {error.strerror}; see ssl_ca_location") from error
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise InvalidConfig(f"the file of CAs {ca} has no certificate in PEM; see ssl_ca_location")
    return Security(pem=Pem(text))
