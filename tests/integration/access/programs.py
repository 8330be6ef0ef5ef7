"""Programs that write and read on and on, while the cluster changes who may do what."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Self

from headrace import Consumer, Producer
from headrace.errors import HeadraceError
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

WAIT_S = 60.0
PAUSE_S = 0.2
"""Between the steps of a program, which is not alone."""


class Program:
    """A program that works until it is told to stop, and is started again where it gets other settings."""

    def __init__(self, cluster: LocalCluster, name: str, topic: str = "orders", **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self.done: list[bytes] = []
        """What was acknowledged, or read."""
        self.errors: list[HeadraceError] = []
        self.starts = 0
        self._settings = settings
        self._again = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._again.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), self.name

    def restart(self, **settings: Any) -> None:
        """Stop it in order, and start it with these; it has worked when this returns."""
        before = self.starts
        self._settings = settings
        self._again.set()
        assert wait_until(lambda: self.starts > before, WAIT_S), (self.name, self.errors)
        self.works()

    def works(self) -> None:
        """Return when it has done something from now on."""
        before = len(self.done)
        assert wait_until(lambda: len(self.done) > before, WAIT_S), (self.name, self.errors)

    def _run(self) -> None:
        while not self._over.is_set():
            self._again.clear()
            try:
                self._work(self._again.is_set, dict(self._settings))
            except HeadraceError as error:
                self.errors.append(error)
                self._over.set()

    def _work(self, stops: Callable[[], bool], settings: dict[str, Any]) -> None:
        raise NotImplementedError


class Writer(Program):
    def _work(self, stops: Callable[[], bool], settings: dict[str, Any]) -> None:
        with Producer(self.cluster.address, **settings) as producer:
            self.starts += 1
            while not stops():
                values = [f"{self.name}-{len(self.done) + each}".encode() for each in range(10)]
                sent = [producer.send(self.topic, value, key=value) for value in values]
                for value, one in zip(values, sent, strict=True):
                    one.result(WAIT_S)
                    self.done.append(value)
                time.sleep(PAUSE_S)


class Reader(Program):
    def __init__(self, cluster: LocalCluster, name: str, topic: str = "orders", **settings: Any) -> None:
        super().__init__(cluster, name, topic, **settings)
        self.read: list[tuple[int, bytes]] = []
        """With their partitions."""

    def _work(self, stops: Callable[[], bool], settings: dict[str, Any]) -> None:
        with Consumer(
            self.topic,
            bootstrap_servers=self.cluster.address,
            group_id="shop",
            auto_offset_reset="earliest",
            **settings,
        ) as consumer:
            self.starts += 1
            while not stops():
                some = [(record.partition, record.value) for record in consumer.poll(200)]
                self.read += some
                self.done += [value for _, value in some]
                consumer.commit()


def check_each_once_in_order(there: Iterable[tuple[int, bytes]], writers: Iterable[Program]) -> None:
    """
    Of all records of a topic, with their partitions in the order in which they were read: what was acknowledged is
    there, nothing is there twice, and those of a writer stand in each partition as they were sent.
    """
    read = list(there)
    values = {value for _, value in read}
    assert len(values) == len(read), "nothing twice: retries are idempotent"
    numbers = defaultdict[tuple[int, bytes], list[int]](list)
    for partition, value in read:
        name, _, number = value.rpartition(b"-")
        numbers[partition, name].append(int(number))
    for who, some in numbers.items():
        assert some == sorted(some), who
    for writer in writers:
        assert values.issuperset(writer.done), (writer.name, sorted({*writer.done} - values)[:5])
