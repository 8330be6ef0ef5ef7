"""Secrets of every kind that a closed cluster gives or is shown, each of them used; and all that it writes and says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from libs.common.tests.kit.issuer import SigningIssuer

from headrace import AdminClient, Producer, access, aio
from headrace._logging_in import log_in
from headrace.errors import HeadraceError, Unauthenticated
from headrace.local_keys import local_keys_directory, read_local_keys
from headrace.ticket_types import AccessQuestion, TicketAudience
from headrace_cli.local import LocalCluster
from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.plan import CERTIFICATES
from headrace_common.core.access.scram import DEFAULT_MECHANISM
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Security
from headrace_common.runtime.token_file import read_tokens
from headrace_controller.core.backup_file import decode

PASSWORD: Final = "a canary sings at dawn, 7 times"
WRONG: Final = "a canary sings at dusk, 8 times"
AUDIENCE: Final = TicketAudience("shop", "127.0.0.1:1")
ASKED: Final = (AccessQuestion("READ", "GROUP", AUDIENCE.group),)
ROUTES: Final = ("/v1/access", "/v1/keys", "/v1/users", "/v1/access/observed", "/v1/whoami", "/v1/cluster/certificates")


def plant(cluster: LocalCluster, admin: AdminClient, idp: SigningIssuer) -> dict[str, bytes]:
    """Use one of each kind, well and wrongly; by what it is called."""
    at, broker = cluster.bootstrap_servers, cluster.process("broker-1").grpc
    admin.create_user("canary", PASSWORD)
    owners = "User:canary", f"Oidc:{idp.issuer.alias}/bird"
    rights = [access.allow(who, ["WRITE"], "TOPIC", "orders") for who in owners]
    rights.append(access.allow("User:canary", ["READ"], "GROUP", AUDIENCE.group))
    admin.alter_access([access.Put(one) for one in rights])
    key = admin.create_key("User:canary").key.reveal()
    login = admin.log_in("canary", PASSWORD).key.reveal()
    token = idp.token(now_ms=int(time.time() * 1_000), sub="bird")
    session = asyncio.run(log_in(broker, Security(), "canary", Secret(PASSWORD), DEFAULT_MECHANISM)).token.reveal()
    for shown in (key, login, token):
        _write(at, api_key=shown)
    _write(at, username="canary", password=PASSWORD)
    with pytest.raises(Unauthenticated):
        _write(at, username="canary", password=WRONG)
    with pytest.raises(HeadraceError):
        admin.log_in("canary", WRONG)
    tampered = f"{token[:-8]}{token[-8:].swapcase()}"
    with pytest.raises(Unauthenticated):
        _write(at, api_key=tampered)
    ticket = asyncio.run(_ticket(at, key))
    secrets = {
        "a key that was made": key,
        "the secret of a key": key.rpartition("_")[2],
        "the key of a login": login,
        "the key of the start": key_of_start(cluster),
        "a password": PASSWORD,
        "a wrong password": WRONG,
        "a session": session,
        "the signature of a session": session.rpartition(".")[2],
        "a token of an issuer": token,
        "the signature of a token": token.rpartition(".")[2],
        "a tampered token": tampered,
    }
    found = {what: secret.encode() for what, secret in secrets.items()}
    found |= {"a ticket": ticket, "the node token": read_tokens(cluster.directory.path / "node-token")[0]}
    for file in (cluster.directory.path / CERTIFICATES).rglob("*.key"):
        lines = file.read_bytes().splitlines()
        found[f"the private key {file.name}"] = lines[len(lines) // 2]
    return found


def _write(at: list[str], **shown: Any) -> None:
    with Producer(at, **shown) as producer:
        producer.send("orders", b"canary").result(30)


async def _ticket(at: list[str], key: str) -> bytes:
    async with aio.AdminClient(at, api_key=key) as client:
        ticket = (await client.issue_ticket(AUDIENCE, ASKED)).text
        assert not (await client.check_access(ASKED, ticket=ticket, audience=AUDIENCE)).ticket_refused
        strange = AUDIENCE._replace(endpoint="127.0.0.1:2")
        assert (await client.check_access(ASKED, ticket=ticket, audience=strange)).ticket_refused
    return ticket


def key_of_start(cluster: LocalCluster) -> str:
    return read_local_keys(local_keys_directory(os.environ))[cluster.bootstrap_servers[0]].reveal()


def everything_said(cluster: LocalCluster, directory: Path) -> Iterator[tuple[str, bytes]]:
    """Logs, metrics, command lines, what is stored, a bundle, a backup, and answers; not the files of credentials."""
    root = cluster.directory.path
    for log in sorted(cluster.directory.logs.iterdir()):
        yield str(log), log.read_bytes()
    for one in cluster.processes:
        yield f"the command line of {one.name}", Path(f"/proc/{one.pid}/cmdline").read_bytes()
        if one.metrics and not one.name.startswith("etcd"):
            with urllib.request.urlopen(f"http://{one.metrics}/metrics", timeout=10) as answer:
                yield f"metrics of {one.name}", answer.read()
    for route in ROUTES:
        headers = {"Authorization": f"Bearer {key_of_start(cluster)}"}
        with urllib.request.urlopen(
            urllib.request.Request(cluster.admin_url + route, headers=headers), timeout=10
        ) as told:
            yield route, told.read()
    yield from _bundle(cluster, directory)
    yield from _backup(cluster, directory)
    stored = [root / "etcd-1", root / "audit", root / "supervisor.json", *root.glob("broker-*")]
    assert all(each.exists() for each in stored), "what is stored is there to be searched"
    for file in chain(*([each] if each.is_file() else each.rglob("*") for each in stored)):
        with suppress(FileNotFoundError):  # etcd and RocksDB go on
            if file.is_file():
                yield str(file), file.read_bytes()


def _bundle(cluster: LocalCluster, directory: Path) -> Iterator[tuple[str, bytes]]:
    """As somebody sends it to others who look for a fault."""
    file = directory / "bundle.tar.gz"
    words = ["debug", "bundle", "--to", str(file), "--data-dir", str(cluster.directory.path)]
    argv = [sys.executable, "-m", "headrace_cli", "-b", ",".join(cluster.bootstrap_servers), *words]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    yield "what is said of the bundle", done.stdout + done.stderr
    with tarfile.open(file) as bundle:
        members = [one for one in bundle.getmembers() if one.isfile()]
        assert any("log" in one.name for one in members), [one.name for one in members]
        for one in members:
            read = bundle.extractfile(one)
            assert read is not None
            yield f"{one.name} of the bundle", read.read()


def _backup(cluster: LocalCluster, directory: Path) -> Iterator[tuple[str, bytes]]:
    files = EtcdFiles(cluster.directory.path / CERTIFICATES)
    shown = ["--etcd-ca", files.ca, "--etcd-cert", files.controller, "--etcd-key", files.key(files.controller)]
    to = ["--to", directory / "backups", "--etcd", cluster.process("etcd-1").grpc]
    argv = [sys.executable, "-m", "headrace_controller.backup", *map(str, [*to, *shown])]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    yield "what is said of the backup", done.stdout + done.stderr
    raw = Path(json.loads(done.stdout)["backup"]).read_bytes()
    yield "the backup", raw
    rows = decode(raw).rows
    assert any("access/users/" in row.key for row in rows)
    for row in rows:
        yield f"{row.key} of the backup", row.value
