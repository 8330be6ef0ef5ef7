"""
Writers of one partition that take over from each other, as coordinators do from shard to shard: each sets a higher
fencing token with a fence record, then writes under it, one batch at a time, and repeats what it has no answer to.

Nobody tells an old writer that it was replaced; the partition's leader has to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.broker.tests.kit.batches import NOW_MS
from tests.simulation.clients import Request, Sent

from headrace_common.core.batch import build_fence_batch
from headrace_common.core.errors import FencedWriter, HeadraceError
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_verify.checker import Outcome, Send

if TYPE_CHECKING:
    from tests.simulation.brokers import Broker
    from tests.simulation.world import World

FIRST_PRODUCER = 10_000
"""A writer's producer id is this and its token, so that the log tells under which token a batch was written."""
TICK_MS = 60.0
TIMEOUT_MS = 400.0
TAKE_OVER_MS = 1_200.0


@dataclass(frozen=True)
class Fencing(Request):
    """One attempt to append under a token, or to set it."""

    token: int | None = None
    fence: int | None = None


class Writer:
    """One of them. It serves once its fence is committed, and is lost once the partition says so."""

    def __init__(self, token: int, partition: PartitionId, world: World) -> None:
        self.id = 400 + token
        self.up = True
        self.paused = False
        self.incarnation = 0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.token = token
        self.partition = partition
        self.serves = False
        self.lost = False
        self.done = False
        """It writes nothing new any more."""
        self.under_way: Sent | None = None
        self._fencing = True
        self._held: Sent | None = None
        """What waits for a fence that has to be set again."""
        self._sequence = 0
        self._world = world

    def tick(self) -> None:
        """Write, or ask again."""
        world = self._world
        if self.lost or (self.done and self.under_way is None):
            return
        world.schedule.after(TICK_MS * (0.5 + world.writers_rng.random()), self.tick)
        now = world.schedule.now
        if self.under_way is None:
            self.under_way = self._next(now)
        one = self.under_way
        if one.sent_ms is None or now - one.sent_ms > TIMEOUT_MS:
            self._send(one, now)

    def _turn(self, *, fencing: bool) -> None:
        """From a fence to what was to be written, or back."""
        self._fencing = fencing
        if fencing:
            self._held, self.under_way = self.under_way, None
        else:
            self._held, self.under_way = None, self._held
            if self.under_way is not None:
                self.under_way.sent_ms = None

    def _next(self, now: float) -> Sent:
        if self._fencing:
            return Sent((), -1, build_fence_batch(self.token, timestamp_ms=NOW_MS), now)
        world, producer = self._world, FIRST_PRODUCER + self.token
        values = tuple(world.next_value() for _ in range(world.writers_rng.randint(1, 2)))
        batch = world.batch(values, producer, 0, self._sequence)
        world.values[(producer, 0, self._sequence)] = values
        sent = Sent(values, self._sequence, batch, now)
        self._sequence += len(values)
        return sent

    def _send(self, one: Sent, now: float) -> None:
        world = self._world
        leader, epoch = world.leader_by_hearsay(self.partition)
        if leader == NO_NODE:
            return
        one.attempt, one.sent_ms = one.attempt + 1, now
        token, fence = (None, self.token) if self._fencing else (self.token, None)
        request = Fencing(
            self.id, self.partition, one, one.attempt, -1, epoch, one.batch, False, token=token, fence=fence
        )
        broker: Broker = world.brokers[leader]
        world.network.send(self.id, broker, broker.produce, request, channel=one.attempt)

    def answered(self, request: Request, base: int) -> None:
        """It is committed."""
        one = request.sent
        if self.lost or one is not self.under_way:
            return
        self.under_way = None
        self.serves = True
        if self._fencing:
            self._turn(fencing=False)
            self._world.counts["fences"] += 1
        for place, value in enumerate(one.values):
            self._world.counts["values under a token"] += 1
            self._world.history.append(Send(self.id, Outcome.OK, str(self.partition.partition), value, base + place))

    def refused(self, request: Request, error: HeadraceError) -> None:
        """Not now, or never again."""
        one = request.sent
        if self.lost or one is not self.under_way:
            return
        if not isinstance(error, FencedWriter):
            one.sent_ms = self._world.schedule.now - TIMEOUT_MS + 50
            return
        token = self._world.token_told(error)
        if token <= self.token:
            # Equal: a fence of ours is in the log and its answer was lost; whether it is committed the next append will
            # tell. Below: whoever leads has not seen our fence, or has cut it: it is set again, then the rest.
            if self._fencing == (token == self.token):
                self._turn(fencing=token < self.token)
            return
        self.lost, self.under_way = True, None
        self._world.counts["writers fenced"] += 1
        for value in (*one.values, *(self._held.values if self._held is not None else ())):
            self._world.history.append(Send(self.id, Outcome.INFO, str(self.partition.partition), value))


class TakeOvers:
    """Makes a new writer for a partition every now and then; the one before goes on, not knowing."""

    def __init__(self, partition: PartitionId, world: World) -> None:
        self._partition = partition
        self._world = world

    def tick(self) -> None:
        """The next one, unless the end is near."""
        world = self._world
        if world.calm:
            return
        world.schedule.after(TAKE_OVER_MS * (0.2 + 1.6 * world.writers_rng.random()), self.tick)
        token = len(world.writers) + 1
        writer = world.writers[400 + token] = Writer(token, self._partition, world)
        writer.tick()
