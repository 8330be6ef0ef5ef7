"""
Looks at the files with which a controller speaks TLS to etcd, and has new ones used.

They are of whichever CA and kind of key etcd has, so nothing but the pair is checked: a certificate of another key, as
between two writes, would have every new connection refused.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.threads import run_in_thread
from headrace_controller.adapters.etcd_channels import read_pem

LOOK_EVERY_MS: Final = 10_000.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdTlsFiles:
    """All PEM; see the settings ``etcd_ca``, ``etcd_cert`` and ``etcd_key``."""

    ca: Path | None
    cert: Path | None
    key: Path | None

    def read(self) -> Pem | None:
        """See ``read_pem``."""
        return read_pem(self.ca, self.cert, self.key)

    def read_pair(self) -> Pem | None:
        """
        The same, once certificate and key are of each other. Blocks.

        Raises:
            InvalidConfig: they are not, or cannot be read.
        """
        pem = self.read()
        if self.cert is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.cert, self.key)
            except (ssl.SSLError, OSError) as error:
                raise InvalidConfig(f"{self.cert} and {self.key} are no pair ({error})") from error
        if pem != self.read():
            raise InvalidConfig(f"the files of etcd's TLS beside {self.ca} are being written just now")
        return pem


async def follow(files: EtcdTlsFiles, used: Pem, clock: Clock, take: Callable[[Pem], None]) -> None:
    """Have ``take`` told of what is in ``files`` when it is other than ``used``, or than it was told last. For ever."""
    said: str | None = None
    while True:
        await clock.sleep_ms(LOOK_EVERY_MS)
        try:
            pem = await run_in_thread(files.read_pair)
        except InvalidConfig as error:
            if said != str(error):
                said = str(error)
                _log.error("the certificates for etcd that are in use stay: %s", error)
            continue
        said = None
        if pem is not None and pem != used:
            used = pem
            take(pem)
            _log.info("new certificates for etcd are in use")
