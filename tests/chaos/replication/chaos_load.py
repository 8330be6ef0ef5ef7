"""
A process of the load: ``python chaos_load.py produce BOOTSTRAP TOPIC PARTITIONS PROCESS FILE RATE VALUE_BYTES``, or
``consume BOOTSTRAP TOPIC PARTITIONS PROCESS FILE RACK``.

It says ``ready`` when it has begun, and ends when its standard input does: a producer after all it sent is
acknowledged or given up, a consumer after its last poll. Values are unique per key and grow per process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from chaos_history import Writer

from headrace import aio
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_verify.checker import Outcome

PROCESSES_MAX = 16
SURELY_FAILED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


async def stdin_ends() -> None:
    """Return when whoever started us wants us to end, or is gone."""
    await asyncio.to_thread(sys.stdin.buffer.read)


def ready() -> None:
    """Say that the work has begun."""
    print("ready", flush=True)


def values(process: int) -> Iterator[int]:
    """Never the same from two processes."""
    number = 0
    while True:
        number += 1
        yield number * PROCESSES_MAX + process


async def produce(
    bootstrap: str, topic: str, partitions: int, process: int, out: Writer, rate: float, size: int
) -> None:
    """``rate`` records a second to each partition, each a number filled up to ``size`` bytes."""
    sources = [values(process) for _ in range(partitions)]
    notes: set[asyncio.Task[None]] = set()

    async def note(partition: int, value: int, delivery: aio.Delivery, began: int) -> None:
        try:
            out.sent(partition, value, Outcome.OK, (await delivery).offset, began)
        except HeadraceError as error:
            out.sent(partition, value, Outcome.FAIL if error.code in SURELY_FAILED else Outcome.INFO, -1, began)
            out.failed(f"send of {value} to {topic}-{partition}: {error!r}")

    stop = asyncio.ensure_future(stdin_ends())
    async with aio.Producer(bootstrap, acks="all", linger_ms=5, client_id=f"chaos-{process}") as producer:
        due = time.monotonic()
        first = True
        while not stop.done():
            for partition, source in enumerate(sources):
                value, began = next(source), time.monotonic_ns()
                delivery = await producer.send(topic, (b"%d" % value).ljust(size), partition=partition)
                task = asyncio.ensure_future(note(partition, value, delivery, began))
                notes.add(task)
                task.add_done_callback(notes.discard)
            if first:
                await asyncio.gather(*notes)
                ready()
                first = False
            due = max(due + 1 / rate, time.monotonic() - 1)
            await asyncio.sleep(max(due - time.monotonic(), 0))
        await asyncio.gather(*notes)


async def consume(bootstrap: str, topic: str, process: int, out: Writer, rack: str) -> None:
    """Follow all partitions from the beginning."""
    stop = asyncio.ensure_future(stdin_ends())
    out.assigned()
    settings = {"client_rack": rack} if rack else {}
    async with aio.Consumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100, **settings
    ) as consumer:
        ready()
        while not stop.done():
            try:
                records = await consumer.poll(timeout_ms=200)
            except HeadraceError as error:
                out.failed(f"poll: {error!r}")
                await asyncio.sleep(0.1)
                continue
            if records:
                out.polled((r.partition, r.offset, int(r.value)) for r in records)
            out.flush()


def main() -> None:
    what, bootstrap, topic, partitions, process, path, *more = sys.argv[1:]
    out = Writer(Path(path), int(process))
    try:
        if what == "produce":
            asyncio.run(produce(bootstrap, topic, int(partitions), int(process), out, float(more[0]), int(more[1])))
        else:
            asyncio.run(consume(bootstrap, topic, int(process), out, more[0] if more else ""))
    finally:
        out.close()


if __name__ == "__main__":
    main()
