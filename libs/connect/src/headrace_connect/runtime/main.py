"""Runs a connector in this process, for programs that are not asynchronous: the command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.looking import check_connector, preview
from headrace_connect.runtime.running import run_connector

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(configured: Configured, config: RunConfig, *, until_idle: bool = False) -> None:
    """
    Run a connector until SIGTERM or SIGINT: what was read is committed then.

    Raises:
        TaskFailed: a task has failed, and starting it again does not help.
        HeadraceError: the cluster does not answer.
    """
    asyncio.run(_until_signal(configured, config, until_idle))


async def _until_signal(configured: Configured, config: RunConfig, until_idle: bool) -> None:
    stop = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_connector(configured, config, stop, until_idle=until_idle)


def check(configured: Configured) -> Sequence[str]:
    """What the connector says is wrong outside."""
    return asyncio.run(check_connector(configured))


def show(configured: Configured, records_max: int) -> list[Mapping[str, Any]]:
    """The first records of a source, as they would be written."""
    return asyncio.run(preview(configured, records_max))
