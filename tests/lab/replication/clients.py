"""Producers of one partition each, and writers that take over from each other, who speak to brokers as clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio

from headrace_common.core.batch import build_fence_batch
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.errors_pb2 import ErrorCode

if TYPE_CHECKING:
    from tests.lab.replication.world import World

NOW_MS = 1_700_000_000_000
IN_FLIGHT_MAX = 4
SEND_EVERY_S = 0.06
REQUEST_TIMEOUT_S = 0.7
DELIVERY_TIMEOUT_S = 3.0
FIRST_WRITER = 10_000
"""A writer's producer id is this and its first token; ``Ghost.holders`` has whose the others are."""


@dataclass(eq=False)
class Sent:
    """A batch that has a sequence."""

    sequence: int
    batch: bytes
    since_s: float
    values: int
    token: int | None = None
    """The fencing token that it carries."""
    attempts: int = 0
    """On how many streams it was sent."""


@dataclass(eq=False)
class Client:
    """Of one partition: keeps a stream to whoever leads it by hearsay, and repeats what it has no answer to."""

    number: int
    """Its producer id."""
    partition: PartitionId
    world: World
    acks: int = -1
    own: int | None = None
    """The fencing token under which it writes; None: none."""
    transactional_id: str | None = None
    epoch: int = 0
    sent: list[Sent] = field(default_factory=list)
    """Batches without an answer, in order."""
    acknowledged: int = 0
    done: bool = False
    """It sends nothing new any more."""
    over: bool = False
    _sequence: int = 0
    _correlation: int = 0

    async def run(self) -> None:
        """Until it is over."""
        random = self.world.random
        while not self.over:
            leader, epoch = self.world.leader_by_hearsay(self.partition)
            if leader != NO_NODE:
                await self._talk(leader, epoch if random.random() < 0.7 else None)
            await asyncio.sleep(0.02 + 0.08 * random.random())

    async def _talk(self, leader: int, epoch: int | None) -> None:
        """Over one stream, until something goes wrong on it."""
        call = BrokerStub(self.world.channels.to(str(address(f"broker-{leader}")))).Produce()
        asked: dict[int, Sent] = {}
        hearing = asyncio.create_task(self._hear(call, asked))
        begun, now = 0, asyncio.get_running_loop().time
        heard = now()
        try:
            while not hearing.done() and not self.over:
                self.give_up_late(now())
                self.make(now())
                begun = min(begun, len(self.sent))
                for one in [one for one in self.sent if one not in asked.values()]:
                    await call.write(self._request(one, epoch, asked))
                if not asked:
                    heard = now()
                elif now() - max(heard, min(one.since_s for one in asked.values())) > REQUEST_TIMEOUT_S:
                    return
                pause = SEND_EVERY_S * (0.5 + self.world.random.random())
                before = len(asked)
                await asyncio.wait([hearing], timeout=pause)
                if len(asked) < before:
                    heard = now()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return
        finally:
            hearing.cancel()
            call.cancel()

    def _request(self, one: Sent, epoch: int | None, asked: dict[int, Sent]) -> pb.ProduceRequest:
        self._correlation += 1
        one.attempts += 1
        asked[self._correlation] = one
        id = self.partition
        entry = pb.ProducePartition(topic_id=id.topic_id, partition=id.partition, batch=one.batch)
        if epoch is not None:
            entry.leader_epoch = epoch
        if one.token is not None:
            entry.fencing_token = one.token
        whose = self.transactional_id if one.sequence >= 0 else None
        return pb.ProduceRequest(
            correlation_id=self._correlation,
            acks=self.acks,
            timeout_ms=1_000,
            partitions=[entry],
            transactional_id=whose,
        )

    async def _hear(self, call: Any, asked: dict[int, Sent]) -> None:
        """Returns when the stream is of no use any more."""
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                one, result = asked.pop(response.correlation_id), response.partitions[0]
                if one not in self.sent:
                    continue
                if result.error == ErrorCode.NONE:
                    self.answered(one, result.base_offset)
                    continue
                self.refused(one, result)
                return
        except (grpc.aio.AioRpcError, grpc.aio.BaseError):
            return

    # --- what it sends ----------------------------------------------------------------------------------------

    def make(self, now_s: float) -> None:
        """Something new to send, unless enough is under way."""
        room = IN_FLIGHT_MAX if self.acknowledged else 1
        if not self.done and len(self.sent) < room:
            self.append(now_s)

    def append(self, now_s: float) -> None:
        """A batch of one to three records."""
        count = self.world.random.randint(1, 3)
        transactional = self.transactional_id is not None
        batch = self.world.batch(count, self.number, self.epoch, self._sequence, transactional=transactional)
        self.sent.append(Sent(self._sequence, batch, now_s, count, self.own))
        self._sequence += count

    def give_up_late(self, now_s: float) -> None:
        """Nobody knows what became of these; under the next epoch nothing of them can come any more."""
        if self.sent and now_s - self.sent[0].since_s > DELIVERY_TIMEOUT_S and not self.world.calm:
            self.give_up()

    def give_up(self) -> None:
        """All that has no answer."""
        self.world.counts["batches given up"] += len(self.sent)
        self.sent.clear()
        self.epoch, self._sequence, self.acknowledged = self.epoch + 1, 0, 0

    def answered(self, one: Sent, base: int) -> None:
        """A batch is as safe as was asked for."""
        self.sent.remove(one)
        self.acknowledged += 1
        if self.acks != 1:
            self.world.acknowledged(self, one, base)

    def refused(self, one: Sent, result: Any) -> None:
        """It is not; all of it is sent again elsewhere, or a little later."""
        lost = result.error in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)
        if lost and self.acks == 1 and one is self.sent[0]:
            self.give_up()
        elif result.error == ErrorCode.FENCED_WRITER:  # it has no token and the topic requires one
            self.world.counts["batches refused without a token"] += 1
            self.give_up()


@dataclass(eq=False)
class Writer(Client):
    """
    Sets a higher fencing token than the writer before it, as a coordinator does that takes a shard over, then writes
    under it. Nobody tells it that another one came: the partition's leader has to.
    """

    fencing: bool = True
    """What is under way sets its token."""
    _held: Sent | None = None
    """What waits for a fence that has to be set again."""

    def make(self, now_s: float) -> None:
        """One thing after the other."""
        if self.sent or self.done:
            return
        if self.fencing:
            self.fence(now_s)
        elif self._held is not None:
            self.sent.append(self._held)
            self._held = None
        else:
            self.append(now_s)

    def fence(self, now_s: float) -> None:
        """The record that sets its token."""
        assert self.own is not None, "a writer has one"
        self.sent.append(Sent(-1, build_fence_batch(self.own, timestamp_ms=NOW_MS), now_s, 0))

    def give_up_late(self, now_s: float) -> None:
        """It never does."""

    def answered(self, one: Sent, base: int) -> None:
        """It is committed."""
        self.sent.remove(one)
        self.fencing = False
        self.world.counts["values under a token"] += one.values
        self.world.acknowledged(self, one, base)

    def refused(self, one: Sent, result: Any) -> None:
        """Not now, or never again."""
        if result.error != ErrorCode.FENCED_WRITER:
            return
        token = self.present_token(result)
        assert self.own is not None, "a writer has one"
        if token > self.own:
            self.sent.clear()
            self.over = True
            self.world.counts["writers fenced"] += 1
        elif one.sequence < 0 and token == self.own:  # the answer to an earlier attempt was lost
            self.sent.remove(one)
            self.fencing = False
        elif one.sequence >= 0 and token < self.own:  # who leads has not seen the fence, or has cut it
            self.sent.remove(one)
            self._held, self.fencing = one, True

    @staticmethod
    def present_token(result: Any) -> int:
        """Whom the leader says to be fenced by; -1: nobody."""
        return result.fencing_token if result.HasField("fencing_token") else -1


def all_answered(clients: Iterable[Client]) -> bool:
    """Whether nobody waits for anything."""
    return all(not client.sent or client.over for client in clients)
