"""The ceiling of the wire: a bare gRPC stream that carries the same bytes and stores nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import grpc

from headrace_common.rpc.options import channel_options, server_options

METHOD = "/headrace.bench.Stream/Carry"


async def _serve(pipe: Connection) -> None:
    async def carry(requests, _context):
        async for request in requests:
            yield len(request).to_bytes(8, "big")

    handler = grpc.stream_stream_rpc_method_handler(carry)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("headrace.bench.Stream", {"Carry": handler}),)
    )
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


def _server(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _carry(port: int, request: bytes, count: int, in_flight: int) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        call = channel.stream_stream(METHOD)()
        credit = asyncio.Semaphore(in_flight)

        async def answers() -> None:
            for _ in range(count):
                assert await call.read() is not grpc.aio.EOF
                credit.release()

        await call.write(request)
        await call.read()
        start = time.perf_counter()
        reader = asyncio.ensure_future(answers())
        for _ in range(count):
            await credit.acquire()
            await call.write(request)
        await reader
        seconds = time.perf_counter() - start
        await call.done_writing()
        return seconds


def mb_per_second(request_size: int = 1 << 20, total: int = 500 << 20, in_flight: int = 5) -> float:
    """MB/s of one client over one stream to a server in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_server, args=(theirs,), daemon=True)
    server.start()
    try:
        port = ours.recv()
        count = total // request_size
        return count * request_size / asyncio.run(_carry(port, os.urandom(request_size), count, in_flight)) / 1e6
    finally:
        server.kill()
        server.join()
