"""
Decides who gets which end of a transaction when: where each partition is kept now, what goes together, when again.

Pure; ``marker_driver`` calls it and does what it says. An end is due at each of its partitions until that partition has
it, has moved on, or is gone. Repeats are harmless to those who get them, so nothing here waits for a destination that
the image does not name any more.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch
from headrace_common.core.ids import PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ClusterImage,
    NodeKey,
    Role,
    ShardKey,
    ShardKind,
)
from headrace_coordinator.ports import Destination, Marker

REQUESTS_MAX: Final = 4
"""Requests under way to one destination; what comes meanwhile goes together with the next."""
PARTITIONS_PER_REQUEST: Final = 2_000
PAUSE_MS_FIRST: Final = 20.0
PAUSE_MS_MAX: Final = 1_000.0
UNKNOWN_MS: Final = 10_000.0
"""How long a topic that was never seen may yet turn up, before it is asked whether the image is old."""
REMOVED_MAX: Final = 100_000
"""Deleted topics that are remembered; those of longer ago are found gone more slowly."""

_GROUPS_TOPIC: Final = INTERNAL_TOPICS[ShardKind.GROUPS]


class Source(Protocol):
    """Whose ends these are: a host of transactions."""

    def markers_written(self, transactional_id: str, marker: Marker, partitions: Sequence[PartitionId]) -> None:
        """These partitions need this end no more."""
        ...


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a destination these ends, in one request."""

    number: int
    to: Destination
    markers: tuple[tuple[Marker, tuple[PartitionId, ...]], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """These partitions need this end no more."""

    source: Source
    transactional_id: str
    marker: Marker
    partitions: tuple[PartitionId, ...]
    last: bool
    """None is left."""


@dataclass(frozen=True, slots=True)
class AskRevision:
    """Find out which revision the active controller's image has: topics are unknown here for long."""


Effect = Send | Done | AskRevision


@dataclass(slots=True, eq=False)
class _Ending:
    source: Source
    transactional_id: str
    marker: Marker
    left: dict[PartitionId, _Item] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Item:
    """One end at one partition; in a destination's queue, in a request, or waiting until ``due_ms``."""

    ending: _Ending
    id: PartitionId
    to: Destination | None = None
    """Where it is queued, sent, or was refused last."""
    request: int = 0
    """Number of the request that it is in; 0: none."""
    queued: bool = False
    tries: int = 0
    due_ms: float = math.inf
    unknown_since_ms: float = math.inf
    seen: bool = False
    """Its topic was in an image."""


@dataclass(slots=True)
class _Queue:
    items: deque[_Item] = field(default_factory=deque)
    under_way: int = 0


class MarkerPlan:
    """One per process. Times are monotonic ms."""

    def __init__(self) -> None:
        self._image: ClusterImage = EMPTY_IMAGE
        self._removed: dict[TopicId, None] = {}
        self._endings: dict[tuple[Source, str], _Ending] = {}
        self._queues: dict[Destination, _Queue] = {}
        self._requests: dict[int, tuple[Destination, list[list[_Item]]]] = {}
        self._numbers = 0
        self._due: list[tuple[float, int, _Item]] = []
        self._due_numbers = 0
        self._unknown: dict[_Item, None] = {}
        """Items whose topic no image had yet, in the order in which that was found."""
        self._asked_about: list[_Item] = []
        """Those that the active controller was asked about."""
        self._fresh_from: int | None = None
        """The revision that it gave: an image from there on knows their topics, if they are there."""
        self._done: dict[_Ending, list[PartitionId]] = {}

    # --- what is there ----------------------------------------------------------------------------------------

    @property
    def endings(self) -> int:
        """Transactions whose end is not everywhere yet."""
        return len(self._endings)

    def without(self, source: Source, transactional_id: str) -> tuple[PartitionId, ...]:
        """Partitions of this transaction that do not have their marker yet."""
        ending = self._endings.get((source, transactional_id))
        return () if ending is None else tuple(ending.left)

    def next_due_ms(self) -> float | None:
        """When ``woken`` has something to do."""
        while self._due and self._due[0][2].due_ms != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # --- events -----------------------------------------------------------------------------------------------

    def add(
        self, source: Source, transactional_id: str, marker: Marker, partitions: Iterable[PartitionId], now_ms: float
    ) -> None:
        """An end is due. It takes the place of an older one of the same transactional id. ``pump`` sends it."""
        self._drop(self._endings.pop((source, transactional_id), None))
        ending = self._endings[source, transactional_id] = _Ending(source, transactional_id, marker)
        for id in partitions:
            item = ending.left[id] = _Item(ending, id)
            self._place(item, now_ms)
        if not ending.left:
            self._done.setdefault(ending, [])

    def forget(self, source: Source) -> None:
        """Somebody else sees to the ends of ``source``."""
        for key in [key for key in self._endings if key[0] == source]:
            self._drop(self._endings.pop(key))

    def image_changed(self, image: ClusterImage, now_ms: float) -> None:
        """What is elsewhere now is sent there, whatever became of it where it was."""
        if image.topics is not self._image.topics:
            gone = self._image.topics.keys() - image.topics.keys()
            self._removed.update(dict.fromkeys(gone))
            for topic_id in list(self._removed)[: max(0, len(self._removed) - REMOVED_MAX)]:
                del self._removed[topic_id]
        self._image = image
        for ending in list(self._endings.values()):
            for item in list(ending.left.values()):
                to = self._destination(item.id)
                if to is None or to != item.to:
                    self._place(item, now_ms)
        self._settle_unknown()

    def revision_known(self, revision: int | None, now_ms: float) -> None:
        """The answer to ``AskRevision``; None: nobody answered."""
        if revision is not None:
            self._fresh_from = revision
            self._settle_unknown()
            return
        for item in self._asked_about:
            if item in self._unknown:
                self._wait(item, now_ms + PAUSE_MS_MAX)
        self._asked_about = []

    def _settle_unknown(self) -> None:
        if self._fresh_from is None or self._image.revision < self._fresh_from:
            return
        asked, self._asked_about, self._fresh_from = self._asked_about, [], None
        for item in asked:
            if item in self._unknown:
                self._finish(item)

    def answered(
        self, number: int, results: Sequence[Sequence[HeadraceError | None]], now_ms: float
    ) -> list[tuple[str, PartitionId, HeadraceError, int]]:
        """
        What a destination said to a request, in its shape.

        Returns:
            What went wrong, for the log: transactional id, partition, error, how often now.
        """
        to, parts = self._requests.pop(number)
        self._queues[to].under_way -= 1
        wrong = []
        for items, errors in zip(parts, results, strict=True):
            for item, error in zip(items, errors, strict=True):
                if error is not None:
                    wrong.append((item.ending.transactional_id, item.id, error, item.tries + 1))
                if error is None or isinstance(error, InvalidProducerEpoch):
                    self._finish(item)
                elif item.request == number:
                    self._again(item, now_ms)
        return wrong

    def failed(
        self, number: int, error: HeadraceError, now_ms: float
    ) -> list[tuple[str, PartitionId, HeadraceError, int]]:
        """A request was not answered; as ``answered``."""
        return self.answered(number, [[error] * len(items) for items in self._requests[number][1]], now_ms)

    def pump(self, now_ms: float) -> list[Effect]:
        """What is to be done now; call it after events, and when ``next_due_ms`` has come."""
        while self._due and self._due[0][0] <= now_ms:
            due_ms, _, item = heapq.heappop(self._due)
            if item.due_ms == due_ms:
                self._place(item, now_ms)
        effects: list[Effect] = []
        if not self._asked_about and (late := self._unknown_for_long(now_ms)):
            self._asked_about = late
            effects.append(AskRevision())
        for to in list(self._queues):
            effects += self._sends(to)
        effects += self._take_done()
        return effects

    # --- inside -----------------------------------------------------------------------------------------------

    def _destination(self, id: PartitionId) -> Destination | None:
        """Who takes markers for this partition; None: nobody now."""
        image = self._image
        topic = image.topics.get(id.topic_id)
        if topic is None:
            return None
        if topic.name == _GROUPS_TOPIC:
            shard = image.shards.get(ShardKey(ShardKind.GROUPS, id.partition))
            key = None if shard is None else NodeKey(Role.COORDINATOR, shard.owner)
        else:
            led = image.partitions.get(id)
            key = None if led is None else NodeKey(Role.BROKER, led.leader)
        node = None if key is None else image.nodes.get(key)
        return None if node is None else Destination(node.key.role, node.inside)

    def _place(self, item: _Item, now_ms: float) -> None:
        """Have it sent to where it belongs now, or wait for such a place."""
        item.request = 0
        item.queued = False
        to = self._destination(item.id)
        if to is not None:
            self._unknown.pop(item, None)
            item.seen, item.due_ms = True, math.inf
            item.to, item.queued = to, True
            self._queues.setdefault(to, _Queue()).items.append(item)
            return
        item.to = None
        topic_id = item.id.topic_id
        if topic_id in self._image.topics:
            self._unknown.pop(item, None)
            item.seen = True
            self._wait(item, math.inf)
        elif item.seen or topic_id in self._removed or topic_id in self._image.deletions:
            self._finish(item)
        elif item not in self._unknown:
            self._unknown[item] = None
            item.unknown_since_ms = now_ms
            self._wait(item, now_ms + UNKNOWN_MS)

    def _again(self, item: _Item, now_ms: float) -> None:
        item.request = 0
        item.tries += 1
        self._wait(item, now_ms + min(PAUSE_MS_MAX, PAUSE_MS_FIRST * 2.0 ** min(item.tries - 1, 30)))

    def _wait(self, item: _Item, due_ms: float) -> None:
        item.due_ms = due_ms
        if due_ms < math.inf:
            self._due_numbers += 1
            heapq.heappush(self._due, (due_ms, self._due_numbers, item))

    def _unknown_for_long(self, now_ms: float) -> list[_Item]:
        return [item for item in self._unknown if now_ms - item.unknown_since_ms >= UNKNOWN_MS]

    def _finish(self, item: _Item) -> None:
        if item.ending.left.get(item.id) is not item:
            return
        del item.ending.left[item.id]
        self._unknown.pop(item, None)
        item.queued, item.due_ms = False, math.inf
        self._done.setdefault(item.ending, []).append(item.id)

    def _take_done(self) -> Iterable[Done]:
        done, self._done = self._done, {}
        for ending, ids in done.items():
            key = (ending.source, ending.transactional_id)
            if self._endings.get(key) is not ending:
                continue  # forgotten meanwhile
            if not ending.left:
                del self._endings[key]
            yield Done(ending.source, ending.transactional_id, ending.marker, tuple(ids), not ending.left)

    def _drop(self, ending: _Ending | None) -> None:
        if ending is not None:
            for item in ending.left.values():
                item.queued, item.due_ms, item.request = False, math.inf, 0
                self._unknown.pop(item, None)
            ending.left.clear()
            self._done.pop(ending, None)

    def _sends(self, to: Destination) -> Iterable[Send]:
        queue = self._queues[to]
        while queue.items and queue.under_way < REQUESTS_MAX:
            parts: dict[_Ending, list[_Item]] = {}
            count = 0
            self._numbers += 1
            while queue.items and count < PARTITIONS_PER_REQUEST:
                item = queue.items.popleft()
                if item.queued and item.to == to:
                    item.queued, item.request = False, self._numbers
                    parts.setdefault(item.ending, []).append(item)
                    count += 1
            if not parts:
                break
            queue.under_way += 1
            self._requests[self._numbers] = to, list(parts.values())
            markers = tuple((ending.marker, tuple(i.id for i in items)) for ending, items in parts.items())
            yield Send(self._numbers, to, markers)
        if not queue.items and not queue.under_way:
            del self._queues[to]
