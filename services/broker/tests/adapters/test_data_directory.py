"""Lock, identity, format number and token of a data directory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import crc32c
import pytest
from libs.common.tests.kit.clock import FakeClock
from storage_batches import SMALL, Writer

from headrace_broker.adapters.data_directory import DataDirectory, open_when_free
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.ports import Identity
from headrace_common.core.errors import Conflict, InconsistentClusterId, Rejected, StorageFailed, UnsupportedVersion

from .conftest import RocksDisk


def test_a_new_directory_has_no_identity_until_it_is_bound(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path / "new" / "data")
    assert directory.identity is None
    directory.check("any", 7)
    directory.bind("cluster-1", 3)
    directory.bind("cluster-1", 3)
    directory.close()
    directory = DataDirectory.open(tmp_path / "new" / "data")
    assert directory.identity == Identity("cluster-1", 3, 1)
    directory.check(None, 3)
    directory.close()


def test_a_foreign_directory_is_refused_with_both_names(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    directory.bind("cluster-1", 3)
    with pytest.raises(InconsistentClusterId, match=r"belongs to cluster 'cluster-1'.*this broker to cluster 'other'"):
        directory.check("other", 3)
    with pytest.raises(Rejected, match=r"belongs to broker 3 of cluster 'cluster-1', this is broker 4"):
        directory.bind("cluster-1", 4)
    directory.close()


HOLD = """
import sys
from headrace_broker.adapters.data_directory import DataDirectory
directory = DataDirectory.open(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=rf"in use by process {first.pid}\b"):
            DataDirectory.open(tmp_path)
        first.kill()
        first.wait()
    directory = DataDirectory.open(tmp_path)
    with pytest.raises(Conflict, match=rf"in use by process {os.getpid()}\b"):
        DataDirectory.open(tmp_path)
    directory.close()


async def looked(clock: FakeClock, times: int) -> None:
    """So often it has found the directory in use."""
    async with asyncio.timeout(10):
        for _ in range(times):
            await clock.until_asleep()
            await clock.advance(50)


async def test_a_process_that_is_about_to_end_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, first = FakeClock(), DataDirectory.open(tmp_path)
    waiting = asyncio.ensure_future(open_when_free(tmp_path, 120_000, clock, asyncio.Event()))
    await looked(clock, 10)
    assert not waiting.done()
    first.close()
    await looked(clock, 1)
    second = await asyncio.wait_for(waiting, 10)
    assert second is not None
    second.close()
    [told] = caplog.messages
    assert f"in use by process {os.getpid()};" in told
    assert "waiting up to 120 s" in told


async def test_a_process_that_does_not_end_is_not_waited_for_too_long(tmp_path: Path) -> None:
    clock, first = FakeClock(), DataDirectory.open(tmp_path)
    waiting = asyncio.ensure_future(open_when_free(tmp_path, 1_000, clock, asyncio.Event()))
    await looked(clock, 20)
    with pytest.raises(Conflict, match="in use by process"):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(Conflict):
        await open_when_free(tmp_path, 0, clock, asyncio.Event())
    first.close()


async def test_a_broker_that_is_to_stop_waits_for_nobody(tmp_path: Path) -> None:
    clock, first, stop = FakeClock(), DataDirectory.open(tmp_path), asyncio.Event()
    waiting = asyncio.ensure_future(open_when_free(tmp_path, 120_000, clock, stop))
    await looked(clock, 3)
    stop.set()
    assert await asyncio.wait_for(waiting, 10) is None
    first.close()
    assert await open_when_free(tmp_path, 120_000, clock, stop) is None, "nothing is opened that nobody would close"


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    text = b'{"format": 9, "cluster_id": null, "broker_id": null}'
    (tmp_path / "identity").write_bytes(text + f"\n{crc32c.crc32c(text):08x}\n".encode())
    with pytest.raises(UnsupportedVersion, match="format 9, this broker knows up to 1"):
        DataDirectory.open(tmp_path)
    (tmp_path / "identity").unlink()
    DataDirectory.open(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"\xff\xfe\n00", b'{"format": 1}\nzzzz\n'])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "identity").write_bytes(content)
    with pytest.raises(StorageFailed, match="identity is damaged"):
        DataDirectory.open(tmp_path)


def test_a_database_without_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    with pytest.raises(StorageFailed, match="no identity file"):
        DataDirectory.open(tmp_path)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StorageFailed, match="cannot be used"):
        DataDirectory.open(tmp_path / "data")


def test_the_token_is_read_once(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    assert directory.token is None
    directory.leave_token(12345)
    directory.close()
    for expected in (12345, None):
        directory = DataDirectory.open(tmp_path)
        assert directory.token == expected
        directory.close()


@pytest.mark.parametrize("at", range(15))
def test_a_damaged_token_means_unclean(tmp_path: Path, at: int) -> None:
    directory = DataDirectory.open(tmp_path)
    directory.leave_token(12345)
    directory.close()
    token = tmp_path / "clean-shutdown"
    data = bytearray(token.read_bytes())
    data[at % (len(data) - 1)] ^= 1
    token.write_bytes(data)
    directory = DataDirectory.open(tmp_path)
    assert directory.token is None
    directory.close()


async def test_a_database_of_another_broker_is_refused(tmp_path: Path) -> None:
    for name, broker in (("one", 1), ("two", 2)):
        disk = RocksDisk(tmp_path / name)
        disk.directory.bind("cluster-1", broker)
        disk.logs.write(Writer(disk.logs.new_log_id()).create())
        await disk.end()
    (tmp_path / "one" / "db").rename(tmp_path / "moved")
    (tmp_path / "two" / "db").rename(tmp_path / "one" / "db")
    directory = DataDirectory.open(tmp_path / "one")
    with pytest.raises(InconsistentClusterId, match=r"says cluster 'cluster-1', broker 1.*broker 2"):
        RocksDbLogs.open(directory, SMALL)
    directory.close()
