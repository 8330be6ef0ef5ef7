"""The demo's end, a job by its name and the page docs/spark.md, with a real Spark on a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headrace
from headrace_cli.demo.spark import CONF, TARGET
from headrace_cli.local import LocalCluster
from headrace_cli.spark import submit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
ORDERS = 100
CHECK = "assert values.count() == orders.count() - 5, 'partition 0 from its fifth, partition 1 whole'"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker; the demo attaches to it by its directory."""
    with LocalCluster(tmp_path_factory.mktemp("spark") / "data", brokers=1) as started:
        yield started


def command(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace_cli", *words],
        env={**os.environ, "HEADRACE_BOOTSTRAP": ",".join(cluster.bootstrap_servers), "CI": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def values_of(cluster: LocalCluster, topic: str) -> list[bytes]:
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    values: list[bytes] = []
    with headrace.Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, **settings) as consumer:
        while records := consumer.poll(2_000):
            values += [record.value for record in records]
    return values


def test_the_demo_ends_with_spark_and_a_job_copies_what_it_wrote(cluster: LocalCluster) -> None:
    said = command(cluster, "demo", "--spark", "--rate", "0", "--data-dir", str(cluster.directory.path))
    assert "Spark agrees: each of the 16 carriers once" in said
    command(cluster, "topic", "create", "carriers")
    copy = ["--topic", TARGET, "--output-topic", "carriers", "--trigger", "batch"]
    quick = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    said = command(cluster, "job", "run", "topic-copy", "--master", "local[2]", *quick, "--", *copy)
    assert "WARNING: Using incubator" not in said
    copied = command(cluster, "consume", "carriers", "--from", "beginning", "--exit-at-end", "-o", "json")
    assert len(copied.splitlines()) == 16


def test_the_page_does_what_it_says(cluster: LocalCluster, tmp_path: Path) -> None:
    with headrace.AdminClient(cluster.bootstrap_servers) as admin:
        for name in ("orders", "totals", "big-orders", "from-old-spark"):
            admin.create_topic(name, 2)
    numbers = range(ORDERS)
    with headrace.Producer(cluster.bootstrap_servers) as producer:
        producer.send_many("orders", [b"%d" % n for n in numbers], keys=[b"c%d" % (n % 10) for n in numbers])
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    bootstrap = ",".join(cluster.bootstrap_servers)
    page = tmp_path / "page.py"
    page.write_text("\n".join([f"bootstrap = {bootstrap!r}", f"work = {str(tmp_path)!r}", *blocks, CHECK]))
    program = submit.Program(file=page, name="page", master="local[2]", conf=CONF, bootstrap=bootstrap)
    log = tmp_path / "log"
    with log.open("wb") as output:
        code = submit.run(program, submit.find_spark(os.environ), os.environ, stdout=output)
    assert code == 0, log.read_text()
    lake = pq.read_table(tmp_path / "lake", columns=["total"]).column(0).to_pylist()
    assert sorted(int(total) for total in lake) == list(numbers)
    assert len(values_of(cluster, "totals")) == 10
    assert sorted(int(value) for value in values_of(cluster, "big-orders")) == list(range(50, ORDERS))
    assert sorted(int(value) for value in values_of(cluster, "from-old-spark")) == list(numbers)
