"""The health ports of all four services, as a kubelet asks them: when they live, when they are ready, how long."""

from __future__ import annotations

import asyncio
import signal

import pytest

from .site import Process, Site

pytestmark = pytest.mark.integration


async def said(process: Process) -> tuple[str, str, str]:
    return await process.health("live"), await process.health("ready"), await process.health("")


NOT_YET = ("SERVING", "NOT_SERVING", "NOT_SERVING")
READY = ("SERVING",) * 3


async def test_each_lives_alone_and_is_ready_when_the_others_are_there(site: Site) -> None:
    """Started in the wrong order, with ids from 0, everybody waits for what it needs and nobody ends."""
    etcd, controller = site.etcd(), site.controller()
    nodes = [site.broker(shutdown_ms_max="500"), site.coordinator(shutdown_ms_max="500"), site.admin()]
    for process in (controller, *nodes):
        await process.start()
    for process in (controller, *nodes):
        await process.until("live")
        assert await said(process) == NOT_YET, process.name
    await etcd.start()
    for process in (controller, *nodes):
        await process.until("ready")
        assert await said(process) == READY, process.name

    assert await etcd.stop(signal.SIGKILL) < 0  # nothing that they do needs it now
    for process in (controller, *nodes):
        assert await said(process) == READY, process.name
    assert await controller.stop() == 0
    for process in nodes:
        assert await said(process) == READY, process.name
        process.send(signal.SIGSTOP)
    frozen = await asyncio.gather(*(process.health("live") for process in nodes))
    assert frozen == ["DEADLINE_EXCEEDED"] * 3
    for process in nodes:
        process.send(signal.SIGCONT)
    codes = await asyncio.gather(*(process.stop() for process in nodes))
    assert codes == [0, 0, 0], [process.log()[-3000:] for process in nodes]
