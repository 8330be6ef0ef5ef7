"""
What reading costs the client, without a broker: prebuilt batches come over a real gRPC stream or from memory.

``run(runs)`` returns rows ``{"name", "value", "unit", "baseline", "ratio", "runs"}``. The server is another process
that answers every fetch with the same batches under new offsets, so it is not the
bound; the baseline of each row is
named in it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc

import headrace
from headrace._core.fetch_answers import Answer
from headrace._core.record_runs import Deserializers
from headrace._transport.grpc import GrpcTransport
from headrace.aio._hand_out import HandOut
from headrace.consumer_settings import ConsumerSettings
from headrace_common.core.batch import RecordColumns, build_batch, build_row_batch, stamp
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import broker_pb2_grpc, cluster_pb2

RECORDS_PER_BATCH = 1200
RECORD_BYTES = 100
PARTITIONS = 6
TOPIC_ID = b"b" * 16
RECORDS = 3_000_000


class EndlessBroker(broker_pb2_grpc.BrokerServicer):
    """Leads one topic whose partitions never end."""

    def __init__(self, batch: bytes, partitions: int) -> None:
        self._batch = batch
        self._partitions = partitions
        self.port = 0

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802 - the proto's name
        answer = pb.MetadataResponse(cluster_id="bench", revision=1)
        node = answer.nodes.add(role=cluster_pb2.BROKER, id=1)
        node.grpc.host, node.grpc.port = "127.0.0.1", self.port
        topic = answer.topics.add(name="b", topic_id=TOPIC_ID, max_message_bytes=1 << 20)
        for number in range(self._partitions):
            topic.partitions.add(partition=number, leader=1, leader_epoch=0, replicas=[1], isr=[1])
        return answer

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802 - the proto's name
        answer = pb.ListOffsetsResponse()
        for entry in request.partitions:
            answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, offset=0, timestamp_ms=-1)
        return answer

    async def Fetch(self, requests: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        async for request in requests:
            answer = pb.FetchResponse(correlation_id=request.correlation_id)
            room = min(request.max_bytes, 8 << 20)
            for entry in request.partitions:
                count = min(entry.max_bytes, room) // len(self._batch)
                if not count:
                    continue
                room -= count * len(self._batch)
                found = answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition)
                found.high_watermark = found.last_stable_offset = entry.fetch_offset + 10_000_000
                first = entry.fetch_offset
                found.batches.extend(stamp(self._batch, first + n * RECORDS_PER_BATCH, 0) for n in range(count))
            yield answer


def batch_of(build: Callable[..., bytes]) -> bytes:
    values = [os.urandom(RECORD_BYTES // 2).hex().encode() for _ in range(RECORDS_PER_BATCH)]
    return build(RecordColumns(values=values, timestamps_ms=1_700_000_000_000))


def serve(batch: bytes, partitions: int, port: Any) -> None:
    """The server process."""

    async def main() -> None:
        from headrace_common.rpc.options import server_options

        server = grpc.aio.server(options=server_options())
        broker = EndlessBroker(batch, partitions)
        broker_pb2_grpc.add_BrokerServicer_to_server(broker, server)
        broker.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        port.send(broker.port)
        await server.wait_for_termination()

    asyncio.run(main())


class Endless:
    """A server process, while open."""

    def __init__(self, batch: bytes, partitions: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(batch, partitions, theirs), daemon=True)
        self._process.start()
        self.address = f"127.0.0.1:{ours.recv()}"

    def __enter__(self) -> str:
        return self.address

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.join()


def timed(step: Callable[[], int], records: int) -> tuple[float, float]:
    """Rate of ``step``, which says how many records it took, and process CPU per record in µs."""
    step()
    seen, cpu, start = 0, time.process_time(), time.perf_counter()
    while seen < records:
        seen += step()
    return seen / (time.perf_counter() - start), (time.process_time() - cpu) / seen * 1e6


def iteration(consumer: headrace.Consumer) -> Callable[[], int]:
    records = iter(consumer)

    def step() -> int:
        count = 0
        for _ in records:
            count += 1
            if count == 100_000:
                return count
        return count

    return step


def sync_rates(address: str, way: str, records: int) -> tuple[float, float]:
    with headrace.Consumer("b", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        steps: dict[str, Callable[[], int]] = {
            "iterate": iteration(consumer),
            "poll 500": lambda: len(consumer.poll(timeout_ms=None)),
            "poll 10000": lambda: len(consumer.poll(timeout_ms=None, max_records=10_000)),
            "poll_table": lambda: len(consumer.poll_table(timeout_ms=None)),
        }
        return timed(steps[way], records)


async def _aio_rates(address: str, way: str, records: int) -> tuple[float, float]:
    async with headrace.aio.Consumer("b", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        seen, cpu, start = 0, time.process_time(), time.perf_counter()
        if way == "iterate":
            async for _ in consumer:
                seen += 1
                if seen == records:
                    break
        while seen < records:
            if way == "poll 500":
                seen += len(await consumer.poll(timeout_ms=None))
            else:
                seen += len(await consumer.poll_table(timeout_ms=None))
        return seen / (time.perf_counter() - start), (time.process_time() - cpu) / seen * 1e6


def aio_rates(address: str, way: str, records: int) -> tuple[float, float]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_aio_rates(address, way, records))
    return uvloop.run(_aio_rates(address, way, records))


def bare_stream(address: str, records: int) -> tuple[float, float]:
    """The same bytes over the same stream, and nothing done with them."""

    async def main() -> tuple[float, float]:
        transport = GrpcTransport([address])
        await transport.metadata(pb.MetadataRequest(topics=["b"]))
        stream = transport.fetch_stream(headrace_node())
        batches, cpu, start = 0, time.process_time(), time.perf_counter()
        while batches * RECORDS_PER_BATCH < records:
            request = pb.FetchRequest(min_bytes=1, max_wait_ms=500, max_bytes=50 << 20)
            for number in range(PARTITIONS):
                request.partitions.add(topic_id=TOPIC_ID, partition=number, fetch_offset=0, max_bytes=1 << 20)
            answer = await stream.send(request)
            batches += sum(len(p.batches) for p in answer.partitions)
        seen = batches * RECORDS_PER_BATCH
        rate = seen / (time.perf_counter() - start), (time.process_time() - cpu) / seen * 1e6
        await transport.close()
        return rate

    return asyncio.run(main())


def headrace_node() -> NodeId:
    return NodeId(1)


def fed_rates(batch: bytes, way: str, records: int) -> tuple[float, float]:
    """The consumer's own work alone: batches are put where answers of brokers go; only taking them out is timed."""
    out = HandOut(ConsumerSettings(), SystemClock(), Deserializers(), lambda: None)
    core, node, offset, seen = out.core, headrace_node(), 0, 0
    for number in range(PARTITIONS):
        tp = headrace.TopicPartition("b", number)
        core.add(tp, 0)
        core.placed(tp, TopicId(TOPIC_ID), node, 0, 0.0)
    wall = cpu = 0.0
    while seen < records:
        plan = core.fetch(node)
        assert plan is not None, "the buffer is empty"
        fresh = [stamp(batch, offset + n * RECORDS_PER_BATCH, 0) for n in range(8)]
        offset += 8 * RECORDS_PER_BATCH
        core.answers.take(plan, [Answer(entry, 0, "", 1 << 60, 0, fresh) for entry in plan.entries.values()], 0.0)
        start, busy = time.perf_counter(), time.process_time()
        if way == "table":
            seen += len(out.take_table(None))
        else:
            while (run_now := out.next_run()) is not None:
                for _ in run_now.iterator:
                    seen += 1
        wall += time.perf_counter() - start
        cpu += time.process_time() - busy
    return seen / wall, cpu / seen * 1e6


def row(name: str, values: list[float], unit: str, baseline: str, against: list[float]) -> dict[str, Any]:
    value = statistics.median(values)
    base = statistics.median(against) if against else None
    ratio = round(value / base, 3) if base else None
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, "runs": values}


def run(runs: int) -> list[dict[str, Any]]:
    """All measures, interleaved, ``runs`` times."""
    ways: dict[str, Callable[[str], tuple[float, float]]] = {
        "bare": lambda address: bare_stream(address, RECORDS),
        "sync iterate": lambda address: sync_rates(address, "iterate", RECORDS),
        "sync poll 500": lambda address: sync_rates(address, "poll 500", RECORDS),
        "sync poll 10000": lambda address: sync_rates(address, "poll 10000", RECORDS),
        "sync poll_table": lambda address: sync_rates(address, "poll_table", RECORDS * 3),
        "aio iterate": lambda address: aio_rates(address, "iterate", RECORDS),
        "aio poll 500": lambda address: aio_rates(address, "poll 500", RECORDS),
        "aio poll_table": lambda address: aio_rates(address, "poll_table", RECORDS * 3),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    with Endless(batch_of(build_batch), PARTITIONS) as address:
        for _ in range(runs):
            for name, way in ways.items():
                rate, cost = way(address)
                rates[name].append(round(rate))
                cpu[name].append(round(cost, 3))
    with Endless(batch_of(build_row_batch), PARTITIONS) as address:
        of_rows: list[float] = [round(sync_rates(address, "iterate", RECORDS // 3)[0]) for _ in range(runs)]
    fed: dict[str, list[float]] = {"iterate": [], "table": []}
    batch = batch_of(build_batch)
    for _ in range(runs):
        for way, rates_of in fed.items():
            rates_of.append(round(fed_rates(batch, way, RECORDS)[0]))
    rows = [
        row(f"consume {name}", rates[name], "records/s", "the same bytes over a bare stream", rates["bare"])
        for name in ways
    ]
    rows += [row(f"consume {name}, client CPU", cpu[name], "us/record", "a bare stream", cpu["bare"]) for name in ways]
    rows.append(row("consume iterate, no network", fed["iterate"], "records/s", "target 1.2 M/s", [1.2e6]))
    rows.append(row("consume poll_table, no network", fed["table"], "records/s", "target 6 M/s", [6e6]))
    rows.append(row("consume sync iterate, Kafka rows", of_rows, "records/s", "columns", rates["sync iterate"]))
    return rows


if __name__ == "__main__":
    for line in run(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        print(json.dumps(line))
