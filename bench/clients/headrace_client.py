"""Headrace's Python SDK under the same loops as the other clients."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time

import headrace
from bench.clients.clock import Clock, emit_latencies
from bench.clients.values import random_values
from headrace import aio


def produce(a: argparse.Namespace) -> None:
    """``send`` per record, ``send_many`` of 1,000, or ``send_many`` of keyed records."""
    values = random_values(a.size)
    with headrace.Producer(a.bootstrap, acks=a.acks, **settings(a)) as producer:
        producer.send(a.topic, values[0], key=b"first" if a.mode == "keyed" else None).result(30)
        send = producer.send
        last = None
        with Clock() as clock:
            if a.mode == "keyed":
                last = keyed(producer, a)
            elif a.mode == "many":
                chunk = [values[i % len(values)] for i in range(1000)]
                for _ in range(a.records // 1000):
                    last = producer.send_many(a.topic, chunk)
            else:
                topic = a.topic
                for value in itertools.islice(itertools.cycle(values), a.records):
                    last = send(topic, value)
            producer.flush(120)
        assert last is not None
    clock.report(a.records, a.size)


def keyed(producer: headrace.Producer, a: argparse.Namespace) -> headrace.Delivery | None:
    """Updates of ``--keys`` keys in a random order, by ``send_many`` of 1,000."""
    values = random_values(a.size)
    chunk = [values[i % len(values)] for i in range(1000)]
    names = [b"%010d" % n for n in range(a.keys)]
    last = None
    for _ in range(a.records // 1000):
        last = producer.send_many(a.topic, chunk, keys=random.choices(names, k=1000))
    return last


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
    parser.add_argument("--mode", default="")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--set", action="append", default=[])
    a = parser.parse_args()
    {"produce": produce, "consume": consume, "rtt": rtt, "e2e": e2e}[a.test](a)


if __name__ == "__main__":
    main()
