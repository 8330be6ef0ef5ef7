"""
Opens every connection to etcd: its transport settings, and TLS with the client certificate that its members ask for.

Called by the store, and by whoever changes etcd's members.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from headrace_common.core.errors import InvalidConfig
from headrace_common.rpc.options import Options, channel_options
from headrace_controller.config import etcd_files_rules

_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 6_000),  # etcd sends clients away that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),  # nor does it take pings on connections without a call
    ("grpc.min_reconnect_backoff_ms", 1_000),
)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """What proves etcd to us, and us to etcd; all of it PEM."""

    ca: bytes
    cert: bytes | None
    key: bytes | None

    @staticmethod
    def read(ca: Path | None, cert: Path | None, key: Path | None) -> EtcdTls | None:
        """
        From these files; None without a CA: etcd is spoken to in plain text.

        Raises:
            InvalidConfig: files are missing from the set, or cannot be read.
        """
        wrong = [text for holds, text in etcd_files_rules(ca, cert, key) if not holds]
        if wrong:
            raise InvalidConfig("; ".join(wrong))
        try:
            read = [None if path is None else path.read_bytes() for path in (ca, cert, key)]
        except OSError as error:
            raise InvalidConfig(f"cannot read {error.filename}, which etcd's TLS needs: {error.strerror}") from error
        return None if read[0] is None else EtcdTls(read[0], read[1], read[2])


def open_channel(target: str, tls: EtcdTls | None = None) -> grpc.aio.Channel:
    """A channel to ``host:port``; it connects with its first call and again after every failure."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_options())
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    return grpc.aio.secure_channel(target, credentials, options=_options())


def _options() -> Options:
    ours = dict(_KEEPALIVE)
    return [*((k, v) for k, v in channel_options() if k not in ours), *ours.items()]
