"""The broker's settings, checked once at start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headrace_common.core.bounds import ID_MAX, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener, InternalListener, MtlsListener
from headrace_common.runtime.service import SOCKET_PATH_BYTES_MAX, ServerConfig

REQUEST_BYTES_MAX: Final = 16 << 20
"""Largest request of a client by default: sixteen of the largest batches that a topic takes by default."""


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9292), request_bytes_max=REQUEST_BYTES_MAX)


@dataclass(frozen=True)
class BrokerConfig:
    """Headrace broker: keeps partition logs and serves them."""

    node_id: int = setting(1, low=0, high=ID_MAX)
    """Number of this broker, unique among brokers. A data directory belongs to one number."""
    data_dir: Path = Path("data")
    """Directory of the logs; made if it is not there."""
    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with; others are learned from them."""
    access_stale_ms_max: int = setting(0, low=0)
    """So long after it last heard a controller, in ms, this process of a closed cluster lets nobody in anew: it does
    not learn which keys are deleted. Streams that run go on. 0: it always lets them in."""
    rack: str | None = None
    """Failure domain of this process."""
    flush: Literal["group", "always", "os"] = "group"
    """When a batch counts as written: after one sync per write group, after a sync per request, or when the operating
    system has it."""
    tail_cache_bytes: int = setting(64 << 20, low=0, high=64 << 30)
    """Memory for the newest batches of all partitions, from which live consumers read."""
    queue_bytes: int = setting(64 << 20, low=1 << 20)
    """Bytes of batches that may wait to be written or synced; above it no produce stream is read. Streams of
    one principal are not read while a quarter of it is theirs; of who has shown no credential, those of one address,
    unless calls_per_address_max is 0."""
    disk_reserve_bytes: int | None = setting(None, low=0)
    """Appends are refused while less is free on the data disk. Without it 5 % of the disk, at most 5 GiB."""
    stall_ms_max: int = setting(60_000, low=1_000)
    """How long the store may stall before the broker gives up and stops, in ms."""
    shutdown_ms_max: int = setting(10_000, low=0, high=600_000)
    """How long to wait at shutdown for leaders to move away, in ms."""
    restart_wait_ms_max: int = setting(0, low=0, high=3_600_000)
    """How long a broker that is to stop waits, serving, until others hold enough copies of what it holds, in ms: while
    a partition here has fewer in sync than min.insync.replicas, or would have without this broker. 0: it does not wait.
    A partition with no more replicas than its minimum is not waited for."""
    leave_socket: Path | None = None
    """Unix socket where `python -m headrace_broker.prestop` asks this broker to leave; its own user alone can. At most
    107 bytes; a path that no other process uses. Without it nobody can ask."""
    ready_ms_max: int = setting(300_000, low=0, high=86_400_000)
    """How long the broker may call itself not ready at its health port because replicas here are catching up, in ms,
    from when it takes part."""
    lock_wait_ms_max: int = setting(10_000, low=0, high=3_600_000)
    """How long to wait at the start for a process that still uses the data directory, in ms: the broker's last process
    may take its time to end."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    internal: InternalListener = inline(InternalListener)
    """Where the other nodes of the cluster reach it."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    mtls: MtlsListener = inline(MtlsListener)
    """Where clients with certificates reach it."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        check(
            self,
            (bool(self.controllers), "controllers needs at least one address, such as 127.0.0.1:9390"),
            self.internal.check_beside(self.server),
            self.mtls.check_beside(self.server),
            (
                self.leave_socket is None or len(os.fsencode(self.leave_socket)) <= SOCKET_PATH_BYTES_MAX,
                f"leave_socket takes a path of at most {SOCKET_PATH_BYTES_MAX} bytes, as every unix socket does: "
                f"give a shorter one, such as /tmp/headrace-leave.sock",
            ),
        )
