"""Programs that write and read on and on, while the cluster changes who may do what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from headrace import Consumer, Producer
from headrace.errors import HeadraceError
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

WAIT_S = 60.0


class Program:
    """A program that works until it is told to stop, and is started again where it gets other settings."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.done: list[bytes] = []
        """What was acknowledged, or read."""
        self.errors: list[HeadraceError] = []
        self.starts = 0
        self._settings: dict[str, Any] = {}
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
        with Producer(self.cluster.bootstrap_servers, **settings) as producer:
            self.starts += 1
            while not stops():
                values = [f"{self.name}-{len(self.done) + each}".encode() for each in range(10)]
                sent = [producer.send("orders", value, key=value) for value in values]
                for value, one in zip(values, sent, strict=True):
                    one.result(WAIT_S)
                    self.done.append(value)
                time.sleep(0.01)


class Reader(Program):
    def _work(self, stops: Callable[[], bool], settings: dict[str, Any]) -> None:
        with Consumer(
            "orders",
            bootstrap_servers=self.cluster.bootstrap_servers,
            group_id="shop",
            auto_offset_reset="earliest",
            **settings,
        ) as consumer:
            self.starts += 1
            while not stops():
                self.done += [record.value for record in consumer.poll(200)]
                consumer.commit()
