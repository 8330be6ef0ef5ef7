"""A postgres-cdc that waits for ``table_snapshot``, and what its topic says that its table has."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.connect.shop import Shop

from headrace.testing import TestCluster
from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.postgres_cdc import exporting
from headrace_connect.connectors.postgres_cdc.exported import Point, Range
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.running import run_connector
from headrace_connect.settings import Secrets
from headrace_jobs.connectors import Given
from headrace_jobs.table_snapshot.job import Done, run
from headrace_jobs.table_snapshot.writing import Unit, Written, write_range

WAIT_S = 180


def write_here(unit: Unit, ranges: Sequence[Range]) -> list[Written]:
    """One range after the other, in this process."""
    return [asyncio.run(write_range(unit, each)) for each in ranges]


class Snapshot:
    """A table ``t (id, n)`` with an own topic, and its connector."""

    def __init__(
        self, cluster: TestCluster, shop: Shop, caplog: pytest.LogCaptureFixture, directory: Path, rows: int
    ) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(cluster.bootstrap_servers)
        self.shop = shop
        self._caplog = caplog
        self._checks = 0
        prefix = cluster.unique_topic("snapshot", partitions=1).replace("-", "_")
        self.topic = f"{prefix}.public.t"
        shop.do("create table t (id int primary key, n int)")
        shop.do(f"insert into t select g, 0 from generate_series(1, {rows}) g")
        self.config = shop.config(prefix, "public[.]t", **{"snapshot.engine": "spark"})
        self.file = directory / "shop.json"
        self.file.write_text(json.dumps(self.config))

    @contextmanager
    def connector(self) -> Iterator[None]:
        """Runs in a thread while the block does."""
        stop, ready = asyncio.Event(), threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        errors: list[BaseException] = []

        async def work() -> None:
            loops.append(asyncio.get_running_loop())
            ready.set()
            await run_connector(configure(self.config, Secrets()), RunConfig(self.bootstrap), stop)

        def live() -> None:
            try:
                asyncio.run(work())
            except BaseException as error:  # noqa: BLE001 - told in the test's thread
                errors.append(error)
                ready.set()

        thread = threading.Thread(target=live)
        thread.start()
        try:
            assert ready.wait(WAIT_S)
            yield
        finally:
            if loops and thread.is_alive():
                loops[0].call_soon_threadsafe(stop.set)
            thread.join(WAIT_S)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    def point(self) -> str:
        """What the connector logs next, since this was asked last."""
        until_ms = SystemClock().monotonic_ms() + WAIT_S * 1_000
        while SystemClock().monotonic_ms() < until_ms:
            for record in list(self._caplog.records):
                found = re.search(r"run: (.*table_snapshot.*)", record.getMessage())
                if found:
                    self._caplog.clear()
                    return shlex.split(found[1])[-1]
            threading.Event().wait(0.05)  # a log has no event
        raise AssertionError("the connector has logged no command")

    def job(self, point: str, pages: int = 4) -> Done:
        """Run the job here, without Spark."""
        given = Given(self.config)
        return run(given, given.configured(), Point.from_json(point), self.bootstrap, write_here, pages)

    def records(self) -> list[Any]:
        """What readers of committed records see."""
        with self.cluster.admin() as admin:
            if self.topic not in {topic.name for topic in admin.list_topics()}:
                return []
        with self.cluster.consumer(self.topic, isolation_level="read_committed") as consumer:
            return list(consumer.read_to_end(timeout_ms=60_000))

    def undecided(self) -> int:
        """Records of the topic that no reader of committed ones comes to, for now."""
        ends = []
        for level in ("read_committed", "read_uncommitted"):
            with self.cluster.log_watch(isolation_level=level) as watch:
                count = watch.topics()[self.topic].partitions
                bounds = watch.bounds([(self.topic, number) for number in range(count)])
            ends.append(sum(each.end for each in bounds.values()))
        return ends[1] - ends[0]

    def check(self, reads: int) -> None:
        """When a last change has come: the topic has each row that was there once, and the table's state."""
        self._checks += 1
        self.shop.do(f"insert into t values ({-self._checks}, 0)")
        state: dict[int, int] = {}
        ops = Counter[str]()

        def take(record: Any) -> None:
            if record.value is None:
                return
            value = json.loads(record.value)
            ops[value["op"]] += 1
            if value["op"] == "d":
                del state[value["before"]["id"]]
            else:
                assert value["op"] == "u" or value["after"]["id"] not in state, "it comes twice"
                state[value["after"]["id"]] = value["after"]["n"]

        until_ms = SystemClock().monotonic_ms() + WAIT_S * 1_000
        with self.cluster.consumer(self.topic, isolation_level="read_committed") as consumer:
            while -self._checks not in state:
                assert SystemClock().monotonic_ms() < until_ms, "changes do not come"
                for record in consumer.poll(timeout_ms=1_000):
                    take(record)
            for record in consumer.read_to_end(timeout_ms=60_000):
                take(record)
        assert ops["r"] == reads
        assert state == dict(self.shop.rows("select id, n from t"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector looks often."""
    monkeypatch.setattr(exporting, "LOOK_MS", 200.0)
