"""
Producers and consumers of one partition each, and what they note for the checker.

A producer repeats a batch only under its sequence, keeps the order, has one batch under way until its identity is
proven, and takes a new epoch when it gives a batch up (docs/replication.md, idempotence). A consumer's position never
goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch, NotEnoughReplicas, OutOfOrderSequence
from headrace_common.core.ids import NO_NODE, Offset, PartitionId
from headrace_verify.checker import Assign, Outcome, Poll, Send

if TYPE_CHECKING:
    from tests.simulation.brokers import Broker
    from tests.simulation.world import World

IN_FLIGHT_MAX = 4
REQUEST_TIMEOUT_MS = 500.0
DELIVERY_TIMEOUT_MS = 6_000.0
SEND_EVERY_MS = 70.0
POLL_EVERY_MS = 90.0
POLL_ROWS = 8


@dataclass(eq=False)
class Sent:
    """A batch that has a sequence."""

    values: tuple[int, ...]
    sequence: int
    batch: bytes
    since_ms: float
    attempt: int = 0
    sent_ms: float | None = None
    """When it was sent last; None: it is not under way."""
    offset: int | None = None


@dataclass(frozen=True)
class Request:
    """One attempt to send a batch."""

    producer: int
    id: PartitionId
    sent: Sent
    attempt: int
    acks: int
    leader_epoch: int | None
    batch: bytes
    first: bool
    """Everything before it in this producer epoch was acknowledged."""


class Producer:
    """One producer with one partition."""

    def __init__(self, id: int, partition: PartitionId, acks: int, world: World) -> None:
        self.id = id
        self.up = True
        self.paused = False
        self.incarnation = 0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.partition = partition
        self.acks = acks
        self.sent: list[Sent] = []
        self.done = False
        """It sends nothing new any more."""
        self.acknowledged = 0
        self._world = world
        self._epoch = 0
        self._sequence = 0
        self._proven = False
        self._retrying = False
        self._leader: tuple[int, int] = (NO_NODE, -1)
        self._pause_until_ms = 0.0

    @property
    def key(self) -> str:
        """The checker's name of the partition."""
        return str(self.partition.partition)

    def tick(self) -> None:
        """Send, give up, ask again."""
        world = self._world
        world.schedule.after(SEND_EVERY_MS * (0.5 + world.rng.random()), self.tick)
        now = world.schedule.now
        for one in self.sent:
            if one.sent_ms is not None and now - one.sent_ms > REQUEST_TIMEOUT_MS:
                one.sent_ms = None
                self._again(one)
        if self.sent and now - self.sent[0].since_ms > DELIVERY_TIMEOUT_MS and not world.calm:
            self._give_up()
        if not self.done and len(self.sent) < (IN_FLIGHT_MAX if self._proven else 1) and not self._retrying:
            self._make(now)
        self._send_due(now)

    def _make(self, now: float) -> None:
        world = self._world
        values = tuple(world.next_value() for _ in range(world.rng.randint(1, 3)))
        batch = world.batch(values, self.id, self._epoch, self._sequence)
        world.values[(self.id, self._epoch, self._sequence)] = values
        self.sent.append(Sent(values, self._sequence, batch, now))
        self._sequence += len(values)

    def _send_due(self, now: float) -> None:
        if now < self._pause_until_ms:
            return
        under_way = any(one.sent_ms is not None for one in self.sent)
        if self._retrying and under_way:
            return
        self._retrying = False
        due = [one for one in self.sent if one.sent_ms is None and one.offset is None]
        if not due:
            return
        if not under_way:
            self._leader = self._world.leader_by_hearsay(self.partition)
        leader, epoch = self._leader
        if leader == NO_NODE:
            return
        for one in due:
            one.attempt += 1
            one.sent_ms = now
            first = one is self.sent[0]
            claimed = epoch if self._world.rng.random() < 0.7 else None
            request = Request(
                self.id, self.partition, one, one.attempt, self.acks, claimed, one.batch, first and self.acks != 1
            )
            broker = self._world.brokers[leader]
            self._world.network.send(self.id, broker, broker.produce, request, channel=one.attempt)

    def _again(self, _one: Sent) -> None:
        self._retrying = True
        self._pause_until_ms = self._world.schedule.now + 40 * self._world.rng.random()

    def answered(self, request: Request, base: Offset) -> None:
        """A batch is as safe as was asked for."""
        one = request.sent
        if one.offset is not None or not any(one is s for s in self.sent):
            return
        one.offset, one.sent_ms = base, None
        self._proven = True
        while self.sent and self.sent[0].offset is not None:
            self._note(self.sent.pop(0), Outcome.OK)

    def refused(self, request: Request, error: HeadraceError) -> None:
        """It is not, as far as this attempt goes."""
        one = request.sent
        if one.offset is not None or one.attempt != request.attempt or not any(one is s for s in self.sent):
            return
        one.sent_ms = None
        lost = isinstance(error, (OutOfOrderSequence, InvalidProducerEpoch)) and self.acks == 1
        if lost and one is self.sent[0]:
            self._give_up()
        elif isinstance(error, NotEnoughReplicas) and self._world.rng.random() < 0.5:
            self._retrying = True
            self._pause_until_ms = self._world.schedule.now + 100.0
        else:
            self._again(one)

    def _give_up(self) -> None:
        """Nobody knows what became of these; after a new epoch nothing of them can come any more."""
        self._world.counts["batches given up"] += len(self.sent)
        for one in self.sent:
            self._note(one, Outcome.INFO)
        self.sent = []
        self._epoch += 1
        self._sequence = 0
        self._proven = self._retrying = False

    def _note(self, sent: Sent, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            self.acknowledged += 1
            self._world.counts["batches acknowledged"] += 1
        for place, value in enumerate(sent.values):
            if outcome is Outcome.OK and self.acks != 1:
                assert sent.offset is not None
                self._world.history.append(Send(self.id, Outcome.OK, self.key, value, sent.offset + place))
            else:  # with acks=1 it may be lost with its leader
                self._world.history.append(Send(self.id, Outcome.INFO, self.key, value))


class Consumer:
    """One consumer of one partition, reading from its leader or from any replica."""

    def __init__(self, id: int, partition: PartitionId, world: World, *, followers: bool) -> None:
        self.id = id
        self.partition = partition
        self.position = 0
        self._followers = followers
        self._world = world

    @property
    def key(self) -> str:
        """The checker's name of the partition."""
        return str(self.partition.partition)

    def tick(self) -> None:
        """Poll once."""
        world = self._world
        world.schedule.after(POLL_EVERY_MS * (0.5 + world.rng.random()), self.tick)
        leader, _ = world.leader_by_hearsay(self.partition)
        target = leader
        if self._followers:
            target = world.rng.choice(world.store.snapshot.partitions[self.partition].replicas)
        if target == NO_NODE:
            return
        broker = world.brokers[target]
        if broker.up and not broker.paused and world.network.both_ways(self.id, target):
            self.poll(broker)

    def poll(self, broker: Broker) -> None:
        """Read what is there."""
        world = self._world
        replica = broker.replicas.get(self.partition)
        if replica is None or replica.damaged or replica.core.known_epoch is None:
            return
        core = replica.core
        if self.position < core.log_start:
            if core.leading is None or world.store.snapshot.partitions[self.partition].leader != broker.id:
                return  # on a follower's word nothing is skipped
            self.position = core.log_start
            world.history.append(Assign(self.id))
        points = []
        holder = broker.disk.floor(core.log, Offset(self.position))
        start = Offset(self.position) if holder is None else holder.base_offset
        for row in broker.disk.index(core.log, start, core.high_watermark):
            if row.next_offset <= self.position or row.next_offset > core.high_watermark:
                continue
            for base, batch in world.invariants.written_in(self.partition, row):
                for place, value in enumerate(world.values[batch]):
                    if base + place >= self.position:
                        points.append((self.key, base + place, value))
            self.position = row.next_offset
            if len(points) >= POLL_ROWS:
                break
        if points:
            world.history.append(Poll(self.id, tuple(points)))
