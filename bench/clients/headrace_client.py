"""Headrace's Python SDK under the same loops as the other clients."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections import deque

import headrace
from bench.clients.clock import Clock, emit_latencies
from bench.clients.values import random_values
from headrace import aio

HANDLES_KEPT = 50_000


def produce(a: argparse.Namespace) -> None:
    """
    ``send`` per record (``handles``: and look at what became of each), ``send_many`` of 1,000, or that of keyed
    records; after ``--warm`` records that are not counted.
    """
    values = random_values(a.size)
    with headrace.Producer(a.bootstrap, acks=a.acks, **settings(a)) as producer:
        producer.send(a.topic, values[0], key=b"first" if a.mode == "keyed" else None).result(30)
        loop = {"keyed": keyed, "many": many, "handles": handles}.get(a.mode, one_by_one)
        if a.warm:
            loop(producer, a, values, a.warm)
            producer.flush(120)
        with Clock() as clock:
            loop(producer, a, values, a.records)
            producer.flush(120)
    clock.report(a.records, a.size)


def one_by_one(producer: headrace.Producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    send, topic = producer.send, a.topic
    for value in itertools.islice(itertools.cycle(values), records):
        send(topic, value)


def handles(producer: headrace.Producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    """Each handle is looked at, at the latest when 50,000 newer ones are there."""
    send, topic = producer.send, a.topic
    waiting: deque[headrace.Delivery] = deque()
    for value in itertools.islice(itertools.cycle(values), records):
        waiting.append(send(topic, value))
        if len(waiting) > HANDLES_KEPT:
            look(waiting.popleft())
    producer.flush(120)
    for delivery in waiting:
        look(delivery)


def look(delivery: headrace.Delivery) -> None:
    """As a callback of the other client does: whether there was an error."""
    error = delivery.exception(60)
    if error is not None:
        raise error


def many(producer: headrace.Producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    chunk = [values[i % len(values)] for i in range(1000)]
    for _ in range(records // 1000):
        producer.send_many(a.topic, chunk)


def keyed(producer: headrace.Producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    """Updates of ``--keys`` keys in a random order, by ``send_many`` of 1,000."""
    chunk = [values[i % len(values)] for i in range(1000)]
    names = [b"%010d" % n for n in range(a.keys)]
    for _ in range(records // 1000):
        producer.send_many(a.topic, chunk, keys=random.choices(names, k=1000))


def settings(a: argparse.Namespace) -> dict[str, object]:
    """Settings given as ``--set name=value``."""
    pairs = (s.split("=", 1) for s in a.set)
    return {k: int(v) if v.lstrip("-").isdigit() else v for k, v in pairs}


def consume(a: argparse.Namespace) -> None:
    """From the beginning: iteration, ``poll`` lists, or Arrow tables. The clock starts at the first records."""
    got = size = 0
    with headrace.Consumer(
        a.topic, bootstrap_servers=a.bootstrap, auto_offset_reset="earliest", **settings(a)
    ) as consumer:
        if a.mode == "one":
            records = iter(consumer)
            next(records)
            got = 1
            with Clock() as clock:
                for record in records:
                    size += len(record.value)
                    got += 1
                    if got >= a.records:
                        break
        elif a.mode == "table":
            got = consumer.poll_table(30_000, max_records=1).num_rows
            first = got
            with Clock() as clock:
                while got < a.records:
                    got += consumer.poll_table(10_000, max_records=1_000_000).num_rows
            got -= first
        else:
            first = got = len(consumer.poll(30_000, max_records=1))
            with Clock() as clock:
                while got < a.records:
                    for record in consumer.poll(10_000, max_records=1000):
                        size += len(record.value)
                        got += 1
            got -= first
    clock.report(got, a.size)


def rtt(a: argparse.Namespace) -> None:
    """One record in flight: send and wait for the ack. ``--mode sync`` or ``aio``."""
    value = random_values(a.size, 1)[0]
    tick = time.perf_counter
    seconds: list[float] = []
    if a.mode == "aio":

        async def go() -> None:
            async with aio.Producer(a.bootstrap, acks=a.acks, linger_ms=0) as producer:
                for _ in range(a.records + 300):
                    start = tick()
                    await (await producer.send(a.topic, value))
                    seconds.append(tick() - start)

        asyncio.run(go())
    else:
        with headrace.Producer(a.bootstrap, acks=a.acks, linger_ms=0) as producer:
            for _ in range(a.records + 300):
                start = tick()
                producer.send(a.topic, value).result(30)
                seconds.append(tick() - start)
    emit_latencies(seconds[300:])


def e2e(a: argparse.Namespace) -> None:
    """One record in flight: produce, wait for the ack, read it back."""
    value = random_values(a.size, 1)[0]
    tick = time.perf_counter
    seconds: list[float] = []

    async def go() -> None:
        async with (
            aio.Producer(a.bootstrap, acks=a.acks, linger_ms=0) as producer,
            aio.Consumer(a.topic, bootstrap_servers=a.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            for _ in range(a.records + 300):
                start = tick()
                await (await producer.send(a.topic, value))
                while not await consumer.poll(1000):
                    pass
                seconds.append(tick() - start)

    asyncio.run(go())
    emit_latencies(seconds[300:])


def main() -> None:
    """One test, one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["produce", "consume", "rtt", "e2e"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--mode", default="")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--set", action="append", default=[])
    a = parser.parse_args()
    {"produce": produce, "consume": consume, "rtt": rtt, "e2e": e2e}[a.test](a)


if __name__ == "__main__":
    main()
