"""
The produce requests of one producer that are under way: to whom, under which leader epochs, and for how long.

``_engine`` sends through it and passes what comes back to the core. A broker that is stopped or cut off breaks no
connection: it is only silent. So where a request waits for long, the cluster is asked who leads; where that is somebody
else by now, the silent broker is not waited for.

A fence that was appended by an attempt whose answer is not known is refused when it is repeated. Its leader says where
it stands, and then whether that is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace._core.batch import Batch
from headrace._core.effects import Effect
from headrace._core.producing import Answer, ProducerCore
from headrace._runtime import Tasks
from headrace._transport.port import Transport
from headrace.aio._client import NO_NODE, ClusterClient, Leader
from headrace.errors import ErrorCode, HeadraceError, Internal, NetworkFailed
from headrace.records import TopicPartition
from headrace.settings import ProducerSettings
from headrace_common.core.ids import NodeId
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2

SILENCE_MS: Final = 500
"""A request that waits longer than this makes the producer ask who leads."""

COMMIT_MS: Final = 1_000
"""How long a leader may wait before it says that what it has is not committed yet."""

NOBODY: Final = Leader(NO_NODE, -1)

Note = Callable[..., None]
"""Have a function of some arguments called by the engine's task; the effects that it returns are carried out."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One request without an answer."""

    broker: int
    batches: tuple[Batch, ...]
    epochs: tuple[int, ...]
    """The leader epoch that each batch was sent under."""
    sent_ms: float
    given_up: set[Batch] = field(default_factory=set)
    """Those that are not waited for any more: another broker leads their partition now."""

    def list_awaited(self) -> tuple[Batch, ...]:
        """Those that are waited for."""
        if not self.given_up:
            return self.batches
        return tuple(batch for batch in self.batches if batch not in self.given_up)


class Requests:
    """See the module's text. Runs on the engine's loop."""

    def __init__(
        self,
        transport: Transport,
        cluster: ClusterClient,
        core: ProducerCore,
        settings: ProducerSettings,
        clock: Clock,
        note: Note,
        tasks: Tasks,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._core = core
        self._settings = settings
        self._clock = clock
        self._note = note
        self._tasks = tasks
        self._flights: dict[_Flight, None] = {}
        """Oldest first."""

    def leader_of(self, topic: str, partition: int) -> Leader:
        """Who is believed to lead, and under which epoch."""
        return self._cluster.leader(TopicPartition(topic, partition)) or NOBODY

    def send(self, broker: int, batches: tuple[Batch, ...]) -> None:
        """One request; its outcome reaches the core by way of ``note``."""
        settings = self._settings
        fence = batches[0].fence is not None  # alone: it belongs to no transaction, and must be committed
        request = pb.ProduceRequest(
            acks=-1 if fence else settings.acks_number,
            timeout_ms=settings.request_timeout_ms,
            transactional_id=None if fence else settings.transactional_id,
        )
        epochs: list[int] = []
        for batch in batches:
            view, leader = self._cluster.find_view(batch.topic), self.leader_of(batch.topic, batch.partition)
            assert view is not None, "its leader is known"
            epochs.append(leader.epoch)
            request.partitions.add(
                topic_id=view.topic_id,
                partition=batch.partition,
                batch=batch.encoded,
                leader_epoch=leader.epoch,
                fencing_token=batch.token,
            )
        flight = _Flight(broker, batches, tuple(epochs), self._clock.monotonic_ms())
        self._flights[flight] = None
        answer = asyncio.ensure_future(self._transport.produce_stream(NodeId(broker)).send(request))
        answer.add_done_callback(lambda done: self._note(self._answered, flight, done))

    def _answered(self, flight: _Flight, done: asyncio.Future[pb.ProduceResponse | None]) -> list[Effect]:
        now_ms = self._clock.monotonic_ms()
        found = _found_fence(flight, done)
        if found is not None:
            self._tasks.start(self._prove(flight, found), "fence")
            return []
        del self._flights[flight]
        if done.cancelled():
            return self._core.lost(flight.list_awaited(), NetworkFailed("the request was cancelled"), now_ms)
        error = done.exception()
        if isinstance(error, HeadraceError):
            return self._core.lost(flight.list_awaited(), error, now_ms)
        if error is not None:
            raise error
        response = done.result()
        if response is None:  # acks=0
            answers = [Answer(0, "", -1, -1)] * len(flight.batches)
        elif len(response.partitions) != len(flight.batches):
            told = f"the broker answered {len(response.partitions)} of {len(flight.batches)} partitions"
            return self._core.lost(flight.list_awaited(), Internal(told), now_ms)
        else:
            answers = [
                Answer(p.error, p.message, p.base_offset, p.log_append_time_ms, p.fencing_token)
                for p in response.partitions
            ]
            self._learn(flight, response)
            if response.throttle_ms > 0:
                self._core.throttled(flight.broker, now_ms + response.throttle_ms)
        if flight.given_up:
            pairs = zip(flight.batches, answers, strict=True)
            answers = [answer for batch, answer in pairs if batch not in flight.given_up]
        return self._core.answered(flight.list_awaited(), answers, now_ms)

    def _learn(self, flight: _Flight, response: pb.ProduceResponse) -> None:
        """What the answer says about leaders."""
        doubting = self._cluster.doubting
        for batch, result in zip(flight.batches, response.partitions, strict=True):
            if result.error and result.HasField("leader"):
                leader = Leader(NodeId(result.leader.id), result.leader.leader_epoch)
                self._cluster.hint(TopicPartition(batch.topic, batch.partition), leader)
            elif doubting and not result.error and batch not in flight.given_up:
                self._cluster.trust(TopicPartition(batch.topic, batch.partition))

    async def _prove(self, flight: _Flight, found: pb.ProducePartitionResult) -> None:
        try:
            answer = await self._ask_whether_committed(flight, found)
        except HeadraceError as error:
            self._note(self._proved, flight, self._core.lost, error)
        else:
            self._note(self._proved, flight, self._core.answered, [answer])

    def _proved(self, flight: _Flight, tell: Callable[..., list[Effect]], what: Any) -> list[Effect]:
        del self._flights[flight]
        return [] if flight.given_up else tell(flight.batches, what, self._clock.monotonic_ms())

    async def _ask_whether_committed(self, flight: _Flight, found: pb.ProducePartitionResult) -> Answer:
        """The answer to a fence that its leader has: while that leads in one epoch, its log is never cut."""
        request = pb.ListOffsetsRequest(max_wait_ms=COMMIT_MS)
        request.partitions.add(
            topic_id=found.topic_id,
            partition=found.partition,
            timestamp_ms=-1,
            wait_above=found.base_offset,
            leader_epoch=flight.epochs[0],
        )
        [end] = (await self._transport.list_offsets(NodeId(flight.broker), request)).partitions
        if end.error:
            return Answer(end.error, end.message, -1, -1)
        if end.offset <= found.base_offset:
            said = "the fence was appended and is not committed yet"
            return Answer(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, said, -1, -1)
        return Answer(0, "", found.base_offset, -1)

    def look_at_silence(self) -> list[Effect]:
        """
        Stop waiting for brokers that are silent and lead no longer. Should one answer after all, nobody listens: the
        batch was repeated under its sequence.
        """
        effects: list[Effect] = []
        now_ms = self._clock.monotonic_ms()
        for flight in self._flights:
            if now_ms - flight.sent_ms < SILENCE_MS:
                break
            effects += self._give_up_moved(flight, now_ms)
            if len(flight.given_up) < len(flight.batches):
                self._cluster.refresh(f"broker {flight.broker} is silent", elsewhere=True)
        return effects

    def _give_up_moved(self, flight: _Flight, now_ms: float) -> list[Effect]:
        moved: list[Batch] = []
        for batch, epoch in zip(flight.batches, flight.epochs, strict=True):
            leader = self.leader_of(batch.topic, batch.partition)
            if leader.epoch > epoch and leader.broker != NO_NODE and batch not in flight.given_up:
                moved.append(batch)
        if not moved:
            return []
        flight.given_up.update(moved)
        error = NetworkFailed(f"broker {flight.broker} did not answer, and leads no longer; the outcome is unknown")
        return self._core.lost(moved, error, now_ms)


def _found_fence(flight: _Flight, done: asyncio.Future[pb.ProduceResponse | None]) -> pb.ProducePartitionResult | None:
    """What the leader says that has refused a fence because it is there."""
    token = flight.batches[0].fence
    if token is None or flight.given_up or done.cancelled() or done.exception() is not None:
        return None
    response = done.result()
    for result in [] if response is None else response.partitions:
        if result.error == errors_pb2.FENCED_WRITER and result.fencing_token == token and result.base_offset >= 0:
            return result
    return None
