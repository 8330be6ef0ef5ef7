"""Transactions of Headrace's Python SDK, under the same loops as ``kafka_transactions``."""

from __future__ import annotations

import argparse
import time
import uuid

import pyarrow as pa
import pyarrow.compute as pc

import headrace
from bench.clients.clock import Clock
from bench.clients.values import random_values


def write(a: argparse.Namespace) -> None:
    """Transactions of ``per`` records; ``--plain`` has none, and with ``--flush`` waits as often for the acks."""
    values = random_values(a.size)
    settings = {} if a.plain else {"transactional_id": f"bench-{uuid.uuid4().hex[:8]}"}
    if a.per == 1:
        settings["linger_ms"] = 0
    tick, seconds = time.perf_counter, []
    with headrace.Producer(a.bootstrap, **settings) as producer:
        send, topic, number = producer.send, a.topic, len(values)

        def once() -> None:
            if not a.plain:
                producer.begin_transaction()
            for i in range(a.per):
                send(topic, values[i % number])
            if not a.plain:
                producer.commit_transaction()
            elif a.flush:
                producer.flush()

        for _ in range(20):
            once()
        with Clock() as clock:
            for _ in range(a.transactions):
                began = tick()
                once()
                seconds.append(tick() - began)
            producer.flush()
    clock.report(a.transactions * a.per, a.size, seconds)


def transform(a: argparse.Namespace) -> None:
    """Read ``per`` records, write them upper-cased, commit the positions with them."""
    identity = f"bench-{uuid.uuid4().hex[:8]}"
    settings = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    done, seconds, tick = 0, [], time.perf_counter
    with (
        headrace.Consumer(a.topic, bootstrap_servers=a.bootstrap, group_id=identity, **settings) as consumer,
        headrace.Producer(a.bootstrap, transactional_id=identity) as producer,
    ):
        producer.begin_transaction()
        producer.abort_transaction()
        work = _tables if a.mode == "table" else _records
        first = consumer.poll(30_000, max_records=1)
        assert first, "the topic has records"
        done = 1
        with Clock() as clock:
            while done < a.records:
                began = tick()
                done += work(consumer, producer, a)
                seconds.append(tick() - began)
    clock.report(done - 1, a.size, seconds)


def _records(consumer: headrace.Consumer, producer: headrace.Producer, a: argparse.Namespace) -> int:
    got, send, to = 0, producer.send, a.to
    with producer.transaction(consumer):
        while got < a.per and (records := consumer.poll(200, max_records=a.per - got)):
            for record in records:
                send(to, record.value.upper())
            got += len(records)
    return got


def _tables(consumer: headrace.Consumer, producer: headrace.Producer, a: argparse.Namespace) -> int:
    got = 0
    with producer.transaction(consumer):
        while got < a.per:
            table = consumer.poll_table(200, max_records=a.per - got)
            if not table.num_rows:
                break
            text = pc.ascii_upper(pc.cast(table["value"], pa.string(), safe=False))  # random bytes are no UTF-8
            producer.send_table(a.to, pa.table({"value": text.cast(pa.binary())}))
            got += table.num_rows
    return got


def consume(a: argparse.Namespace) -> None:
    """From the beginning by lists of 1,000, in the given isolation level."""
    got = 0
    settings = {"isolation_level": a.mode, "auto_offset_reset": "earliest"}
    with headrace.Consumer(a.topic, bootstrap_servers=a.bootstrap, **settings) as consumer:
        first = got = len(consumer.poll(30_000, max_records=1))
        with Clock() as clock:
            while got < a.records:
                got += len(consumer.poll(10_000, max_records=1000))
    clock.report(got - first, a.size)


def main() -> None:
    """One test, one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["write", "transform", "consume"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to", default="")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument("--per", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--mode", default="")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--flush", action="store_true")
    a = parser.parse_args()
    {"write": write, "transform": transform, "consume": consume}[a.test](a)


if __name__ == "__main__":
    main()
