"""The ceiling of the wire: a bare gRPC stream that carries the same bytes and stores nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc

from bench.clients.clock import latencies
from headrace_common.rpc.options import channel_options, server_options
from headrace_common.runtime.service import run_process

METHOD = "/headrace.bench.Stream/Carry"


def _server(pipe: Connection) -> None:
    async def carry(_requests, context):
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(len(request).to_bytes(8, "big"))

    async def serve(stop: asyncio.Event) -> None:
        handler = grpc.stream_stream_rpc_method_handler(carry)
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("headrace.bench.Stream", {"Carry": handler}),)
        )
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await stop.wait()

    run_process(serve)


@contextmanager
def _serving() -> Iterator[int]:
    """A server in another process, on the loop that services have; its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_server, args=(theirs,), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        server.kill()
        server.join()


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
    count = total // request_size
    with _serving() as port:
        return count * request_size / asyncio.run(_carry(port, os.urandom(request_size), count, in_flight)) / 1e6


def echo(records: int, request_size: int = 200) -> dict[str, float]:
    """Percentiles of one message in flight, there and back, as ``headrace_client rtt`` has them of one record."""
    spawn = multiprocessing.get_context("spawn")
    with (
        _serving() as port,
        ProcessPoolExecutor(1, spawn) as client,
    ):  # as any client, with a gRPC and a loop of its own
        return client.submit(_echo_all, port, os.urandom(request_size), records).result()


def _echo_all(port: int, request: bytes, records: int) -> dict[str, float]:
    return latencies(asyncio.run(_echo(port, request, records + 300))[300:])


async def _echo(port: int, request: bytes, count: int) -> list[float]:
    seconds: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        call = channel.stream_stream(METHOD)()
        for _ in range(count):
            start = time.perf_counter()
            await call.write(request)
            await call.read()
            seconds.append(time.perf_counter() - start)
        await call.done_writing()
    return seconds
