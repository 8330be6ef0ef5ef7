"""The programs ``backup`` and ``restore`` as processes, on a real etcd and a real controller."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from libs.common.tests.kit.ports import free_port
from services.controller.tests.kit.backup_keys import certificate_file, certify, key_file
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.process import ControllerProcess
from services.controller.tests.kit.programs import run, said

from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.core.backup_file import decode
from headrace_controller.core.records import Cluster, Configs, encode
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.store import Put, Transaction

pytestmark = pytest.mark.integration
PREFIX = "/headrace/headrace/"


async def killed(etcd: EtcdProcess, *arguments: object, after_s: float) -> None:
    """Run ``restore`` and kill it so long after its first write."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace_controller.restore", *map(str, arguments)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with EtcdStore.open([etcd.endpoint], PREFIX) as store, asyncio.timeout(30):
        before = await store.get(RESTORING_KEY)
        while await store.get(RESTORING_KEY) == before:
            await asyncio.sleep(0.005)
    await asyncio.sleep(after_s)
    process.kill()
    await process.wait()


async def content(etcd: EtcdProcess) -> dict[str, bytes]:
    async with EtcdStore.open([etcd.endpoint], PREFIX) as store:
        return {item.key: item.value for item in (await store.list_all()).items}


async def grown(etcd: EtcdProcess, keys: int) -> None:
    cluster = (Put("format", b"1"), Put("cluster", encode(Cluster("id", b"i" * 16))))
    async with EtcdStore.open([etcd.endpoint], PREFIX) as store:
        await store.commit(Transaction((), cluster))
        for start in range(0, keys, 100):
            some = [(f"configs/brokers/{n}", encode(Configs(n, {"a": "b"}))) for n in range(start, start + 100)]
            await store.commit(Transaction((), tuple(Put(*kv) for kv in some)))


def recipient(directory: Path) -> tuple[Path, Path]:
    """A certificate, and its key."""
    key = rsa.generate_private_key(65537, 2048)
    certificate, path = directory / "backup.crt", key_file(directory / "backup.key", key)
    return certificate_file(certificate, certify(key)), path


async def test_there_and_back(etcd: EtcdProcess, tmp_path: Path) -> None:
    at = ("--etcd", etcd.endpoint, "--wait", 20)
    nothing = await said("backup", *at, "--to", tmp_path / "b")
    assert nothing["backup"] is None
    controller = ControllerProcess(tmp_path, 1, etcd.endpoint)
    await controller.start()
    try:
        async with EtcdStore.open([etcd.endpoint], PREFIX) as store, asyncio.timeout(20):
            while await store.get("controller") is None:
                await asyncio.sleep(0.02)
        code, _, err = await run("restore", "--etcd", etcd.endpoint, "--brokers", "1", tmp_path / "b")
        assert code == 1
        made = await said("backup", *at, "--to", tmp_path / "b", "--keep", 1)
        first = decode(Path(made["backup"]).read_bytes())
        assert made["keys"] == len(first.rows)
        assert {"format", "cluster", "controller", "ids/epoch"} <= {row.key for row in first.rows}
        await asyncio.sleep(1.1)  # names have seconds
        certificate, key = recipient(tmp_path)
        again = await said("backup", *at, "--to", tmp_path / "b", "--keep", 1, "--encrypt-to", certificate)
        assert again["removed"] == 1
        assert again["encrypted_to"][0].startswith("CN=backups (SHA-256 ")
        named = ("--brokers", "1", "--decrypt-with", key, again["backup"])
        code, _, err = await run("restore", "--etcd", etcd.endpoint, "--wait", 1, *named)
        assert (code, "stop all controllers" in err) == (1, True)
    finally:
        await controller.close()
    code, _, err = await run("restore", *at, "--brokers", "1", "--replace", tmp_path / "b")
    assert (code, "is encrypted to CN=backups" in err, "Traceback" in err) == (1, True, False)
    at = (*at, "--decrypt-with", key)
    code, _, err = await run("restore", *at, "--brokers", "1", again["backup"])  # waits for the lease to end
    assert (code, "--replace" in err) == (1, True)
    done = await said("restore", *at, "--brokers", "2,1", "--replace", tmp_path / "b")
    assert (done["expected_brokers"], done["logins_ended"], "note" in done) == ([1, 2], 0, False)
    found = await content(etcd)
    assert RESTORING_KEY not in found
    before = {row.key: row.value for row in first.rows}
    assert json.loads(found["cluster"])["id"] == json.loads(before["cluster"])["id"]
    assert found["cluster"] != before["cluster"]


async def test_killed_in_the_middle_and_repeated(etcd: EtcdProcess, tmp_path: Path) -> None:
    await grown(etcd, 20_000)
    made = await said("backup", "--etcd", etcd.endpoint, "--to", tmp_path)
    whole = len(decode(Path(made["backup"]).read_bytes()).rows)
    command = ("--etcd", etcd.endpoint, "--brokers", "1", "--replace", made["backup"])
    for after_s in (0, 0.1, 0.4, 0):
        await killed(etcd, *command, after_s=after_s)
        assert RESTORING_KEY in await content(etcd)
    done = await said("restore", *command)
    assert done["keys"] == whole + 3  # two counters and what is said of the restore
    found = await content(etcd)
    assert RESTORING_KEY not in found
    assert sum(key.startswith("configs/brokers/") for key in found) == 20_000


async def test_etcd_may_be_away(tmp_path: Path) -> None:
    code, out, err = await run("backup", "--etcd", f"127.0.0.1:{free_port()}", "--wait", 1, "--to", tmp_path)
    assert (code, out) == (1, "")
    assert "etcd cannot be reached" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("restore", "x"), "--brokers"),
        (("restore", "--brokers", "a,b", "x"), "takes ids"),
        (("backup",), "--to"),
        (("backup", "--to", ".", "--keep", "0"), "1 or more"),
        (("restore", "--brokers", "1", "/nonexistent.backup"), "No such file"),
        (("restore", "--brokers", "1", __file__), "no backup"),
    ],
)
async def test_usage(arguments: tuple[str, ...], text: str) -> None:
    code, _, err = await run(*arguments)
    assert code in {1, 2}
    assert text in err
    assert "Traceback" not in err
