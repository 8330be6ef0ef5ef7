"""confluent-kafka's transactions against a real Kafka, under the same loops as ``headrace_transactions``."""

from __future__ import annotations

import argparse
import time
import uuid

from confluent_kafka import Consumer, Producer

from bench.clients.clock import Clock
from bench.clients.kafka_client import TUNED_CONSUMER
from bench.clients.values import random_values

TUNED_PRODUCER = {"retry.backoff.ms": 1}
FAST_CONSUMER = {**TUNED_CONSUMER, "fetch.wait.max.ms": 5}
PATIENCE_S = 30


def _producer(a: argparse.Namespace) -> Producer:
    base = {"bootstrap.servers": a.bootstrap, "transactional.id": f"bench-{uuid.uuid4().hex[:8]}"}
    extra = {"linger.ms": 0 if a.per == 1 else 5, **(TUNED_PRODUCER if a.tuned else {})}
    producer = Producer({**base, **extra})
    producer.init_transactions(PATIENCE_S)
    return producer


def write(a: argparse.Namespace) -> None:
    """Transactions of ``per`` records."""
    values, tick, seconds = random_values(a.size), time.perf_counter, []
    producer, number = _producer(a), len(values)

    def once() -> None:
        producer.begin_transaction()
        for i in range(a.per):
            producer.produce(a.topic, values[i % number])
        producer.commit_transaction(PATIENCE_S)

    for _ in range(20):
        once()
    with Clock() as clock:
        for _ in range(a.transactions):
            began = tick()
            once()
            seconds.append(tick() - began)
    clock.report(a.transactions * a.per, a.size, seconds)


def transform(a: argparse.Namespace) -> None:
    """Read ``per`` records, write them upper-cased, commit the positions with them."""
    settings = {
        "bootstrap.servers": a.bootstrap,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**settings, **(FAST_CONSUMER if a.tuned else {})})
    producer = _producer(a)
    consumer.subscribe([a.topic])
    first = consumer.consume(1, PATIENCE_S)
    done, seconds, tick = 0, [], time.perf_counter
    with Clock() as clock:
        while done < a.records:
            began = tick()
            messages = first + consumer.consume(a.per - len(first), 0.2)
            first = []
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                _produce(producer, a.to, message.value().upper())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction(PATIENCE_S)
            done += len(messages)
            seconds.append(tick() - began)
    consumer.close()
    clock.report(done, a.size, seconds)


def _produce(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.01)


def main() -> None:
    """One test, one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["write", "transform"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to", default="")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument("--per", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--tuned", action="store_true")
    a = parser.parse_args()
    {"write": write, "transform": transform}[a.test](a)


if __name__ == "__main__":
    main()
