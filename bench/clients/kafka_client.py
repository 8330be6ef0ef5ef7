"""confluent-kafka and aiokafka against a real Kafka, under the same loops as our client."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
import uuid

from bench.clients.clock import Clock, emit_latencies
from bench.clients.values import random_values

TUNED_PRODUCER = {"linger.ms": 10, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000}
# librdkafka pauses a partition's fetches for a second once its queue is full; these lift that.
TUNED_CONSUMER = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_000_000,
    "fetch.queue.backoff.ms": 5,
}


def confluent_producer(a: argparse.Namespace, **extra: object):
    from confluent_kafka import Producer

    tune = TUNED_PRODUCER if a.tuned else {}
    return Producer({"bootstrap.servers": a.bootstrap, "acks": a.acks, "enable.idempotence": True, **tune, **extra})


def confluent_consumer(a: argparse.Namespace):
    from confluent_kafka import Consumer

    base = {"bootstrap.servers": a.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    return Consumer({**base, **(TUNED_CONSUMER if a.tuned else {})})


def acked(producer, topic: str, value: bytes) -> None:
    """Produce one record and wait for its ack."""
    done: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: done.append(error))
    while not done:
        producer.poll(1)
    if done[0] is not None:
        raise RuntimeError(str(done[0]))


def produce(a: argparse.Namespace) -> None:
    values = random_values(a.size)
    if a.lib == "aiokafka":
        asyncio.run(produce_aiokafka(a, values))
        return
    producer = confluent_producer(a)
    acked(producer, a.topic, values[0])
    loop = produce_batches if a.mode == "batch" else produce_each
    if a.warm:
        loop(producer, a, values, a.warm)
    with Clock() as clock:
        loop(producer, a, values, a.records)
    clock.report(a.records, a.size)


def produce_batches(producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    """``produce_batch`` of 1,000, all acknowledged."""
    chunk = [{"value": values[i % len(values)]} for i in range(1000)]
    sent = 0
    while sent < records:
        try:
            sent += producer.produce_batch(a.topic, chunk[: records - sent])
        except BufferError:
            producer.poll(0.01)
            continue
        producer.poll(0)
        if len(producer) > 90_000:
            producer.poll(0.005)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"


def produce_each(producer, a: argparse.Namespace, values: list[bytes], records: int) -> None:
    """``produce`` per record, with ``--mode callback`` told of each; all acknowledged."""
    counted = [0]

    def on_delivery(error: object, _message: object) -> None:
        counted[0] += error is None

    extra = {"on_delivery": on_delivery} if a.mode == "callback" else {}
    for i, value in enumerate(itertools.islice(itertools.cycle(values), records)):
        while True:
            try:
                producer.produce(a.topic, value, **extra)
                break
            except BufferError:
                producer.poll(0.01)
        if not i & 1023:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"
    assert a.mode != "callback" or counted[0] == records


async def produce_aiokafka(a: argparse.Namespace, values: list[bytes]) -> None:
    from aiokafka import AIOKafkaProducer

    tune = {"linger_ms": 10, "max_batch_size": 524_288} if a.tuned else {}
    producer = AIOKafkaProducer(bootstrap_servers=a.bootstrap, acks=a.acks, enable_idempotence=True, **tune)
    await producer.start()
    await producer.send_and_wait(a.topic, values[0])
    with Clock() as clock:
        for value in itertools.islice(itertools.cycle(values), a.records):
            await producer.send(a.topic, value)
        await producer.flush()
    await producer.stop()
    clock.report(a.records, a.size)


def consume(a: argparse.Namespace) -> None:
    """The clock runs from the first record, so that joining a group is not counted."""
    size = 0
    if a.lib == "aiokafka":
        asyncio.run(consume_aiokafka(a))
        return
    consumer = confluent_consumer(a)
    consumer.subscribe([a.topic])
    while not consumer.consume(1, 1):
        pass
    got = 1
    with Clock() as clock:
        while got < a.records:
            messages = consumer.consume(1000, 1)
            for message in messages:
                size += len(message.value())
            got += len(messages)
    consumer.close()
    clock.report(a.records, a.size)


async def consume_aiokafka(a: argparse.Namespace) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        a.topic, bootstrap_servers=a.bootstrap, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
    )
    await consumer.start()
    size = got = 0
    while not got:
        got = sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=1)).values()))
    with Clock() as clock:
        while got < a.records:
            for messages in (await consumer.getmany(timeout_ms=1000, max_records=1000)).values():
                for message in messages:
                    size += len(message.value)
                got += len(messages)
    await consumer.stop()
    clock.report(a.records, a.size)


def rtt(a: argparse.Namespace) -> None:
    value = random_values(a.size, 1)[0]
    seconds: list[float] = []
    tick = time.perf_counter
    if a.lib == "aiokafka":

        async def go() -> None:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(bootstrap_servers=a.bootstrap, acks=a.acks, enable_idempotence=True)
            await producer.start()
            for _ in range(a.records + 300):
                start = tick()
                await producer.send_and_wait(a.topic, value)
                seconds.append(tick() - start)
            await producer.stop()

        asyncio.run(go())
    else:
        producer = confluent_producer(a, **{"linger.ms": 0})
        for _ in range(a.records + 300):
            start = tick()
            acked(producer, a.topic, value)
            seconds.append(tick() - start)
    emit_latencies(seconds[300:])


def e2e(a: argparse.Namespace) -> None:
    value = random_values(a.size, 1)[0]
    seconds: list[float] = []
    tick = time.perf_counter

    async def go() -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=a.bootstrap, acks=a.acks, enable_idempotence=True)
        consumer = AIOKafkaConsumer(a.topic, bootstrap_servers=a.bootstrap, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        for _ in range(a.records + 300):
            start = tick()
            await producer.send_and_wait(a.topic, value)
            await consumer.getone()
            seconds.append(tick() - start)
        await producer.stop()
        await consumer.stop()

    asyncio.run(go())
    emit_latencies(seconds[300:])


def topic(a: argparse.Namespace) -> None:
    """Create a topic and wait until each partition has a leader and its replicas."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": a.bootstrap})
    admin.create_topics([NewTopic(a.topic, a.partitions, a.replicas)])[a.topic].result(60)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = admin.list_topics(a.topic, 10).topics[a.topic]
        if len(found.partitions) == a.partitions and all(
            p.leader >= 0 and len(p.isrs) == a.replicas for p in found.partitions.values()
        ):
            return
    raise SystemExit(f"topic {a.topic} got no leaders within 60 s")


def main() -> None:
    """One test, one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["produce", "consume", "rtt", "e2e", "topic"])
    parser.add_argument("--lib", choices=["confluent", "aiokafka"], default="confluent")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--mode", default="")
    parser.add_argument("--acks", default="all")
    parser.add_argument("--tuned", action="store_true")
    a = parser.parse_args()
    {"produce": produce, "consume": consume, "rtt": rtt, "e2e": e2e, "topic": topic}[a.test](a)


if __name__ == "__main__":
    main()
