"""A process for ``test_service``: serves one slow method and a stream, and says in its log how it left."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc

from headrace_common.runtime.logs import configure_logs, logger
from headrace_common.runtime.service import GrpcService, Ready, ServerConfig, announce_ready, run_process, run_until
from headrace_common.runtime.tasks import TaskRunner


async def serve(ready_file: Path, drain_ms_max: int, stop: asyncio.Event) -> None:
    configure_logs("child", 1, "info")

    async def slow(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(float(request))
        return b"done"

    async def crash(request: bytes, context: Any) -> bytes:
        async def bug() -> None:
            raise ValueError("a bug in a loop")

        tasks.start(bug(), name="bug")
        return b""

    handlers = {
        "slow": grpc.unary_unary_rpc_method_handler(slow),
        "crash": grpc.unary_unary_rpc_method_handler(crash),
    }

    def add(_: object, server: Any) -> None:
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])

    config = ServerConfig(ready_file=ready_file, drain_ms_max=drain_ms_max)
    try:
        async with TaskRunner() as tasks, GrpcService.open(config, [(add, None)], ["t.T"]) as server:
            announce_ready(Ready("child-1", grpc=server.endpoint), config.ready_file)
            await run_until(stop, tasks)
    finally:
        logger("child").info("closed")


if __name__ == "__main__":
    sys.exit(run_process(lambda stop: serve(Path(sys.argv[1]), int(sys.argv[2]), stop)))
