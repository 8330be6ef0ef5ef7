"""
The producing core: all lanes of one producer, its identity, and the order in which partitions are served.

Events come in as method calls, effects go out as return values; ``aio._engine`` carries them out. Time comes in as
monotonic milliseconds, leaders through ``LeaderOf``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from headrace._core.batch import Batch, Identity
from headrace._core.chunk import Chunk, Route
from headrace._core.effects import AskIdentity, DoubtLeader, Effect, SendBatches
from headrace._core.fencing import NO_TOKEN
from headrace._core.lane import NEVER, Lane, LaneRules
from headrace._core.partitioner import BulkPartitioner, Sticky, split
from headrace.errors import HeadraceError

LeaderOf = Callable[[str, int], tuple[int, int]]
"""(topic, partition) -> node id and leader epoch; -1: nobody is known to lead."""

ENTRIES_MAX: Final = 10_000
"""Most batches in one request."""

BUNDLE_BYTES_MAX: Final = 16 << 20
"""Batches beyond this go in another request: the largest that brokers take unless they are told otherwise."""


class Answer(NamedTuple):
    """What a broker said about one batch."""

    error: int
    message: str
    base_offset: int
    log_append_ms: int
    fencing_token: int = NO_TOKEN
    """With FENCED_WRITER: the log's."""


class BatchSizes(NamedTuple):
    """How large batches become, in bytes."""

    usual: int
    """What a partition gets of records without a key before it is another's turn."""
    most: int
    """Batches that wait grow up to here."""
    memory: int
    """Of all records that wait or are under way."""

    def for_lanes(self, busy: int) -> int:
        """Where a batch is closed while so many partitions are written: together they leave half of the memory free."""
        return max(self.usual, min(self.most, self.memory // (2 * max(1, busy))))


class ProducerCore:
    """
    Everything between a closed chunk and the outcome of its records.

    ``seed`` decides where keyless rows start, so that producers spread.
    """

    def __init__(
        self,
        rules: LaneRules,
        sizes: BatchSizes,
        *,
        request_bytes: int,
        seed: int = 0,
        bulk: BulkPartitioner | None = None,
    ) -> None:
        self._rules = rules
        self._sizes = sizes
        self._request_bytes = request_bytes
        self._seed = seed
        self._bulk = bulk
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._ready: dict[Lane, None] = {}
        """Lanes that may have something to send."""
        self._busy: dict[Lane, None] = {}
        """Lanes with batches that have no outcome."""
        self._later: list[tuple[float, int, Lane]] = []
        self._numbers = count()
        self._sticky: dict[str, Sticky] = {}
        self.identity: Identity | None = None
        self.repeats_partitions = False
        """Whether all brokers take several batches of one partition in one request."""
        self._asking = False
        self._throttled: dict[int, float] = {}
        """Brokers that have told to wait, and until when."""

    @property
    def idle(self) -> bool:
        """Every batch has its outcome."""
        return not self._busy

    # --- rows come in -----------------------------------------------------------------------------------------

    def take(self, chunk: Chunk, partitions: int, bytes_max: int) -> None:
        """
        Spread the rows of a closed chunk.

        Args:
            bytes_max: the most that the topic takes in one batch.

        Raises:
            InvalidPartitions: the application's partitioner is wrong; no row went anywhere.
        """
        sticky = self._sticky.get(chunk.topic)
        if sticky is None:
            sticky = self._sticky[chunk.topic] = Sticky(self._seed, self._sizes.usual)
        order, pieces = split(chunk, partitions, sticky, self._bulk)
        starts: list[int] = []
        batches: list[Batch] = []
        places: list[int] = []
        at = 0
        batch_bytes = self._sizes.for_lanes(len(self._busy))
        for partition, piece in pieces:
            lane = self._lane(chunk.topic, partition, bytes_max)
            for start, batch, place in lane.join(piece, chunk.opened_ms, batch_bytes):
                starts.append(at + start)
                batches.append(batch)
                places.append(place)
            at += len(piece.values)
            self._busy[lane] = self._ready[lane] = None
        chunk.route = Route(order, starts, batches, places)
        chunk.values = chunk.keys = ()
        chunk.headers, chunk.header_column, chunk.partitions, chunk.stamps = {}, None, [], []

    def fence(self, batch: Batch, bytes_max: int) -> None:
        """Behind all that was taken before. Raises: as ``Lane.fence``."""
        lane = self._lane(batch.topic, batch.partition, bytes_max)
        lane.fence(batch)
        self._busy[lane] = self._ready[lane] = None

    def _lane(self, topic: str, partition: int, bytes_max: int) -> Lane:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = Lane(
                topic, partition, self._rules, min(bytes_max, self._request_bytes)
            )
        return lane

    # --- batches go out ---------------------------------------------------------------------------------------

    def drain(self, now_ms: float, leader_of: LeaderOf) -> list[Effect]:
        """All that can be sent now, as requests; and what is needed before more can be."""
        while self._later and self._later[0][0] <= now_ms:
            lane = heapq.heappop(self._later)[2]
            lane.wakes_ms = NEVER
            self._ready[lane] = None
        effects: list[Effect] = []
        ready, self._ready = self._ready, {}
        round_: list[Lane] = list(ready)
        chosen: dict[int, list[Batch]] = {}
        while round_:
            round_ = [lane for lane in round_ if self._choose(lane, now_ms, leader_of, chosen, effects)]
            if not (round_ and self.repeats_partitions):
                for broker, batches in chosen.items():
                    effects += self._requests(broker, batches)
                chosen = {}
        return effects

    def _choose(
        self, lane: Lane, now_ms: float, leader_of: LeaderOf, chosen: dict[int, list[Batch]], effects: list[Effect]
    ) -> bool:
        """Whether the lane gave a batch, and so may have another."""
        if lane.fencing is not None and lane.fencing.closed is not None:
            effects += lane.drop_closed()
            if lane.idle:
                self._busy.pop(lane, None)
                return False
        leader = leader_of(lane.topic, lane.partition)
        if lane.pauses(now_ms, leader[1]):
            self._wait(lane, lane.not_before_ms)
            return False
        if lane.wants_identity() and not self._identify(lane, effects):
            return False
        broker = leader[0]
        if broker < 0:
            if not lane.idle:
                reason = f"nobody is known to lead {lane.topic}-{lane.partition}"
                effects.append(DoubtLeader(lane.topic, lane.partition, leader[1], reason))
                self._wait(lane, now_ms + self._rules.backoff_ms)
            return False
        if self._throttled and (until_ms := self._throttled.get(broker, now_ms)) > now_ms:
            self._wait(lane, until_ms)
            return False
        batch, more = lane.next(leader, now_ms, self.identity)
        effects += more
        if lane.idle:
            self._busy.pop(lane, None)
        if batch is None:
            return False
        if batch.fence is not None:  # it has needs of its own
            effects.append(SendBatches(broker, (batch,)))
            return False
        chosen.setdefault(broker, []).append(batch)
        return True

    def leaders_changed(self) -> None:
        """Look again at lanes that pause: their leader may be another now."""
        for _, _, lane in self._later:
            self._ready[lane] = None

    def _identify(self, lane: Lane, effects: list[Effect]) -> bool:
        """Whether the lane can go on: with the producer's identity, where that is another than its own."""
        if self.identity is not None and self.identity != lane.identity:
            lane.renew(self.identity)
            return True
        self._ready[lane] = None
        if not self._asking:
            self._asking = True
            effects.append(AskIdentity(self.identity))
        return False

    def _wait(self, lane: Lane, until_ms: float) -> None:
        if until_ms < lane.wakes_ms:
            lane.wakes_ms = until_ms
            heapq.heappush(self._later, (until_ms, next(self._numbers), lane))

    def _requests(self, broker: int, batches: list[Batch]) -> list[Effect]:
        requests: list[Effect] = []
        start, size, bytes_max = 0, 0, min(self._request_bytes, BUNDLE_BYTES_MAX)
        for at, batch in enumerate(batches):
            length = len(batch.encoded or b"")
            if at > start and (size + length > bytes_max or at - start >= ENTRIES_MAX):
                requests.append(SendBatches(broker, tuple(batches[start:at])))
                start, size = at, 0
            size += length
        requests.append(SendBatches(broker, tuple(batches[start:])))
        return requests

    def throttled(self, broker: int, until_ms: float) -> None:
        """This client is above a quota there: nothing more goes to that broker until then."""
        self._throttled[broker] = max(until_ms, self._throttled.get(broker, until_ms))

    # --- answers come in --------------------------------------------------------------------------------------

    def answered(self, batches: Sequence[Batch], answers: Sequence[Answer], now_ms: float) -> list[Effect]:
        """A request was answered, batch by batch."""
        effects: list[Effect] = []
        for batch, answer in zip(batches, answers, strict=True):
            lane = self._lanes[batch.topic, batch.partition]
            if not batch.in_flight:
                continue  # the producer was aborted meanwhile
            if answer.error:
                effects += lane.refused(batch, answer.error, answer.message, now_ms, answer.fencing_token)
            else:
                effects += lane.acked(batch, answer.base_offset, answer.log_append_ms)
            self._requeue(lane)
        return effects

    def lost(self, batches: Sequence[Batch], error: HeadraceError, now_ms: float) -> list[Effect]:
        """A request got no answer."""
        effects: list[Effect] = []
        for batch in batches:
            if batch.in_flight:
                lane = self._lanes[batch.topic, batch.partition]
                effects += lane.lost(batch, error, now_ms)
                self._requeue(lane)
        return effects

    def identified(self, identity: Identity) -> None:
        """The answer to ``AskIdentity``, or the identity of the next transaction."""
        self.identity = identity
        self._asking = False

    def _requeue(self, lane: Lane) -> None:
        if lane.idle:
            self._busy.pop(lane, None)
        else:
            self._ready[lane] = None

    def refused(self, error: HeadraceError) -> list[Effect]:
        """The cluster does not tell this client who leads, or gives it no identity: all that is not under way fails."""
        self._asking = False
        effects: list[Effect] = []
        for lane in [lane for lane in self._busy if not lane.in_flight]:
            effects += lane.abort(error)
            self._requeue(lane)
        return effects

    def asks_again(self, error: HeadraceError) -> list[Effect]:
        """The cluster has given no identity yet: what waits for one, and is given up, says why."""
        for lane in self._busy:
            if lane.wants_identity():
                lane.waits_for(error)
        return []

    def unidentified(self) -> None:
        """``AskIdentity`` was given up, as nothing needs one any more."""
        self._asking = False

    def list_unsettled(self) -> list[Batch]:
        """Every batch without an outcome."""
        return [b for lane in self._busy for b in (*lane.sent, *lane.waiting) if b.outcome is None]

    def reports(self, batch: Batch) -> list[Batch]:
        """``batch`` has its outcome: those of its partition that may be told of now, in the order of the calls."""
        return self._lanes[batch.topic, batch.partition].reports()

    def find_unreported(self, topic: str) -> list[Batch]:
        """The last of each partition of the topic that was not reported."""
        return [lane.unreported[-1] for lane in self._lanes.values() if lane.topic == topic and lane.unreported]

    # --- time and the end -------------------------------------------------------------------------------------

    def retry_ms(self) -> float:
        """When ``drain`` has something to do again by the time alone."""
        return self._later[0][0] if self._later else NEVER

    def expire(self, now_ms: float) -> list[Effect]:
        """Give up what is too old; call it now and then."""
        effects: list[Effect] = []
        for lane in list(self._busy):
            effects += lane.expire(now_ms)
            self._requeue(lane)
        return effects

    def abort(self, error: HeadraceError, *, fences: bool = True) -> list[Effect]:
        """Give up everything, but for fences where a transaction ends; answers that come later count for nothing."""
        effects: list[Effect] = []
        for lane in self._busy:
            effects += lane.abort(error, fences=fences)
        self._busy = {lane: None for lane in self._busy if not lane.idle}
        self._ready = dict(self._busy)
        for _, _, lane in self._later:
            lane.wakes_ms = NEVER
        self._later.clear()
        return effects
