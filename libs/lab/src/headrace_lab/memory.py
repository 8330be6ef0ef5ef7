"""``MemoryBackend``: a cluster in this process and in real time, for quick tests of programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from headrace import aio
from headrace._runtime import LoopThread
from headrace.admin import AdminClient
from headrace.consumer import Consumer
from headrace.log_watch import LogWatch
from headrace.producer import Producer
from headrace.range_reader import RangeReader
from headrace_lab.cluster import Cluster
from headrace_lab.lab import install_lab, laboratory
from headrace_lab.live import LiveLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.setting_types import (
        AdminSettingsDict,
        ConsumerSettingsDict,
        ProducerSettingsDict,
        ReadingSettingsDict,
    )

T = TypeVar("T")

START_S_MAX: Final = 30.0


class MemoryBackend:
    """
    A broker, a controller, a coordinator and an admin service in this process, and clients on them: the real ones, over
    stores in memory. They run on a thread of their own and in real time, so unlike in ``headrace.testing.lab`` no seed
    repeats what happened. Clients are to be closed by the test.

    ::

        >>> from headrace.testing.memory import MemoryBackend
        >>> memory = MemoryBackend()
        >>> memory.create_topic("orders", partitions=1)
        >>> with memory.producer() as producer:
        ...     producer.send("orders", b"one").result(timeout=10).offset
        0
        >>> with memory.consumer("orders") as consumer:
        ...     [record.value for record in consumer.poll(timeout_ms=10_000)]
        [b'one']

    Groups and transactions are those of a real cluster::

        >>> with memory.consumer("orders", group_id="billing") as consumer:
        ...     [record.value for record in consumer.poll(timeout_ms=10_000)]
        [b'one']
        >>> with memory.consumer("orders", group_id="billing") as consumer:
        ...     consumer.committed([("orders", 0)])[("orders", 0)].offset
        1
        >>> memory.close()
    """

    def __init__(self) -> None:
        loop = LiveLoop()
        self._thread = LoopThread(loop)
        with laboratory(loop, self._thread) as lab:
            self._lab = lab
            self.cluster: Cluster = self._thread.call(self._start(), START_S_MAX)
            """Its nodes, to kill and restart them; to be used on the lab's own thread."""

    async def _start(self) -> Cluster:
        cluster = Cluster(self._lab, brokers=1, controllers=1, coordinators=1)
        await cluster.start()
        return cluster

    def close(self) -> None:
        """End the cluster and its thread; idempotent. What was not closed before cannot be reached any more."""
        if not self._thread.loop.is_closed():
            self._thread.call(self.cluster.end())
            self._thread.end(())
            self._thread.loop.close()

    def __enter__(self) -> MemoryBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """A new topic."""
        with self.admin() as admin:
            admin.create_topic(name, partitions)

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values of a partition, in order."""
        with self.consumer() as consumer:
            consumer.assign([(topic, partition)])
            return [record.value for record in consumer.read_to_end()]

    def admin(self, **settings: Unpack[AdminSettingsDict]) -> AdminClient:
        return self._make(lambda servers: AdminClient(servers, **settings))

    def producer(self, **settings: Unpack[ProducerSettingsDict]) -> Producer:
        """A producer on these topics."""
        return self._make(lambda servers: Producer(servers, **settings))

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> Consumer:
        """A consumer of these topics; it reads from the beginning unless told otherwise."""
        settings.setdefault("auto_offset_reset", "earliest")
        return self._make(lambda servers: Consumer(*topics, bootstrap_servers=servers, **settings))

    def log_watch(self, **settings: Unpack[ReadingSettingsDict]) -> LogWatch:
        """Looks at these topics."""
        return self._make(lambda servers: LogWatch(servers, **settings))

    def range_reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        """Reads ranges of them."""
        return self._make(lambda servers: RangeReader(servers, ranges, **settings))

    def aio_producer(self, **settings: Unpack[ProducerSettingsDict]) -> aio.Producer:
        """The same for asyncio, on the caller's loop."""
        return self._make(lambda servers: aio.Producer(servers, **settings))

    def aio_consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> aio.Consumer:
        """The same for asyncio, on the caller's loop."""
        settings.setdefault("auto_offset_reset", "earliest")
        return self._make(lambda servers: aio.Consumer(*topics, bootstrap_servers=servers, **settings))

    def _make(self, make: Callable[[list[str]], T]) -> T:
        with install_lab(self._lab, self._thread):
            return make(self.cluster.bootstrap_servers)
