"""Real etcd and real controllers, each test its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.process import ControllerProcess

Start = Callable[..., Awaitable[ControllerProcess]]


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdProcess]:
    """A real etcd with an empty data directory."""
    process = EtcdProcess(tmp_path)
    await process.start()
    try:
        yield process
    finally:
        await process.stop(kill=True)


@pytest.fixture
async def start(tmp_path: Path, etcd: EtcdProcess) -> AsyncIterator[Start]:
    """Starts controller ``n`` with further arguments; all end with the test."""
    async with AsyncExitStack() as stack:

        async def started(node_id: int, *arguments: str) -> ControllerProcess:
            process = ControllerProcess(tmp_path, node_id, etcd.endpoint, *arguments)
            stack.push_async_callback(process.close)
            await process.start()
            return process

        yield started
