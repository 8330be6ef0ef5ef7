"""Workers of Connect and of an app that have their roles, what is named beside them, and no right else."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from libs.common.tests.kit.ports import free_port

from headrace import AdminClient, Consumer, Producer, access
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

pytestmark = pytest.mark.integration

WAIT_S = 60.0
PROGRAM = """\
from headrace.streams import App, agg, col, string

app = App("words")
words = app.stream("lines", value=string).select(word=col("value").str.split(" ")).explode("word")
words.group_by("word", name="by-word").agg(n=agg.count(), name="counts").to("counts")
"""
GROUP = "of shop.eu"
"""A Connect cluster whose name stands otherwise in ids."""


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data"), brokers=1) as cluster:
        yield cluster


@contextmanager
def process(log: Path, command: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program of somebody who has no other credential than what ``env`` says; killed at the end."""
    nobodys = {"XDG_CONFIG_HOME": str(log.parent / "somebody")}
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *command], env={**os.environ, **nobodys, **env}, stdout=output, stderr=output
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def key_of(admin: AdminClient, principal: str, file: Path, **roles: str | None) -> dict[str, str]:
    """A key of somebody new with these roles, each on a name, in a file that is named as clients look for it."""
    admin.alter_access([access.Put(access.bind(principal, role, name)) for role, name in roles.items()])
    file.touch(0o600)
    file.write_text(admin.create_key(principal).key.reveal())
    return {"HEADRACE_API_KEY_FILE": str(file)}


def test_workers_of_connect_run_a_source_and_a_sink(cluster: LocalCluster, tmp_path: Path) -> None:
    http = free_port()
    url, log = f"http://127.0.0.1:{http}", tmp_path / "worker.log"
    env = {
        "HEADRACE_CONNECT_BOOTSTRAP_SERVERS": ",".join(cluster.bootstrap_servers),
        "HEADRACE_CONNECT_GROUP_ID": GROUP,
        "HEADRACE_CONNECT_HTTP_LISTEN": f"127.0.0.1:{http}",
        "HEADRACE_CONNECT_FILES_ALLOWED_PATHS": str(tmp_path),
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    connectors: dict[str, dict[str, Any]] = {
        "lines": {"connector.class": "files", "path": str(tmp_path / "in"), "format": "jsonl", "topic": "shop.lines"},
        "copies": {
            "connector.class": "sql-sink",
            "topics": "shop.lines",
            "connection.url": f"sqlite:///{tmp_path / 'copies.db'}",
            "table.name.format": "copies",
            "auto.create": "true",
        },
    }
    with AdminClient(cluster.bootstrap_servers) as admin:
        shows = key_of(admin, "User:workers", tmp_path / "key", connect=GROUP, developer="shop.")
    with (
        process(log, ["headrace_connect_worker"], env | shows),
        httpx.Client(base_url=url, headers=cluster.authorization, timeout=30) as client,
    ):

        def put(name: str) -> bool:
            try:
                done = client.put(f"/connectors/{name}/config", json=connectors[name])
            except httpx.TransportError:
                return False
            assert done.status_code in (200, 201, 409, 503), done.text  # no worker leads yet
            return done.status_code in (200, 201)

        for name in connectors:
            assert wait_until(lambda name=name: put(name), WAIT_S), log.read_text()
        assert wait_until(lambda: rows(tmp_path / "copies.db") == 2, WAIT_S), log.read_text()
        assert client.put("/connectors/lines/stop").is_success
        assert wait_until(lambda: client.delete("/connectors/lines/offsets").status_code == 200, WAIT_S), (
            log.read_text()
        )
        assert client.delete("/connectors/copies").status_code == 204
    assert " may not " not in log.read_text().replace("may not DESCRIBE CLUSTER", "")


def rows(file: Path) -> int:
    if not file.exists():
        return 0
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM copies").fetchone()[0])
        except sqlite3.OperationalError:  # not made yet, or being written
            return 0


def test_an_app_reads_counts_and_writes(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(PROGRAM)
    log = tmp_path / "app.log"
    command = ["headrace_cli", "streams", "run", str(tmp_path / "words.py"), "--state-dir", str(tmp_path / "state")]
    with (
        AdminClient(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
        Consumer("counts", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as reader,
    ):
        for topic in ("lines", "counts"):
            admin.create_topic(topic, partitions=2)
        shows = key_of(admin, "User:words", tmp_path / "key", streams="words", consumer="lines", producer="counts")
        env = {"HEADRACE_BOOTSTRAP": ",".join(cluster.bootstrap_servers), **shows}
        found: dict[bytes | None, bytes | None] = {}

        def counted() -> bool:
            found.update({record.key: record.value for record in reader.poll(500)})
            return len(found) == 2

        with process(log, command, env):
            producer.send("lines", b"a b a").result(30)
            assert wait_until(counted, WAIT_S), (found, log.read_text())
            assert log.read_text().replace("may not DESCRIBE_CONFIGS TOPIC counts", "").count(" may not ") == 0
        reset = ["streams", "reset", str(tmp_path / "words.py"), "--execute"]
        with process(tmp_path / "reset.log", ["headrace_cli", *reset], env) as done:
            assert done.wait(WAIT_S) == 0, (tmp_path / "reset.log").read_text()
