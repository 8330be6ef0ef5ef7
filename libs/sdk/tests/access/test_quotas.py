"""Clients that are above their quota: they wait as they are told, and nothing is lost, doubled or refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from libs.sdk.tests.kit.doors import Door
from services.broker.tests.kit.cluster import FakeCluster, image_of
from services.broker.tests.kit.dialogue import running_broker

from headrace import aio
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.ids import Endpoint
from headrace_common.core.quotas.entities import Clients
from headrace_common.core.quotas.kinds import Rate

RECORDS = 120
VALUES = [Random(n).randbytes(1_000) for n in range(RECORDS)]


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("rate", [Rate.PRODUCER_BYTE_RATE, Rate.CONSUMER_BYTE_RATE])
async def test_who_is_above_its_quota_waits_and_gets_all_of_it(rate: Rate) -> None:
    """By the client id that it shows. They are a little more than its bucket holds."""
    door = Door()
    door.limit(Clients(None, "app"), rate, 10_000)
    me = {"api_key": door.make_key(), "client_id": "app"}
    cluster = FakeCluster()
    async with running_broker(MemoryLogs(), cluster, interceptors=[door.gate]) as (broker, server):
        at = Endpoint("127.0.0.1", server.port)
        cluster.show(image_of({"t": 1}, endpoint=at))
        await broker.follower.changed.wait()
        async with aio.Producer(str(at), **me) as producer:
            for delivery in [await producer.send("t", value) for value in VALUES]:
                await delivery
            await (await producer.send("t", b"last"))
        async with aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", **me) as consumer:
            read: list[bytes | None] = []
            while len(read) <= RECORDS:
                read += [record.value for record in await consumer.poll(10_000)]
        assert read == [*VALUES, b"last"]
        assert broker.measures.throttled_ms > 0
