"""The demo's end and a job by its name, with a real Spark on a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace_cli.demo.spark import CONF, TARGET
from headrace_cli.local import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


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
