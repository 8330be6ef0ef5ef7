"""Fixtures of the controller's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from services.controller.tests.kit.etcd import EtcdProcess


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdProcess]:
    """A real etcd with an empty data directory."""
    process = EtcdProcess(tmp_path)
    await process.start()
    try:
        yield process
    finally:
        await process.stop(kill=True)
