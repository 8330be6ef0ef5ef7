"""A real broker (logs in memory) on a thread of its own, for clients over sockets, and what tests write into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from services.broker.tests.kit.cluster import BROKER_ID, FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.compacting import compact
from services.broker.tests.kit.dialogue import running_broker

from headrace._transport.grpc import GrpcTransport
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.batch import RecordColumns, build_batch, build_row_batch
from headrace_common.core.ids import Endpoint, Offset, PartitionId
from headrace_proto.v1 import broker_pb2 as pb

T = TypeVar("T")


class BrokerThread:
    """One broker that leads all topics; ``show`` changes which there are."""

    def __init__(self, topics: Mapping[str, int], configs: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.topics = dict(topics)
        self.configs = configs or {}
        self.cluster = FakeCluster()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._store = MemoryLogs()
        self.run(self._start())

    def run(self, coro: Coroutine[Any, Any, T], timeout: float = 30) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(timeout)

    async def _start(self) -> None:
        self.broker, server = await self._stack.enter_async_context(running_broker(self._store, self.cluster))
        self.endpoint = Endpoint("127.0.0.1", server.port)
        self.address = str(self.endpoint)
        self._show()
        await self.broker.follower.changed.wait()
        self._transport = GrpcTransport([self.address])
        await self._transport.metadata(pb.MetadataRequest())

    def _show(self) -> None:
        self.cluster.show(image_of(self.topics, configs=self.configs, endpoint=self.endpoint))

    def show(self, topics: Mapping[str, int]) -> None:
        """Other topics, or more partitions."""

        async def change() -> None:
            self.topics = dict(topics)
            self._show()
            await self.broker.follower.changed.wait()

        self.run(change())

    async def _stop(self) -> None:
        await self._transport.close()
        await self._stack.aclose()

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def append_batch(self, topic: str, partition: int, batch: bytes) -> int:
        """Write one batch; the offset of its first record."""

        async def send() -> int:
            request = pb.ProduceRequest(acks=-1, timeout_ms=10_000)
            request.partitions.add(topic_id=topic_id_of(topic), partition=partition, batch=batch)
            answer = await self._transport.produce_stream(BROKER_ID).send(request)
            [result] = answer.partitions
            assert not result.error, result
            return result.base_offset

        return self.run(send())

    def append(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Any = None,
        timestamps_ms: int | Sequence[int] = 1_700_000_000_000,
        rows: bool = False,
    ) -> int:
        columns = RecordColumns(values=list(values), keys=keys, headers=headers, timestamps_ms=timestamps_ms)
        return self.append_batch(topic, partition, (build_row_batch if rows else build_batch)(columns))

    def compact(self, topic: str, partition: int) -> None:
        """Keep the last value of each key; deletions stay for a reader that is in the middle."""
        id = PartitionId(topic_id_of(topic), partition)
        self.run(compact(self.broker, self._store, id, now_ms=1_700_000_000_000, delete_retention_ms=86_400_000))

    def trim(self, topic: str, partition: int, offset: int) -> None:
        async def delete() -> None:
            [result] = await self.broker.trim([(PartitionId(topic_id_of(topic), partition), Offset(offset))])
            assert getattr(result, "error", None) is None, result

        self.run(delete())
