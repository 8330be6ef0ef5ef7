"""The fixtures that programs which use Headrace get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.testing import ClusterUnavailable, MemoryBackend, TestCluster, started_cluster


def test_what_is_produced_in_memory_is_read(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("orders", partitions=2)
    with headrace_memory.producer() as producer:
        for number in range(10):
            producer.send("orders", b"%d" % number, partition=number % 2)
        producer.flush(10)
    assert headrace_memory.values("orders", 1) == [b"1", b"3", b"5", b"7", b"9"]
    with headrace_memory.consumer("orders") as consumer:
        records = []
        while len(records) < 10:
            records += consumer.poll(timeout_ms=1000)
    assert sorted(record.value for record in records) == [b"%d" % n for n in range(10)]


async def test_what_is_produced_in_memory_is_read_with_asyncio(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("orders")
    async with headrace_memory.aio_producer() as producer:
        await (await producer.send("orders", b"one"))
    async with headrace_memory.aio_consumer("orders") as consumer:
        async for record in consumer:
            assert record.value == b"one"
            break


def test_without_the_cli_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "headrace_cli", None)
    monkeypatch.setitem(sys.modules, "headrace_cli.local", None)
    with pytest.raises(ClusterUnavailable, match=r"pip install 'headrace-cli\[local\]'"), started_cluster(tmp_path):
        pass


def test_the_plugin_loads_nothing_before_a_test_asks() -> None:
    probe = "import sys, headrace.testing.plugin; print([m for m in sys.modules if m in ('grpc', 'numpy', 'pyarrow')])"
    said = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.integration
def test_a_real_cluster_does_the_same(headrace_cluster: TestCluster) -> None:
    topic = headrace_cluster.unique_topic(partitions=3)
    with headrace_cluster.producer() as producer:
        producer.send(topic, b"one").result(timeout=10)
    with headrace_cluster.consumer(topic) as consumer:
        assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"one"]
    with headrace.Producer() as elsewhere:
        assert elsewhere.partitions_for(topic) == 3, "without arguments the same cluster is found"
    assert headrace_cluster.admin_url.startswith("http://127.0.0.1")
