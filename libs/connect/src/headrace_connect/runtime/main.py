"""Runs a connector in this process, for programs that are not asynchronous: the command."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from headrace import aio
from headrace.group_types import ResetPlan
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.stopping import listen_for_signals
from headrace_connect.connectors.copying.cutover import Move, carry_out, read_histories, translate_group
from headrace_connect.connectors.copying.source import CopySource
from headrace_connect.plugin import Guarantee, Sink, Source
from headrace_connect.runtime.config import RunConfig, SourceConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.looking import check_connector, preview, preview_sink
from headrace_connect.runtime.running import Heard, run_connector
from headrace_connect.runtime.seating import open_process

_log: Final = logging.getLogger(__name__)


def run(configured: Configured, config: RunConfig, heard: Heard, *, until_idle: bool = False) -> None:
    """
    Run a connector until SIGTERM or SIGINT: what was read is committed then. A SIGINT behind that ends the process at
    once, with ``INTERRUPTED_TWICE``.

    Raises:
        TaskFailed: a task has failed, and starting it again does not help.
        HeadraceError: the cluster does not answer.
    """
    asyncio.run(_until_signal(configured, config, heard, until_idle))


async def _until_signal(configured: Configured, config: RunConfig, heard: Heard, until_idle: bool) -> None:
    stop = asyncio.Event()
    listen_for_signals(stop, _log, configured.config.name, words_of_seen(configured))
    await run_connector(configured, config, stop, heard, until_idle=until_idle)


def words_of_seen(configured: Configured) -> str:
    """How often others see what is done again that was not committed."""
    plugin, config = configured.plugin, configured.config
    if issubclass(plugin, Sink):
        return f"the target {'may get it twice' if plugin.guarantee is Guarantee.AT_LEAST_ONCE else 'has it once'}"
    if isinstance(config, SourceConfig) and config.exactly_once and plugin.exactly_once:
        return "readers with isolation_level='read_committed' see it once"
    return "records may be written twice"


def check(configured: Configured) -> Sequence[str]:
    """What the connector says is wrong outside."""
    return asyncio.run(check_connector(configured))


def show(configured: Configured, records_max: int, config: RunConfig) -> list[Mapping[str, Any]]:
    """The first records of a source, as they would be written; of a sink, what would become of those of its topics."""
    return asyncio.run(_show(configured, records_max, config))


async def _show(configured: Configured, records_max: int, config: RunConfig) -> list[Mapping[str, Any]]:
    if issubclass(configured.plugin, Source):
        return await preview(configured, records_max)
    async with open_process(config) as process:
        return await preview_sink(configured, process, records_max)


def cut_over(
    configured: Configured, group: str, config: RunConfig, *, wait_ms: float, execute: bool
) -> tuple[Sequence[Move], ResetPlan]:
    """
    Move a group from a cluster that a connector copies to the copies; without ``execute`` only say where it would be.

    Raises:
        InvalidConfig: the connector copies no cluster.
        HeadraceError: see ``translate_group`` and ``carry_out``.
    """
    return asyncio.run(_cut_over(configured, group, config, wait_ms, execute))


async def _cut_over(
    configured: Configured, group: str, config: RunConfig, wait_ms: float, execute: bool
) -> tuple[Sequence[Move], ResetPlan]:
    source = configured.make()
    if not isinstance(source, CopySource):
        raise InvalidConfig(f"{configured.config.name} copies no cluster: positions are translated where one does")
    clock, servers, settings = SystemClock(), config.bootstrap_servers, source.settings
    histories = partial(
        read_histories, servers, settings.syncs_topic, limit_ms=config.default_api_timeout_ms, clock=clock
    )
    try:
        await source.start()
        moves = await translate_group(source.cluster, histories, group, settings, clock, wait_ms)
        async with aio.AdminClient(servers, default_api_timeout_ms=config.default_api_timeout_ms) as admin:
            return moves, await carry_out(source.cluster, admin, group, moves, execute=execute)
    finally:
        await source.stop()
