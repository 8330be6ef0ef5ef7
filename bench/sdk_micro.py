"""
What producing costs the client: a call of ``send``, a record in all, one request on a stream, one awaited record.

``run(runs)`` returns rows ``{"name", "value", "unit", "baseline", "ratio", "runs"}``. The broker is another process
that acknowledges everything and stores nothing, so it is not the bound. Baselines: the C client's ``produce`` with a
callback, and a bare stream.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import grpc
import pyarrow as pa

import headrace
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.options import server_options
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import broker_pb2_grpc, cluster_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

RECORDS = 300_000
PARTITIONS = 6
VALUE = b"v" * 100
KEYS = [b"key-%d" % n for n in range(1_000)]
SLICE = 10_000
AWAITED = 2_000
REQUESTS = 5_000


class AckingBroker(broker_pb2_grpc.BrokerServicer):
    """Acknowledges every batch."""

    def __init__(self) -> None:
        self.port = 0

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802 - the proto's name
        answer = pb.MetadataResponse(cluster_id="bench", revision=1)
        node = answer.nodes.add(role=cluster_pb2.BROKER, id=1)
        node.grpc.host, node.grpc.port = "127.0.0.1", self.port
        topic = answer.topics.add(name="b", topic_id=b"b" * 16, max_message_bytes=1 << 20)
        for number in range(PARTITIONS):
            topic.partitions.add(partition=number, leader=1, leader_epoch=0, replicas=[1], isr=[1])
        return answer

    async def InitProducerId(self, request: Any, context: Any) -> pb.InitProducerIdResponse:  # noqa: N802 - the proto's
        return pb.InitProducerIdResponse(producer_id=1, producer_epoch=0)

    async def Produce(self, requests: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        async for request in requests:
            answer = pb.ProduceResponse(correlation_id=request.correlation_id)
            for entry in request.partitions:
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, log_append_time_ms=-1)
            yield answer


async def _serve(port_to: Any) -> None:
    server = grpc.aio.server(options=server_options())
    servicer = AckingBroker()
    broker_pb2_grpc.add_BrokerServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    port_to.send(servicer.port)
    await server.wait_for_termination()


def _server(port_to: Any) -> None:
    asyncio.run(_serve(port_to))


@contextmanager
def acking_broker() -> Any:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_server, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{mine.recv()}"
    finally:
        process.kill()
        process.join()


def cpu_seconds() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def produced(address: str, send: Callable[[headrace.Producer], None]) -> tuple[float, float]:
    """Microseconds per record: of the caller's thread, and of the whole process until all is acknowledged."""
    with headrace.Producer(address) as producer:
        producer.send_many("b", [VALUE] * SLICE, KEYS * (SLICE // len(KEYS))).result(30)
        whole, caller = cpu_seconds(), time.thread_time()
        send(producer)
        caller = time.thread_time() - caller
        producer.flush(60)
        return caller / RECORDS * 1e6, (cpu_seconds() - whole) / RECORDS * 1e6


def send_plain(producer: headrace.Producer) -> None:
    for _ in range(RECORDS):
        producer.send("b", VALUE)


def send_keyed(producer: headrace.Producer) -> None:
    for _ in range(RECORDS // len(KEYS)):
        for key in KEYS:
            producer.send("b", VALUE, key)


def send_lists(producer: headrace.Producer) -> None:
    values, keys = [VALUE] * SLICE, KEYS * (SLICE // len(KEYS))
    for _ in range(RECORDS // SLICE):
        producer.send_many("b", values, keys)


def send_arrays(producer: headrace.Producer) -> None:
    table = pa.table({"value": [VALUE] * SLICE, "key": KEYS * (SLICE // len(KEYS))})
    for _ in range(RECORDS // SLICE):
        producer.send_table("b", table)


def confluent_call() -> float:
    """Microseconds of the caller per ``produce`` with a callback; no broker answers, the records stay in its queue."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": RECORDS, "log_level": 0}
    producer = confluent_kafka.Producer(settings)

    def callback(error: Any, message: Any) -> None:
        return

    count = RECORDS // 3
    start = time.thread_time()
    for n in range(count):
        producer.produce("b", VALUE, KEYS[n % 1000], on_delivery=callback)
    used = (time.thread_time() - start) / count * 1e6
    producer.purge()
    return used


def awaited_ms(address: str) -> float:
    """Median milliseconds from ``send`` to its acknowledgement, one record at a time."""
    times = []
    with headrace.Producer(address, linger_ms=0) as producer:
        for _ in range(AWAITED):
            start = time.perf_counter()
            producer.send("b", VALUE).result(10)
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _request(number: int) -> pb.ProduceRequest:
    request = pb.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=1_000)
    request.partitions.add(topic_id=b"b" * 16, partition=0, batch=VALUE)
    return request


async def _bare(address: str) -> float:
    async with open_channel(address) as channel:
        call = BrokerStub(channel).Produce()
        times = []
        for n in range(AWAITED):
            start = time.perf_counter()
            await call.write(_request(n))
            await call.read()
            times.append(time.perf_counter() - start)
        call.cancel()
    return statistics.median(times) * 1e3


async def _read_write(address: str) -> float:
    async with open_channel(address) as channel:
        call = BrokerStub(channel).Produce()
        start = cpu_seconds()

        async def write() -> None:
            for n in range(REQUESTS):
                await call.write(_request(n))

        writer = asyncio.ensure_future(write())
        for _ in range(REQUESTS):
            await call.read()
        await writer
        used = cpu_seconds() - start
        call.cancel()
    return used / REQUESTS * 1e6


async def _iterators(address: str) -> float:
    async with open_channel(address) as channel:

        async def requests() -> AsyncIterator[pb.ProduceRequest]:
            for n in range(REQUESTS):
                yield _request(n)

        start = cpu_seconds()
        count = 0
        async for _ in BrokerStub(channel).Produce(requests()):
            count += 1
            if count == REQUESTS:
                break
    return (cpu_seconds() - start) / REQUESTS * 1e6


def row(name: str, unit: str, ours: list[float], theirs: list[float] | None = None) -> dict[str, Any]:
    value = statistics.median(ours)
    baseline = statistics.median(theirs) if theirs else None
    ratio = value / baseline if baseline else None
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, "runs": ours}


def run(runs: int) -> list[dict[str, Any]]:
    """All rows; sides are interleaved."""
    calls: dict[str, list[float]] = {}
    with acking_broker() as address:
        ways = {"send": send_plain, "send-keyed": send_keyed, "send_many": send_lists, "send_table": send_arrays}
        for _ in range(runs):
            for name, way in ways.items():
                caller, whole = produced(address, way)
                calls.setdefault(f"{name} caller", []).append(caller)
                calls.setdefault(f"{name} cpu", []).append(whole)
            calls.setdefault("confluent", []).append(confluent_call())
            calls.setdefault("awaited", []).append(awaited_ms(address))
            calls.setdefault("bare", []).append(asyncio.run(_bare(address)))
            calls.setdefault("read-write", []).append(asyncio.run(_read_write(address)))
            calls.setdefault("iterators", []).append(asyncio.run(_iterators(address)))
    rows = [
        row(f"sdk-{name}-caller (confluent produce with callback)", "us/record", calls[f"{name} caller"], theirs)
        for name in ways
        for theirs in [calls["confluent"]]
    ]
    rows += [row(f"sdk-{name}-client-cpu", "us/record", calls[f"{name} cpu"]) for name in ways]
    rows.append(row("sdk-awaited-record-p50 (bare stream)", "ms", calls["awaited"], calls["bare"]))
    rows.append(row("grpc-read-write-cpu (iterator API)", "us/request", calls["read-write"], calls["iterators"]))
    return rows


if __name__ == "__main__":
    for line in run(3):
        print(line)
