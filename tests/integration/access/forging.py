"""Somebody who may read and write a topic, and writes as those whose batches it reads: each time the next of theirs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import grpc

from headrace_common.core.batch import RecordColumns, build_batch, read_header
from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub


class Forger:
    """A thread that forges until the end of the block; ``answers`` counts what it was told, by code."""

    def __init__(self, broker: str, key: str, topic: str, transactional_id: str) -> None:
        self.answers: Counter[int] = Counter()
        self._channel = open_sync_channel(broker, Security(lambda _: (("authorization", f"Bearer {key}"),)))
        self._stub = BrokerStub(self._channel)
        self._topic = self._stub.Metadata(pb.MetadataRequest(topics=[topic]), timeout=20).topics[0].topic_id
        self._id = transactional_id
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self._next = 0
        self._last: dict[int, tuple[int, int]] = {}
        """Epoch and last sequence by producer id."""
        self.failure: Exception | None = None

    def __enter__(self) -> Forger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        self._channel.close()
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asked: SimpleQueue[pb.ProduceRequest | None] = SimpleQueue()
        fetched: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
        try:
            answers, batches = self._stub.Produce(iter(asked.get, None)), self._stub.Fetch(iter(fetched.get, None))
            while not self._over.is_set():
                fetched.put(self._fetch())
                for fetch in next(batches).partitions:
                    self._note(fetch.batches)
                forged = [request for one in self._last for request in self._forge(one)]
                for request in forged:
                    asked.put(request)
                for _ in forged:
                    self.answers.update(one.error for one in next(answers).partitions)
                self.rounds += bool(forged)
        except (grpc.RpcError, HeadraceError) as error:
            self.failure = error
        finally:
            asked.put(None)
            fetched.put(None)

    def _fetch(self) -> pb.FetchRequest:
        partition = pb.FetchPartition(topic_id=self._topic, fetch_offset=self._next, max_bytes=1 << 20)
        return pb.FetchRequest(min_bytes=1, max_wait_ms=100, max_bytes=1 << 20, partitions=[partition])

    def _note(self, batches: Iterable[bytes]) -> None:
        for header in map(read_header, batches):
            self._next = header.next_offset
            if header.producer_id >= 0:
                self._last[header.producer_id] = header.producer_epoch, header.last_sequence

    def _forge(self, producer_id: int) -> Iterator[pb.ProduceRequest]:
        """Its next record, under its epoch and the one after that, outside of a transaction and in one."""
        epoch, last = self._last[producer_id]
        for forged, sequence in ((epoch, last + 1), (epoch + 1, 0)):
            for id in (None, self._id):
                batch = build_batch(
                    RecordColumns([b"forged"]),
                    producer_id=producer_id,
                    producer_epoch=forged,
                    base_sequence=sequence,
                    transactional=id is not None,
                )
                entry = pb.ProducePartition(topic_id=self._topic, batch=batch)
                yield pb.ProduceRequest(
                    correlation_id=1, acks=-1, timeout_ms=10_000, partitions=[entry], transactional_id=id
                )
