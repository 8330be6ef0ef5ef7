"""A controller as a real process, for tests."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from headrace_common.core.ids import Endpoint

_READY_S: Final = 20.0


class ControllerProcess:
    """``python -m headrace_controller`` on a free port; its log is in ``directory``."""

    def __init__(self, directory: Path, node_id: int, etcd: Endpoint, *arguments: str, port: int = 0) -> None:
        self.node_id = node_id
        self.log = directory / f"controller-{node_id}.log"
        self._ready = directory / f"controller-{node_id}.json"
        self._command = [
            *(sys.executable, "-m", "headrace_controller"),
            *("--node-id", str(node_id), "--etcd", str(etcd), "--listen", f"127.0.0.1:{port}"),
            *("--ready-file", str(self._ready), "--log-level", "info", *arguments),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint("", 0)

    async def start(self) -> None:
        """Start, and wait until it serves."""
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        async with asyncio.timeout(_READY_S):
            while not self._ready.exists():
                assert self._process.poll() is None, f"the controller ended: {self.log.read_text()[-2000:]}"
                await asyncio.sleep(0.02)
        self.endpoint = Endpoint.parse(json.loads(self._ready.read_text())["grpc"])

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "it runs"
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None, "it runs"
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None, "it was started"
        return await asyncio.to_thread(self._process.wait, 20)

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def close(self) -> None:
        """Make sure that it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await self.wait()
