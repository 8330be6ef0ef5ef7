"""An app is given its history by a process that is killed before the end, and again; then it goes on from there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headrace.records import TopicPartition
from headrace.testing import TestCluster
from headrace_common.core.errors import Rejected
from headrace_streams import App, agg, json
from headrace_streams.config import StreamsConfig
from headrace_streams.core.state.changelog import Progress, prefix
from headrace_streams.core.state.store import NOTHING
from headrace_streams.main import serve
from headrace_streams.plan.basis import basis_of
from headrace_streams.plan.nodes import changelog_topic
from headrace_streams.runtime.filling import History
from headrace_streams.upkeep import fill, ground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
KEYS = [b"k%d" % (number % 7) for number in range(100)]
FILLS = "import sys; from tests.integration.streams.test_filling import give; give(*sys.argv[1:])"


def program(topic: str, out: str) -> App:
    app = App(f"filled-{topic}")
    app.stream(topic, value=json("n bigint"), key="id").group_by("id").agg(n=agg.count(), name="counts").to(out)
    return app


def give(topic: str, out: str, servers: str) -> None:
    """The history of the program, as its own task makes it of ``KEYS``."""
    app = program(topic, out)
    found = ground(app, None, servers)
    (part,) = found.assembly.parts
    task = found.assembly.make(part, 0)
    task.open(lambda name: NOTHING, {})
    count = len(KEYS)
    columns: dict[str, Any] = {"key": KEYS, "value": [b"{}"] * count, "timestamp_ms": [7] * count}
    task.feed(topic, pa.table({**columns, "offset": list(range(count))}))
    task.flush()
    log = TopicPartition(changelog_topic(app.name, part.name), 0)
    rows = [(prefix("counts") + key, value) for key, value in task.changes()["counts"]]
    basis = basis_of(found.assembly, part, found.topic_ids)
    progress = Progress({topic: found.until[TopicPartition(topic, 0)]}, task.watermarks(), basis)
    fill(app, History(found.until, task.take(), {log: rows}, {log: progress}), servers)


def read(cluster: TestCluster, out: str, wanted: int) -> list[tuple[str, int]]:
    found: list[Any] = []
    with cluster.consumer(out, isolation_level="read_committed") as consumer:
        while len(found) < wanted and (polled := consumer.poll(timeout_ms=30_000)):
            found += polled
        found += consumer.poll(timeout_ms=300)
    return [((row := orjson.loads(record.value))["id"], row["n"]) for record in found]


async def test_a_history_that_is_cut_off_is_given_again_and_the_app_goes_on(
    cluster: TestCluster, tmp_path: Path
) -> None:
    topic, out = (cluster.unique_topic(name, 1) for name in ("in", "out"))
    servers = ",".join(cluster.bootstrap_servers)
    with cluster.producer() as producer:
        producer.send_many(topic, [b"{}"] * len(KEYS), keys=KEYS)
        producer.flush()
        (tmp_path / "streams.filled").write_text("kill")
        words = [sys.executable, "-c", FILLS, topic, out, servers]
        env = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(tmp_path)}
        killed = await asyncio.to_thread(subprocess.run, words, env=env, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert await asyncio.to_thread(read, cluster, out, 0) == []
        await asyncio.to_thread(give, topic, out, servers)
        counts = {f"k{number}": KEYS.count(b"k%d" % number) for number in range(7)}
        assert dict(await asyncio.to_thread(read, cluster, out, 7)) == counts
        with pytest.raises(Rejected, match="has begun already"):
            await asyncio.to_thread(give, topic, out, servers)
        producer.send_many(topic, [b"{}"] * 2, keys=[b"k3", b"new"])
        producer.flush()
    stop = asyncio.Event()
    config = StreamsConfig(bootstrap_servers=servers, state_dir=tmp_path / "state")
    worker = asyncio.create_task(serve(program(topic, out), config, stop))
    try:
        found = await asyncio.to_thread(read, cluster, out, 9)
    finally:
        stop.set()
        await worker
    assert sorted(found[7:]) == [("k3", counts["k3"] + 1), ("new", 1)]
