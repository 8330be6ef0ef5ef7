"""Keys of a configuration that say when transactions end and how often a task is started: over real brokers."""

from __future__ import annotations

import asyncio

import pytest
from libs.connect.tests.adapters.sources import Away, Slow, Wide
from libs.sdk.tests.kit.cluster import Labs

from headrace import aio
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import limit_ms
from headrace_connect.core.errors import Fault
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.running import run_connector
from headrace_connect.settings import Secrets
from headrace_lab.lab import install_lab

TIMEOUT = "producer.override.transaction.timeout.ms"


def given(plugin: type, **more: str) -> dict[str, str]:
    keys = {key.replace("_", "."): text for key, text in more.items()}
    return {"name": "shop", "connector.class": f"{plugin.__module__}:{plugin.__name__}", "topic": "numbers", **keys}


async def run(labs: Labs, config: dict[str, str]) -> list[int]:
    """The offsets of what is in the topic when the connector has nothing more."""
    cluster = labs(1)
    servers = ",".join(cluster.bootstrap_servers)
    with install_lab(cluster.lab):
        async with limit_ms(600_000):
            await run_connector(configure(config, Secrets()), RunConfig(servers), asyncio.Event(), until_idle=True)
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        async with aio.Consumer("numbers", bootstrap_servers=servers, **settings) as consumer:
            return [record.offset for record in await consumer.read_to_end()]


@pytest.mark.parametrize("also", [{}, {TIMEOUT: "5000"}])
async def test_transactions_end_at_boundaries_alone_if_it_is_said(labs: Labs, also: dict[str, str]) -> None:
    Slow.reads = 0
    limit_s = int(also.get(TIMEOUT, "11000")) // 1_000
    with pytest.raises(TaskFailed, match=f"within {limit_s} s") as failed:
        await run(labs, given(Slow, transaction_boundary="connector") | also)
    assert "set transaction.boundary=interval" in str(failed.value)
    assert Slow.reads == 2


@pytest.mark.parametrize(
    ("also", "commits"),
    [
        ({"transaction.boundary": "connector", TIMEOUT: "60000"}, 1),
        ({"transaction.boundary": "poll", "offset.flush.interval.ms": "60000"}, 10),
        ({"transaction.boundary": "interval", "offset.flush.interval.ms": "60000"}, 1),
    ],
)
async def test_with_more_time_or_other_boundaries_it_works(labs: Labs, also: dict[str, str], commits: int) -> None:
    Slow.reads = 0
    offsets = await run(labs, given(Slow) | also)
    assert Slow.reads == 1
    assert len(offsets) == 10
    assert offsets[-1] == 9 + commits - 1, "each commit has a marker behind its records"


@pytest.mark.parametrize("restarts", [0, 2])
async def test_a_task_is_started_again_as_often_as_is_said(labs: Labs, restarts: int) -> None:
    Away.reads = 0
    with pytest.raises(TaskFailed, match="nobody answers"):
        await run(labs, given(Away, errors_retry_timeout="0", errors_restart_max=str(restarts)))
    assert Away.reads == 1 + restarts


def test_a_transaction_may_be_open_for_longer_than_until_it_is_committed() -> None:
    config = given(Slow, offset_flush_interval_ms="20000") | {TIMEOUT: "20000"}
    with pytest.raises(InvalidConfig, match=f"{TIMEOUT}.*offset.flush.interval.ms"):
        configure(config, Secrets())


async def test_a_position_of_4_kib_is_committed_and_a_larger_one_fails_at_once(labs: Labs) -> None:
    Wide.reads, Wide.size = 0, 4_096
    assert await run(labs, given(Wide)) == [0]
    Wide.reads, Wide.size = 0, 4_097
    with pytest.raises(TaskFailed, match="position of split 'all' has 4097 bytes; 4096 is the most") as failed:
        await run(labs, given(Wide))
    assert failed.value.fault is not Fault.WORLD
    assert Wide.reads == 1
