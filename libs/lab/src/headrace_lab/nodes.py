"""
Nodes of a cluster in the lab: each service's own ``main.run``, with what it takes of its machine in memory.

Etcd, RocksDB and the HTTP server are not in the lab; heartbeats are a task here, not a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace_admin import main as admin
from headrace_admin.adapters.http_server import HttpServer
from headrace_admin.config import AdminConfig
from headrace_broker import main as broker
from headrace_broker.config import BrokerConfig
from headrace_common.core.ids import Endpoint
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


def address(name: str) -> Endpoint:
    """Where the node of this name serves."""
    return Endpoint(f"{name}.localhost", PORT)


async def run_store(store: MemoryStore, stop: asyncio.Event) -> None:
    """What etcd does by itself, until ``stop`` is set."""
    clock = SystemClock()
    while not stop.is_set():
        await clock.sleep_ms(LEASES_MS)
        await store.expire_leases()


async def run_controller(number: int, store: MemoryStore, token: Path, stop: asyncio.Event) -> None:
    """A controller, until ``stop`` is set."""
    server = _at(ControllerConfig().server, f"controller-{number}", token)
    await controller.run(ControllerConfig(node_id=number, server=server), stop, store)


async def run_broker(
    number: int, disk: LabDisk, controllers: Sequence[Endpoint], token: Path, stop: asyncio.Event
) -> None:
    """A broker on ``disk``, until ``stop`` is set."""
    server = _at(BrokerConfig().server, f"broker-{number}", token)
    config = BrokerConfig(node_id=number, controllers=tuple(controllers), server=server)
    await broker.run(config, stop, disk.open, HeartbeatTask)


async def run_coordinator(number: int, controllers: Sequence[Endpoint], token: Path, stop: asyncio.Event) -> None:
    """A coordinator, until ``stop`` is set."""
    server = _at(CoordinatorConfig().server, f"coordinator-{number}", token)
    config = CoordinatorConfig(node_id=number, controllers=tuple(controllers), server=server)
    await coordinator.run(config, stop, HeartbeatTask)


async def run_admin(number: int, controllers: Sequence[Endpoint], token: Path, stop: asyncio.Event) -> None:
    """An admin service without REST, until ``stop`` is set."""
    server = _at(AdminConfig().server, f"admin-{number}", token)
    config = AdminConfig(node_id=number, controllers=tuple(controllers), server=server)
    await admin.run(config, stop, _without_http, HeartbeatTask)


def _at(server: ServerConfig, name: str, token: Path) -> ServerConfig:
    return replace(server, listen=address(name), node_token_file=token)


@asynccontextmanager
async def _without_http(app: Any, listen: Endpoint, *_: Any, **__: Any) -> AsyncIterator[HttpServer]:
    del app
    yield HttpServer(listen)
