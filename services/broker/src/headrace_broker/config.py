"""The broker's settings, checked once at start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener, InternalListener
from headrace_common.runtime.service import SOCKET_PATH_BYTES_MAX, ServerConfig

REQUEST_BYTES_MAX: Final = 16 << 20
"""Largest request of a client by default: sixteen of the largest batches that a topic takes by default."""


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9292), request_bytes_max=REQUEST_BYTES_MAX)


@dataclass(frozen=True)
class BrokerConfig:
    """Headrace broker: keeps partition logs and serves them."""

    node_id: int = 1
    """Number of this broker, unique among brokers; 0 to 2147483647. A data directory belongs to one number."""
    data_dir: Path = Path("data")
    """Directory of the logs; made if it is not there."""
    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with; others are learned from them."""
    rack: str | None = None
    """Failure domain of this process."""
    flush: Literal["group", "always", "os"] = "group"
    """When a batch counts as written: after one sync per write group, after a sync per request, or when the operating
    system has it."""
    tail_cache_bytes: int = 64 << 20
    """Memory for the newest batches of all partitions, from which live consumers read; 0 to 64 GiB."""
    queue_bytes: int = 64 << 20
    """Bytes of batches that may wait to be written or synced; above it no produce stream is read. Streams of
    one address are not read while a quarter of it is theirs, unless calls_per_address_max is 0. 1 MiB or more."""
    disk_reserve_bytes: int | None = None
    """Appends are refused while less is free on the data disk. Without it 5 % of the disk, at most 5 GiB."""
    stall_ms_max: int = 60_000
    """How long the store may stall before the broker gives up and stops, in ms; 1000 or more."""
    shutdown_ms_max: int = 10_000
    """How long to wait at shutdown for leaders to move away, in ms; 0 to 600000."""
    restart_wait_ms_max: int = 0
    """How long a broker that is to stop waits, serving, until others hold enough copies of what it holds, in ms: while
    a partition here has fewer in sync than min.insync.replicas, or would have without this broker. 0: it does not wait;
    to 3600000. A partition with no more replicas than its minimum is not waited for."""
    leave_socket: Path | None = None
    """Unix socket where `python -m headrace_broker.prestop` asks this broker to leave; its own user alone can. At most
    107 bytes; a path that no other process uses. Without it nobody can ask."""
    ready_ms_max: int = 300_000
    """How long the broker may call itself not ready at its health port because replicas here are catching up, in ms,
    from when it takes part; 0 to 86400000."""
    lock_wait_ms_max: int = 10_000
    """How long to wait at the start for a process that still uses the data directory, in ms: the broker's last process
    may take its time to end. 0 to 3600000."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    internal: InternalListener = inline(InternalListener)
    """Where the other nodes of the cluster reach it."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        wrong = [text for holds, text in self._rules() if not holds]
        if wrong:
            raise InvalidConfig("; ".join(wrong))

    def _rules(self) -> list[tuple[bool, str]]:
        reserve = self.disk_reserve_bytes
        return [
            (0 <= self.node_id <= 2**31 - 1, f"node_id takes 0 to 2147483647, not {self.node_id}"),
            (bool(self.controllers), "controllers needs at least one address, such as 127.0.0.1:9390"),
            (
                0 <= self.tail_cache_bytes <= 64 << 30,
                f"tail_cache_bytes takes 0 to {64 << 30}, not {self.tail_cache_bytes}",
            ),
            (self.queue_bytes >= 1 << 20, f"queue_bytes takes {1 << 20} or more, not {self.queue_bytes}"),
            (reserve is None or reserve >= 0, f"disk_reserve_bytes takes 0 or more, not {reserve}"),
            (self.stall_ms_max >= 1_000, f"stall_ms_max takes 1000 or more, not {self.stall_ms_max}"),
            (
                0 <= self.shutdown_ms_max <= 600_000,
                f"shutdown_ms_max takes 0 to 600000, not {self.shutdown_ms_max}",
            ),
            (
                0 <= self.restart_wait_ms_max <= 3_600_000,
                f"restart_wait_ms_max takes 0 to 3600000, not {self.restart_wait_ms_max}",
            ),
            (
                0 <= self.lock_wait_ms_max <= 3_600_000,
                f"lock_wait_ms_max takes 0 to 3600000, not {self.lock_wait_ms_max}",
            ),
            (
                self.leave_socket is None or len(os.fsencode(self.leave_socket)) <= SOCKET_PATH_BYTES_MAX,
                f"leave_socket takes a path of at most {SOCKET_PATH_BYTES_MAX} bytes, as every unix socket does: "
                f"give a shorter one, such as /tmp/headrace-leave.sock",
            ),
            (0 <= self.ready_ms_max <= 86_400_000, f"ready_ms_max takes 0 to 86400000, not {self.ready_ms_max}"),
        ]
