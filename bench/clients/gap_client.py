"""
Writers whose acknowledgements are timed: ``python -m bench.clients.gap_client --lib headrace|confluent ...``.

One idempotent producer, acks=all, one record to each partition every 20 ms. It says ``ready`` when each partition has
acknowledged once, goes on until its standard input ends, then waits for the rest and prints one JSON line. ``--out`` is
a file of lines ``partition time_ns``, times of the machine's monotonic clock, which whoever started us shares.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.clients.clock import emit
from bench.clients.values import random_values

EVERY_SECONDS = 0.02
VALUE_BYTES = 100


class Acks:
    """What was acknowledged when."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []
        self.errors: list[str] = []

    def note(self, partition: int, error: object) -> None:
        """Called on the client's own thread, or in ``poll``."""
        if error is None:
            self.times.append((partition, time.monotonic_ns()))
        else:
            self.errors.append(str(error))

    def write(self, path: Path) -> None:
        """All of them, in the order they came."""
        path.write_text("".join(f"{partition} {at}\n" for partition, at in self.times))


class Headrace:
    """Our producer."""

    def __init__(self, a: argparse.Namespace, acks: Acks) -> None:
        import headrace

        self._topic, self._acks = a.topic, acks
        self._producer = headrace.Producer(a.bootstrap, acks="all", linger_ms=5, delivery_timeout_ms=120_000)

    def send(self, partition: int, value: bytes) -> None:
        delivery = self._producer.send(self._topic, value, partition=partition)
        delivery.add_done_callback(lambda done: self._acks.note(partition, done.exception()))

    def poll(self) -> None:
        """Callbacks come by themselves."""

    def end(self) -> None:
        self._producer.flush(120)
        self._producer.close()


class Confluent:
    """librdkafka's, with the same linger; its other settings are its defaults."""

    def __init__(self, a: argparse.Namespace, acks: Acks) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": a.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        self._topic, self._acks = a.topic, acks
        self._producer = Producer({**settings, "log_level": 0})

    def send(self, partition: int, value: bytes) -> None:
        def on_delivery(error: object, _message: object) -> None:
            self._acks.note(partition, error)

        self._producer.produce(self._topic, value, partition=partition, on_delivery=on_delivery)

    def poll(self) -> None:
        self._producer.poll(0)

    def end(self) -> None:
        self._producer.flush(120)


def run(a: argparse.Namespace) -> None:
    """Write until told to end."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), ended.set()), daemon=True).start()
    acks = Acks()
    make: Callable[[argparse.Namespace, Acks], Any] = Headrace if a.lib == "headrace" else Confluent
    client = make(a, acks)
    values = random_values(VALUE_BYTES)
    sent, ready, due = 0, False, time.monotonic()
    while not ended.is_set():
        for partition in range(a.partitions):
            client.send(partition, values[sent % len(values)])
            sent += 1
        client.poll()
        if not ready and len({partition for partition, _ in acks.times}) == a.partitions:
            ready = True
            print("ready", flush=True)
        due = max(due + EVERY_SECONDS, time.monotonic())
        ended.wait(max(due - time.monotonic(), 0))
    client.end()
    acks.write(Path(a.out))
    emit(sent=sent, acked=len(acks.times), errors=len(acks.errors), first_error=acks.errors[:1])


def main() -> None:
    """One producer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lib", choices=["headrace", "confluent"], required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--out", required=True)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
