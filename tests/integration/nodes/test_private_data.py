"""A broker's data directory of before, which others could read, is narrowed at its start, and that is said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .site import START_S, Site

pytestmark = pytest.mark.integration


async def test_a_broker_narrows_its_data_directory_and_says_so(site: Site) -> None:
    broker = site.broker()
    data = Path(broker.settings["HEADRACE_BROKER_DATA_DIR"])
    data.mkdir()
    data.chmod(0o755)
    (data / "evidence").touch(0o644)
    await broker.start()
    said = await broker.until_logged("the data directory was not private")
    assert "2 of its files" in said["msg"]
    await broker.until_logged("logs are open")
    assert [str(p) for p in (data, *data.rglob("*")) if p.stat().st_mode & 0o077] == []
    await broker.stop()
    await broker.start()
    async with asyncio.timeout(START_S):
        while len(broker.logged("logs are open")) < 2:
            await asyncio.sleep(0.02)
    assert len(broker.logged("the data directory was not private")) == 1
