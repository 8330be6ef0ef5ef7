"""What ``headrace connect run`` says: what runs, where to look, and what Ctrl+C does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SLOW = """
import signal
from headrace_connect import sink

@sink
def slow(table):
    print("writes", flush=True)
    signal.pause()
"""


def start(cluster: TestCluster, directory: Path, config: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    file = directory / "c.json"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "headrace_cli", "connect", "run", str(file), *options]
    command += ["--bootstrap", ",".join(cluster.bootstrap_servers)]
    out = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, env=os.environ)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().rstrip("\n")


ENDS = "commits what it has read and ends; Ctrl+C again ends it at once, without that commit"


def test_a_source_says_what_runs_what_it_writes_and_that_it_ends(cluster: TestCluster, tmp_path: Path) -> None:
    topic = cluster.unique_topic("said")
    spool = tmp_path / "spool"
    spool.mkdir()
    config = {
        "name": f"s-{topic}",
        "connector.class": "files",
        "path": str(spool),
        "format": "lines",
        "topic": topic,
        "tasks.max": "2",
        "rescan.interval.ms": "100",
    }
    with start(cluster, tmp_path, config) as process:
        try:
            assert "there is nothing to read until one does" in said(process), "the connector's own warning"
            assert said(process) == f"s-{topic} has found nothing to read yet; it looks again, until Ctrl+C"
            (spool / "a.txt").write_text("one\n")
            lines = {said(process), said(process)}
            assert lines == {
                f"s-{topic} runs until Ctrl+C: files, 1 task",
                f"s-{topic} writes {topic}; `headrace consume {topic} --from beginning` shows it",
            }
            process.send_signal(signal.SIGINT)
            assert said(process) == f"s-{topic} {ENDS}"
            assert (process.wait(60), said(process)) == (0, "")
        finally:
            process.kill()
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        assert next(iter(consumer)).value == b'{"value":"one"}'


def test_a_second_ctrl_c_does_not_wait_for_a_sink(cluster: TestCluster, tmp_path: Path) -> None:
    topic = cluster.unique_topic("said", partitions=1)
    (tmp_path / "slow.py").write_text(SLOW)
    with cluster.producer() as producer:
        producer.send(topic, b"1")
    config = {"name": f"s {topic}", "connector.class": f"{tmp_path}/slow.py:slow", "topics": topic}
    with start(cluster, tmp_path, config) as process:
        try:
            runs = f"s {topic} runs until Ctrl+C: {tmp_path}/slow.py:slow, 1 task; "
            assert said(process) == f"{runs}`headrace group describe 'connect-s {topic}'` shows how far it is"
            assert process.stdout is not None
            assert process.stdout.readline() == "writes\n"
            process.send_signal(signal.SIGINT)
            assert said(process) == f"s {topic} {ENDS}"
            process.send_signal(signal.SIGINT)
            ended = said(process)
            assert ended.startswith(f"s {topic} ended without its last commit. Nothing is lost: ")
            assert ended.endswith("and the target may get it twice")
            assert process.wait(60) == 130
        finally:
            process.kill()
