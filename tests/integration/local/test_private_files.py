"""No other user reads what a local cluster writes: real processes, started with the umask that people have."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.local.conftest import MakeCluster

from headrace import AdminClient, Producer

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(top: Path) -> dict[str, str]:
    paths = [top, *top.rglob("*")]
    assert len(paths) > 20
    found = {str(p.relative_to(top)): p.lstat().st_mode for p in paths if p.exists() and not p.is_symlink()}
    return {name: stat.filemode(mode) for name, mode in found.items() if mode & 0o077}


def test_everything_is_private_and_what_was_open_is_narrowed_once(make_cluster: MakeCluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()  # by its user, 0755
    cluster = make_cluster(brokers=1)
    cluster.start()
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_topic("private", partitions=1)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("private", value=b"1").result()
    assert open_to_others(data) == {}
    cluster.stop()
    assert open_to_others(data) == {}

    for path in (data, *data.rglob("*")):  # as a version without this left it
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data / "notes.txt").write_text("of its user")
    for _ in range(2):
        cluster.start()
        assert open_to_others(data) == {"notes.txt": "-rw-r--r--"}
        cluster.stop()
    log = (data / "logs" / "supervisor.log").read_text()
    assert log.count("was not private") == 2, "once for the directory of its user, once for what was opened"
