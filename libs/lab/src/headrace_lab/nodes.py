"""
Nodes of a cluster in the lab: each service's own ``main.run``, with what it takes of its machine in memory.

Etcd, RocksDB and the HTTP server are not in the lab; heartbeats are a task here, not a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from headrace_admin import main as admin
from headrace_admin.config import AdminConfig
from headrace_broker import main as broker
from headrace_broker.config import BrokerConfig
from headrace_common.core.ids import Endpoint
from headrace_common.http.server import HttpServer
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service import ServerConfig
from headrace_controller import main as controller
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.config import ControllerConfig
from headrace_coordinator import main as coordinator
from headrace_coordinator.config import CoordinatorConfig
from headrace_lab.disk import LabDisk
from headrace_lab.heartbeat import HeartbeatTask

PORT: Final = 9_000
LEASES_MS: Final = 500
"""How often the store of metadata looks for leases that have ended."""


_NETWORKS: Final = {"controller": 1, "broker": 2, "coordinator": 3, "admin": 4}


def address(name: str) -> Endpoint:
    """Where the node of this name serves: on this machine, as what stays in a process does, so keys may be shown."""
    role, _, number = name.partition("-")
    high, low = divmod(int(number), 256)
    return Endpoint(f"127.{_NETWORKS[role]}.{high}.{low}", PORT)


@dataclass(frozen=True)
class Configs:
    """Settings of nodes, but for who and where they are."""

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    racks: Mapping[int, str] = field(default_factory=dict)
    """Where brokers are, by their numbers."""


async def run_store(store: MemoryStore, stop: asyncio.Event) -> None:
    """What etcd does by itself, until ``stop`` is set."""
    clock = SystemClock()
    while not stop.is_set():
        await clock.sleep_ms(LEASES_MS)
        await store.expire_leases()


@dataclass(frozen=True)
class Nodes:
    """Runs the nodes of one cluster, each until ``stop`` is set."""

    configs: Configs
    controllers: tuple[Endpoint, ...]
    token: Path

    async def run_controller(self, number: int, store: MemoryStore, stop: asyncio.Event) -> None:
        config = self.configs.controller
        server = self._at(config.server, f"controller-{number}")
        await controller.run(replace(config, node_id=number, server=server), stop, store)

    async def run_broker(self, number: int, disk: LabDisk, stop: asyncio.Event) -> None:
        config = self.configs.broker
        server = self._at(config.server, f"broker-{number}")
        rack = self.configs.racks.get(number, config.rack)
        config = replace(config, node_id=number, controllers=self.controllers, server=server, rack=rack)
        await broker.run(config, stop, disk.open, HeartbeatTask)

    async def run_coordinator(self, number: int, stop: asyncio.Event) -> None:
        config = self.configs.coordinator
        server = self._at(config.server, f"coordinator-{number}")
        config = replace(config, node_id=number, controllers=self.controllers, server=server)
        await coordinator.run(config, stop, HeartbeatTask)

    async def run_admin(self, number: int, stop: asyncio.Event) -> None:
        """An admin service without REST."""
        config = self.configs.admin
        server = self._at(config.server, f"admin-{number}")
        config = replace(config, node_id=number, controllers=self.controllers, server=server)
        await admin.run(config, stop, _without_http, HeartbeatTask)

    def _at(self, server: ServerConfig, name: str) -> ServerConfig:
        return replace(server, listen=address(name), node_token_file=self.token)


@asynccontextmanager
async def _without_http(make_app: Any, listen: Endpoint, *_: Any, **__: Any) -> AsyncIterator[HttpServer]:
    del make_app
    yield HttpServer(listen)
