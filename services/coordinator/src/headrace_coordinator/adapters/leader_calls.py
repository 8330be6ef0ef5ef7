"""
Asks the leader of one partition, whoever that is, until there is an answer.

An attempt ends when it is answered, when its time is over, or when the image names another leader: nobody waits for a
broker that leads no more. What it did there is unknown then; callers repeat only what may be done twice.
"""

from __future__ import annotations

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
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import first_of
from headrace_coordinator.ports import Cluster

T = TypeVar("T")

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
    return None if led is None or node is None else Leader(led.id, led.leader_epoch, node.grpc)


class LeaderCalls:
    """For one partition, by the name of its topic."""

    def __init__(self, topic: str, partition: int, cluster: Cluster, clock: Clock) -> None:
        self.where = f"{topic}-{partition}"
        self._topic = topic
        self._partition = partition
        self._cluster = cluster
        self._clock = clock

    async def ask(self, attempt: Callable[[Leader], Awaitable[T]]) -> T:
        """
        What ``attempt`` gives once it succeeds; whoever gives up cancels this.

        Raises:
            HeadraceError: one that waiting does not overcome.
        """
        tries = 0
        while True:
            leader = leader_in(self._cluster.image, self._topic, self._partition)
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
        if leader is None:
            raise LeaderNotAvailable(f"nobody leads {self.where} now")
        answers: list[T] = []

        async def asked() -> None:
            answers.append(await attempt(leader))

        await first_of(asked(), self._until_other(leader))
        if not answers:
            raise NetworkFailed(f"{self.where} has another leader now; what the last one did is unknown")
        return answers[0]

    async def _until_other(self, leader: Leader | None) -> None:
        images = cast("AsyncGenerator[ClusterImage, None]", self._cluster.images())
        async with aclosing(images):
            async for image in images:
                if leader_in(image, self._topic, self._partition) != leader:
                    return


def _passes(error: HeadraceError) -> bool:
    if isinstance(error, Rejected):
        return False  # a batch that is corrupt or out of range here would be so again
    return error.retriable or isinstance(error, UnknownOutcome | Busy | Moved | NotFound)
