"""
Opens every connection to etcd: its transport settings, and TLS with the client certificate that its members ask for.

Called by the store, and by whoever changes etcd's members.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from headrace_common.core.errors import InvalidConfig
from headrace_common.rpc.credentials import Pem, of_channel
from headrace_common.rpc.options import Options, channel_options
from headrace_controller.config import etcd_files_rules

_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 6_000),  # etcd sends clients away that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),  # nor does it take pings on connections without a call
    ("grpc.min_reconnect_backoff_ms", 1_000),
)


def read_pem(ca: Path | None, cert: Path | None, key: Path | None) -> Pem | None:
    """
    What proves etcd to us, and us to etcd, from these files; None without a CA: etcd is spoken to in plain text.

    Raises:
        InvalidConfig: files are missing from the set, or cannot be read.
    """
    wrong = [text for holds, text in etcd_files_rules(ca, cert, key) if not holds]
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    if ca is None:
        return None
    try:
        return Pem(ca.read_bytes(), *(None if path is None else path.read_bytes() for path in (cert, key)))
    except OSError as error:
        raise InvalidConfig(f"cannot read {error.filename}, which etcd's TLS needs: {error.strerror}") from error


def open_channel(target: str, pem: Pem | None = None) -> grpc.aio.Channel:
    """A channel to ``host:port``; it connects with its first call and again after every failure."""
    if pem is None:
        return grpc.aio.insecure_channel(target, options=_options())
    return grpc.aio.secure_channel(target, of_channel(grpc, pem), options=_options())


def _options() -> Options:
    ours = dict(_KEEPALIVE)
    return [*((k, v) for k, v in channel_options() if k not in ours), *ours.items()]
