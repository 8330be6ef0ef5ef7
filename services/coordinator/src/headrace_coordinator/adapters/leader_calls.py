"""
Asks the leader of one partition, whoever that is, until there is an answer.

An attempt ends when it is answered, when its time is over, or when the image names another leader: nobody waits for a
broker that leads no more. What it did there is unknown then; callers repeat only what may be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from headrace_common.core.errors import (
    Busy,
    HeadraceError,
    LeaderNotAvailable,
    Moved,
    NetworkFailed,
    NotFound,
    Rejected,
    UnknownOutcome,
)
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import ClusterImage, NodeKey, Role
from headrace_common.runtime.clock import Clock, call_later_ms, limit_ms
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import first_of
from headrace_coordinator.ports import Cluster

T = TypeVar("T")

LOOK_S: Final = 0.02
"""How often it is looked whether somebody else leads by now, while an attempt lasts."""
PAUSE_MS_FIRST: Final = 20.0
PAUSE_MS_MAX: Final = 500.0
_WARN_EVERY: Final = 20

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Leader:
    """Where a partition is led, in which epoch."""

    id: PartitionId
    epoch: int
    endpoint: Endpoint


def leader_in(image: ClusterImage, topic: str, partition: int) -> Leader | None:
    """Who leads, by this image; None: nobody that can be reached."""
    found = image.topic(topic)
    if found is None:
        return None
    led = image.partitions.get(PartitionId(found.topic_id, partition))
    node = None if led is None else image.nodes.get(NodeKey(Role.BROKER, led.leader))
    return None if led is None or node is None else Leader(led.id, led.leader_epoch, node.inside)


class LeaderCalls:
    """For one partition, by the name of its topic."""

    def __init__(self, topic: str, partition: int, cluster: Cluster, clock: Clock) -> None:
        self.where = f"{topic}-{partition}"
        self._topic = topic
        self._partition = partition
        self._cluster = cluster
        self._clock = clock
        self._image: ClusterImage | None = None
        self._found: Leader | None = None
        """As ``_image`` says."""

    async def ask(self, attempt: Callable[[Leader], Awaitable[T]]) -> T:
        """
        What ``attempt`` gives once it succeeds; whoever gives up cancels this.

        Raises:
            HeadraceError: one that waiting does not overcome.
        """
        tries = 0
        while True:
            leader = self._leader()
            try:
                return await self._attempt(attempt, leader)
            except HeadraceError as error:
                if not _passes(error):
                    raise
                tries += 1
                if tries == 1 or tries % _WARN_EVERY == 0:
                    say = log.info if tries == 1 else log.warning
                    say("asking the leader again: %s", error, extra={"partition": self.where, "tries": tries})
            pause = backoff_ms(tries, first_ms=PAUSE_MS_FIRST, ms_max=PAUSE_MS_MAX)
            await first_of(self._clock.sleep_ms(pause), self._until_other(leader))

    async def _attempt(self, attempt: Callable[[Leader], Awaitable[T]], leader: Leader | None) -> T:
        """An attempt that is answered soon costs one timer; only one that lasts is looked after."""
        if leader is None:
            raise LeaderNotAvailable(f"{self.where} has no leader now")
        try:
            async with limit_ms(None) as limit:
                watch = _Watch(limit, lambda: self._leader() != leader)
                try:
                    return await attempt(leader)
                finally:
                    watch.end()
        except TimeoutError:
            if not limit.expired():
                raise
            raise NetworkFailed(f"{self.where} has another leader now; what the last one did is unknown") from None

    def _leader(self) -> Leader | None:
        """Who leads, by the newest image."""
        image = self._cluster.image
        if image is not self._image:
            self._image = image
            self._found = leader_in(image, self._topic, self._partition)
        return self._found

    async def _until_other(self, leader: Leader | None) -> None:
        images = cast("AsyncGenerator[ClusterImage, None]", self._cluster.images())
        async with aclosing(images):
            async for image in images:
                if leader_in(image, self._topic, self._partition) != leader:
                    return


class _Watch:
    """Ends ``limit`` once ``over`` holds; looks now and then, so that what is soon done costs no more than a timer."""

    def __init__(self, limit: asyncio.Timeout, over: Callable[[], bool]) -> None:
        self._limit = limit
        self._over = over
        self._timer = call_later_ms(LOOK_S * 1_000, self._look)

    def _look(self) -> None:
        if self._over():
            self._limit.reschedule(0.0)  # at once
        else:
            self._timer = call_later_ms(LOOK_S * 1_000, self._look)

    def end(self) -> None:
        self._timer.cancel()


def _passes(error: HeadraceError) -> bool:
    if isinstance(error, Rejected):
        return False  # a batch that is corrupt or out of range here would be so again
    return error.retriable or isinstance(error, UnknownOutcome | Busy | Moved | NotFound)
